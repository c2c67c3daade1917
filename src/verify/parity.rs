//! Question 1: is the engine right? Engine and candle on the same, dequantized weights, position by position.

use crate::config::ModelConfig;
use crate::engine::{Engine, Observer, Scores};
use crate::error::Result;
use crate::format::{Export, Head};
use crate::reference::{Cache, Device, Precision, Reference, to_host};
use crate::tensors::{Bytes, Dtype, Tensor, TensorFile};

use super::divergence::{Divergence, DivergenceSummary};
use super::journal::{Journal, Part};
use super::limits::Limits;
use super::quality::rows_in_order;
use super::record::{LayerFigure, Parity};
use super::{Verdict, dequantized, relative_norm};

/// Sequences that go through candle together. Of each the engine's layer outputs wait in memory, 0.3 MB a position of the
/// full model.
const PASS: usize = 5;

/// A sequence to compare.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Its name in messages.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The first position that is compared; those before it are seen by both and not held against each other.
    pub from: usize,
}

impl Sequence {
    /// Positions that are compared.
    fn compared(&self) -> usize {
        self.ids.len().saturating_sub(self.from)
    }
}

/// The model that an export stands for, in candle: every matrix dequantized to f32, one layer at a time.
///
/// # Errors
/// As [`Reference::streamed`].
pub fn dequantized_model(export: &Export, weights: &TensorFile, device: &Device) -> Result<Reference> {
    let tensors = weights.clone();
    let model = Reference::streamed(&export.config, move |name| dequantized(&tensors, name), Precision::F32, device)?;
    model.with_audio_head(&audio_head(export)?)
}

/// The output head of an export in f32, `[audio_rows, hidden]`: the unit ids in order, then `</audio>`.
fn audio_head(export: &Export) -> Result<Tensor> {
    let (hidden, rows) = (export.config.hidden_size, export.audio_ids.len());
    let stored: Vec<f32> = match &export.head {
        Head::Bf16(tensor) => tensor.to_f32()?,
        Head::Int8(matrix) => {
            (0..rows).flat_map(|n| matrix.row(n).map(move |code| f32::from(code) * matrix.scale[n].to_f32())).collect()
        }
    };
    let order = rows_in_order(&export.audio_ids, &export.config);
    let row = |row: &usize| &stored[row * hidden..(row + 1) * hidden];
    let bytes: Vec<u8> = order.iter().flat_map(row).flat_map(|w| w.to_le_bytes()).collect();
    let (name, place) = ("head".to_owned(), export.name.as_str().into());
    Ok(Tensor { name, dtype: Dtype::F32, shape: vec![rows, hidden], data: Bytes::from(bytes), place })
}

/// What an engine makes of the compared positions of a sequence.
struct Seen<'a> {
    from: usize,
    order: &'a [usize],
    hidden: Vec<f32>,
    logits: Vec<Vec<f32>>,
    stop: Vec<f32>,
    /// `[positions, hidden]` after each layer.
    layers: Vec<Vec<f32>>,
}

impl Seen<'_> {
    fn new(from: usize, order: &[usize], layers: usize) -> Seen<'_> {
        Seen { from, order, hidden: Vec::new(), logits: Vec::new(), stop: Vec::new(), layers: vec![Vec::new(); layers] }
    }
}

impl Observer for Seen<'_> {
    fn position(&mut self, scores: Scores<'_>) {
        if scores.position >= self.from {
            self.hidden.extend(scores.hidden);
            self.logits.push(self.order.iter().map(|row| scores.logits[*row]).collect());
            self.stop.push(scores.stop_probability);
        }
    }

    fn layer(&mut self, layer: usize, position: usize, residual: &[f32]) {
        if position >= self.from {
            self.layers[layer].extend(residual);
        }
    }
}

/// Errors of one position after one layer: squared error, squared size, relative error.
type LayerError = [f64; 3];

/// What was measured of one sequence, position by position.
#[derive(Clone, Debug)]
struct Measured {
    divergences: Vec<Divergence>,
    hidden: Vec<f64>,
    stop: Vec<f64>,
    /// For each layer, every position.
    layers: Vec<Vec<LayerError>>,
}

