//! What holds for every text: no panic, no digit left, chunks within the cap that join to the whole, no control ids.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use rumik::config::ModelConfig;
use rumik::speech::{Lang, Options, Prepared, Speech, Style, TAGS, prepare};

static SPEECH: LazyLock<Speech> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden/tiny");
    let config = ModelConfig::parse("config.json", &fs::read(folder.join("config.json")).unwrap()).unwrap();
    Speech::load(&config, &fs::read(folder.join("tokenizer.json")).unwrap()).unwrap()
});

/// Every added token of the fixture, every unit among them, and strings of the same shapes that it does not have.
static CONTROLS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden/tiny/tokenizer.json");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let added = json["added_tokens"].as_array().unwrap().iter();
    let mut controls: Vec<String> = added.map(|token| token["content"].as_str().unwrap().to_owned()).collect();
    assert!(controls.len() >= 500);
    let strange =
        ["<|im_end|>", "<|x|>", "<s>", "</s>", "<99999_9>", "<description=\"x\">", "<description=", "<au", "dio>"];
    // The strings of the frame and the tags stand among hundreds of units: often enough only if repeated.
    for _ in 0..20 {
        controls.extend(strange.map(str::to_owned));
        controls.extend(["<audio>", "</audio>", "<text>", "<laugh>", "<PAD>", "<BOS_TOKEN>"].map(str::to_owned));
    }
    controls
});

/// Pieces that mean something to some rule, so that random rows of them meet its edges.
const PIECES: [&str; 72] = [
    "1",
    "12",
    "1947",
    "2024",
    "9876543210",
    "4582",
    "0",
    "007",
    "12,34,567",
    "1,250",
    ".5",
    "50",
    "५",
    "१२",
    "৭",
    "-",
    "–",
    "/",
    ":",
    ".",
    ",",
    "।",
    "?",
    "!",
    " ",
    "  ",
    "\n",
    "₹",
    "$",
    "Rs.",
    "रु.",
    "/-",
    "%",
    "°C",
    "kg",
    "km/h",
    "AM",
    "बजे",
    "में",
    "से",
    "वीं",
    "th",
    "st",
    "करोड़",
    "लाख",
    "रुपये",
    "OTP",
    "पिन",
    "+91",
    "+",
    "=",
    "#",
    "@",
    "www.",
    "gmail.com",
    "x.pdf",
    "डॉ.",
    "Dr.",
    "IV",
    "Chapter",
    "अगस्त",
    "Aug",
    "<laugh>",
    "<audio>",
    "<12_3>",
    "😀",
    "\u{200d}",
    "\u{93c}",
    "½",
    "**",
    "hai",
    "the",
];

fn text() -> impl Strategy<Value = String> {
    let rows = prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40).prop_map(|pieces| pieces.concat());
    let spaced =
        prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40).prop_map(|pieces| pieces.join(" "));
    prop_oneof![rows, spaced, any::<String>()]
}

fn language() -> impl Strategy<Value = Option<Lang>> {
    prop::option::of(prop::sample::select(Lang::ALL.to_vec()))
}

fn joined(prepared: &Prepared) -> String {
    prepared.chunks.iter().flat_map(|chunk| chunk.text.split_whitespace()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_text_is_read_without_digits_and_cut_without_loss(text in text(), language in language(), short_forms: bool) {
        let options = Options { language, short_forms, ..Options::default() };
        let whole = prepare(&text, &options);
        prop_assert!(!whole.chunks.iter().any(|chunk| chunk.text.chars().any(|c| c.is_ascii_digit() || ('०'..='९').contains(&c))), "{whole}");
        prop_assert!(whole.chunks.iter().all(|chunk| chunk.seconds <= 25.1 && !chunk.text.is_empty()));
        let short = prepare(&text, &Options { chunk_seconds: 3.0, ..options.clone() });
        prop_assert_eq!(joined(&whole), joined(&short));
        prop_assert!(short.chunks.iter().all(|chunk| chunk.seconds <= 3.1), "{short}");
        prop_assert_eq!(prepare(&text, &options), whole);
    }

    /// Words short enough that three of them always fit.
    #[test]
    fn no_chunk_has_fewer_than_three_words(
        words in prop::collection::vec(prop::sample::select(vec!["हाँ।", "जी", "कमल,", "ठीक", "the", "ok.", "no?", "राम"]), 3..120),
    ) {
        for chunk in prepare(&words.join(" "), &Options { chunk_seconds: 6.0, ..Options::default() }).chunks {
            prop_assert!(chunk.text.split_whitespace().count() >= 3, "{}", chunk.text);
        }
    }

    #[test]
    fn every_text_without_reading_keeps_its_letters(text in text()) {
        let options = Options { normalize: false, markup: false, ..Options::default() };
        let whole = prepare(&text, &options);
        let short = prepare(&text, &Options { chunk_seconds: 3.0, ..options });
        prop_assert_eq!(joined(&whole), joined(&short));
    }

    /// Whatever control string stands wherever in a text, its ids are plain ones and those of the tags that are left in it; and
    /// what was dropped is named once.
    #[test]
    fn no_text_becomes_a_control_token(
        text in text(),
        inserted in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12),
        normalize: bool,
        markup: bool,
    ) {
        let text = insert(text, &inserted);
        let prepared = prepare(&text, &Options { normalize, markup, ..Options::default() });
        let dropped = prepared.dropped();
        prop_assert!(dropped.iter().enumerate().all(|(i, name)| !dropped[..i].contains(name)), "{dropped:?}");
        for chunk in &prepared.chunks {
            let tags: usize = TAGS.iter().map(|tag| chunk.text.matches(tag).count()).sum();
            if let Ok(prompt) = SPEECH.prompt(&Style::default(), &chunk.text) {
                prop_assert_eq!(control_ids(&prompt.ids), tags, "{}", chunk.text);
                let late = &prompt.dropped;
                prop_assert!(late.iter().enumerate().all(|(i, name)| !late[..i].contains(name)), "{late:?}");
            }
        }
    }

    /// The same without any cleaning before the tokenizer.
    #[test]
    fn no_raw_text_becomes_a_control_token(
        text in text(),
        inserted in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12),
    ) {
        let text = insert(text, &inserted);
        if let Ok(prompt) = SPEECH.prompt(&Style::default(), &text) {
            let left: usize = TAGS.iter().map(|tag| text.matches(tag).count()).sum();
            prop_assert!(control_ids(&prompt.ids) <= left, "{text}");
        }
    }
}

/// Puts control strings into a text, each at a character boundary.
fn insert(mut text: String, places: &[(prop::sample::Index, prop::sample::Index)]) -> String {
    for (place, which) in places {
        let at = place.index(text.chars().count() + 1);
        let at = text.char_indices().nth(at).map_or(text.len(), |(at, _)| at);
        text.insert_str(at, &CONTROLS[which.index(CONTROLS.len())]);
    }
    text
}

/// Number of tags among the ids between the frame of a prompt; no other control id may be there.
fn control_ids(ids: &[u32]) -> usize {
    // Ids of the fixture: 0 to 10 special, 600 to 1114 units and frame, 1115 to 1117 tags.
    let inner = &ids[2..ids.len() - 1];
    assert!(inner.iter().all(|id| (11..600).contains(id) || (1115..=1117).contains(id)), "{ids:?}");
    inner.iter().filter(|id| **id >= 1115).count()
}
