//! Numbers by hand; `tests/speech_numbers.rs` has the independent oracle.

use super::*;

#[test]
fn every_language_reads_every_size() {
    for lang in Lang::ALL {
        for n in (0..=100_000).step_by(7).chain([10u128.pow(17), 10u128.pow(19) - 1, 123_456_789_012_345_678]) {
            let words = cardinal(lang, n);
            assert!(!words.is_empty() && !words.contains("  ") && words.trim() == words, "{lang} {n}: {words:?}");
            assert!(!words.chars().any(|c| c.is_ascii_digit() || "{}[]|".contains(c)), "{lang} {n}: {words:?}");
        }
    }
}

#[test]
fn hindi_and_english_count_in_lakhs_and_crores() {
    let cases = [
        (Lang::Hindi, 1_234_567, "बारह लाख चौंतीस हज़ार पाँच सौ सड़सठ"),
        (Lang::Hindi, 32_450_000, "तीन करोड़ चौबीस लाख पचास हज़ार"),
        (Lang::Hindi, 100_000_000_000_000_000, "एक शंख"),
        (Lang::English, 1_234_567, "twelve lakh thirty-four thousand five hundred sixty-seven"),
        (Lang::English, 1_000_000_000_000, "one lakh crore"),
        (Lang::RomanHindi, 1_250, "ek hazaar do sau pachaas"),
        (Lang::Tamil, 1_021, "ஆயிரத்து இருபத்து ஒன்று"),
        (Lang::Telugu, 2_000, "రెండు వేలు"),
        (Lang::Kannada, 121, "ನೂರ ಇಪ್ಪತ್ತೊಂದು"),
        (Lang::Malayalam, 34_021, "മുപ്പത്തിനാലായിരത്തി ഇരുപത്തിയൊന്ന്"),
        (Lang::Marathi, 100, "शंभर"),
        (Lang::Bengali, 555, "পাঁচশো পঞ্চান্ন"),
    ];
    for (lang, n, expected) in cases {
        let expected: String = expected.nfc().collect();
        assert_eq!(cardinal(lang, n), expected);
    }
}

#[test]
fn long_and_zero_led_digits_are_read_one_by_one() {
    assert_eq!(integer(Lang::English, "007"), "zero zero seven");
    assert_eq!(integer(Lang::Hindi, "0"), "शून्य");
    assert_eq!(integer(Lang::English, &"1".repeat(20)).split(' ').count(), 20);
    assert!(integer(Lang::English, &"9".repeat(19)).contains("crore"));
}