impl Measured {
    /// Runs the engine over each of the sequences and `model` over all of them in one pass. `layer_done` is called for
    /// every layer of the pass.
    fn of_all(
        engine: &mut dyn Engine,
        model: &Reference,
        sequences: &[Sequence],
        layer_done: &mut dyn FnMut(),
    ) -> Result<Vec<Measured>> {
        let config = model.config();
        let order = rows_in_order(&engine.info().audio_ids, &engine.info().config);
        let mut seen = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let mut own = Seen::new(sequence.from, &order, config.num_layers());
            engine.score(0, &sequence.ids, &mut own)?;
            seen.push(own);
        }
        let mut errors: Vec<Vec<Vec<LayerError>>> = vec![Vec::new(); sequences.len()];
        let hidden = expected(model, sequences, &mut |layer, rows| {
            let mut rows = rows.as_slice();
            for ((sequence, seen), errors) in sequences.iter().zip(&seen).zip(&mut errors) {
                let own = rows.split_off(..sequence.compared() * config.hidden_size).unwrap_or_default();
                errors.push(by_position(&seen.layers[layer], own, config));
            }
            layer_done();
        })?;
        let mut measured = Vec::with_capacity(sequences.len());
        let mut row = 0;
        for ((sequence, seen), layers) in sequences.iter().zip(seen).zip(errors) {
            let own: Vec<u32> = (row..row + sequence.compared() as u32).collect();
            row += sequence.compared() as u32;
            measured.push(Measured::of(&seen, model, &model.pick(&hidden, &own)?, layers)?);
        }
        Ok(measured)
    }

    /// What the engine has `seen` of a sequence against candle's final `hidden: [compared positions, hidden]`.
    fn of(
        seen: &Seen<'_>,
        model: &Reference,
        hidden: &crate::reference::Tensor,
        layers: Vec<Vec<LayerError>>,
    ) -> Result<Measured> {
        let (rows, logits) = (to_host(hidden)?, to_host(&model.audio_logits(hidden)?)?);
        let stop = to_host(&model.stop_probability(hidden)?)?;
        let width = model.config().hidden_size;
        let state = |(position, row)| {
            relative_norm(seen.hidden.get(position * width..(position + 1) * width).unwrap_or_default(), row)
        };
        let divergence = |(position, expected)| {
            Divergence::between(expected, seen.logits.get(position).map_or(&[][..], Vec::as_slice))
        };
        let stops = |(position, expected): (usize, &f32)| {
            (f64::from(seen.stop.get(position).copied().unwrap_or(f32::NAN)) - f64::from(*expected)).abs()
        };
        Ok(Measured {
            divergences: logits.chunks(seen.order.len()).enumerate().map(divergence).collect(),
            hidden: rows.chunks(width).enumerate().map(state).collect(),
            stop: stop.iter().enumerate().map(stops).collect(),
            layers,
        })
    }
}

impl Part for Measured {
    fn numbers(&self) -> Vec<f64> {
        let sizes = [self.stop.len() as f64, self.layers.len() as f64];
        let divergences = self.divergences.iter().flat_map(|d| [d.kl, d.entropy, f64::from(u8::from(d.same_top))]);
        let layers = self.layers.iter().flatten().flatten().copied();
        let positions = self.hidden.iter().chain(&self.stop).copied();
        sizes.into_iter().chain(positions).chain(divergences).chain(layers).collect()
    }

    fn of(numbers: &[f64]) -> Option<Measured> {
        let (&[positions, layers], rest) = numbers.split_first_chunk()?;
        let (positions, layers) = (positions as usize, layers as usize);
        let (hidden, rest) = rest.split_at_checked(positions)?;
        let (stop, rest) = rest.split_at_checked(positions)?;
        let (divergences, rest) = rest.split_at_checked(3 * positions)?;
        let divergence = |&[kl, entropy, top]: &[f64; 3]| Divergence { kl, entropy, same_top: top != 0.0 };
        let errors: Vec<Vec<LayerError>> =
            rest.as_chunks().0.chunks(positions.max(1)).map(<[LayerError]>::to_vec).collect();
        (rest.len() == 3 * positions * layers && positions > 0).then(|| Measured {
            divergences: divergences.as_chunks().0.iter().map(divergence).collect(),
            hidden: hidden.to_vec(),
            stop: stop.to_vec(),
            layers: errors,
        })
    }
}

