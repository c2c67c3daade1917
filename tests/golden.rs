//! `rumik-verify golden` passes on what transformers computed and fails, by name, on every mistake it is there to catch.
//!
//! Mistakes are made in the files of a copy, so that nothing in the program has to know of them: a wrong field of
//! `config.json` is a program that uses that value, permuted weights are a program that reads them in another order.

#[path = "golden/folder.rs"]
mod folder;

use std::path::Path;
use std::process::{Command, Output};

use folder::Folder;
use rumik::verify::golden::compare;
use serde_json::{Value, json};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/golden/tiny");
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/demo");

/// Runs the program on a folder.
fn rumik_verify(folder: &Path, options: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_rumik-verify");
    Command::new(program).arg("golden").arg(folder).args(options).output().unwrap()
}

/// Asserts that the comparison `name` fails in a copy of the golden after `mistake`, and that it passes without.
#[track_caller]
fn caught_by(names: &[&str], mistake: impl FnOnce(&Folder)) {
    let folder = Folder::short_tiny();
    mistake(&folder);
    let report = compare(folder.path()).unwrap();
    let failed: Vec<&str> = report.verdict.failures().map(|comparison| comparison.name.as_str()).collect();
    assert!(!report.passed);
    for name in names {
        assert!(failed.contains(name), "{name} is not among the failed: {failed:?}");
    }
}

