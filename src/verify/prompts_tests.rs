//! The bundled sets are what they claim to be, and a broken set is refused.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::config::ModelConfig;
use crate::speech::{Accent, DEFAULT_CHUNK_SECONDS, Options, Pace, TAGS, Tone, prepare};

const VOICES: [&str; 4] = ["Ira", "Aisha", "Siya", "Zoya"];
/// Fewer would leave groups of languages with too few prompts for a rate.
const LEAST_PROMPTS: usize = 48;

fn model() -> PromptSet {
    PromptSet::bundled(Bundled::Model).unwrap()
}

fn demo() -> PromptSet {
    PromptSet::bundled(Bundled::Demo).unwrap()
}

fn count<K: Eq + std::hash::Hash>(set: &PromptSet, key: impl Fn(&Prompt) -> K) -> HashMap<K, usize> {
    let mut counts = HashMap::new();
    set.prompts.iter().for_each(|prompt| *counts.entry(key(prompt)).or_default() += 1);
    counts
}

#[test]
fn both_sets_use_every_voice_tone_pace_kind_and_sound() {
    for set in [model(), demo()] {
        assert!(set.prompts.len() >= LEAST_PROMPTS, "{}: {}", set.name, set.prompts.len());
        let styles: Vec<Style> = set.prompts.iter().map(|prompt| prompt.style().unwrap()).collect();
        for tone in Tone::ALL {
            assert!(styles.iter().any(|style| style.tone == Some(*tone)), "{}: {tone}", set.name);
        }
        for pace in Pace::ALL {
            assert!(styles.iter().any(|style| style.pace == Some(*pace)), "{}: {pace}", set.name);
        }
        for (voice, used) in count(&set, |prompt| prompt.voice.clone()) {
            assert!(VOICES.contains(&voice.as_str()) && used >= 8, "{}: {voice} {used}", set.name);
        }
        for tag in TAGS {
            assert!(set.prompts.iter().any(|p| p.kind == Kind::Sound && p.text.contains(tag)), "{}: {tag}", set.name);
        }
        let kinds = count(&set, |prompt| prompt.kind);
        for kind in [Kind::Sentence, Kind::Reply, Kind::Long, Kind::Sound] {
            assert!(kinds[&kind] >= 3, "{}: {kinds:?}", set.name);
        }
        assert!((8..=16).contains(&set.quick().count()));
    }
    let styles = model().prompts.iter().map(|prompt| prompt.style().unwrap().accent).collect::<Vec<_>>();
    assert!(Accent::ALL.iter().all(|accent| styles.contains(&Some(*accent))));
}

#[test]
fn the_model_set_speaks_eleven_groups_in_their_own_scripts() {
    let set = model();
    assert_eq!(count(&set, |prompt| prompt.group).len(), 11);
    let block = |group| match group {
        Group::Hindi => 0x0900..=0x097f,
        Group::Bengali => 0x0980..=0x09ff,
        Group::Punjabi => 0x0a00..=0x0a7f,
        Group::Gujarati => 0x0a80..=0x0aff,
        Group::Tamil => 0x0b80..=0x0bff,
        Group::Telugu => 0x0c00..=0x0c7f,
        Group::Kannada => 0x0c80..=0x0cff,
        Group::Malayalam => 0x0d00..=0x0d7f,
        _ => 0x41..=0x7a,
    };
    for prompt in set.prompts.iter().filter(|prompt| prompt.group != Group::Mixed) {
        let plain = TAGS.iter().fold(prompt.text.clone(), |text, tag| text.replace(tag, ""));
        let letters = plain.chars().filter(|c| c.is_alphabetic());
        let foreign: String = letters.filter(|c| !block(prompt.group).contains(&(*c as u32))).collect();
        assert_eq!(foreign, "", "{}", prompt.id);
    }
    for prompt in set.prompts.iter().filter(|prompt| prompt.group == Group::Mixed) {
        assert!(prompt.text.chars().any(|c| c.is_ascii_alphabetic()), "{}", prompt.id);
        assert!(prompt.text.chars().any(|c| block(Group::Hindi).contains(&(c as u32))), "{}", prompt.id);
    }
}

#[test]
fn the_demo_set_stays_in_the_vocabulary_of_its_model() {
    let known: serde_json::Value = serde_json::from_slice(include_bytes!("../../fixtures/demo/prompts.json")).unwrap();
    let known: Vec<&str> = known["prompts"].as_array().unwrap().iter().map(|p| p["text"].as_str().unwrap()).collect();
    let corpus = include_str!("../../fixtures/demo/recipe/corpus.py").to_lowercase();
    for prompt in &demo().prompts {
        let languages = [Group::English, Group::Hindi, Group::Mixed, Group::Romanised];
        assert!(languages.contains(&prompt.group), "{}", prompt.id);
        let text = TAGS.iter().fold(prompt.text.to_lowercase(), |text, tag| text.replace(tag, ""));
        for word in text.split(|c: char| c.is_whitespace() || ",.?!।".contains(c)) {
            assert!(known.contains(&prompt.text.as_str()) || corpus.contains(word), "{}: {word}", prompt.id);
        }
    }
}

