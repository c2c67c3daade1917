//! Broken checkpoints (cases D14 and D15): each is refused in one line that says where, what, expected and found.

mod common;

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use common::{PROGRAM, Said, TINY, copy_of_tiny, export, names, rewrite_tiny};
use rumik::checkpoint::{Checkpoint, Folder, Outline, SourceFiles};
use rumik::format::{Export, Head, Report};
use rumik::tensors::Dtype;

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";
const DOWN: &str = "model.layers.2.mlp.down_proj.weight";
/// Address space a refusal may take, in KiB: header lengths are numbers in a file and must not become memory.
const MEMORY_KIB: u32 = 200 * 1024;

/// Exports a broken copy of the tiny checkpoint within the memory limit; nothing may appear.
#[track_caller]
fn refuses(break_it: impl FnOnce(&Path), parts: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("source");
    std::fs::create_dir(&source).unwrap();
    copy_of_tiny(&source);
    break_it(&source);
    let script = format!("ulimit -v {MEMORY_KIB} && exec \"$0\" \"$1\" --out \"$2\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, PROGRAM]).arg(&source).arg(root.path().join("out"));
    Said::from(command.output().unwrap()).refuses(parts);
    assert_eq!(names(root.path()), ["source"]);
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn edit_text(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from} is not in {}", path.display());
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// Replaces text of a header by text of the same length.
fn edit_header(path: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    edit(path, |bytes| {
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    });
}

#[test]
fn shard_cut_by_one_byte() {
    let size = std::fs::metadata(Path::new(TINY).join(SECOND)).unwrap().len();
    let (whole, cut) = (format!("expected a file of {size} bytes"), format!("found {} bytes", size - 1));
    let break_it = |folder: &Path| edit(&folder.join(SECOND), |bytes| bytes.truncate(bytes.len() - 1));
    refuses(break_it, &[SECOND, "stop_predictor.3.weight (cut)", &whole, &cut, "fetch"]);
}

#[test]
fn shard_absent() {
    let break_it = |folder: &Path| std::fs::remove_file(folder.join(FIRST)).unwrap();
    refuses(break_it, &[FIRST, "expected the file", "found nothing of that name"]);
}

#[test]
fn index_names_a_tensor_that_no_shard_has() {
    let entry = format!("\"weight_map\": {{\n    \"model.layers.9.mlp.extra.weight\": \"{FIRST}\",");
    let break_it = |folder: &Path| edit_text(&folder.join("model.safetensors.index.json"), "\"weight_map\": {", &entry);
    refuses(break_it, &[FIRST, "model.layers.9.mlp.extra.weight", "index.json says", "found nothing of that name"]);
}

#[test]
fn index_lacks_a_tensor_of_a_shard() {
    let break_it = |folder: &Path| {
        let path = folder.join("model.safetensors.index.json");
        let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        index["weight_map"].as_object_mut().unwrap().remove(DOWN).unwrap();
        std::fs::write(&path, index.to_string()).unwrap();
    };
    refuses(break_it, &[".safetensors: ", DOWN, "expected an entry of model.safetensors.index.json", "found no such"]);
}

#[test]
fn index_leads_out_of_the_folder() {
    let break_it =
        |folder: &Path| edit_text(&folder.join("model.safetensors.index.json"), FIRST, "../../etc/passwd.safetensors");
    refuses(break_it, &["model.safetensors.index.json", "expected a file name", "../../etc/passwd"]);
}

#[test]
fn header_lengths_are_not_trusted() {
    let size = std::fs::metadata(Path::new(TINY).join(FIRST)).unwrap().len();
    for length in [1 << 63, u64::MAX, 1 << 40, size] {
        let found = format!("found a header of {length} bytes");
        let break_it =
            |folder: &Path| edit(&folder.join(FIRST), |bytes| bytes[..8].copy_from_slice(&length.to_le_bytes()));
        refuses(break_it, &[FIRST, "safetensors header", "expected a header of at most", &found]);
    }
}

#[test]
fn unknown_dtype() {
    let break_it = |folder: &Path| edit_header(&folder.join(FIRST), "\"dtype\":\"BF16\"", "\"dtype\":\"BF61\"");
    refuses(break_it, &[FIRST, "safetensors header", "expected", "BF61"]);
}

#[test]
fn empty_files() {
    let break_it = |folder: &Path| std::fs::write(folder.join(FIRST), "").unwrap();
    refuses(break_it, &[FIRST, "expected 8 bytes of header length", "found a file of 0 bytes"]);
    let break_it = |folder: &Path| std::fs::write(folder.join("config.json"), "").unwrap();
    refuses(break_it, &["config.json", "expected JSON", "found EOF"]);
}

#[test]
fn tensors_of_another_architecture() {
    let norm = "model.layers.1.input_layernorm.weight";
    let other = "model.layers.1.input_layernorm.wei_ht";
    let break_it = |folder: &Path| {
        for name in [FIRST, SECOND] {
            edit(&folder.join(name), |bytes| {
                if let Some(at) = bytes.windows(norm.len()).position(|window| window == norm.as_bytes()) {
                    bytes[at..at + other.len()].copy_from_slice(other.as_bytes());
                }
            });
        }
        edit_text(&folder.join("model.safetensors.index.json"), norm, other);
    };
    refuses(break_it, &[norm, "expected BF16 or F16 or F32 [256]", "found nothing of that name"]);
    let shape = |folder: &Path| {
        edit_text(&folder.join("config.json"), "\"num_attention_heads\": 4", "\"num_attention_heads\": 8")
    };
    refuses(shape, &["self_attn.q_proj.weight", "expected BF16 or F16 or F32 [512, 256]", "found BF16 [256, 256]"]);
}

#[test]
fn a_config_cannot_ask_for_much_memory() {
    let layers = |folder: &Path| {
        edit_text(&folder.join("config.json"), "\"layer_types\"", "\"other\"");
        edit_text(&folder.join("config.json"), "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 16777216");
        edit_text(&folder.join("config.json"), "{", "{\"sliding_window_pattern\": 4,");
    };
    refuses(layers, &["config.json", "expected no more layers", "found 16777216"]);
    let codec = |folder: &Path| {
        edit_text(&folder.join("codec/config.json"), "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 16777216")
    };
    refuses(codec, &["codec", "expected no more layers", "16777216"]);
}

#[test]
fn companions_are_required() {
    for name in ["tokenizer.json", "LICENSE", "NOTICE", "config.json", "codec/config.json", "codec/model.safetensors"] {
        refuses(
            |folder| std::fs::remove_file(folder.join(name)).unwrap(),
            &[name, "expected the file", "found nothing"],
        );
    }
    refuses(|folder| std::fs::remove_dir_all(folder.join("codec")).unwrap(), &["codec/", "--no-codec"]);
}

#[test]
fn codec_tensors_are_checked() {
    let path = "codec/model.safetensors";
    let name = "decoder_transformer.layers.1.mlp.fc2.weight";
    let break_it = |folder: &Path| edit_header(&folder.join(path), name, "decoder_transformer.layers.1.mlp.fc3.weight");
    refuses(break_it, &[path, name, "expected F32", "found nothing of that name"]);
    let codebook =
        |folder: &Path| edit_text(&folder.join("codec/config.json"), "\"codebook_size\": 64", "\"codebook_size\": 32");
    refuses(codebook, &["codebook_size", "expected 64", "found 32"]);
}

/// Counts which parts of which files are read.
struct Watched(Folder, RefCell<Vec<(String, Range<u64>)>>);

impl SourceFiles for Watched {
    fn place(&self) -> String {
        self.0.place()
    }

    fn size(&self, name: &str) -> rumik::Result<Option<u64>> {
        self.0.size(name)
    }

    fn read(&self, name: &str, range: Range<u64>) -> rumik::Result<Vec<u8>> {
        self.1.borrow_mut().push((name.to_owned(), range.clone()));
        self.0.read(name, range)
    }
}

#[test]
fn columns_not_in_groups_are_refused_from_the_headers() {
    let root = tempfile::tempdir().unwrap();
    copy_of_tiny(root.path());
    edit_text(&root.path().join("config.json"), "\"intermediate_size\": 384", "\"intermediate_size\": 192");
    let files = Watched(Folder::new(root.path()), RefCell::default());
    let error = Outline::read(&files).unwrap_err().to_string();
    for part in ["model-0000", "mlp.down_proj.weight", "expected columns in groups of 128", "found 192 columns"] {
        assert!(error.contains(part), "{error}");
    }
    let reads = files.1.into_inner();
    let weights: Vec<_> = reads.iter().filter(|(name, _)| name.ends_with(".safetensors")).collect();
    assert_eq!(weights.len(), 6, "length and header of two shards and the codec");
    assert!(weights.iter().all(|(_, range)| range.start == 0 && range.end < 20_000), "{weights:?}");
    export(root.path(), &root.path().with_extension("out"), &[]).refuses(&["mlp.down_proj.weight", "192 columns"]);
}

/// Changes one tensor of the tiny checkpoint and exports it.
fn export_changed(name: &str, change: impl Fn(&mut Vec<f32>), options: &[&str]) -> (Said, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("source");
    std::fs::create_dir(&source).unwrap();
    rewrite_tiny(&source, |found, _, values| {
        if found == name {
            change(values);
        }
    });
    let said = export(&source, &root.path().join("out"), &[&["--no-codec"], options].concat());
    if said.code != Some(0) {
        assert_eq!(names(root.path()), ["source"]);
    }
    (said, root)
}

#[test]
fn values_that_are_not_finite() {
    let norm = "model.layers.3.input_layernorm.weight";
    let embedding = "model.embed_tokens.weight";
    for (value, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let change = |values: &mut Vec<f32>| values[5 * 384 + 300] = value;
        export_changed(DOWN, change, &[]).0.refuses(&[DOWN, "expected finite", &format!("{text} at index [5, 300]")]);
        let change = |values: &mut Vec<f32>| values[1121 * 256 + 255] = value;
        export_changed(embedding, change, &[]).0.refuses(&[embedding, &format!("{text} at index [1121, 255]")]);
        export_changed(norm, |values| values[7] = value, &[]).0.refuses(&[norm, &format!("{text} at index 7")]);
    }
    let change = |values: &mut Vec<f32>| values[384] = 1e6;
    export_changed(DOWN, change, &[]).0.refuses(&[DOWN, "fit f16", "at index [1, 0]"]);
}

#[test]
fn a_group_of_zeros_decodes_to_zeros() {
    let (said, root) = export_changed(DOWN, |values| values[128..256].fill(-0.0), &[]);
    said.succeeds();
    let export = Export::open(&root.path().join("out")).unwrap();
    let down = &export.layers[2].down;
    assert_eq!((down.scale[1].to_bits(), down.min[1].to_bits()), (0, 0));
    assert!(down.codes[64..128].iter().all(|&code| code == 0));
    let report = Report::parse("export.json", &export.report.unwrap()).unwrap();
    assert_eq!(report.matrices.iter().find(|m| m.name == DOWN).unwrap().error.zero_scales, 1);
}

#[test]
fn a_tensor_of_zeros_is_refused_unless_allowed() {
    for name in [DOWN, "model.norm.weight", "model.embed_tokens.weight"] {
        export_changed(name, |values| values.fill(0.0), &[]).0.refuses(&[
            name,
            "zeros throughout",
            "--allow-zero-tensors",
        ]);
    }
    let (said, root) = export_changed(DOWN, |values| values.fill(0.0), &["--allow-zero-tensors"]);
    said.succeeds();
    let report = Export::open(&root.path().join("out")).unwrap().report.unwrap();
    let notes = Report::parse("export.json", &report).unwrap().notes;
    assert_eq!(notes, [format!("{DOWN} is zero throughout")]);
}

#[test]
fn f32_and_f16_sources_give_the_same_codes_and_a_note() {
    let root = tempfile::tempdir().unwrap();
    let exported = |dtype: Dtype| {
        let source = root.path().join(format!("source-{dtype}"));
        std::fs::create_dir(&source).unwrap();
        rewrite_tiny(&source, |_, found, _| *found = dtype);
        let out = root.path().join(format!("out-{dtype}"));
        export(&source, &out, &["--no-codec"]).succeeds();
        Export::open(&out).unwrap()
    };
    let bf16 = exported(Dtype::BF16);
    for dtype in [Dtype::F32, Dtype::F16] {
        let other = exported(dtype);
        let notes = Report::parse("export.json", &other.report.unwrap()).unwrap().notes;
        assert!(notes.contains(&format!("29 matrices are quantized from {dtype}")), "{notes:?}");
        assert!(notes.contains(&format!("head.audio_weight is rounded to BF16 from {dtype}")), "{notes:?}");
        if dtype == Dtype::F32 {
            // every bf16 is an f32, so nothing may change; some fall outside f16
            assert_eq!(other.embedding.codes[..], bf16.embedding.codes[..]);
            assert_eq!(other.layers[2].down.codes[..], bf16.layers[2].down.codes[..]);
            let (Head::Bf16(a), Head::Bf16(b)) = (other.head, &bf16.head) else { panic!("bf16 heads") };
            assert_eq!(a.data[..], b.data[..]);
        } else {
            // a bf16 below f16's normal range loses bits: at most a code or two in ten thousand moves
            let (a, b) = (&other.layers[2].down.codes, &bf16.layers[2].down.codes);
            let moved = a.iter().zip(b.iter()).filter(|(a, b)| a != b).count();
            assert!(moved * 1000 <= a.len(), "{moved} of {} bytes differ", a.len());
        }
    }
}

#[test]
fn single_file_and_shards_hold_the_same_tensors_and_ignored_ones_are_ignored() {
    let root = tempfile::tempdir().unwrap();
    rewrite_tiny(root.path(), |_, _, _| {});
    let (single, shards) = (Checkpoint::open(root.path()).unwrap(), Checkpoint::open(Path::new(TINY)).unwrap());
    assert_eq!(single.tensors.len(), shards.tensors.len());
    for (name, tensor) in &shards.tensors {
        assert_eq!(single.get(name).unwrap().data[..], tensor.data[..], "{name}");
    }
    assert!(single.codec.is_none() && shards.codec.is_some());
    assert!(rumik::checkpoint::is_ignored("lm_head.weight"));
    assert!(rumik::checkpoint::is_ignored("model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert!(!rumik::checkpoint::is_ignored("model.norm.weight"));
}

#[test]
fn configs_of_transformers_5_are_read() {
    let root = tempfile::tempdir().unwrap();
    copy_of_tiny(root.path());
    std::fs::rename(root.path().join("config.v5.json"), root.path().join("config.json")).unwrap();
    assert_eq!(Checkpoint::open(root.path()).unwrap().config, Checkpoint::open(Path::new(TINY)).unwrap().config);
}
