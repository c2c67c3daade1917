//! Any bytes as a safetensors file: an error or tensors whose every element can be read, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rumik::tensors::{Header, TensorFile};

fuzz_target!(|bytes: &[u8]| {
    let header = Header::parse("fuzz", bytes, bytes.len() as u64);
    let file = TensorFile::from_bytes("fuzz", bytes.to_vec().into());
    assert_eq!(header.is_ok(), file.is_ok());
    if let Ok(file) = file {
        let total: usize = file.tensors().values().map(|tensor| tensor.data.len()).sum();
        assert!(total <= bytes.len(), "tensors overlap");
        for tensor in file.tensors().values() {
            let _ = (tensor.to_f32(), tensor.to_f16(), tensor.to_i64());
        }
    }
});