#[test]
fn the_tiny_golden_passes() {
    let report = compare(Path::new(TINY)).unwrap();
    assert!(report.passed, "{}", report.verdict);
    let compared: Vec<&str> = report.verdict.comparisons.iter().map(|c| c.name.split('.').next().unwrap()).collect();
    for part in [
        "tokenizer",
        "frames",
        "quantizer",
        "reference",
        "reference_bf16",
        "codec",
        "export",
        "engine_int8_head",
        "engine_bf16_head",
    ] {
        assert!(compared.contains(&part), "{part} was not compared");
    }
    let left: Vec<_> = report.not_compared.iter().filter(|name| !name.starts_with("mimi.stage.")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_demo_golden_passes_with_fewer_keys() {
    let report = compare(Path::new(DEMO)).unwrap();
    assert!(report.passed, "{}", report.verdict);
    assert!(report.not_compared.is_empty(), "{:?}", report.not_compared);
}

#[test]
fn the_copy_that_mistakes_are_made_in_passes() {
    let report = compare(Folder::short_tiny().path()).unwrap();
    assert!(report.passed, "{}", report.verdict);
}

#[test]
fn rope_in_the_half_split_layout_is_caught() {
    // With the rows of each head reordered, rotating neighbours is what rotating halves is in the right order.
    caught_by(&["reference.logits", "reference.layers", "engine_int8_head.logits_relative"], |folder| {
        for name in ["q_proj", "k_proj"] {
            folder.permute_rows(&format!("self_attn.{name}.weight"), 64, |row| row / 2 + row % 2 * 32);
        }
    });
}

#[test]
fn rope_with_another_base_is_caught() {
    caught_by(&["reference.logits", "engine_int8_head.logits_relative"], |folder| {
        folder.set("config.json", "rope_theta", json!(20000.0));
    });
}

#[test]
fn a_window_one_off_is_caught() {
    for window in [15, 17] {
        caught_by(&["reference.logits", "engine_int8_head.logits_relative"], |folder| {
            folder.set("config.json", "sliding_window", json!(window));
        });
    }
}

#[test]
fn another_layer_pattern_is_caught() {
    // Position encoding and window on the full layer, and neither on a sliding one.
    for full in [None, Some(2)] {
        caught_by(&["reference.logits", "reference.layers", "engine_int8_head.logits_relative"], |folder| {
            let kind = |layer| if Some(layer) == full { "full_attention" } else { "sliding_attention" };
            folder.set("config.json", "layer_types", (0..4).map(kind).collect());
        });
    }
}

#[test]
fn another_sharing_of_key_value_heads_is_caught() {
    // Query heads 1 and 2 change places: head h then reads key/value head h modulo 2.
    caught_by(&["reference.logits", "engine_int8_head.logits_relative"], |folder| {
        folder.permute_rows("self_attn.q_proj.weight", 256, |row| [0, 2, 1, 3][row / 64] * 64 + row % 64);
        folder.permute_columns("self_attn.o_proj.weight", |column| [0, 2, 1, 3][column / 64] * 64 + column % 64);
    });
}

#[test]
fn mistakes_in_norms_and_mlp_are_caught() {
    caught_by(&["reference.hidden"], |folder| folder.set("config.json", "layer_norm_eps", json!(1e-2)));
    caught_by(&["reference.layers"], |folder| folder.fill("layernorm.weight", 1.0));
    caught_by(&["reference.layers"], |folder| folder.swap_names("mlp.gate_proj", "mlp.up_proj"));
}

#[test]
fn another_logit_scale_is_caught() {
    caught_by(&["reference.logits", "reference.top_k_probs", "engine_bf16_head.logits_relative"], |folder| {
        folder.set("config.json", "logit_scale", json!(0.125));
    });
}

#[test]
fn another_stop_rule_is_caught() {
    caught_by(&["rule"], |folder| folder.edit("golden.json", |facts| facts["rule"]["min_new_tokens"] = json!(7)));
    caught_by(&["rule"], |folder| folder.edit("golden.json", |facts| facts["rule"]["stop_threshold"] = json!(0.6)));
    // A program that consults the stop head or allows `</audio>` before step 8 ends prompt 7 at step 5.
    caught_by(&["reference.greedy_ids"], |folder| folder.cut_speech("gen", 5));
    caught_by(&["engine_int8_head.greedy_ids"], |folder| folder.cut_speech("gen_int4", 5));
    // One that never consults it runs on, one that always obeys it ends at step 8; the stop head's last bias decides.
    caught_by(&["reference.stop_prob", "reference.greedy_ids", "reference.greedy_end"], |folder| {
        folder.fill("stop_predictor.3.bias", -50.0);
    });
    let engines = ["engine_int8_head.greedy_ids", "engine_bf16_head.greedy_ids"];
    caught_by(&[&["reference.greedy_ids"], &engines[..]].concat(), |folder| folder.fill("stop_predictor.3.bias", 50.0));
    caught_by(&["reference.stop_prob"], |folder| folder.fill("stop_predictor.0.weight", 0.5));
}

#[test]
fn other_token_arithmetic_is_caught() {
    caught_by(&["frames.codes"], |folder| {
        folder.set("config.json", "first_unit_id", json!(592));
        folder.set("config.json", "last_unit_id", json!(1103));
    });
    caught_by(&["frames.codes"], |folder| {
        // The rule with which a wrong quantizer is skipped and the frame goes on.
        let skipped = |case: &&mut Value| case["name"] == "repeated quantizer 5";
        folder.edit("golden.json", |facts| {
            let case = facts["frame_cases"].as_array_mut().unwrap().iter_mut().find(skipped).unwrap();
            case["frames"].as_array_mut().unwrap().push(json!([31, 21, 10, 43, 14, 30, 26, 26]));
        });
    });
}

#[test]
fn another_nibble_order_is_caught() {
    caught_by(&["quantizer.int4_codes"], |folder| {
        folder.map_bytes("golden.safetensors", "int4.packed", |byte| byte.rotate_left(4));
    });
    // An engine that reads the high nibble first multiplies as if neighbouring columns had changed places.
    caught_by(&["engine_int8_head.logits_relative", "engine_bf16_head.logits_relative", "export.logits"], |folder| {
        folder.permute_columns("mlp.down_proj.weight", |column| column ^ 1);
    });
}

#[test]
fn other_quantization_is_caught() {
    let nudge = |byte: u8| byte ^ 1; // the last bit of a code, or of every half of an f16
    for (tensor, comparison) in [
        ("int4.scale", "quantizer.int4_scale"),
        ("int4.min", "quantizer.int4_min"),
        ("int8.codes", "quantizer.int8_codes"),
        ("int8.scale", "quantizer.int8_scale"),
        ("int4_synthetic.dequantized", "quantizer.int4_dequantized"),
    ] {
        caught_by(&[comparison], |folder| folder.map_bytes("golden.safetensors", tensor, nudge));
    }
    caught_by(&["quantizer.relative_error"], |folder| {
        folder
            .edit("golden.json", |facts| facts["int4"]["relative_error"]["model.embed_tokens.weight"] = json!(0.0069));
    });
}

#[test]
fn mistakes_in_the_codec_are_caught() {
    let codec = "codec/config.json";
    caught_by(&["codec.snr_db"], |folder| folder.set(codec, "sliding_window", json!(20)));
    caught_by(&["codec.snr_db"], |folder| folder.set(codec, "rope_theta", json!(5000.0)));
    caught_by(&["codec.snr_db"], |folder| folder.set(codec, "norm_eps", json!(1e-2)));
    caught_by(&["codec.snr_db"], Folder::decode_without_state);
}

#[test]
fn mistakes_in_text_and_sampling_are_caught() {
    caught_by(&["tokenizer.ids"], |folder| {
        folder.edit("tokenizer.json", |saved| drop(saved["model"]["merges"].as_array_mut().unwrap().drain(..40)));
    });
    caught_by(&["reference.top_k_probs"], |folder| {
        folder.edit("golden.json", |facts| facts["sampling"]["temperature"] = json!(0.9));
    });
}

#[test]
fn what_is_not_a_number_fails() {
    caught_by(&["reference.logits"], |folder| folder.poison("prompt.6.logits"));
    caught_by(&["codec.snr_db"], |folder| folder.poison("mimi.wave"));
}

#[test]
fn the_program_says_what_it_compared_and_exits_by_the_verdict() {
    let folder = Folder::short_tiny();
    let passed = rumik_verify(folder.path(), &[]);
    assert_eq!(passed.status.code(), Some(0));
    let table = String::from_utf8(passed.stdout).unwrap();
    assert!(
        table.contains("reference.logits") && table.trim_end().lines().last().unwrap().starts_with("pass: "),
        "{table}"
    );

    folder.set("config.json", "sliding_window", json!(17));
    let failed = rumik_verify(folder.path(), &["--json"]);
    assert_eq!(failed.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!(report["passed"], json!(false));
    let logits = report["comparisons"].as_array().unwrap().iter().find(|c| c["name"] == "reference.logits").unwrap();
    assert_eq!((&logits["passed"], &logits["limit"]["at_most"]), (&json!(false), &json!(1e-3)));
}

/// Asserts exit 2, nothing on stdout and one line on stderr with each of `words`.
#[track_caller]
fn refused_with(words: &[&str], damage: impl FnOnce(&Folder)) {
    let folder = Folder::short_tiny();
    damage(&folder);
    let refused = rumik_verify(folder.path(), &[]);
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), refused.stdout.len(), message.lines().count()), (Some(2), 0, 1), "{message}");
    for word in words {
        assert!(message.contains(word), "{word} is not in: {message}");
    }
}

