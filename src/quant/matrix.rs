//! What quantization did to a row and to a matrix.

use half::f16;

use crate::format::{MatrixError, WorstGroup};

/// A value that cannot be quantized, with its column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flaw {
    /// NaN or an infinity.
    NotFinite {
        /// Column of the first such value.
        column: usize,
        /// The value.
        value: f32,
    },
    /// A value so large that a scale, a minimum or a bf16 would become infinite.
    TooLarge {
        /// Column of the first value of largest magnitude.
        column: usize,
        /// The value.
        value: f32,
    },
}

impl Flaw {
    /// Finds the flaw of `values`, known to have one: the first that is not finite, else the first of largest magnitude.
    /// `first` is the column of `values[0]`.
    pub(super) fn find(values: &[f32], first: usize) -> Flaw {
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Flaw::NotFinite { column: first + index, value: values[index] };
        }
        let largest = values.iter().fold(0.0, |largest: f32, v| largest.max(v.abs()));
        let index = values.iter().position(|v| v.abs() == largest).unwrap_or(0);
        Flaw::TooLarge { column: first + index, value: values[index] }
    }

    /// The column at fault.
    pub fn column(&self) -> usize {
        match self {
            Flaw::NotFinite { column, .. } | Flaw::TooLarge { column, .. } => *column,
        }
    }
}

/// Errors and scales of one row. `error` and `norm` are sums of squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowError {
    /// Sum of (w - w')².
    pub error: f64,
    /// Sum of w².
    pub norm: f64,
    /// The group with the largest `error / norm`, the first of equals, and that quotient.
    pub worst: (usize, f64),
    /// Smallest scale.
    pub scale_min: f32,
    /// Largest scale.
    pub scale_max: f32,
    /// Scales that are 0.
    pub zero_scales: usize,
}

impl RowError {
    /// A row without groups.
    pub(super) const EMPTY: RowError =
        RowError { error: 0.0, norm: 0.0, worst: (0, 0.0), scale_min: f32::INFINITY, scale_max: 0.0, zero_scales: 0 };

    /// Counts one more group.
    #[inline(always)]
    pub(super) fn add(&mut self, group: usize, scale: f16, error: f64, norm: f64) {
        self.error += error;
        self.norm += norm;
        let quotient = if norm > 0.0 { error / norm } else { 0.0 };
        if quotient > self.worst.1 {
            self.worst = (group, quotient);
        }
        let scale = scale.to_f32();
        self.scale_min = self.scale_min.min(scale);
        self.scale_max = self.scale_max.max(scale);
        self.zero_scales += usize::from(scale == 0.0);
    }
}

impl RowError {
    /// Sums rows in their order, so that the result does not depend on who computed them.
    pub fn sum(rows: &[RowError]) -> MatrixError {
        let mut sum = RowError::EMPTY;
        let mut worst_row = 0;
        for (index, row) in rows.iter().enumerate() {
            sum.error += row.error;
            sum.norm += row.norm;
            if row.worst.1 > sum.worst.1 {
                (worst_row, sum.worst) = (index, row.worst);
            }
            sum.scale_min = sum.scale_min.min(row.scale_min);
            sum.scale_max = sum.scale_max.max(row.scale_max);
            sum.zero_scales += row.zero_scales;
        }
        MatrixError {
            relative_error: if sum.norm > 0.0 { (sum.error / sum.norm).sqrt() } else { 0.0 },
            worst_group: WorstGroup { row: worst_row, group: sum.worst.0, relative_error: sum.worst.1.sqrt() },
            scale_min: if sum.scale_min.is_finite() { sum.scale_min } else { 0.0 },
            scale_max: sum.scale_max,
            zero_scales: sum.zero_scales,
        }
    }
}
