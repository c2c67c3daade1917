//! The golden's checkpoint, exported: what the quantizer made of it, and the exact model with those weights.

use half::f16;
use tempfile::TempDir;

use super::engine::Variant;
use super::{F32_LIMIT, Golden, Judge, NONE_DIFFERS, Prompt, at};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::format::layout::GROUP;
use crate::format::{Export, Files, HeadKind, Report};
use crate::quant::{ExportOptions, Float, export, quantize_row_int4};
use crate::reference::{Device, Precision, Reference};
use crate::tensors::{Dtype, TensorFile};
use crate::verify::{Limit, dequantized, differing};

/// Largest difference of a matrix's relative error: `golden.json` rounds it to six decimals and sums in f32.
const ERROR_LIMIT: Limit = Limit::AtMost(2e-6);

/// An export in a temporary folder, which goes when this does.
pub(super) struct Exported {
    pub export: Export,
    report: Report,
    weights: TensorFile,
    _folder: TempDir,
}

impl Exported {
    /// Exports a checkpoint without its codec, through the same function as `rumik-export`.
    pub(super) fn of(checkpoint: &Checkpoint, head: HeadKind) -> Result<Exported> {
        let folder = tempfile::tempdir().map_err(Error::io("make a temporary folder in", &std::env::temp_dir()))?;
        let source_name = "golden".to_owned();
        let options =
            ExportOptions { head, no_codec: true, allow_zero_tensors: true, source_name, ..Default::default() };
        let out = folder.path().join("export");
        let report = export(checkpoint, &out, &options, &|_| ())?;
        let files = Files::in_folder(&out)?;
        let weights = files.weights.clone();
        Ok(Exported { export: Export::from_files(files)?, report, weights, _folder: folder })
    }
}

/// True when the folder has anything that [`compare_codes`] compares with an export.
pub(super) fn has_codes(golden: &Golden) -> bool {
    let int4 = &golden.facts.int4;
    let has = |key: &str| golden.tensors.find(key).is_some();
    let parts = ["int4.packed", "int4.scale", "int4.min"];
    !int4.relative_error.is_empty() || has("int8.rows") || (int4.matrix.is_some() && parts.iter().any(|key| has(key)))
}

/// `int4.*`, `int8.*` and the relative error of every matrix.
pub(super) fn compare_codes(judge: &mut Judge, exported: &Exported) -> Result<()> {
    let golden = judge.golden;
    for (name, expected) in &golden.facts.int4.relative_error {
        let known = exported.report.matrices.iter().find(|matrix| matrix.name == *name);
        let difference = known.map_or(f64::NAN, |matrix| (matrix.error.relative_error - expected).abs());
        judge.verdict.measure("quantizer.relative_error", ERROR_LIMIT, difference, || name.clone());
    }
    if let Some(name) = &golden.facts.int4.matrix {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let part = |part: &str| exported.weights.get(&format!("{stem}.{part}"));
        let matrix =
            Int4 { codes: &part("qweight")?.data, scale: part("scale")?.to_f16()?, min: part("min")?.to_f16()? };
        compare_int4(judge, "int4", &matrix, part("qweight")?.shape[0])?;
    }
    compare_int8(judge, exported)
}

/// `int8.codes` and `int8.scale` of the rows `int8.rows` of the embedding.
fn compare_int8(judge: &mut Judge, exported: &Exported) -> Result<()> {
    let (golden, embedding) = (judge.golden, &exported.export.embedding);
    let Some(rows) = golden.ids("int8.rows")? else { return Ok(()) };
    if let Some(row) = rows.iter().find(|row| **row as usize >= embedding.n) {
        let expected = format!("rows below {}", embedding.n);
        return Err(Error::invalid(golden.tensors.place(), "int8.rows", expected, row));
    }
    let scale: Vec<f16> = rows.iter().map(|&row| embedding.scale[row as usize]).collect();
    compare_f16(judge, "quantizer.int8_scale", "int8.scale", &[rows.len()], &scale)?;
    let shape = [rows.len(), embedding.k];
    if let Some(expected) = golden.bytes("int8.codes", Dtype::I8, &shape)? {
        let found: Vec<u8> = rows.iter().flat_map(|&row| embedding.row(row as usize)).map(|code| code as u8).collect();
        let (count, first) = differing(&found, expected);
        judge.verdict.measure("quantizer.int8_codes", NONE_DIFFERS, count, || at("int8.codes", first, &shape));
    }
    Ok(())
}

