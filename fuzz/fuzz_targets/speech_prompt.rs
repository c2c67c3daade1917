//! Any text as a prompt: no control id but those of the allowed tags, whatever the text spells.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rumik::config::ModelConfig;
use rumik::speech::{Speech, Style};

static CONFIG: LazyLock<ModelConfig> = LazyLock::new(|| {
    ModelConfig::parse("config.json", include_bytes!("../../fixtures/golden/tiny/config.json")).unwrap()
});
static SPEECH: LazyLock<Speech> =
    LazyLock::new(|| Speech::load(&CONFIG, include_bytes!("../../fixtures/golden/tiny/tokenizer.json")).unwrap());

fuzz_target!(|text: &str| {
    let Ok(prompt) = SPEECH.prompt(&Style::default(), text) else { return };
    let inner = &prompt.ids[2..prompt.ids.len() - 1];
    // The tags are the last ids of this tokenizer, behind `</audio>`.
    let control = |id: &u32| *id <= 10 || (CONFIG.first_unit_id..=CONFIG.audio_end_token_id).contains(id);
    assert!(!inner.iter().any(control), "{:?}", prompt.ids);
});
