//! What the tests of this module share.

use std::collections::BTreeMap;

use crate::tensors::{Dtype, TensorFile};

/// Reproducible values, uniform in ±1.
pub(super) fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A file of random F32 tensors.
pub(super) fn random_file(tensors: &[(&str, &[usize])], seed: u32) -> TensorFile {
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| noise(seed, shape.iter().product()).iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let views: BTreeMap<&str, _> = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape), data)| {
            (*name, safetensors::tensor::TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap())
        })
        .collect();
    TensorFile::from_bytes("random.safetensors", safetensors::serialize(views, None).unwrap().into()).unwrap()
}

/// Compares all values; a value that is not a number fails.
#[track_caller]
pub(super) fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance, "index {i}: {found} against {expected}");
    }
}