/// Runs engine and `model` over the sequences and judges the difference. Sequences that `journal` holds are not run again.
/// `progress` is told how many positions have passed another layer of the model.
///
/// # Errors
/// Errors of engine and candle.
pub fn judge(
    engine: &mut dyn Engine,
    model: &Reference,
    sequences: &[Sequence],
    journal: &Journal,
    (verdict, limits): (&mut Verdict, &Limits),
    progress: &mut dyn FnMut(usize),
) -> Result<Parity> {
    let mut divergences = Vec::new();
    let mut errors: Vec<Vec<LayerError>> = vec![Vec::new(); model.config().num_layers()];
    for (sequence, measured) in sequences.iter().zip(measure(engine, model, sequences, journal, progress)?) {
        let mut measure = |name: &str, value: f64, position: usize| {
            let place = || format!("{}, position {}", sequence.name, sequence.from + position);
            verdict.measure(name, limits.of(name), value, place);
        };
        for (position, divergence) in measured.divergences.iter().enumerate() {
            measure("engine.hidden_error", measured.hidden.get(position).copied().unwrap_or(f64::NAN), position);
            measure("engine.worst_kl", divergence.kl, position);
            measure("engine.stop_difference", measured.stop.get(position).copied().unwrap_or(f64::NAN), position);
        }
        divergences.extend(measured.divergences);
        errors.iter_mut().zip(measured.layers).for_each(|(all, own)| all.extend(own));
    }
    let positions = divergences.len();
    let summary: DivergenceSummary = divergences.into_iter().collect();
    for (name, value) in [("engine.mean_kl", summary.mean_kl), ("engine.top1", summary.top1)] {
        verdict.measure(name, limits.of(name), value, || format!("{positions} positions"));
    }
    let layers: Vec<LayerFigure> = errors.iter().map(|errors| figure(errors)).collect();
    for (layer, figure) in layers.iter().enumerate() {
        verdict
            .measure("engine.layer_error", limits.of("engine.layer_error"), figure.worst, || format!("layer {layer}"));
    }
    Ok(Parity {
        sequences: sequences.len(),
        positions,
        mean_kl: summary.mean_kl,
        worst_kl: verdict.measured("engine.worst_kl"),
        top1: summary.top1,
        layers,
    })
}

/// Every sequence as `journal` holds it, or measured now, [`PASS`] of them at a time: `model` dequantizes its layers
/// for every pass.
///
/// A pass is taken whole or not at all, because candle's roundings may depend on what it multiplies at once.
fn measure(
    engine: &mut dyn Engine,
    model: &Reference,
    sequences: &[Sequence],
    journal: &Journal,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Measured>> {
    let layers = model.config().num_layers();
    let mut measured = Vec::with_capacity(sequences.len());
    for pass in sequences.chunks(PASS) {
        let names: Vec<String> = (measured.len()..).take(pass.len()).map(|number| format!("parity-{number}")).collect();
        let positions: usize = pass.iter().map(|sequence| sequence.ids.len()).sum();
        if let Some(known) = names.iter().map(|name| journal.known(name)).collect::<Option<Vec<Measured>>>() {
            progress(positions * layers);
            journal.count(known.len());
            measured.extend(known);
            continue;
        }
        let parts = Measured::of_all(engine, model, pass, &mut || progress(positions))?;
        names.iter().zip(&parts).for_each(|(name, part)| journal.add(name, part));
        measured.extend(parts);
    }
    Ok(measured)
}

/// Final hidden states of the compared positions of all sequences in candle; `layer` is shown every layer's.
fn expected(
    model: &Reference,
    sequences: &[Sequence],
    layer: &mut dyn FnMut(usize, Vec<f32>),
) -> Result<crate::reference::Tensor> {
    let ids: Vec<&[u32]> = sequences.iter().map(|sequence| sequence.ids.as_slice()).collect();
    let mut caches: Vec<Cache> = sequences.iter().map(|_| Cache::default()).collect();
    let mut rows: Vec<u32> = Vec::new();
    let mut first = 0;
    for sequence in sequences {
        rows.extend((first + sequence.from..first + sequence.ids.len()).map(|row| row as u32));
        first += sequence.ids.len();
    }
    let mut fault = None;
    let hidden =
        model.hidden_of_all(&ids, &mut caches.iter_mut().collect::<Vec<_>>(), &mut |number, residual| match model
            .pick(residual, &rows)
            .and_then(|rows| to_host(&rows))
        {
            Ok(rows) => layer(number, rows),
            Err(error) => _ = fault.get_or_insert(error),
        })?;
    match fault {
        Some(error) => Err(error),
        None => model.pick(&hidden, &rows),
    }
}

/// The errors of every position.
fn by_position(found: &[f32], expected: &[f32], config: &ModelConfig) -> Vec<LayerError> {
    let width = config.hidden_size;
    let square = |x: f64| x * x;
    let position = |(index, row): (usize, &[f32])| {
        let found = found.get(index * width..(index + 1) * width).unwrap_or_default();
        let error = found.iter().zip(row).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
        [error, row.iter().map(|b| square(f64::from(*b))).sum(), relative_norm(found, row)]
    };
    expected.chunks(width).enumerate().map(position).collect()
}

fn figure(errors: &[LayerError]) -> LayerFigure {
    let error: f64 = errors.iter().map(|e| e[0]).sum();
    let size: f64 = errors.iter().map(|e| e[1]).sum();
    // NaN is the worst of all, and no positions are no figure.
    let worse = |worst: f64, e: f64| if e.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(e) };
    let worst = errors.iter().map(|e| e[2]).reduce(worse).unwrap_or(f64::NAN);
    LayerFigure { relative_error: (error / size).sqrt(), worst }
}
