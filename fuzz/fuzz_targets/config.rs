//! Any bytes as a configuration or a report: an error or a value that keeps its own promises, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rumik::config::{CodecConfig, ModelConfig};
use rumik::format::Report;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(config) = ModelConfig::parse("fuzz", bytes) {
        assert!(config.first_unit_id <= config.last_unit_id && (config.last_unit_id as usize) < config.vocab_size);
        assert_eq!(config.last_unit_id as usize + 1 - config.first_unit_id as usize, config.unit_count());
        assert!(config.num_layers() > 0);
    }
    let _ = CodecConfig::parse("fuzz", bytes);
    let _ = Report::parse("fuzz", bytes);
});
