//! The quantizer against transformers' results in `fixtures/golden/tiny`, and every fast path against the plain one.

use std::path::Path;

use half::{bf16, f16};
use proptest::prelude::*;
use rumik::format::MatrixError;
use rumik::quant::{
    Flaw, Float, RowError, Simd, quantize_row_int4, quantize_row_int4_reference, quantize_row_int4_with,
    quantize_row_int8, quantize_row_int8_reference, quantize_row_int8_with, round_row_bf16,
};
use rumik::tensors::{Tensor, TensorFile};

const GROUP: usize = 128;
/// golden.json prints relative errors with six digits after the point.
const ERROR_TOLERANCE: f64 = 1e-6;

fn golden(name: &str) -> Tensor {
    let path = Path::new("fixtures/golden/tiny/golden.safetensors");
    TensorFile::open(path).unwrap().get(name).unwrap().clone()
}

fn source(name: &str) -> Tensor {
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let files = files.map(|file| TensorFile::open(&Path::new("fixtures/golden/tiny").join(file)).unwrap());
    files.iter().find_map(|file| file.find(name)).unwrap().clone()
}

/// Packed codes, scales, minimums and error of a matrix.
fn quantize(matrix: &Tensor) -> (Vec<u8>, Vec<f16>, Vec<f16>, MatrixError) {
    let (n, k) = (matrix.shape[0], matrix.shape[1]);
    let float = Float::of(matrix.dtype).unwrap();
    let mut codes = vec![0; n * k / 2];
    let (mut scale, mut min) = (vec![f16::NAN; n * k / GROUP], vec![f16::NAN; n * k / GROUP]);
    let row_bytes = k * float.width();
    let rows: Vec<RowError> = (0..n)
        .map(|row| {
            let groups = row * k / GROUP..(row + 1) * k / GROUP;
            quantize_row_int4(
                float,
                &matrix.data[row * row_bytes..(row + 1) * row_bytes],
                &mut codes[row * k / 2..(row + 1) * k / 2],
                &mut scale[groups.clone()],
                &mut min[groups],
            )
            .unwrap()
        })
        .collect();
    (codes, scale, min, RowError::sum(&rows))
}

fn bits(values: &[f16]) -> Vec<u16> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn int4_equals_the_golden_matrix_bit_for_bit() {
    let (codes, scale, min, _) = quantize(&source("model.layers.1.mlp.down_proj.weight"));
    assert_eq!(codes, golden("int4.packed").data[..]);
    assert_eq!(bits(&scale), bits(&golden("int4.scale").to_f16().unwrap()));
    assert_eq!(bits(&min), bits(&golden("int4.min").to_f16().unwrap()));
}

#[test]
fn int4_equals_the_golden_corner_cases_bit_for_bit() {
    let (codes, scale, min, _) = quantize(&golden("int4_synthetic.weight"));
    assert_eq!(codes, golden("int4_synthetic.packed").data[..], "ties included: both round half to even");
    assert_eq!(bits(&scale), bits(&golden("int4_synthetic.scale").to_f16().unwrap()));
    assert_eq!(bits(&min), bits(&golden("int4_synthetic.min").to_f16().unwrap()));
    let code = |i: usize| if i % 2 == 0 { codes[i / 2] & 15 } else { codes[i / 2] >> 4 };
    for (i, wanted) in golden("int4_synthetic.dequantized").to_f32().unwrap().into_iter().enumerate() {
        let found = f32::from(code(i)) * scale[i / GROUP].to_f32() + min[i / GROUP].to_f32();
        assert_eq!(found, wanted, "element {i}");
    }
}

#[test]
fn int8_equals_the_golden_rows_bit_for_bit() {
    let embedding = source("model.embed_tokens.weight");
    let k = embedding.shape[1];
    let (codes, scale) = (golden("int8.codes"), golden("int8.scale").to_f16().unwrap());
    for (i, row) in golden("int8.rows").to_i64().unwrap().into_iter().enumerate() {
        let row = &embedding.data[row as usize * k * 2..(row as usize + 1) * k * 2];
        let (mut work, mut out) = (vec![0.0; k], vec![0; k]);
        let (found, _) = quantize_row_int8(Float::Bf16, row, &mut work, &mut out).unwrap();
        assert_eq!(found.to_bits(), scale[i].to_bits());
        assert_eq!(out, codes.data[i * k..(i + 1) * k]);
    }
}

