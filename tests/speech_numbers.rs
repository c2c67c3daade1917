//! Numbers in words against programs that share no code with ours; see `fixtures/speech/oracle/make.py`.

use std::fs;
use std::path::{Path, PathBuf};

use rumik::speech::{Lang, cardinal};

/// Files of the folder; `-rules` are those of another interpreter with our rules.
const LANGUAGES: [&str; 13] =
    ["hi", "en", "hi-Latn", "bn", "gu", "mr", "pa", "ta", "te", "kn", "ml", "kn-rules", "ml-rules"];

fn language(name: &str) -> Lang {
    name.trim_end_matches("-rules").parse().unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/speech/oracle")
}

/// A spelling of ours, the oracle's, and where in a number it holds.
struct Variant {
    ours: String,
    oracle: String,
    place: String,
}

fn variants(lang: &str) -> Vec<Variant> {
    let source = fs::read_to_string(folder().join("variants.tsv")).unwrap();
    let rows = source.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter(|row| row[0] == lang)
        .map(|row| Variant { ours: row[1].into(), oracle: row[2].into(), place: row[3].into() })
        .collect()
}

/// Our words in the oracle's spelling.
fn respelled(words: &str, variants: &[Variant]) -> String {
    let joiners = |text: &str| text.replace(['\u{200c}', '\u{200d}'], "");
    let mut text = format!(" {} ", joiners(words));
    for variant in variants {
        let (ours, oracle) = (format!(" {} ", joiners(&variant.ours)), format!(" {} ", joiners(&variant.oracle)));
        let end = text.ends_with(&ours);
        text = match variant.place.as_str() {
            "end" if end => format!("{}{oracle}", &text[..text.len() - ours.len()]),
            "inside" if end => format!("{}{ours}", text[..text.len() - ours.len()].replace(&ours, &oracle)),
            "any" | "inside" => text.replace(&ours, &oracle),
            _ => text,
        };
    }
    text.trim().to_owned()
}

/// Malayalam without spaces, in the one spelling that `make.py` brings its oracle to: words joined with a glide, and the ends
/// of words before a scale without their half vowel.
fn malayalam(words: &str) -> String {
    const VOWELS: [(&str, &str); 11] = [
        ("അ", ""),
        ("ആ", "ാ"),
        ("ഇ", "ി"),
        ("ഈ", "ീ"),
        ("ഉ", "ു"),
        ("ഊ", "ൂ"),
        ("എ", "െ"),
        ("ഏ", "േ"),
        ("ഐ", "ൈ"),
        ("ഒ", "ൊ"),
        ("ഓ", "ോ"),
    ];
    let joined: String = words.chars().filter(|c| !c.is_whitespace()).collect();
    let (first, rest) = joined.split_at(joined.chars().next().map_or(0, char::len_utf8));
    let glided = VOWELS.iter().fold(rest.to_owned(), |text, (vowel, sign)| text.replace(vowel, &format!("യ{sign}")));
    let spelled = format!("{first}{glided}").replace("ന്നൂ", "നൂ").replace("ൽപ്പ", "ല്പ");
    spelled.replace("്കോടി", "കോടി").replace("്ലക്ഷ", "ലക്ഷ").trim_end_matches('്').to_owned()
}

/// Compares every row of a folder; returns the number of rows and those that differ.
fn compare(folder: &Path, lang: &str) -> (usize, Vec<String>) {
    let variants = variants(lang);
    let language = language(lang);
    let rows = fs::read_to_string(folder.join(format!("{lang}.tsv"))).unwrap();
    let mut different = Vec::new();
    for row in rows.lines() {
        let (n, words) = row.split_once('\t').unwrap();
        let mut ours = respelled(&cardinal(language, n.parse().unwrap()), &variants);
        if lang == "ml" {
            ours = malayalam(&ours);
        }
        if ours != words.replace(['\u{200c}', '\u{200d}'], "") {
            different.push(format!("{lang} {n}: {ours} | {words}"));
        }
    }
    (rows.lines().count(), different)
}

#[test]
fn numbers_agree_with_independent_programs() {
    for lang in LANGUAGES {
        let (rows, different) = compare(&folder(), lang);
        assert!(rows >= 400, "{lang}: {rows} rows");
        assert_eq!(different, Vec::<String>::new());
    }
}

/// Every variant is one: no word of ours is another number in the oracle's spelling.
#[test]
fn variants_do_not_confuse_numbers() {
    for lang in LANGUAGES {
        let words: Vec<String> = (0..100).map(|n| cardinal(language(lang), n)).collect();
        for variant in variants(lang) {
            assert!(!words.contains(&variant.oracle), "{lang}: {} → {}", variant.ours, variant.oracle);
        }
    }
}

/// Nor does Malayalam without its spaces confuse two numbers.
#[test]
fn malayalam_stays_unambiguous_without_spaces() {
    let spelled: std::collections::HashSet<String> =
        (0..10_000).map(|n| malayalam(&cardinal(Lang::Malayalam, n))).collect();
    assert_eq!(spelled.len(), 10_000);
}

#[test]
#[ignore = "needs the 100,000 rows a language of fixtures/speech/oracle/make.py, in the folder RUMIK_ORACLE"]
fn a_hundred_thousand_numbers_agree() {
    let folder = PathBuf::from(std::env::var("RUMIK_ORACLE").unwrap());
    for lang in LANGUAGES {
        let (rows, different) = compare(&folder, lang);
        println!("{lang}: {rows} rows, {} differ {:?}", different.len(), different.iter().take(5).collect::<Vec<_>>());
        assert!(rows >= 100_000 && different.is_empty());
    }
}
