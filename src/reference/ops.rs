//! The operations of the model that candle does not spell the way transformers rounds them.

use candle_core::{D, DType, Device, Result, Tensor};

/// `x wᵀ`, `x: [t, k]`, `w: [n, k]`, in the type of both, summed in f32 and rounded once.
pub(super) fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    // candle multiplies no bf16 on the CPU. Products of bf16 values are exact in f32, so widening is what bf16 units do.
    if x.device().is_cpu() {
        return linear_in_f32(x, w, None);
    }
    x.matmul(&w.t()?)
}

/// `x wᵀ + bias` in f32, rounded once to the type of `x`.
pub(super) fn linear_in_f32(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let product = x.to_dtype(DType::F32)?.matmul(&w.to_dtype(DType::F32)?.t()?)?;
    let sum = match bias {
        Some(bias) => product.broadcast_add(&bias.to_dtype(DType::F32)?)?,
        None => product,
    };
    sum.to_dtype(x.dtype())
}

/// LayerNorm over the last dimension: mean subtracted, in f32 throughout, then rounded to the type of `x`.
pub(super) fn layer_norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let centred = wide.broadcast_sub(&wide.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let normed = centred.broadcast_div(&(variance + f64::from(eps))?.sqrt()?)?;
    let scaled = normed.broadcast_mul(&weight.to_dtype(DType::F32)?)?;
    let shifted = match bias {
        Some(bias) => scaled.broadcast_add(&bias.to_dtype(DType::F32)?)?,
        None => scaled,
    };
    shifted.to_dtype(x.dtype())
}

/// An elementwise function evaluated in f32 and rounded once to the type of `x`.
pub(super) fn in_f32(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    f(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype())
}

/// Rotary angles of a run of positions.
pub(super) struct Rope {
    /// `[t, d / 2, 1]` f32, holding values already rounded to the activation type.
    cos: Tensor,
    /// As `cos`.
    sin: Tensor,
}

impl Rope {
    /// Angles `position * theta^(-2j / d)` for `t` positions from `first`, in f32.
    pub(super) fn new(first: usize, t: usize, d: usize, theta: f64, dtype: DType, device: &Device) -> Result<Rope> {
        let frequency = |j: usize| 1.0 / theta.powf((2 * j) as f64 / d as f64) as f32;
        let angles = (first..first + t).flat_map(|p| (0..d / 2).map(move |j| p as f32 * frequency(j)));
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles.map(f32::sin_cos).unzip();
        let rounded =
            |values: Vec<f32>| Tensor::from_vec(values, (t, d / 2, 1), device)?.to_dtype(dtype)?.to_dtype(DType::F32);
        Ok(Rope { cos: rounded(cos)?, sin: rounded(sin)? })
    }

    /// Rotates neighbouring pairs (2j, 2j + 1) of `x: [h, t, d]`; in f32, then rounded to the type of `x`.
    pub(super) fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let (h, t, d) = x.dims3()?;
        let pairs = x.to_dtype(DType::F32)?.reshape((h, t, d / 2, 2))?;
        let (even, odd) = (pairs.narrow(3, 0, 1)?, pairs.narrow(3, 1, 1)?);
        let turned_even = (even.broadcast_mul(&self.cos)? - odd.broadcast_mul(&self.sin)?)?;
        let turned_odd = (odd.broadcast_mul(&self.cos)? + even.broadcast_mul(&self.sin)?)?;
        Tensor::cat(&[turned_even, turned_odd], 3)?.reshape((h, t, d))?.to_dtype(x.dtype())
    }
}

/// What `t` positions from `first` see of all positions before and up to them: `[t, first + t]`, 0 or -inf.
///
/// `window` positions, the position itself included; all of them for `None`.
pub(super) fn causal_mask(first: usize, t: usize, window: Option<usize>, device: &Device) -> Result<Tensor> {
    let s = first + t;
    let sees = |i: usize, j: usize| j <= i && window.is_none_or(|window| i - j < window);
    let row = |i: usize| (0..s).map(move |j| if sees(i, j) { 0.0 } else { f32::NEG_INFINITY });
    Tensor::from_vec((first..s).flat_map(row).collect::<Vec<f32>>(), (t, s), device)
}
