//! Causal convolutions over a stream: the past rows a filter still sees are kept in front of the new ones.
//!
//! In time-major rows the inputs of one output are neighbours in memory, so a convolution is one matrix product over
//! overlapping rows, without a copy. A transposed convolution whose kernel is a multiple of its stride is the same:
//! `kernel / stride` inputs give `stride` output rows at once.

use super::gemm::Matrix;
use super::simd::{self, Set};
use crate::error::{Error, Result};
use crate::tensors::TensorFile;

/// The rows a convolution has seen and still needs, then the rows of the running step. Starts as zeros.
#[derive(Clone, Debug)]
pub(super) struct History {
    rows: Vec<f32>,
    kept: usize,
}

impl History {
    fn new(kept: usize) -> History {
        History { rows: vec![0.0; kept], kept }
    }

    pub(super) fn reset(&mut self) {
        self.rows.clear();
        self.rows.resize(self.kept, 0.0);
    }

    /// Forgets all but what the next step needs.
    fn advance(&mut self) {
        let start = self.rows.len() - self.kept;
        self.rows.copy_within(start.., 0);
        self.rows.truncate(self.kept);
    }
}

/// What happens to the input on its way into a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Activation {
    None,
    Elu,
}

/// Sizes of a convolution, in the words of `torch.nn.Conv1d`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) kernel: usize,
}

/// A causal convolution, plain or transposed, with the activation before it.
#[derive(Debug)]
pub(super) struct Conv {
    /// Taps after each other in `k`; a transposed one has its `stride` output rows after each other in `n`.
    matrix: Matrix,
    activation: Activation,
    inputs: usize,
    taps: usize,
    dilation: usize,
}

impl Conv {
    /// Reads `{name}.weight: [outputs, inputs, kernel]` and `{name}.bias: [outputs]`.
    pub(super) fn load(
        file: &TensorFile,
        name: &str,
        shape: Shape,
        dilation: usize,
        activation: Activation,
    ) -> Result<Conv> {
        let Shape { inputs, outputs, kernel } = shape;
        let weight = file.get_f32(&format!("{name}.weight"), &[outputs, inputs, kernel])?;
        let bias = file.get_f32(&format!("{name}.bias"), &[outputs])?;
        let tap = |n: usize, k: usize| weight[(n * inputs + k % inputs) * kernel + k / inputs];
        let matrix = Matrix::pack(outputs, kernel * inputs, tap, |n| bias[n]);
        Ok(Conv { matrix, activation, inputs, taps: kernel, dilation })
    }

    /// Reads a transposed convolution: `{name}.weight: [inputs, outputs, kernel]` and `{name}.bias: [outputs]`.
    pub(super) fn load_transposed(
        file: &TensorFile,
        name: &str,
        shape: Shape,
        stride: usize,
        activation: Activation,
    ) -> Result<Conv> {
        let Shape { inputs, outputs, kernel } = shape;
        let weight_name = format!("{name}.weight");
        let weight = file.get_f32(&weight_name, &[inputs, outputs, kernel])?;
        let bias = file.get_f32(&format!("{name}.bias"), &[outputs])?;
        if !kernel.is_multiple_of(stride) {
            let found = format!("kernel {kernel}, stride {stride}");
            return Err(Error::invalid(file.place(), weight_name, "a kernel that is a multiple of its stride", found));
        }
        let taps = kernel / stride;
        // Output row `phase` of the newest input, which is the last of `taps`: older inputs reach it with later weights.
        let tap = |n: usize, k: usize| {
            let (phase, output, age) = (n / outputs, n % outputs, taps - 1 - k / inputs);
            weight[(k % inputs * outputs + output) * kernel + age * stride + phase]
        };
        let matrix = Matrix::pack(stride * outputs, taps * inputs, tap, |n| bias[n % outputs]);
        Ok(Conv { matrix, activation, inputs, taps, dilation: 1 })
    }

    /// The state before the first row.
    pub(super) fn history(&self) -> History {
        History::new((self.taps - 1) * self.dilation * self.inputs)
    }

    /// `x: [t, inputs]`; `y: [t * stride, outputs]` is overwritten.
    pub(super) fn step(&self, history: &mut History, x: &[f32], y: &mut Vec<f32>) {
        match self.activation {
            Activation::None => history.rows.extend_from_slice(x),
            Activation::Elu => simd::extend_elu(Set::best(), x, &mut history.rows),
        }
        y.resize(x.len() / self.inputs * self.matrix.outputs(), 0.0);
        if self.dilation == 1 {
            self.matrix.multiply(&history.rows, self.inputs, y);
        } else {
            let rows = self.unfold(&history.rows, x.len() / self.inputs);
            self.matrix.multiply(&rows, self.taps * self.inputs, y);
        }
        history.advance();
    }

    /// The inputs of each output side by side, for taps that are not neighbours. The published Mimi has none.
    fn unfold(&self, rows: &[f32], t: usize) -> Vec<f32> {
        let taps = (0..t).flat_map(|t| (0..self.taps).map(move |tap| (t + tap * self.dilation) * self.inputs));
        taps.flat_map(|start| &rows[start..start + self.inputs]).copied().collect()
    }
}

/// The depthwise transposed convolution that doubles the frame rate: one filter a channel, no bias.
#[derive(Debug)]
pub(super) struct Upsample {
    /// `[kernel, channels]`.
    filter: Vec<f32>,
    channels: usize,
    stride: usize,
}

