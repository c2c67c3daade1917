//! The file format: golden bytes, a round trip for any tensors, one test per malformed header, and what exports published
//! by other programs look like.

mod common;

use std::path::Path;

use common::{DEMO, contents, export};
use proptest::prelude::*;
use rumik::config::{CodecConfig, ModelConfig};
use rumik::format::{Export, Files, Head, Report};
use rumik::tensors::write::{TensorSpec, TensorWriter};
use rumik::tensors::{Dtype, TensorFile};

/// The export of the demonstration checkpoint is in the repository byte by byte: a difference is a change of the format
/// or of the quantizer.
#[test]
fn the_demo_export_is_reproduced_byte_for_byte() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    export(Path::new(DEMO), &out, &["--no-codec"]).succeeds();
    for name in ["model.safetensors", "export.json"] {
        let (made, kept) =
            (std::fs::read(out.join(name)).unwrap(), std::fs::read(Path::new("fixtures/demo-int4").join(name)));
        assert!(made == kept.unwrap(), "{name} differs from fixtures/demo-int4");
    }
}

#[test]
fn an_export_holds_exactly_the_files_and_the_order_of_the_spec() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    export(Path::new(DEMO), &out, &["--head", "int8"]).succeeds();
    let files: Vec<String> = contents(&out).into_iter().map(|(path, _)| path.display().to_string()).collect();
    let expected = [
        "LICENSE",
        "NOTICE",
        "README.md",
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "config.json",
        "export.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(files, expected, "the codec's three files among them");
    for name in ["config.json", "tokenizer.json", "LICENSE", "codec/config.json", "codec/model.safetensors"] {
        assert!(std::fs::read(out.join(name)).unwrap() == std::fs::read(Path::new(DEMO).join(name)).unwrap(), "{name}");
    }
    let weights = std::fs::read(out.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(*weights.first_chunk().unwrap()) as usize;
    assert_eq!((8 + length) % 64, 0);
    let header = std::str::from_utf8(&weights[8..8 + length]).unwrap();
    let start = r#"{"__metadata__":{"format":"rumik-int4-g128-minmax-v1","head":"int8"},"model.embed_tokens.qweight":{"dtype":"I8","shape":[3080,256],"data_offsets":[0,788480]},"model.layers.0.input_layernorm.weight":{"dtype":"BF16","shape":[256],"data_offsets":[788480,788992]},"model.layers.0.self_attn.q_proj.qweight":{"dtype":"U8","shape":[256,128],"data_offsets":[788992,821760]},"model.layers.0.self_attn.q_proj.scale":{"dtype":"F16","#;
    assert!(header.starts_with(start), "{}", &header[..start.len()]);
    let order = [
        "mlp.down_proj.min",
        "model.norm.weight",
        "head.audio_qweight",
        "head.audio_ids",
        "stop_predictor.0.weight",
        "stop_predictor.3.bias",
        "model.embed_tokens.scale",
        "head.audio_scale",
    ];
    let places: Vec<_> = order.iter().map(|name| header.find(name).unwrap()).collect();
    assert!(places.is_sorted(), "{places:?}");
    let notice = std::fs::read_to_string(out.join("NOTICE")).unwrap();
    assert!(notice.starts_with(std::fs::read_to_string(Path::new(DEMO).join("NOTICE")).unwrap().trim_end()));
    assert!(notice.contains("Modifications\n") && notice.contains("quantized to 4 bits"));
    let card = std::fs::read_to_string(out.join("README.md")).unwrap();
    for part in ["license: other", "CC0 1.0 Universal", "rumik-int4-g128-minmax-v1", "int4 projections, mean | 10.04 %"]
    {
        assert!(card.contains(part), "{part}");
    }
}

/// A file of one tensor with this header and eight bytes of data.
fn with_header(header: &str) -> String {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend([0; 8]);
    TensorFile::from_bytes("x.safetensors", bytes.into())
        .map(|file| format!("{:?}", file.tensors()))
        .unwrap_err()
        .to_string()
}

#[test]
fn malformed_headers_are_refused() {
    let entry = |name: &str, dtype: &str, shape: &str, offsets: &str| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}")
    };
    let two = |a: String, b: String| format!("{{{a},{b}}}");
    let cases = [
        ("gap", two(entry("a", "U8", "[2]", "[0,2]"), entry("b", "U8", "[4]", "[4,8]"))),
        ("overlap", two(entry("a", "U8", "[6]", "[0,6]"), entry("b", "U8", "[4]", "[4,8]"))),
        ("starts late", format!("{{{}}}", entry("a", "U8", "[4]", "[4,8]"))),
        ("rest", format!("{{{}}}", entry("a", "U8", "[4]", "[0,4]"))),
        ("past the end", format!("{{{}}}", entry("a", "U8", "[9]", "[0,9]"))),
        ("size and shape differ", format!("{{{}}}", entry("a", "F32", "[4]", "[0,8]"))),
        ("offsets backwards", format!("{{{}}}", entry("a", "U8", "[8]", "[8,0]"))),
        ("negative size", format!("{{{}}}", entry("a", "U8", "[-8]", "[0,8]"))),
        ("sizes overflow", format!("{{{}}}", entry("a", "U8", "[4294967296,4294967296,2]", "[0,8]"))),
        ("half a byte", format!("{{{}}}", entry("a", "F4", "[17]", "[0,8]"))),
        ("name twice", two(entry("a", "U8", "[8]", "[0,8]"), entry("a", "U8", "[8]", "[0,8]"))),
        ("metadata of numbers", format!("{{\"__metadata__\":{{\"n\":1}},{}}}", entry("a", "U8", "[8]", "[0,8]"))),
        ("unknown type", format!("{{{}}}", entry("a", "Q4", "[8]", "[0,8]"))),
        ("no JSON", "{\"a\"".to_owned()),
        ("a list", "[]".to_owned()),
        ("nothing", String::new()),
    ];
    for (what, header) in cases {
        let error = with_header(&header);
        assert!(
            error.starts_with("x.safetensors: ") && error.contains("expected") && error.contains("found"),
            "{what}: {error}"
        );
    }
}