/// `int4_synthetic.*`: a matrix of awkward groups, given in F32.
pub(super) fn compare_synthetic(judge: &mut Judge) -> Result<()> {
    let Some(weight) = judge.golden.tensors.find("int4_synthetic.weight") else { return Ok(()) };
    let (n, k) = match weight.shape[..] {
        [n, k] if n > 0 && k > 0 && k.is_multiple_of(GROUP) => (n, k),
        _ => return Err(weight.invalid(format!("rows in groups of {GROUP} columns"), format!("{:?}", weight.shape))),
    };
    let rows = judge.golden.values(&weight.name, &[n, k])?.unwrap_or_default();
    let bytes: Vec<u8> = rows.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut codes = vec![0; n * k / 2];
    let (mut scale, mut min) = (vec![f16::ZERO; n * k / GROUP], vec![f16::ZERO; n * k / GROUP]);
    let outputs = codes.chunks_mut(k / 2).zip(scale.chunks_mut(k / GROUP)).zip(min.chunks_mut(k / GROUP));
    for (row, ((codes, scale), min)) in bytes.chunks(4 * k).zip(outputs) {
        quantize_row_int4(Float::F32, row, codes, scale, min).map_err(|flaw| {
            weight.invalid("values that f16 scales can hold", format!("another in column {}", flaw.column()))
        })?;
    }
    compare_int4(judge, "int4_synthetic", &Int4 { codes: &codes, scale, min }, n)
}

/// A matrix in int4, as the format stores it.
struct Int4<'a> {
    codes: &'a [u8],
    scale: Vec<f16>,
    min: Vec<f16>,
}

/// `{prefix}.packed`, `.scale`, `.min` and `.dequantized` of a matrix of `n` rows; where `.ties` marks a tie, a code may
/// differ by one.
fn compare_int4(judge: &mut Judge, prefix: &str, matrix: &Int4, n: usize) -> Result<()> {
    let (golden, k) = (judge.golden, 2 * matrix.codes.len() / n);
    let key = |name: &str| format!("{prefix}.{name}");
    compare_f16(judge, "quantizer.int4_scale", &key("scale"), &[n, k / GROUP], &matrix.scale)?;
    compare_f16(judge, "quantizer.int4_min", &key("min"), &[n, k / GROUP], &matrix.min)?;
    let found = unpack(matrix.codes);
    let ties = golden.bytes(&key("ties"), Dtype::U8, &[n, k])?;
    let tie = |index: usize| ties.is_some_and(|ties| ties[index] != 0);
    if let Some(packed) = golden.bytes(&key("packed"), Dtype::U8, &[n, k / 2])? {
        let as_good = |(index, code): (usize, u8)| match tie(index) && code.abs_diff(found[index]) <= 1 {
            true => found[index],
            false => code,
        };
        let expected: Vec<u8> = unpack(packed).into_iter().enumerate().map(as_good).collect();
        let (count, first) = differing(&found, &expected);
        judge.verdict.measure("quantizer.int4_codes", NONE_DIFFERS, count, || at(&key("packed"), first, &[n, k]));
    }
    if let Some(expected) = golden.values(&key("dequantized"), &[n, k])? {
        let scale = |index: usize| matrix.scale[index / GROUP].to_f32();
        let weight = |index: usize| matrix.min[index / GROUP].to_f32() + f32::from(found[index]) * scale(index);
        let as_good = |(index, w): (usize, f32)| match tie(index) && (w - weight(index)).abs() <= 1.001 * scale(index) {
            true => weight(index),
            false => w,
        };
        let expected: Vec<f32> = expected.into_iter().enumerate().map(as_good).collect();
        let (count, first) = differing(&(0..found.len()).map(weight).collect::<Vec<_>>(), &expected);
        let place = || at(&key("dequantized"), first, &[n, k]);
        judge.verdict.measure("quantizer.int4_dequantized", NONE_DIFFERS, count, place);
    }
    Ok(())
}

/// Two codes a byte, the low nibble first.
fn unpack(packed: &[u8]) -> Vec<u8> {
    packed.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect()
}

/// Holds half-precision values against a tensor: none may differ.
fn compare_f16(judge: &mut Judge, name: &str, key: &str, shape: &[usize], found: &[f16]) -> Result<()> {
    if let Some(expected) = judge.golden.values(key, shape)? {
        let found: Vec<f32> = found.iter().map(|value| value.to_f32()).collect();
        let (count, first) = differing(&found, &expected);
        judge.verdict.measure(name, NONE_DIFFERS, count, || at(key, first, shape));
    }
    Ok(())
}

/// The reference with the export's dequantized weights against `prompt.N.{scores}.*`: tells a fault of the export from
/// one of the engine.
pub(super) fn compare_scores(
    judge: &mut Judge,
    variant: &Variant,
    exported: &Exported,
    prompts: &[Prompt],
    device: &Device,
) -> Result<()> {
    let config = &judge.golden.config;
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let get = |name: &str| dequantized(&exported.weights, name);
    let model = Reference::load(config, get, Precision::F32, device)?;
    for prompt in prompts {
        let (t, states) = (prompt.ids.len(), model.score(&prompt.ids)?);
        let key = |name: &str| format!("prompt.{}.{}.{name}", prompt.number, variant.scores);
        let (last_state, last_logits) = (&states.hidden[(t - 1) * hidden..], &states.logits[(t - 1) * vocab..]);
        judge.close("export.hidden", F32_LIMIT, &key("hidden"), &[t, hidden], &states.hidden)?;
        judge.close("export.hidden", F32_LIMIT, &key("last_hidden"), &[hidden], last_state)?;
        judge.close("export.logits", F32_LIMIT, &key("logits"), &[t, vocab], &states.logits)?;
        judge.close("export.logits", F32_LIMIT, &key("last_logits"), &[vocab], last_logits)?;
    }
    Ok(())
}
