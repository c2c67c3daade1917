//! The export's tensors against the source's: every weight within the half step that rounding leaves open.

use half::bf16;
use rayon::prelude::*;

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::format::layout::{GROUP, PROJECTIONS, projection_name};
use crate::format::{Export, Head, Int4Matrix, Int8Matrix, STOP_TENSORS};
use crate::tensors::{Tensor, TensorFile};

use super::Verdict;
use super::limits::Limits;

/// Relative error of a value rounded to f16.
const F16_ROUNDING: f32 = 1.0 / 2048.0;
/// Half the smallest f16, absolute.
const F16_SMALLEST: f32 = 2.98e-8;

/// Judges every tensor of an export.
///
/// # Errors
/// [`crate::Error::Invalid`] when the source lacks a tensor or has another shape.
pub fn judge(
    export: &Export,
    file: &TensorFile,
    source: &Checkpoint,
    verdict: &mut Verdict,
    limits: &Limits,
) -> Result<()> {
    let mut names: Vec<(usize, &str)> = Vec::new();
    (0..export.layers.len()).for_each(|layer| names.extend(PROJECTIONS.iter().map(|name| (layer, *name))));
    let steps: Vec<(String, f64)> = names
        .into_par_iter()
        .map(|(layer, projection)| {
            let name = projection_name(layer, projection);
            let weight = source.get(&format!("{name}.weight"))?;
            let l = &export.layers[layer];
            let matrix = [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down];
            let index = PROJECTIONS.iter().position(|p| *p == projection).unwrap_or(0);
            Ok((name, int4_steps(matrix[index], weight)?))
        })
        .collect::<Result<_>>()?;
    let mut measure = |name: &str, value: f64, place: &str| {
        verdict.measure(name, limits.of(name), value, || place.to_owned());
    };
    steps.iter().for_each(|(name, steps)| measure("weights.int4_steps", *steps, name));
    let embedding = source.get("model.embed_tokens.weight")?;
    let all: Vec<u32> = (0..export.config.vocab_size as u32).collect();
    measure("weights.int8_steps", int8_steps(&export.embedding, embedding, &all)?, "model.embed_tokens");
    match &export.head {
        Head::Int8(head) => measure("weights.int8_steps", int8_steps(head, embedding, &export.audio_ids)?, "head"),
        Head::Bf16(head) => {
            let width = export.config.hidden_size;
            let (stored, mut expected) = (head.to_f32()?, vec![0.0; width]);
            let mut changed = 0;
            for (row, id) in stored.chunks(width).zip(&export.audio_ids) {
                embedding.read_f32(*id as usize * width, &mut expected)?;
                changed += row.iter().zip(&expected).filter(|(a, b)| !same(**a, **b)).count();
            }
            measure("weights.changed", changed as f64, "head");
        }
    }
    let norms = (0..export.layers.len()).map(|layer| projection_name(layer, "input_layernorm.weight"));
    for name in
        norms.chain(["model.norm.weight".to_owned()]).chain(STOP_TENSORS.map(|name| format!("stop_predictor.{name}")))
    {
        let (found, expected) = (file.get(&name)?.to_f32()?, source.get(&name)?.to_f32()?);
        let changed = found.iter().zip(&expected).filter(|(a, b)| !same(**a, **b)).count();
        measure("weights.changed", (changed + found.len().abs_diff(expected.len())) as f64, &name);
    }
    Ok(())
}

/// Equal, or equal once rounded to bf16 as an export of an f32 source is.
fn same(found: f32, expected: f32) -> bool {
    found == expected || found == bf16::from_f32(expected).to_f32()
}

/// The largest deviation of a weight over the largest that rounding explains.
fn int4_steps(matrix: &Int4Matrix, weight: &Tensor) -> Result<f64> {
    let mut row = vec![0.0; matrix.k];
    let (mut worst, groups) = (0.0, matrix.k / GROUP);
    for n in 0..matrix.n {
        weight.read_f32(n * matrix.k, &mut row)?;
        for (k, w) in row.iter().enumerate() {
            let group = n * groups + k / GROUP;
            let byte = matrix.codes[(n * matrix.k + k) / 2];
            let code = if k % 2 == 0 { byte & 15 } else { byte >> 4 };
            let (scale, min) = (matrix.scale[group].to_f32(), matrix.min[group].to_f32());
            let found = min + f32::from(code) * scale;
            let allowed = scale / 2.0 + (min.abs() + 15.0 * scale) * F16_ROUNDING + 16.0 * F16_SMALLEST;
            worst = larger(worst, f64::from((found - w).abs() / allowed));
        }
    }
    Ok(worst)
}

/// As [`int4_steps`], of the rows `ids` of `weight`.
fn int8_steps(matrix: &Int8Matrix, weight: &Tensor, ids: &[u32]) -> Result<f64> {
    let rows = matrix.scale.par_iter().zip(ids).enumerate().map(|(n, (scale, id))| {
        let mut row = vec![0.0; matrix.k];
        weight.read_f32(*id as usize * matrix.k, &mut row)?;
        let scale = scale.to_f32();
        let allowed = scale / 2.0 + 127.0 * (scale * F16_ROUNDING + F16_SMALLEST);
        let steps = matrix.row(n).zip(&row).map(|(code, w)| f64::from((f32::from(code) * scale - w).abs() / allowed));
        Ok(steps.fold(0.0, larger))
    });
    rows.try_reduce(|| 0.0, |a, b| Ok(larger(a, b)))
}

/// The larger of two; NaN where one of them is.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}