/// Types whose elements are whole bytes.
fn dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(vec![Dtype::U8, Dtype::I8, Dtype::F16, Dtype::BF16, Dtype::I32, Dtype::F32, Dtype::I64])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(
        tensors in prop::collection::btree_map("[ -~]{1,12}|[अ-ह]{1,4}", (dtype(), prop::collection::vec(0usize..5, 0..4)), 0..8),
        pieces in 1usize..50,
    ) {
        prop_assume!(!tensors.contains_key("__metadata__"));
        let specs: Vec<_> = tensors.iter().map(|(name, (dtype, shape))| TensorSpec::new(name, *dtype, shape)).collect();
        let total: u64 = specs.iter().map(TensorSpec::bytes).sum();
        let data: Vec<u8> = (0..total).map(|i| (i * 131 % 251) as u8).collect();
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.safetensors");
        let mut writer = TensorWriter::create(&path, &[("key", "value \"quoted\"")], &specs).unwrap();
        data.chunks(pieces).for_each(|piece| writer.write(piece).unwrap());
        writer.finish().unwrap();
        let file = TensorFile::open(&path).unwrap();
        prop_assert_eq!(file.metadata().get("key").map(String::as_str), Some("value \"quoted\""));
        prop_assert_eq!(file.tensors().len(), specs.len());
        let mut start = 0;
        for spec in &specs {
            let tensor = file.get_as(&spec.name, &[spec.dtype], &spec.shape).unwrap();
            let end = start + spec.bytes() as usize;
            prop_assert_eq!(&tensor.data[..], &data[start..end]);
            start = end;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Damage to a header, an index or a configuration is refused or harmless; it never panics.
    #[test]
    fn damaged_files_do_not_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let weights = &std::fs::read("fixtures/golden/tiny/model-00001-of-00002.safetensors").unwrap();
        let header = 8 + u64::from_le_bytes(*weights.first_chunk().unwrap()) as usize;
        let mut damaged = weights.clone();
        damaged[at.index(header)] = byte;
        if let Ok(file) = TensorFile::from_bytes("x", damaged.into()) {
            file.tensors().values().for_each(|tensor| drop((tensor.to_f32(), tensor.to_f16(), tensor.to_i64())));
        }
        let cut = &weights[..cut.index(weights.len())];
        prop_assert!(TensorFile::from_bytes("x", cut.to_vec().into()).is_err());
        for name in ["config.json", "codec/config.json"] {
            let mut json = std::fs::read(Path::new("fixtures/golden/tiny").join(name)).unwrap();
            let at = at.index(json.len());
            json[at] = byte;
            let _ = (ModelConfig::parse("x", &json), CodecConfig::parse("x", &json));
        }
    }
}

/// An export as another program publishes it: one file of any name with I64 ids in another order, tensors by name,
/// no metadata and no report; configuration and tokenizer in another folder.
#[test]
fn exports_published_by_others_are_read() {
    let root = tempfile::tempdir().unwrap();
    let ours = TensorFile::open(Path::new("fixtures/demo-int4/model.safetensors")).unwrap();
    let (mut specs, mut data) = (Vec::new(), Vec::new());
    let ids: Vec<i64> = ours.get("head.audio_ids").unwrap().to_i64().unwrap().into_iter().rev().collect();
    for (name, tensor) in ours.tensors() {
        let i64_ids = name == "head.audio_ids";
        specs.push(TensorSpec::new(name, if i64_ids { Dtype::I64 } else { tensor.dtype }, &tensor.shape));
        data.push(if i64_ids { ids.iter().flat_map(|id| id.to_le_bytes()).collect() } else { tensor.data.to_vec() });
    }
    specs.push(TensorSpec::new("something.else", Dtype::U8, &[3]));
    data.push(vec![1, 2, 3]);
    let mut writer = TensorWriter::create(&root.path().join("rumik-oss-1-int4.safetensors"), &[], &specs).unwrap();
    data.iter().for_each(|bytes| writer.write(bytes).unwrap());
    writer.finish().unwrap();
    let files = Files::in_folders(root.path(), Path::new(DEMO)).unwrap();
    let export = Export::from_files(files).unwrap();
    assert!(export.report.is_none() && export.codec.is_some());
    assert_eq!(export.audio_ids[0], export.config.audio_end_token_id);
    assert!(matches!(export.head, Head::Bf16(_)));
}

#[test]
fn reports_of_other_formats_and_newer_versions_are_refused() {
    let json = std::fs::read_to_string("fixtures/demo-int4/export.json").unwrap();
    let report = Report::parse("export.json", json.as_bytes()).unwrap();
    assert_eq!((report.matrices.len(), report.worst_matrix.as_str()), (58, "model.layers.7.mlp.down_proj.weight"));
    assert!(!json.contains('\\') && !json.contains("/home") && !json.contains("/tmp"), "no paths");
    let refused = |from: &str, to: &str| {
        Report::parse("export.json", json.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
    };
    assert!(
        refused("\"version\": 1", "\"version\": 2")
            .contains("export.json: version: expected at most 1, found 2; a newer")
    );
    assert!(refused("minmax-v1", "other-v1").contains("export.json: format: expected rumik-int4-g128-minmax-v1"));
    assert!(Report::parse("export.json", json.replacen("{", "{\"later\": [1],", 1).as_bytes()).is_ok(), "unknown keys");
}
