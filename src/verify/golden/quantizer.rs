//! The quantizer against the golden's codes, scales and errors.

use std::collections::BTreeMap;

use half::f16;

use super::{Judge, NONE_DIFFERS, at};
use crate::error::{Error, Result};
use crate::format::layout::GROUP;
use crate::quant::{Float, MatrixError, RowError, quantize_row_int4, quantize_row_int8};
use crate::tensors::{Dtype, Tensor};
use crate::verify::{Limit, differing};

/// Largest difference of a matrix's relative error: `golden.json` rounds it to six decimals and sums in f32.
const ERROR_LIMIT: Limit = Limit::AtMost(2e-6);

/// Compares `int4.*`, `int4_synthetic.*`, `int8.*` and the relative errors of all matrices of the checkpoint.
pub(super) fn compare(judge: &mut Judge, source: &BTreeMap<String, Tensor>) -> Result<()> {
    let golden = judge.golden;
    if let Some(name) = &golden.facts.int4.matrix {
        let matrix = Int4::of(find(source, name, judge)?)?;
        compare_int4(judge, "int4", &matrix)?;
    }
    if let Some(weight) = golden.tensors.find("int4_synthetic.weight") {
        golden.values("int4_synthetic.weight", &weight.shape)?;
        compare_int4(judge, "int4_synthetic", &Int4::of(weight)?)?;
    }
    let embedding = "model.embed_tokens.weight";
    if golden.tensors.find("int8.rows").is_some() {
        compare_int8(judge, find(source, embedding, judge)?)?;
    }
    for (name, expected) in &golden.facts.int4.relative_error {
        let tensor = find(source, name, judge)?;
        let error = if name == embedding { Int8::of(tensor)?.error } else { Int4::of(tensor)?.error };
        let difference = (error.relative_error - expected).abs();
        judge.verdict.measure("quantizer.relative_error", ERROR_LIMIT, difference, || name.clone());
    }
    Ok(())
}

/// `{prefix}.packed`, `.scale`, `.min` and `.dequantized`; where `.ties` marks a tie, a code may differ by one.
fn compare_int4(judge: &mut Judge, prefix: &str, matrix: &Int4) -> Result<()> {
    let (golden, [n, k]) = (judge.golden, matrix.shape);
    let key = |name: &str| format!("{prefix}.{name}");
    compare_f16(judge, "quantizer.int4_scale", &key("scale"), &[n, k / GROUP], &matrix.scale)?;
    compare_f16(judge, "quantizer.int4_min", &key("min"), &[n, k / GROUP], &matrix.min)?;
    let ties = golden.bytes(&key("ties"), Dtype::U8, &[n, k])?;
    let tie = |index: usize| ties.is_some_and(|ties| ties[index] != 0);
    if let Some(packed) = golden.bytes(&key("packed"), Dtype::U8, &[n, k / 2])? {
        let (found, mut expected) = (unpack(&matrix.codes), unpack(packed));
        for (index, (code, found)) in expected.iter_mut().zip(&found).enumerate() {
            if tie(index) && code.abs_diff(*found) <= 1 {
                *code = *found;
            }
        }
        let (count, first) = differing(&found, &expected);
        judge.verdict.measure("quantizer.int4_codes", NONE_DIFFERS, count, || at(&key("packed"), first, &[n, k]));
    }
    if let Some(expected) = golden.values(&key("dequantized"), &[n, k])? {
        let (found, scale) = (matrix.dequantized(), |index: usize| matrix.scale[index / GROUP].to_f32());
        let near = |index: usize| tie(index) && (found[index] - expected[index]).abs() <= scale(index) * 1.001;
        let wrong = |index: &usize| found[*index] != expected[*index] && !near(*index);
        let mut wrong = (0..found.len()).filter(wrong);
        let first = wrong.next();
        let count = first.map_or(0.0, |_| (1 + wrong.count()) as f64);
        let place = || at(&key("dequantized"), first.unwrap_or(0), &[n, k]);
        judge.verdict.measure("quantizer.int4_dequantized", NONE_DIFFERS, count, place);
    }
    Ok(())
}

