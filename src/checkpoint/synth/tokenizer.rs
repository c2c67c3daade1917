//! A byte-level tokenizer: 256 byte tokens, filler up to the first unit id, then the unit and control tokens.

use serde_json::{Map, Value, json};

use crate::config::ModelConfig;

const SPECIAL: [&str; 11] = [
    "<PAD>",
    "<EOS_TOKEN>",
    "<BOS_TOKEN>",
    "<UNK>",
    "<CLS>",
    "<SEP>",
    "<MASK_TOKEN>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
];
const SOUNDS: [&str; 3] = ["<laugh>", "<chuckle>", "<sigh>"];

/// `tokenizer.json`. Its post-processor adds BOS.
pub(super) fn tokenizer(config: &ModelConfig) -> Value {
    let bytes = byte_characters().into_iter().map(String::from);
    let known = SPECIAL.into_iter().map(String::from).chain(bytes);
    let filler = (SPECIAL.len() + 256..config.first_unit_id as usize).map(|id| format!("<|filler_{id}|>"));
    let vocab: Map<String, Value> = known.chain(filler).zip(0u32..).map(|(t, id)| (t, id.into())).collect();
    let bos = json!({"SpecialToken": {"id": "<BOS_TOKEN>", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let second = json!({"Sequence": {"id": "B", "type_id": 1}});
    let level = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens(config),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, level(false),
        ]},
        "post_processor": {
            "type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text, second],
            "special_tokens": {"<BOS_TOKEN>": {"id": "<BOS_TOKEN>", "ids": [2], "tokens": ["<BOS_TOKEN>"]}},
        },
        "decoder": level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    })
}

/// `tokenizer_config.json`.
pub(super) fn tokenizer_config(config: &ModelConfig) -> Value {
    json!({
        "add_bos_token": true, "add_eos_token": false, "add_prefix_space": false, "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>", "pad_token": "<PAD>", "unk_token": "<UNK>",
        "clean_up_tokenization_spaces": false, "model_max_length": config.max_position_embeddings,
        "tokenizer_class": "CohereTokenizer",
    })
}

fn added_tokens(config: &ModelConfig) -> Vec<Value> {
    let token = |id: u32, content: &str, special: bool| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": special,
        })
    };
    let quantizers = config.num_quantizers as u32;
    let special = SPECIAL.iter().zip(0..).map(|(content, id)| token(id, content, true));
    let units = (0..config.unit_count() as u32).map(|unit| {
        token(config.first_unit_id + unit, &format!("<{}_{}>", unit / quantizers, unit % quantizers), false)
    });
    let controls = [
        token(config.text_start_token_id, "<text>", true),
        token(config.audio_start_token_id, "<audio>", true),
        token(config.audio_end_token_id, "</audio>", true),
    ];
    let sounds = SOUNDS.iter().zip(config.audio_end_token_id + 1..).map(|(content, id)| token(id, content, false));
    special.chain(units).chain(controls).chain(sounds).collect()
}

/// The character that stands for each byte in byte-level BPE: printable Latin-1 for itself, the others from U+0100 on.
fn byte_characters() -> Vec<char> {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let mut stand_in = || {
        next += 1;
        char::from_u32(next - 1).unwrap_or('?')
    };
    (0..=255).map(|byte| if printable(byte) { char::from(byte) } else { stand_in() }).collect()
}
