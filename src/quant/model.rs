//! The loop over a checkpoint: every tensor of the export in the order of the file, as a stream of bytes.
//!
//! Matrices are worked on in bands of rows, spread over the threads of the current rayon pool. A band's size depends on the
//! matrix alone and its rows are summed in order, so the bytes and the errors are the same for any number of threads.
//! A band's pages of the source are released when it is done: memory stays bounded however large the model.

use half::f16;
use rayon::prelude::*;

use super::{Flaw, Float, RowError, quantize_row_int4, quantize_row_int8, round_row_bf16};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::format::layout::{GROUP, PROJECTIONS, projection_name};
use crate::format::write::check_finite;
use crate::format::{Encoding, HeadKind, MatrixReport, STOP_TENSORS};
use crate::tensors::{Dtype, Tensor};

/// Source bytes worked on together: enough rows for every thread, few enough to keep in memory several times over.
const BAND_BYTES: usize = 16 << 20;
/// Source bytes below which a task is not split further.
const TASK_BYTES: usize = 64 << 10;

/// What quantizing one row gives.
type RowResult<T> = std::result::Result<T, Flaw>;

/// What came of it, apart from the bytes.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    /// One entry a quantized matrix, in the order of the file.
    pub matrices: Vec<MatrixReport>,
    /// Conversions and zero tensors.
    pub notes: Vec<String>,
}

/// Encodes a checkpoint into the bytes of an export's tensors.
pub(super) struct Encoder<'a> {
    pub checkpoint: &'a Checkpoint,
    pub head: HeadKind,
    pub allow_zero_tensors: bool,
    /// Takes the bytes, in order.
    pub sink: &'a dyn Fn(Vec<u8>) -> Result<()>,
    /// Is told of source bytes that are done.
    pub progress: &'a (dyn Fn(u64) + Sync),
    pub result: Encoded,
}

