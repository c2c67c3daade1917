//! The cases of `fixtures/speech/*.tsv`: what is written, and how it is to be said.

use std::fs;
use std::path::Path;

use rumik::speech::{Options, prepare};

/// Reads one text into one line.
fn read(text: &str, language: &str) -> String {
    let options = Options { fallback: language.parse().unwrap(), ..Options::default() };
    prepare(text, &options).chunks.into_iter().map(|chunk| chunk.text).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_case_is_read_as_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/speech");
    let (mut cases, mut wrong) = (0, Vec::new());
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "tsv") {
            continue;
        }
        for line in fs::read_to_string(&path).unwrap().lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [input, language, expected, rule, source] = fields[..] else { panic!("{}: {line}", path.display()) };
            assert!(!rule.is_empty() && !source.is_empty(), "{line}");
            let spoken = read(input, language);
            cases += 1;
            if !expected.split(" | ").any(|expected| expected == spoken) {
                wrong.push(format!("{} ({rule}): {input}: expected {expected}, read {spoken}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(cases >= 500, "{cases} cases");
}

/// D8 of the cases: dirt between the letters changes nothing of what is said.
#[test]
fn invisible_characters_change_nothing() {
    let clean = read("नमस्ते\nदुनिया 1,250", "hi");
    for dirt in ["\u{0}", "\u{feff}", "\u{200b}"] {
        assert_eq!(read(&format!("{dirt}नम{dirt}स्ते\r\nदुनिया 1,2{dirt}50{dirt}"), "hi"), clean);
    }
    assert_eq!(read("स्\u{200d}थान", "hi"), "स्थान");
}

/// Only cleaning and the user's own words are left when reading is switched off.
#[test]
fn reading_can_be_switched_off() {
    let lexicon = rumik::speech::Lexicon::parse("test", "UPI → यू पी आई").unwrap();
    let options = Options { normalize: false, lexicon, ..Options::default() };
    let chunks = prepare("UPI से ₹500 दो 😀", &options).chunks;
    assert_eq!(chunks[0].text, "यू पी आई से ₹500 दो");
    assert_eq!(
        chunks[0].rewrites.iter().map(|rewrite| rewrite.rule).collect::<Vec<_>>(),
        ["lexicon", "emoji", "space"]
    );
}

#[test]
fn the_lexicon_comes_first_and_its_words_are_not_read_again() {
    let lexicon = rumik::speech::Lexicon::parse("test", "4582 → forty-five 82\nDr. → Daktar").unwrap();
    let options = Options { lexicon, ..Options::default() };
    assert_eq!(prepare("Dr. Rao has 4582 of 12", &options).chunks[0].text, "Daktar Rao has forty-five 82 of twelve");
}

#[test]
fn a_language_can_be_forced_and_short_forms_asked_for() {
    let forced = Options { language: Some("en".parse().unwrap()), ..Options::default() };
    assert_eq!(
        prepare("Aapka bill 1,250 hai", &forced).chunks[0].text,
        "Aapka bill one thousand two hundred fifty hai"
    );
    let short = Options { short_forms: true, ..Options::default() };
    for (text, spoken) in
        [("₹1.5 करोड़", "डेढ़ करोड़ रुपये"), ("9:15 बजे", "सवा नौ बजे"), ("2.5 किलो", "ढाई किलो"), ("3.75 लाख", "पौने चार लाख")]
    {
        assert_eq!(prepare(text, &short).chunks[0].text, spoken);
    }
}

#[test]
fn the_report_shows_every_rewrite_with_its_rule() {
    let prepared = prepare("**कुल** 12,34,567 <audio>", &Options::default());
    let report = prepared.to_string();
    assert!(report.starts_with("chunk 1 of 1, about "), "{report}");
    assert!(report.contains("cardinal        12,34,567  →  बारह लाख चौंतीस हज़ार पाँच सौ सड़सठ"), "{report}");
    assert!(report.contains("control string  <audio>  →  (nothing)"), "{report}");
    assert_eq!(prepared.dropped(), ["<audio>"]);
    let json = serde_json::to_value(&prepared).unwrap();
    assert_eq!(json["chunks"][0]["rewrites"][2]["rule"], "cardinal");
    assert_eq!(json["chunks"][0]["text"], "कुल बारह लाख चौंतीस हज़ार पाँच सौ सड़सठ");
    assert!(json["chunks"][0]["seconds"].as_f64().unwrap() > 1.0);
}