impl Upsample {
    /// Inputs an output depends on: the kernel is twice the stride.
    const TAPS: usize = 2;

    /// Reads `upsample.conv.weight: [channels, 1, 2 * stride]`.
    pub(super) fn load(file: &TensorFile, channels: usize, stride: usize) -> Result<Upsample> {
        let kernel = Self::TAPS * stride;
        let weight = file.get_f32("upsample.conv.weight", &[channels, 1, kernel])?;
        let filter = (0..kernel * channels).map(|i| weight[i % channels * kernel + i / channels]).collect();
        Ok(Upsample { filter, channels, stride })
    }

    /// The state before the first row.
    pub(super) fn history(&self) -> History {
        History::new((Self::TAPS - 1) * self.channels)
    }

    /// `x: [t, channels]`; `y: [t * stride, channels]` is overwritten.
    pub(super) fn step(&self, history: &mut History, x: &[f32], y: &mut Vec<f32>) {
        let c = self.channels;
        history.rows.extend_from_slice(x);
        y.clear();
        for rows in history.rows.windows(Self::TAPS * c).step_by(c) {
            let (older, newer) = rows.split_at(c);
            for phase in 0..self.stride {
                let filter = |tap: usize| &self.filter[(tap * self.stride + phase) * c..][..c];
                let products = newer.iter().zip(filter(0)).zip(older.iter().zip(filter(1)));
                y.extend(products.map(|((a, wa), (b, wb))| a * wa + b * wb));
            }
        }
        history.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ops, testing};
    use super::*;

    /// Sums of about a hundred f32 products of size 1, against f64.
    const TOLERANCE: f32 = 1e-5;

    fn file(weight_shape: &[usize], outputs: usize) -> (TensorFile, Vec<f32>, Vec<f32>) {
        let tensors = [("c.weight", weight_shape), ("c.bias", &[outputs])];
        let file = testing::random_file(&tensors, 11);
        let values = |name: &str, shape: &[usize]| file.get_f32(name, shape).unwrap();
        let (weight, bias) = (values("c.weight", weight_shape), values("c.bias", &[outputs]));
        (file, weight, bias)
    }

    /// Steps of 1, 2, 3 … rows.
    fn streamed(conv: &Conv, x: &[f32]) -> Vec<f32> {
        let (mut history, mut all, mut y, mut rest, mut rows) = (conv.history(), Vec::new(), Vec::new(), x, 1);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(rows * conv.inputs));
            conv.step(&mut history, now, &mut y);
            all.extend_from_slice(&y);
            (rest, rows) = (later, rows + 1);
        }
        all
    }

    #[test]
    fn a_streamed_convolution_means_the_plain_one() {
        for (inputs, outputs, kernel, dilation) in [(3, 5, 7, 1), (8, 4, 3, 2), (2, 33, 1, 1), (4, 4, 3, 4)] {
            let (file, weight, bias) = file(&[outputs, inputs, kernel], outputs);
            let shape = Shape { inputs, outputs, kernel };
            let conv = Conv::load(&file, "c", shape, dilation, Activation::Elu).unwrap();
            let x = testing::noise(5, 23 * inputs);
            let activated: Vec<f32> = x.iter().map(|&x| ops::elu(x)).collect();
            let expected = ops::causal_conv(&activated, &weight, &bias, kernel, dilation);
            testing::assert_close(&streamed(&conv, &x), &expected, TOLERANCE);
        }
    }

    #[test]
    fn a_streamed_transposed_convolution_means_the_plain_one() {
        for (inputs, outputs, kernel, stride) in [(3, 5, 16, 8), (4, 2, 4, 4), (6, 3, 9, 3)] {
            let (file, weight, bias) = file(&[inputs, outputs, kernel], outputs);
            let shape = Shape { inputs, outputs, kernel };
            let conv = Conv::load_transposed(&file, "c", shape, stride, Activation::None).unwrap();
            let x = testing::noise(5, 23 * inputs);
            let expected = ops::causal_conv_transpose(&x, &weight, &bias, kernel, stride);
            testing::assert_close(&streamed(&conv, &x), &expected, TOLERANCE);
        }
    }

    #[test]
    fn the_upsampling_means_the_plain_one() {
        let (channels, stride) = (3, 2);
        let file = testing::random_file(&[("upsample.conv.weight", &[channels, 1, 4])], 3);
        let weight = file.get_f32("upsample.conv.weight", &[channels, 1, 4]).unwrap();
        let upsample = Upsample::load(&file, channels, stride).unwrap();
        let x = testing::noise(4, 5 * channels);
        let (mut history, mut all, mut y) = (upsample.history(), Vec::new(), Vec::new());
        for rows in [&x[..channels], &x[channels..]] {
            upsample.step(&mut history, rows, &mut y);
            all.extend_from_slice(&y);
        }
        testing::assert_close(&all, &ops::depthwise_conv_transpose(&x, &weight, channels, stride), TOLERANCE);
    }

    #[test]
    fn a_kernel_that_is_no_multiple_of_its_stride_is_refused() {
        let (file, ..) = file(&[2, 2, 5], 2);
        let shape = Shape { inputs: 2, outputs: 2, kernel: 5 };
        let error = Conv::load_transposed(&file, "c", shape, 2, Activation::None).unwrap_err().to_string();
        assert!(error.contains("c.weight: expected a kernel that is a multiple of its stride"), "{error}");
    }
}