#[test]
fn nothing_to_compare_is_not_a_pass() {
    refused_with(&["results to compare with"], |folder| {
        folder.write("golden.json", b"{\"prompts\": [{}]}");
        folder.keep_tensors("golden.safetensors", |name| name.starts_with("prompt.") && name.ends_with(".ids"));
    });
}

#[test]
fn broken_folders_are_refused_in_one_line() {
    refused_with(&["golden.json", "open"], |folder| folder.remove("golden.json"));
    refused_with(&["golden.json", "content"], |folder| folder.write("golden.json", b"{\"prompts\": 3}"));
    refused_with(&["golden.json", "none of them"], |folder| folder.write("golden.json", b"{}"));
    refused_with(&["golden.json", "no object"], |folder| folder.write("golden.json", b"[]"));
    refused_with(&["golden.safetensors", "bytes"], |folder| folder.cut("golden.safetensors", 1));
    refused_with(&["config.json", "last_unit_id"], |folder| folder.set("config.json", "last_unit_id", json!(1110)));
    refused_with(&["prompt.6.logits", "[107, 1122]"], |folder| folder.reshape("prompt.6.logits", &[1122, 107]));
    refused_with(&["tokens", "5000"], |folder| folder.set_ids("prompt.7.ids", &[2, 5000]));
    refused_with(&["codec/model.safetensors", "expected the file"], |folder| folder.remove("codec/model.safetensors"));
    refused_with(&["model-00002-of-00002.safetensors"], |folder| folder.cut("model-00002-of-00002.safetensors", 1));
}
