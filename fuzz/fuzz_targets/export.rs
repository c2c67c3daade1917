//! A whole export out of one input: a byte pair of lengths, then configuration, report and weights. An error or an export that
//! is whole, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rumik::format::{Export, Files};
use rumik::tensors::{Bytes, TensorFile};

fuzz_target!(|bytes: &[u8]| {
    let Some((lengths, rest)) = bytes.split_first_chunk::<4>() else { return };
    let config = usize::from(u16::from_le_bytes([lengths[0], lengths[1]])).min(rest.len());
    let (config, rest) = rest.split_at(config);
    let report = usize::from(u16::from_le_bytes([lengths[2], lengths[3]])).min(rest.len());
    let (report, weights) = rest.split_at(report);
    let Ok(weights) = TensorFile::from_bytes("fuzz", weights.to_vec().into()) else { return };
    let files = Files {
        name: "fuzz".to_owned(),
        weights,
        config: config.to_vec().into(),
        tokenizer: Bytes::embedded(b"{}"),
        codec: None,
        report: (!report.is_empty()).then(|| report.to_vec().into()),
    };
    if let Ok(export) = Export::from_files(files) {
        assert_eq!(export.layers.len(), export.config.num_layers());
        assert_eq!(export.audio_ids.len(), export.config.audio_rows());
    }
});
