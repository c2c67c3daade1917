//! The weights that an export stands for, under the names of the source checkpoint.

use rayon::prelude::*;

use crate::error::Result;
use crate::format::layout::GROUP;
use crate::tensors::{Bytes, Dtype, Tensor, TensorFile};

/// The tensor `name` of the source as the export `weights` has it: dequantized to F32 where it was quantized, unchanged
/// where it was not. For [`Reference::load`](crate::reference::Reference::load).
///
/// `w' = min + code * scale` (int4) and `w' = code * scale` (int8), in f32 like the definition of the format.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) when the export has no such tensor, or scales of another shape.
pub fn dequantized(weights: &TensorFile, name: &str) -> Result<Tensor> {
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    let Some(codes) = weights.find(&format!("{stem}.qweight")) else { return weights.get(name).cloned() };
    let values = |name: &str, shape: &[usize]| weights.get_f32(&format!("{stem}.{name}"), shape);
    let rows = codes.shape.first().copied().unwrap_or(0);
    let columns = if codes.dtype == Dtype::I8 { codes.len() } else { 2 * codes.len() } / rows.max(1);
    let mut data = vec![0; 4 * rows * columns];
    // One row: `f32` little-endian bytes of the weights that its codes stand for.
    let rows_of = data.par_chunks_mut((4 * columns).max(1)).enumerate();
    if codes.dtype == Dtype::I8 {
        let scale = values("scale", &[rows])?;
        rows_of.for_each(|(row, out)| {
            let weights = codes.data[row * columns..][..columns].iter().map(|code| f32::from(*code as i8) * scale[row]);
            write(out, weights);
        });
    } else {
        let groups = columns / GROUP;
        let (scale, min) = (values("scale", &[rows, groups])?, values("min", &[rows, groups])?);
        rows_of.for_each(|(row, out)| {
            let nibbles = codes.data[row * columns / 2..][..columns / 2].iter().flat_map(|byte| [byte & 15, byte >> 4]);
            let group = |i: usize| row * groups + i / GROUP;
            write(out, nibbles.enumerate().map(|(i, code)| min[group(i)] + f32::from(code) * scale[group(i)]));
        });
    }
    Ok(Tensor {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: vec![rows, columns],
        data: Bytes::from(data),
        place: codes.place.clone(),
    })
}

fn write(out: &mut [u8], weights: impl Iterator<Item = f32>) {
    out.as_chunks_mut().0.iter_mut().zip(weights).for_each(|(bytes, weight)| *bytes = weight.to_le_bytes());
}
