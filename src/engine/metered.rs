//! What an engine can tell about its own cost, for `rumik-run bench`.

use serde::Serialize;

use super::Engine;
use crate::error::Result;

/// Median, and the 10th and 90th percentile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
}

impl Spread {
    /// Of the values; NaN when there are none.
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |numerator: usize| {
            let last = values.len().checked_sub(1)?;
            values.get((last * numerator + 5) / 10).copied()
        };
        let [low, median, high] = [1, 5, 9].map(|n| at(n).unwrap_or(f64::NAN));
        Spread { median, low, high }
    }

    /// Every figure changed alike.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Spread {
        Spread { median: f(self.median), low: f(self.low), high: f(self.high) }
    }
}

/// What one token of one stream reads, and in how many pieces.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Traffic {
    /// Bytes of weights: layers, audio head and stop head. The cache comes on top.
    pub weight_bytes: usize,
    /// Bytes of keys and values that a token reads for every position before it, in all layers.
    pub cache_bytes_per_position: usize,
    /// Kernel launches; none on the CPU.
    pub launches: Option<usize>,
}

/// Device memory in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryUse {
    /// Weights, cache and working memory of the language model.
    pub decoder: usize,
    /// Weights and state of the codec.
    pub codec: usize,
    /// What else the card holds: the driver's context with the kernels, and other programs.
    pub beside: usize,
}

/// Time of one kind of kernel within a token.
#[derive(Clone, Debug, Serialize)]
pub struct KernelTime {
    /// The kernel.
    pub name: &'static str,
    /// Columns of the pass: streams when decoding, positions of a prompt.
    pub columns: usize,
    /// Launches a token.
    pub launches: usize,
    /// Microseconds a launch, the launch itself included.
    pub micros: Spread,
    /// Weight bytes it reads a launch.
    pub bytes: usize,
    /// Time of the read-only twin, which reads the same weights and computes nothing, over this one's.
    pub of_read_twin: Option<f64>,
    /// Time of the compute twin, which computes the same and reads no weights, over this one's.
    pub of_compute_twin: Option<f64>,
}

/// An engine that can be measured from within. All slots must be free when these are called.
pub trait Metered: Engine {
    /// What a token reads.
    fn traffic(&self) -> Traffic;

    /// Bytes a second that a plain copy within the memory moves, read and written bytes both counted.
    ///
    /// # Errors
    /// Those of the device.
    fn copy_rate(&self) -> Result<f64>;

    /// Milliseconds of the codec for one frame of one stream; `None` without a codec.
    ///
    /// # Errors
    /// Those of the device.
    fn codec_ms(&mut self, repeats: usize) -> Result<Option<Spread>>;

    /// Device memory; `None` where the model runs from its file.
    ///
    /// # Errors
    /// Those of the device.
    fn memory(&self) -> Result<Option<MemoryUse>>;

    /// Times of every kernel of a pass, each alone; empty where there are none.
    ///
    /// # Errors
    /// Those of the device.
    fn kernel_times(&mut self, columns: usize, position: usize, repeats: usize) -> Result<Vec<KernelTime>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let spread = Spread::of((1..=11).rev().map(f64::from).collect());
        assert_eq!((spread.low, spread.median, spread.high), (2.0, 6.0, 10.0));
        let one = Spread::of(vec![3.0]);
        assert_eq!((one.low, one.median, one.high), (3.0, 3.0, 3.0));
        assert!(Spread::of(Vec::new()).median.is_nan());
    }
}