#[test]
fn nothing_is_rewritten_before_a_model_reads_it_and_a_long_line_is_one_chunk() {
    for (set, chunk_seconds) in [(model(), DEFAULT_CHUNK_SECONDS), (demo(), 7.5)] {
        for prompt in &set.prompts {
            let options = Options { pace: prompt.style().unwrap().pace, chunk_seconds, ..Options::default() };
            let texts: Vec<String> =
                prepare(&prompt.text, &options).chunks.into_iter().map(|chunk| chunk.text).collect();
            assert_eq!(texts, std::slice::from_ref(&prompt.text), "{}", prompt.id);
        }
    }
}

#[test]
fn both_sets_become_prompts_and_an_unknown_voice_is_named() {
    let config = include_bytes!("../../fixtures/demo/config.json");
    let mut config = ModelConfig::parse("config.json", config).unwrap();
    let tokenizer = include_bytes!("../../fixtures/demo/tokenizer.json");
    let speech = Speech::load(&config, tokenizer).unwrap();
    for set in [model(), demo()] {
        let ids: HashSet<Vec<u32>> = set.ids(&speech).unwrap().into_iter().collect();
        assert_eq!(ids.len(), set.prompts.len());
    }
    config.speakers.retain(|voice| voice != "Siya");
    let error = demo().ids(&Speech::load(&config, tokenizer).unwrap()).unwrap_err().to_string();
    assert!(error.contains("unknown \"Siya\"; voices: Ira, Aisha, Zoya"), "{error}");
}

#[test]
fn a_set_comes_back_from_its_own_json() {
    let json = serde_json::to_vec(&serde_json::json!({ "sets": [demo()] })).unwrap();
    assert_eq!(PromptSet::parse("copy", &json, "demo").unwrap(), demo());
}

#[test]
fn a_broken_set_is_refused_with_what_is_wrong() {
    type Fault = fn(&mut PromptSet);
    let faults: [(Fault, &str); 9] = [
        (|set| set.prompts.clear(), "prompts: expected at least one, found none"),
        (|set| set.prompts[1].id = set.prompts[0].id.clone(), "\"en-01\", id: expected a name of its own"),
        (|set| set.prompts[1].seed = set.prompts[0].seed, "\"en-02\", seed: expected a seed of its own, found 1001"),
        (
            |set| {
                let Prompt { seed, id, .. } = set.prompts[1].clone();
                set.prompts[1] = Prompt { seed, id, ..set.prompts[0].clone() };
            },
            "\"en-02\", text: expected a text of its own, or another style",
        ),
        (|set| set.prompts[2].id = "a b".into(), "\"a b\", id: expected ASCII letters"),
        (|set| set.prompts[2].text = "… !".into(), "\"en-03\", text: expected a letter or digit to speak"),
        (|set| set.prompts[2].tone = Some("cheery".into()), "tone: unknown \"cheery\""),
        (|set| set.prompts[2].accent = Some("french".into()), "accent: unknown \"french\""),
        (|set| set.prompts[2].pace = Some("quick".into()), "pace: unknown \"quick\""),
    ];
    for (plant, expected) in faults {
        let mut set = model();
        plant(&mut set);
        let json = serde_json::to_vec(&serde_json::json!({ "sets": [set] })).unwrap();
        let error = PromptSet::parse("p.json", &json, "model").unwrap_err().to_string();
        assert!(error.starts_with("p.json, set model: ") && error.contains(expected), "{error}");
    }
    let twice = serde_json::to_vec(&serde_json::json!({ "sets": [demo(), demo()] })).unwrap();
    for (json, name, expected) in [
        (&b"{"[..], "demo", "p.json: content: expected prompt sets"),
        (br#"{"sets": [], "extra": 1}"#, "demo", "unknown field `extra`"),
        (br#"{"sets": []}"#, "demo", "set \"demo\": expected one set of that name, found none"),
        (&twice, "demo", "found several"),
    ] {
        let error = PromptSet::parse("p.json", json, name).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn control_strings_other_than_sounds_are_refused() {
    let config = ModelConfig::parse("config.json", include_bytes!("../../fixtures/demo/config.json")).unwrap();
    let speech = Speech::load(&config, include_bytes!("../../fixtures/demo/tokenizer.json")).unwrap();
    let prompt = Prompt { text: "Hello <audio> there.".into(), ..demo().prompts[0].clone() };
    let error = prompt.ids(&speech).unwrap_err().to_string();
    assert_eq!(error, "text: control strings: <audio>");
}
