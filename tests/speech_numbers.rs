//! Numbers in words against programs that share no code with ours; see `fixtures/speech/oracle/make.py`.

use std::fs;
use std::path::{Path, PathBuf};

use rumik::speech::{Lang, cardinal};

const LANGUAGES: [&str; 10] = ["hi", "en", "bn", "gu", "mr", "pa", "ta", "te", "kn", "ml"];

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

/// Compares every row of a folder; returns the number of rows and those that differ.
fn compare(folder: &Path, lang: &str) -> (usize, Vec<String>) {
    let variants = variants(lang);
    let language: Lang = lang.parse().unwrap();
    let rows = fs::read_to_string(folder.join(format!("{lang}.tsv"))).unwrap();
    let mut different = Vec::new();
    for row in rows.lines() {
        let (n, words) = row.split_once('\t').unwrap();
        let ours = respelled(&cardinal(language, n.parse().unwrap()), &variants);
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
        let language: Lang = lang.parse().unwrap();
        let words: Vec<String> = (0..100).map(|n| cardinal(language, n)).collect();
        for variant in variants(lang) {
            assert!(!words.contains(&variant.oracle), "{lang}: {} → {}", variant.ours, variant.oracle);
        }
    }
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
