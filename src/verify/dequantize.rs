//! The weights that an export stands for, under the names of the source checkpoint.

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
    let (columns, out): (usize, Vec<f32>) = if codes.dtype == Dtype::I8 {
        let columns = codes.len() / rows.max(1);
        let scale = values("scale", &[rows])?;
        let weight = |(i, code): (usize, &u8)| f32::from(*code as i8) * scale[i / columns];
        (columns, codes.data.iter().enumerate().map(weight).collect())
    } else {
        let columns = 2 * codes.len() / rows.max(1);
        let groups = [rows, columns / GROUP];
        let (scale, min) = (values("scale", &groups)?, values("min", &groups)?);
        let weight = |(i, code): (usize, u8)| min[i / GROUP] + f32::from(code) * scale[i / GROUP];
        (columns, codes.data.iter().flat_map(|byte| [byte & 15, byte >> 4]).enumerate().map(weight).collect())
    };
    Ok(Tensor {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: vec![rows, columns],
        data: Bytes::from(out.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()),
        place: codes.place.clone(),
    })
}