/// `int8.codes` and `int8.scale` of the rows `int8.rows` of the embedding.
fn compare_int8(judge: &mut Judge, embedding: &Tensor) -> Result<()> {
    let golden = judge.golden;
    let rows = golden.ids("int8.rows")?.unwrap_or_default();
    let matrix = Int8::of(embedding)?;
    let [n, k] = matrix.shape;
    if let Some(row) = rows.iter().find(|row| **row as usize >= n) {
        return Err(Error::invalid(golden.tensors.place(), "int8.rows", format!("rows below {n}"), row));
    }
    let scale: Vec<f16> = rows.iter().map(|&row| matrix.scale[row as usize]).collect();
    compare_f16(judge, "quantizer.int8_scale", "int8.scale", &[rows.len()], &scale)?;
    if let Some(expected) = golden.bytes("int8.codes", Dtype::I8, &[rows.len(), k])? {
        let found: Vec<u8> = rows.iter().flat_map(|&row| matrix.codes[row as usize * k..][..k].to_vec()).collect();
        let (count, first) = differing(&found, expected);
        judge
            .verdict
            .measure("quantizer.int8_codes", NONE_DIFFERS, count, || at("int8.codes", first, &[rows.len(), k]));
    }
    Ok(())
}

/// Holds half-precision values against a tensor, bit by bit except for the sign of zero.
fn compare_f16(judge: &mut Judge, name: &str, key: &str, shape: &[usize], found: &[f16]) -> Result<()> {
    if let Some(expected) = judge.golden.values(key, shape)? {
        let found: Vec<f32> = found.iter().map(|value| value.to_f32()).collect();
        let (count, first) = differing(&found, &expected);
        judge.verdict.measure(name, NONE_DIFFERS, count, || at(key, first, shape));
    }
    Ok(())
}

fn find<'a>(source: &'a BTreeMap<String, Tensor>, name: &str, judge: &Judge) -> Result<&'a Tensor> {
    let place = judge.golden.folder.display();
    source.get(name).ok_or_else(|| Error::invalid(place, name, "the tensor in the checkpoint", "nothing of that name"))
}

/// A matrix in int4.
struct Int4 {
    shape: [usize; 2],
    codes: Vec<u8>,
    scale: Vec<f16>,
    min: Vec<f16>,
    error: MatrixError,
}

impl Int4 {
    fn of(tensor: &Tensor) -> Result<Int4> {
        let (float, shape @ [n, k]) = float_matrix(tensor)?;
        if !k.is_multiple_of(GROUP) {
            return Err(tensor.invalid(format!("columns in groups of {GROUP}"), format!("{k} columns")));
        }
        let (mut codes, groups) = (vec![0; n * k / 2], n * k / GROUP);
        let (mut scale, mut min) = (vec![f16::ZERO; groups], vec![f16::ZERO; groups]);
        let outputs = codes.chunks_mut(k / 2).zip(scale.chunks_mut(k / GROUP)).zip(min.chunks_mut(k / GROUP));
        let rows = tensor.data.chunks(k * float.width()).zip(outputs).map(|(row, ((codes, scale), min))| {
            quantize_row_int4(float, row, codes, scale, min)
                .map_err(|flaw| tensor.invalid("finite values", format!("{flaw:?}")))
        });
        let rows: Vec<RowError> = rows.collect::<Result<_>>()?;
        Ok(Int4 { shape, codes, scale, min, error: MatrixError::of_rows(&rows) })
    }

    /// `min + code * scale`, `[n, k]`.
    fn dequantized(&self) -> Vec<f32> {
        let group = |index: usize| (self.min[index / GROUP].to_f32(), self.scale[index / GROUP].to_f32());
        let weight = |(index, code): (usize, &u8)| group(index).0 + f32::from(*code) * group(index).1;
        unpack(&self.codes).iter().enumerate().map(weight).collect()
    }
}

/// A matrix in int8.
struct Int8 {
    shape: [usize; 2],
    codes: Vec<u8>,
    scale: Vec<f16>,
    error: MatrixError,
}

impl Int8 {
    fn of(tensor: &Tensor) -> Result<Int8> {
        let (float, shape @ [n, k]) = float_matrix(tensor)?;
        let (mut codes, mut work) = (vec![0; n * k], vec![0.0; k]);
        let rows = tensor.data.chunks(k * float.width()).zip(codes.chunks_mut(k)).map(|(row, codes)| {
            quantize_row_int8(float, row, &mut work, codes)
                .map_err(|flaw| tensor.invalid("finite values", format!("{flaw:?}")))
        });
        let (scale, rows): (Vec<f16>, Vec<RowError>) = rows.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        Ok(Int8 { shape, codes, scale, error: MatrixError::of_rows(&rows) })
    }
}

fn float_matrix(tensor: &Tensor) -> Result<(Float, [usize; 2])> {
    match (Float::of(tensor.dtype), &tensor.shape[..]) {
        (Some(float), &[n, k]) if n > 0 && k > 0 => Ok((float, [n, k])),
        _ => Err(tensor.invalid("a matrix in BF16, F16 or F32", format!("{} {:?}", tensor.dtype, tensor.shape))),
    }
}

/// Two codes a byte, the low nibble first.
fn unpack(packed: &[u8]) -> Vec<u8> {
    packed.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect()
}
