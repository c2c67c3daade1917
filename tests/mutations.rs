//! Planted faults, and the check that finds each of them (`docs/verification.md` has the table).
//!
//! A fault is planted where it can happen: in the tensors or the configuration that the engine gets while candle gets the
//! sound ones (a faulty kernel, question 1), in the file itself so that both get it (a faulty export, question 2), or in
//! a wrapper around the engine (faulty state and sampling).

#[path = "common/faults.rs"]
mod faults;

use faults::{Faulty, Gate, Tensors};
use rumik::config::ModelConfig;
use rumik::format::Export;
use rumik::verify::reference::ReferenceFile;

/// A fault, what it does to the tensors, and the checks that must find it in the engine and in the file.
struct Fault {
    name: &'static str,
    plant: fn(&mut Tensors),
    in_engine: &'static [&'static str],
    in_file: &'static [&'static str],
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "nibbles swapped",
        plant: |tensors| {
            tensors.each_int4(|name, tensors| tensors.edit_bytes(&format!("{name}.qweight"), |b| b.rotate_left(4)))
        },
        in_engine: &["engine.layer_error", "engine.mean_kl", "engine.top1"],
        in_file: &["weights.int4_steps", "quality.relative_kl", "quality.words_relative_kl"],
    },
    Fault {
        name: "min counted four times",
        plant: |tensors| tensors.each_int4(|name, tensors| tensors.scale_f16(&format!("{name}.min"), 4.0)),
        in_engine: &["engine.layer_error", "engine.mean_kl"],
        in_file: &["weights.int4_steps", "quality.relative_kl"],
    },
    Fault {
        name: "one flipped weight byte",
        plant: |tensors| tensors.edit_one_byte("model.layers.3.mlp.down_proj.qweight", 1234, |byte| byte ^ 0xff),
        in_engine: &[], // one weight of 7 million: known answers find it in a kernel, digest and source in a file
        in_file: &["files.report_mismatches", "weights.int4_steps"],
    },
    Fault {
        name: "groups shifted by one",
        plant: |tensors| {
            tensors.each_int4(|name, tensors| {
                tensors.rotate(&format!("{name}.scale"), 2);
                tensors.rotate(&format!("{name}.min"), 2);
            })
        },
        in_engine: &["engine.layer_error", "engine.mean_kl"],
        in_file: &["weights.int4_steps", "quality.relative_kl"],
    },
    Fault {
        name: "scales of one row taken from another matrix",
        plant: |tensors| {
            tensors.copy_row("model.layers.2.self_attn.v_proj.scale", "model.layers.2.mlp.up_proj.scale", 5)
        },
        in_engine: &[], // one row of 7,000
        in_file: &["weights.int4_steps"],
    },
    Fault {
        name: "RoPE on halves instead of pairs",
        plant: Tensors::rope_on_halves,
        in_engine: &["engine.layer_error", "engine.mean_kl"],
        in_file: &["weights.int4_steps", "quality.relative_kl"],
    },
    Fault {
        name: "stop head off",
        plant: |tensors| tensors.set_f("stop_predictor.3.bias", -100.0),
        in_engine: &["engine.stop_difference"],
        in_file: &["weights.changed", "quality.stop_decisions_changed"],
    },
    Fault {
        name: "head rows permuted",
        plant: |tensors| tensors.rotate("head.audio_weight", 2 * 256),
        in_engine: &["engine.mean_kl", "engine.top1"],
        in_file: &["weights.changed", "quality.relative_kl", "quality.relative_flips"],
    },
    Fault {
        name: "int4 head",
        plant: Tensors::int4_head,
        in_engine: &["engine.worst_kl"],
        in_file: &["weights.changed"],
    },
    Fault {
        name: "embedding scales of the next row",
        plant: |tensors| tensors.rotate("model.embed_tokens.scale", 2),
        in_engine: &["engine.layer_error"],
        in_file: &["weights.int8_steps"],
    },
];

#[test]
fn faults_in_kernels_and_files_are_found() {
    let gate = Gate::new();
    assert_eq!(gate.parity(&gate.export), "", "the sound engine fails");
    assert_eq!(gate.quality(&gate.tensors), "", "the sound export fails");
    println!("| fault | in the engine | in the file |\n| --- | --- | --- |");
    for fault in FAULTS {
        let mut tensors = gate.tensors.clone();
        (fault.plant)(&mut tensors);
        assert!(tensors != gate.tensors, "{}: nothing planted", fault.name);
        let (in_engine, in_file) = (gate.parity(&tensors.export()), gate.quality(&tensors));
        println!("| {} | {in_engine} | {in_file} |", fault.name);
        for (found, expected) in [(&in_engine, fault.in_engine), (&in_file, fault.in_file)] {
            for check in expected {
                assert!(found.split(", ").any(|name| name == *check), "{}: {check} is not in: {found}", fault.name);
            }
        }
    }
}