#[test]
fn relative_errors_equal_the_golden_ones() {
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read("fixtures/golden/tiny/golden.json").unwrap()).unwrap();
    let wanted = json["int4"]["relative_error"].as_object().unwrap();
    assert_eq!(wanted.len(), 29);
    for (name, wanted) in wanted.iter().filter(|(name, _)| name.ends_with("_proj.weight")) {
        let (.., error) = quantize(&source(name));
        let difference = (error.relative_error - wanted.as_f64().unwrap()).abs();
        assert!(difference <= ERROR_TOLERANCE, "{name}: {} for {wanted}", error.relative_error);
        assert!(error.worst_group.relative_error > error.relative_error);
    }
}

#[test]
fn flaws_name_the_column() {
    let quantize = |row: &[f32]| {
        let bytes: Vec<u8> = row.iter().flat_map(|w| w.to_le_bytes()).collect();
        let (mut codes, mut scale, mut min) = (vec![0; row.len() / 2], vec![f16::ZERO; 2], vec![f16::ZERO; 2]);
        let fast = quantize_row_int4(Float::F32, &bytes, &mut codes, &mut scale, &mut min).unwrap_err();
        let plain = quantize_row_int4_reference(row, &mut codes, &mut scale, &mut min).unwrap_err();
        assert_eq!(format!("{fast:?}"), format!("{plain:?}"));
        fast
    };
    let mut row = vec![0.5; 256];
    row[200] = f32::INFINITY;
    assert_eq!(quantize(&row), Flaw::NotFinite { column: 200, value: f32::INFINITY });
    row[130] = f32::NAN;
    assert!(matches!(quantize(&row), Flaw::NotFinite { column: 130, .. }));
    // the minimum fits no f16; then the range fits none
    for value in [-70000.0, 1.2e6, f32::MAX] {
        let mut row = vec![0.5; 256];
        row[7] = value;
        assert_eq!(quantize(&row), Flaw::TooLarge { column: 7, value });
    }
}

#[test]
fn rounding_to_bf16_is_to_nearest_even_and_never_makes_an_infinity() {
    let round = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|w| w.to_le_bytes()).collect();
        let (mut work, mut out) = (vec![0.0; values.len()], vec![0; values.len() * 2]);
        round_row_bf16(Float::F32, &bytes, &mut work, &mut out).map(|_| out)
    };
    let ties = [1.00390625, 1.01171875]; // halfway between neighbours, the lower and the upper of which is even
    assert_eq!(round(&ties).unwrap(), [0x80, 0x3f, 0x82, 0x3f]);
    assert_eq!(round(&[1.0, f32::MAX]), Err(Flaw::TooLarge { column: 1, value: f32::MAX }));
    let largest = f16::MAX.to_le_bytes();
    let mut out = [0; 2];
    round_row_bf16(Float::F16, &largest, &mut [0.0], &mut out).unwrap();
    assert_eq!(bf16::from_le_bytes(out).to_f32(), 65536.0);
}

