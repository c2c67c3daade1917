//! D5 and D7 of the cases, and the laws of chunking.

use super::*;
use crate::speech::{Options, prepare};

fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| is_speakable(word)).count()
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// 6,000 characters of Hindi: stops of every kind, abbreviations, decimals, a sentence of 900 characters, short replies.
fn long_text() -> String {
    let mut text = String::new();
    let sentences = [
        "डॉ. शर्मा ने कहा कि भाव 3.5 प्रतिशत बढ़ गया है और रु. 1,250 का बिल आया।",
        "क्या आप कल सुबह आएँगे?",
        "हाँ।",
        "बारिश के बाद हवा ठंडी हो गई, बच्चे बाहर खेलने निकले, और सब खुश थे!",
        "ठीक है।",
        "यह दुकान सन् 1947 में खुली थी; तब से अब तक वही नाम है।",
    ];
    while text.chars().count() < 4800 {
        text.push_str(&sentences.join(" "));
        text.push(' ');
    }
    let unbroken = "और फिर हम चलते रहे ".repeat(50);
    text.push_str(&unbroken.chars().take(900).collect::<String>());
    text.push_str("। नहीं। जी। अच्छा <laugh> ठीक।");
    while text.chars().count() < 6000 {
        text.push_str(" चलो घर चलते हैं।");
    }
    text
}

#[test]
fn long_text_is_cut_well() {
    let text = long_text();
    assert!(text.chars().count() >= 6000);
    for normalize in [true, false] {
        let options = Options { normalize, ..Options::default() };
        let chunks = prepare(&text, &options).chunks;
        let whole = prepare(&text, &Options { normalize, chunk_seconds: 30.0, ..Options::default() }).chunks;
        let joined = |chunks: &[crate::speech::Chunk]| {
            squeezed(&chunks.iter().map(|c| c.text.as_str()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(joined(&chunks), joined(&whole));
        if !normalize {
            assert_eq!(joined(&chunks), squeezed(&text));
        }
        assert!(chunks.len() >= 10);
        for chunk in &chunks {
            assert!(chunk.seconds <= 25.0, "{} s: {}", chunk.seconds, chunk.text);
            assert!(words(&chunk.text) >= 3, "{}", chunk.text);
            let first = chunk.text.chars().next().unwrap();
            assert!(!is_mark(first), "{}", chunk.text);
            assert!(chunk.text.matches('<').count() == chunk.text.matches('>').count());
        }
        let ends = chunks.iter().filter(|chunk| chunk.text.ends_with(['।', '?', '!'])).count();
        assert!(ends + 4 >= chunks.len(), "{ends} of {} end at a sentence", chunks.len());
    }
}

/// D5 of the cases: what must stay whole is found as often in the chunks as in the text, read out or not.
#[test]
fn numbers_abbreviations_and_tags_stay_whole() {
    let text = long_text();
    let pieces = [
        ("डॉ. शर्मा", None),
        ("3.5", Some("तीन दशमलव पाँच")),
        ("रु. 1,250", Some("एक हज़ार दो सौ पचास")),
        ("1947", Some("उन्नीस सौ सैंतालीस")),
        ("<laugh>", Some("<laugh>")),
    ];
    for (normalize, chunk_seconds) in [(true, 25.0), (true, 8.0), (false, 25.0), (false, 8.0)] {
        let chunks = prepare(&text, &Options { normalize, chunk_seconds, ..Options::default() }).chunks;
        for (written, read) in pieces {
            let Some(piece) = (if normalize { read } else { Some(written) }) else { continue };
            let kept: usize = chunks.iter().map(|chunk| chunk.text.matches(piece).count()).sum();
            assert_eq!(kept, text.matches(written).count(), "{piece} at {chunk_seconds} s");
        }
    }
}

#[test]
fn a_row_of_tags_is_cut_between_them_and_within_the_cap() {
    let text = "<laugh>".repeat(40) + " हाँ";
    let chunks = prepare(&text, &Options { chunk_seconds: 3.0, ..Options::default() }).chunks;
    assert!(chunks.len() > 5);
    for chunk in &chunks {
        assert!(chunk.seconds <= 3.0, "{}", chunk.seconds);
        assert_eq!(chunk.text.matches("<laugh>").count(), chunk.text.matches('<').count());
    }
}

#[test]
fn numbers_are_never_cut() {
    let number = "एक करोड़ तेईस लाख पैंतालीस हज़ार छह सौ अठहत्तर";
    for seconds in [4.0, 5.0, 6.0, 8.0, 9.0] {
        let options = Options { chunk_seconds: 2.0 * seconds, ..Options::default() };
        let text = "कुल 1,23,45,678 वोट पड़े और फिर 1,23,45,678 वोट पड़े और ".repeat(12);
        let chunks = prepare(&text, &options).chunks;
        assert_eq!(chunks.iter().map(|chunk| chunk.text.matches(number).count()).sum::<usize>(), 24);
        let raw =
            prepare("call 98765 43210 or 98765 43210 ".repeat(20).as_str(), &Options { normalize: false, ..options })
                .chunks;
        assert_eq!(raw.iter().map(|chunk| chunk.text.matches("98765 43210").count()).sum::<usize>(), 40);
    }
}

/// Half of one- and two-word replies come out garbled as chunks of their own (complaint 18): they join a neighbour.
#[test]
fn short_replies_join_a_neighbour_and_a_lone_one_stays() {
    assert_eq!(prepare("हाँ।", &Options::default()).chunks.len(), 1);
    let options = Options { chunk_seconds: 6.0, ..Options::default() };
    let text = "हाँ। जी। आज मौसम बहुत अच्छा है और हम बाज़ार जा रहे हैं। नहीं। ठीक है। कल हम सब लोग फिर मिलेंगे और बात करेंगे। जी हाँ।";
    let chunks = prepare(text, &options).chunks;
    assert!(chunks.len() >= 2);
    for chunk in &chunks {
        assert!(words(&chunk.text) >= 3, "{}", chunk.text);
    }
}

#[test]
fn a_word_without_end_is_cut_between_graphemes() {
    let chunks = prepare(&"क्षि".repeat(2000), &Options::default()).chunks;
    assert!(chunks.len() > 10);
    for chunk in &chunks {
        assert!(chunk.seconds <= 25.0);
        assert!(chunk.text.starts_with("क्षि") && chunk.text.ends_with("क्षि"), "{}", chunk.text);
    }
}

/// D7 of the cases.
#[test]
fn nothing_to_say_gives_no_chunk() {
    for text in ["", "   \t\n", "।।…!?", "😀😀", "<audio>", "**", "&nbsp;"] {
        assert_eq!(prepare(text, &Options::default()).chunks, [], "{text:?}");
        let error = prepare(text, &Options::default()).speakable().unwrap_err().to_string();
        assert!(error.starts_with("input: nothing to say"), "{error}");
    }
    assert_eq!(prepare("नमस्ते 😀", &Options::default()).speakable().unwrap()[0].text, "नमस्ते");
}

/// A third of a million dropped marks inside one number: each was once measured by the length of the whole reading.
#[test]
fn marks_inside_a_long_number_cost_no_more_than_others() {
    let marks = 350_000;
    let prepared = prepare(&"0*_".repeat(marks), &Options::default());
    let words: usize = prepared.chunks.iter().map(|chunk| words(&chunk.text)).sum();
    assert_eq!(words, marks);
    let rewrites: usize = prepared.chunks.iter().map(|chunk| chunk.rewrites.len()).sum();
    assert!(rewrites >= marks, "{rewrites}");
}