#[test]
fn faults_in_the_configuration_of_the_engine_are_found() {
    let gate = Gate::new();
    type Change = fn(&mut ModelConfig);
    let faults: [(&str, Change); 4] = [
        ("window one longer", |config| config.sliding_window += 1),
        ("window one shorter", |config| config.sliding_window -= 1),
        ("logit scale counted twice", |config| config.logit_scale *= config.logit_scale),
        ("RoPE base of another model", |config| config.rope_theta = 50_000.0),
    ];
    for (name, edit) in faults {
        let mut export = gate.export.clone();
        edit(&mut export.config);
        let found = gate.parity(&export);
        println!("| {name} | {found} | |");
        assert!(found.contains("engine.layer_error") || found.contains("engine.mean_kl"), "{name}: {found}");
    }
}

#[test]
fn faults_in_state_and_sampling_are_found() {
    let gate = Gate::new();
    assert_eq!(gate.behaviour(Faulty::None), "", "the sound engine fails");
    for (fault, check) in [
        (Faulty::StaleSlot, "engine.reuse_differences"),
        (Faulty::TopKOffByOne, "engine.choice_shortfall"),
        (Faulty::TemperatureIgnored, "engine.choice_shortfall"),
        (Faulty::SeedIgnored, "engine.choice_shortfall"),
        (Faulty::StopIgnored, "engine.choice_ends"),
        (Faulty::CodecNotReset, "engine.reuse_differences"),
        (Faulty::CompanyHeard, "engine.company_differences"),
    ] {
        let found = gate.behaviour(fault);
        println!("| {fault:?} | {found} | |");
        assert!(found.split(", ").any(|name| name == check), "{fault:?}: {check} is not in: {found}");
    }
}

#[test]
fn faults_that_are_heard_are_found() {
    let gate = Gate::new();
    assert_eq!(gate.audio(Faulty::None), "", "the sound engine fails");
    let mut found = Vec::new();
    for (fault, check) in [
        (Faulty::CodecNotReset, "audio.streaming_snr_db"),
        (Faulty::CodecForgets, "audio.streaming_snr_db"),
        (Faulty::FrameRepeats, "audio.loop_frames"),
        (Faulty::SamplesLost, "audio.samples_off"),
        (Faulty::Loud, "audio.median_level_db"),
        (Faulty::Clipped, "audio.median_level_db"),
    ] {
        found.push((format!("{fault:?}"), gate.audio(fault), check));
    }
    let mut endless = gate.tensors.clone();
    endless.never_ends();
    found.push(("never ends".to_owned(), gate.audio_of(&endless.export()), "audio.runaway_rise"));
    let mut permuted = gate.tensors.clone();
    permuted.rotate("head.audio_weight", 2 * 256);
    found.push(("head rows permuted".to_owned(), gate.audio_of(&permuted.export()), "audio.lost_tokens_rise"));
    let silent = Export { codec: None, ..gate.export.clone() };
    found.push(("no codec".to_owned(), gate.audio_of(&silent), "audio.prompts"));
    for (fault, found, check) in found {
        println!("| {fault} | {found} | |");
        assert!(found.split(", ").any(|name| name == check), "{fault}: {check} is not in: {found}");
    }
}

#[test]
fn a_broken_reference_is_refused_before_any_number() {
    let gate = Gate::new();
    let bytes = std::fs::read(faults::REFERENCE).unwrap();
    let open = |bytes: Vec<u8>| ReferenceFile::from_bytes("reference.safetensors", bytes.into());
    assert!(open(bytes.clone()).is_ok());
    let error = open(bytes[..bytes.len() - 1].to_vec()).unwrap_err().to_string();
    assert!(error.starts_with("reference.safetensors: "), "truncated: {error}");
    let mut flipped = bytes.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let error = open(flipped).unwrap_err().to_string();
    assert!(error.contains("damaged"), "one flipped bit: {error}");
    assert!(
        open(std::fs::read("fixtures/demo-int4/model.safetensors").unwrap())
            .unwrap_err()
            .to_string()
            .contains("format")
    );

    let mut missing = gate.reference.clone();
    let items = missing.items_of(false).unwrap_err().to_string();
    assert!(items.contains("--quick"), "a quick reference for a full run: {items}");
    missing.items.clear();
    assert!(missing.items_of(true).is_err(), "an empty set");
    let mut config = gate.export.config.clone();
    config.vocab_size -= 1;
    let error = gate.reference.check_fits(&config, None).unwrap_err().to_string();
    assert!(error.contains("vocab_size"), "a vocabulary one shorter: {error}");
}

/// The step counts of an engine that leaves positions out, and the tokenizer of another model.
#[test]
fn what_is_left_out_is_no_pass() {
    let gate = Gate::new();
    let found = gate.quality_of(Faulty::LastPositionMissing);
    assert!(found.contains("quality.missing_steps"), "{found}");
}