/// Weights of every scale, with signed zeros, constant runs and halves: what rounding could get wrong.
fn weight() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1.0f32..1.0,
        2 => -2000.0f32..2000.0,
        1 => Just(0.0f32),
        1 => Just(-0.0f32),
        1 => (-30i32..30).prop_map(|half| half as f32 * 0.5),
        1 => -1e-7f32..1e-7,
        1 => any::<u16>().prop_map(|bits| f32::from_bits(u32::from(bits & 0xbfff) << 16)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_int4_path_gives_the_bits_of_the_plain_one(row in prop::collection::vec(weight(), 384), shrink in 0u32..3) {
        let row: Vec<f32> = row.iter().map(|w| w * 0.001f32.powi(shrink as i32)).collect();
        let bytes: Vec<u8> = row.iter().flat_map(|w| w.to_le_bytes()).collect();
        let empty = || (vec![0xffu8; 192], vec![f16::NAN; 3], vec![f16::NAN; 3]);
        let (mut codes, mut scale, mut min) = empty();
        let plain = quantize_row_int4_reference(&row, &mut codes, &mut scale, &mut min);
        let mut errors = Vec::new();
        for simd in Simd::available() {
            let (mut fast_codes, mut fast_scale, mut fast_min) = empty();
            let fast =
                quantize_row_int4_with(simd, Float::F32, &bytes, &mut fast_codes, &mut fast_scale, &mut fast_min);
            prop_assert_eq!(fast.err(), plain.err());
            if let Ok(error) = fast {
                prop_assert_eq!(&fast_codes, &codes);
                prop_assert_eq!(bits(&fast_scale), bits(&scale));
                prop_assert_eq!(bits(&fast_min), bits(&min));
                errors.push(error);
            }
        }
        prop_assert!(errors.windows(2).all(|pair| pair[0] == pair[1]), "errors depend on the instruction set");
    }

    #[test]
    fn every_int8_path_gives_the_bits_of_the_plain_one(row in prop::collection::vec(weight(), 1..200)) {
        let bytes: Vec<u8> = row.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut codes = vec![0x55u8; row.len()];
        let plain = quantize_row_int8_reference(&row, &mut codes);
        let mut errors = Vec::new();
        for simd in Simd::available() {
            let (mut work, mut fast_codes) = (vec![0.0; row.len()], vec![0x55u8; row.len()]);
            let fast = quantize_row_int8_with(simd, Float::F32, &bytes, &mut work, &mut fast_codes);
            match (fast, plain) {
                (Ok((scale, error)), Ok(wanted)) => {
                    prop_assert_eq!(scale.to_bits(), wanted.to_bits());
                    prop_assert_eq!(&fast_codes, &codes);
                    errors.push(error);
                }
                (fast, plain) => prop_assert_eq!(fast.err(), plain.err()),
            }
        }
        prop_assert!(errors.windows(2).all(|pair| pair[0] == pair[1]), "errors depend on the instruction set");
    }

    /// Half a step, plus what rounding scale and minimum to f16 may move the grid (2^-11 of each, 15 steps), bounds the loss.
    #[test]
    fn a_decoded_weight_is_within_half_a_step(row in prop::collection::vec(-1.0f32..1.0, 128)) {
        let (mut codes, mut scale, mut min) = (vec![0u8; 64], vec![f16::ZERO; 1], vec![f16::ZERO; 1]);
        quantize_row_int4_reference(&row, &mut codes, &mut scale, &mut min).unwrap();
        let (s, m) = (scale[0].to_f32(), min[0].to_f32());
        for (i, w) in row.iter().enumerate() {
            let code = if i % 2 == 0 { codes[i / 2] & 15 } else { codes[i / 2] >> 4 };
            let bound = 0.5 * s + (15.0 * s + m.abs()) / 2048.0 + f32::EPSILON;
            prop_assert!((f32::from(code) * s + m - w).abs() <= bound);
        }
    }

    #[test]
    fn bf16_f16_and_f32_sources_of_the_same_values_give_the_same_codes(row in prop::collection::vec(-8i8..8, 128)) {
        let row: Vec<f32> = row.iter().map(|&w| f32::from(w) * 0.25).collect(); // exact in all three types
        let sources = [
            (Float::Bf16, row.iter().flat_map(|&w| bf16::from_f32(w).to_le_bytes()).collect::<Vec<u8>>()),
            (Float::F16, row.iter().flat_map(|&w| f16::from_f32(w).to_le_bytes()).collect()),
            (Float::F32, row.iter().flat_map(|&w| w.to_le_bytes()).collect()),
        ];
        let results = sources.map(|(float, bytes)| {
            let (mut codes, mut scale, mut min) = (vec![0u8; 64], vec![f16::ZERO; 1], vec![f16::ZERO; 1]);
            let error = quantize_row_int4(float, &bytes, &mut codes, &mut scale, &mut min).unwrap();
            (codes, bits(&scale), bits(&min), error)
        });
        prop_assert_eq!(&results[0], &results[1]);
        prop_assert_eq!(&results[0], &results[2]);
    }
}
