//! Codes to latents: the split residual quantizer, read backwards.

use super::gemm::Matrix;
use super::ops;
use crate::config::CodecConfig;
use crate::error::{Error, Result};
use crate::tensors::TensorFile;

/// The semantic and the acoustic part. Each sums its codebook vectors and projects the sum; the projections are added.
#[derive(Debug)]
pub(super) struct Quantizer {
    /// One a quantizer, `[codes, dim]`, semantic first.
    codebooks: Vec<Vec<f32>>,
    semantic: usize,
    dim: usize,
    codes: usize,
    /// Both output projections side by side: `[hidden, 2 * dim]`.
    projection: Matrix,
}

impl Quantizer {
    /// Reads the first `num_quantizers` codebooks and both output projections.
    pub(super) fn load(file: &TensorFile, config: &CodecConfig, num_quantizers: usize) -> Result<Quantizer> {
        let (codes, dim, hidden) = (config.codebook_size, config.codebook_dim, config.hidden_size);
        let semantic = config.num_semantic_quantizers;
        let part = |name: &str| format!("quantizer.{name}_residual_vector_quantizer");
        let codebook = |index: usize| {
            let (part, layer) =
                if index < semantic { (part("semantic"), index) } else { (part("acoustic"), index - semantic) };
            let name = format!("{part}.layers.{layer}.codebook");
            let sums = file.get_f32(&format!("{name}.embed_sum"), &[codes, dim])?;
            let usage = file.get_f32(&format!("{name}.cluster_usage"), &[codes])?;
            Ok(ops::codebook(&sums, &usage))
        };
        let weight = |name: &str| file.get_f32(&format!("{}.output_proj.weight", part(name)), &[hidden, dim, 1]);
        let (first, second) = (weight("semantic")?, weight("acoustic")?);
        let both = |n: usize, k: usize| if k < dim { first[n * dim + k] } else { second[n * dim + k - dim] };
        Ok(Quantizer {
            codebooks: (0..num_quantizers).map(codebook).collect::<Result<_>>()?,
            semantic,
            dim,
            codes,
            projection: Matrix::pack(hidden, 2 * dim, both, |_| 0.0),
        })
    }

    /// Codebooks in use.
    pub(super) fn num_quantizers(&self) -> usize {
        self.codebooks.len()
    }

    /// Checks `codes: [t, num_quantizers]` before anything changes.
    ///
    /// # Errors
    /// [`Error::Shape`] for a partial frame, [`Error::Input`] naming the first code out of range.
    pub(super) fn check(&self, codes: &[u32]) -> Result<()> {
        let q = self.num_quantizers();
        if codes.is_empty() || !codes.len().is_multiple_of(q) {
            return Err(Error::Shape {
                operation: "codec step",
                operand: "codes",
                expected: format!("one or more frames of {q} codes"),
                found: format!("{} codes", codes.len()),
            });
        }
        match codes.iter().position(|&code| code as usize >= self.codes) {
            None => Ok(()),
            Some(i) => {
                let (code, frame, index) = (codes[i], i / q, i % q);
                let message = format!(
                    "code {code} of quantizer {index} in frame {frame} is out of range: this codec has {} codes a codebook",
                    self.codes
                );
                Err(Error::input("codes", message))
            }
        }
    }

    /// `codes: [t, num_quantizers]`, checked; `sums` is scratch; `latents: [t, hidden]` is overwritten.
    pub(super) fn step(&self, codes: &[u32], sums: &mut Vec<f32>, latents: &mut Vec<f32>) {
        let frames = codes.len() / self.num_quantizers();
        sums.clear();
        sums.resize(frames * 2 * self.dim, 0.0);
        for (frame, sums) in codes.chunks(self.num_quantizers()).zip(sums.chunks_mut(2 * self.dim)) {
            let (semantic, acoustic) = sums.split_at_mut(self.dim);
            for (index, (&code, codebook)) in frame.iter().zip(&self.codebooks).enumerate() {
                let sum = if index < self.semantic { &mut *semantic } else { &mut *acoustic };
                let vector = &codebook[code as usize * self.dim..][..self.dim];
                sum.iter_mut().zip(vector).for_each(|(sum, v)| *sum += v);
            }
        }
        latents.resize(frames * self.projection.outputs(), 0.0);
        self.projection.multiply(sums, 2 * self.dim, latents);
    }
}