impl Encoder<'_> {
    /// Runs through the file, tensor by tensor (`docs/SPEC.md`, section 2).
    pub fn run(mut self) -> Result<Encoded> {
        let embedding_scales = self.embedding()?;
        for layer in 0..self.checkpoint.config.num_layers() {
            self.copy(&projection_name(layer, "input_layernorm.weight"))?;
            for projection in PROJECTIONS {
                self.projection(&(projection_name(layer, projection) + ".weight"))?;
            }
        }
        self.copy("model.norm.weight")?;
        let head_scales = self.audio_head()?;
        let ids = self.checkpoint.config.audio_ids();
        (self.sink)(ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect())?;
        for name in STOP_TENSORS {
            self.copy(&format!("stop_predictor.{name}"))?;
        }
        (self.sink)(f16_bytes(&embedding_scales))?;
        (self.sink)(f16_bytes(&head_scales))?;
        self.note_conversions();
        Ok(self.result)
    }

    /// A tensor that keeps its bytes.
    fn copy(&mut self, name: &str) -> Result<()> {
        let tensor = self.checkpoint.get(name)?;
        check_finite(tensor)?;
        if name.ends_with(".weight") && tensor.to_f32()?.iter().all(|&w| w == 0.0) {
            self.zero(tensor, name)?;
        }
        (self.sink)(tensor.data.to_vec())?;
        (self.progress)(tensor.data.len() as u64);
        Ok(())
    }

    /// An int4 matrix: codes, scales, minimums.
    fn projection(&mut self, name: &str) -> Result<()> {
        let tensor = self.checkpoint.get(name)?;
        let (n, k, float) = matrix(tensor)?;
        let rows = self.rows(
            tensor,
            n,
            |row| row,
            k / 2,
            |row, _, codes| {
                let (mut scale, mut min) = (vec![f16::ZERO; k / GROUP], vec![f16::ZERO; k / GROUP]);
                let error = quantize_row_int4(float, row, codes, &mut scale, &mut min)?;
                Ok((error, scale, min))
            },
        )?;
        let errors: Vec<RowError> = rows.iter().map(|(error, ..)| *error).collect();
        self.report(tensor, name, Encoding::Int4, &errors)?;
        (self.sink)(rows.iter().flat_map(|(_, scale, _)| f16_bytes(scale)).collect())?;
        (self.sink)(rows.iter().flat_map(|(.., min)| f16_bytes(min)).collect())
    }

    /// The int8 input embedding. Its scales come later in the file.
    fn embedding(&mut self) -> Result<Vec<f16>> {
        let name = "model.embed_tokens.weight";
        let tensor = self.checkpoint.get(name)?;
        let (n, k, float) = matrix(tensor)?;
        let rows = self.rows(tensor, n, |row| row, k, |row, work, codes| quantize_row_int8(float, row, work, codes))?;
        self.report(tensor, name, Encoding::Int8, &rows.iter().map(|(_, error)| *error).collect::<Vec<_>>())?;
        Ok(rows.into_iter().map(|(scale, _)| scale).collect())
    }

    /// The audio rows of the embedding. The scales of an int8 head come later in the file.
    fn audio_head(&mut self) -> Result<Vec<f16>> {
        let (name, ids) = ("head.audio_weight", self.checkpoint.config.audio_ids());
        let tensor = self.checkpoint.get("model.embed_tokens.weight")?;
        let (_, k, float) = matrix(tensor)?;
        let id = |row: usize| ids[row] as usize;
        if self.head == HeadKind::Int8 {
            let quantize = |row: &[u8], work: &mut [f32], codes: &mut [u8]| quantize_row_int8(float, row, work, codes);
            let rows = self.rows(tensor, ids.len(), id, k, quantize)?;
            self.report(tensor, name, Encoding::Int8, &rows.iter().map(|(_, error)| *error).collect::<Vec<_>>())?;
            return Ok(rows.into_iter().map(|(scale, _)| scale).collect());
        }
        let round = |row: &[u8], work: &mut [f32], out: &mut [u8]| round_row_bf16(float, row, work, out);
        let errors = self.rows(tensor, ids.len(), id, 2 * k, round)?;
        self.report(tensor, name, Encoding::Bf16, &errors)?;
        if float != Float::Bf16 {
            self.result.notes.push(format!("{name} is rounded to BF16 from {}", tensor.dtype));
        }
        Ok(Vec::new())
    }

    /// Works on `count` rows of a matrix, `source_row(i)` being the i-th, and sends `out_bytes` bytes a row to the sink.
    /// `work_on` gets the row's bytes, room for its columns in f32, and the output.
    fn rows<T: Send>(
        &self,
        tensor: &Tensor,
        count: usize,
        source_row: impl Fn(usize) -> usize + Sync,
        out_bytes: usize,
        work_on: impl Fn(&[u8], &mut [f32], &mut [u8]) -> RowResult<T> + Sync,
    ) -> Result<Vec<T>> {
        let (k, row_bytes) = (tensor.shape[1], tensor.data.len() / tensor.shape[0]);
        let band = (BAND_BYTES / row_bytes).max(1);
        let mut results = Vec::with_capacity(count);
        for first in (0..count).step_by(band) {
            let rows = band.min(count - first);
            let mut out = vec![0; rows * out_bytes];
            let done: Vec<RowResult<T>> = out
                .par_chunks_mut(out_bytes)
                .enumerate()
                .with_min_len((TASK_BYTES / row_bytes).max(1))
                .map_init(
                    || vec![0f32; k],
                    |work, (i, out)| {
                        let start = source_row(first + i) * row_bytes;
                        work_on(&tensor.data[start..start + row_bytes], work, out)
                    },
                )
                .collect();
            for (i, done) in done.into_iter().enumerate() {
                results.push(done.map_err(|flaw| flawed(tensor, source_row(first + i), flaw))?);
            }
            let sources = (first..first + rows).map(&source_row);
            if let (Some(low), Some(high)) = (sources.clone().min(), sources.max()) {
                tensor.data.slice(low * row_bytes..(high + 1) * row_bytes).release();
            }
            (self.sink)(out)?;
            (self.progress)((rows * row_bytes) as u64);
        }
        Ok(results)
    }

    fn report(&mut self, tensor: &Tensor, name: &str, encoding: Encoding, rows: &[RowError]) -> Result<()> {
        if rows.iter().all(|row| row.norm == 0.0) {
            self.zero(tensor, name)?;
        }
        let (error, columns) = (RowError::sum(rows), tensor.shape[1]);
        self.result.matrices.push(MatrixReport { name: name.to_owned(), encoding, rows: rows.len(), columns, error });
        Ok(())
    }

    /// A tensor of zeros is a broken checkpoint more often than a model, and its speech would be silence.
    fn zero(&mut self, tensor: &Tensor, name: &str) -> Result<()> {
        if !self.allow_zero_tensors {
            let error = Error::invalid(&tensor.place, name, "weights other than 0", "zeros throughout");
            return Err(error.with_hint("give --allow-zero-tensors if that is meant"));
        }
        self.result.notes.push(format!("{name} is zero throughout"));
        Ok(())
    }

    fn note_conversions(&mut self) {
        for dtype in [Dtype::F16, Dtype::F32] {
            let names = self.checkpoint.tensors.iter().filter(|(_, tensor)| tensor.dtype == dtype);
            let (matrices, others): (Vec<_>, Vec<_>) = names.partition(|(_, tensor)| tensor.shape.len() == 2);
            let quantized = matrices.iter().filter(|(name, _)| !name.starts_with("stop_predictor")).count();
            if quantized > 0 {
                self.result.notes.push(format!("{quantized} matrices are quantized from {dtype}"));
            }
            let kept = matrices.len() + others.len() - quantized;
            if kept > 0 {
                self.result.notes.push(format!("{kept} norm and stop head tensors keep their type {dtype}"));
            }
        }
    }
}

/// `n`, `k` and float type of a matrix.
fn matrix(tensor: &Tensor) -> Result<(usize, usize, Float)> {
    match (&tensor.shape[..], Float::of(tensor.dtype)) {
        (&[n, k], Some(float)) => Ok((n, k, float)),
        _ => Err(tensor.invalid("a matrix of BF16, F16 or F32", format!("{} {:?}", tensor.dtype, tensor.shape))),
    }
}

fn flawed(tensor: &Tensor, row: usize, flaw: Flaw) -> Error {
    match flaw {
        Flaw::NotFinite { column, value } => {
            tensor.invalid("finite values", format!("{value} at index [{row}, {column}]"))
        }
        Flaw::TooLarge { column, value } => tensor.invalid(
            "values whose scale and minimum fit f16 (magnitudes up to 65504)",
            format!("{value} at index [{row}, {column}]"),
        ),
    }
}

fn f16_bytes(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
