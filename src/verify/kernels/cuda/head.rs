//! The last LayerNorm, the audio head of either kind, and the choice of a token.

use std::cell::RefCell;

use crate::config::{LayerType, MIN_NEW_TOKENS, ModelConfig};
use crate::engine::End;
use crate::engine::cuda::kernels::{Column, END_AUDIO, END_LENGTH, END_STOP_HEAD, Sequence};
use crate::engine::cuda::probe::{Probe, Products};
use crate::engine::sampler::Choice;
use crate::error::Result;
use crate::format::layout::GROUP;
use crate::format::{Export, Head, Int8Matrix, StopHead};
use crate::tensors::{Dtype, Tensor};

use super::super::judge::Judge;
use super::super::products::{self, Floats};
use super::super::values::noise;
use super::super::vectors::{FLOAT_TOLERANCE, NO_EPS, balanced};
use super::super::{choice, model};
use super::FirstError;

/// Rows of the small head, a tile and one past 24 of them, and of one as large as the kernel's threads hold.
const ROWS: [usize; 2] = [385, 16_384];
/// Columns of a launch: within a tile, past it, past the eight of one kernel, past the forty of a block.
const COLUMNS: [usize; 5] = [1, 4, 5, 11, 43];
/// The same where warps multiply, eight columns a launch.
const COLUMNS_OF_WARPS: [usize; 2] = [5, 11];
/// Columns whose scores by warps and warpgroups must be the same: full blocks, one past them, all there are.
const COMPANIES: [usize; 9] = [1, 2, 4, 8, 9, 24, 40, 41, 64];
/// Hidden size and rows of the head then: one group, as many as a warpgroup has and one more, all; fewer tiles than blocks, and two units
/// of four for some blocks of an H200, of which the last has one row.
const COMPANY_SIZES: [(usize, usize); 3] = [(GROUP, 385), (5 * GROUP, 16_321), (16 * GROUP, 385)];
/// Width of the stop head's inner layer then: more rows for a block than warps.
const STOP_INNER: usize = 600;

fn config(hidden: usize, rows: usize) -> ModelConfig {
    let config = model::config(64, vec![LayerType::Full], NO_EPS);
    let codebook_size = (rows - 1) / config.num_quantizers;
    let last = config.first_unit_id + (codebook_size * config.num_quantizers) as u32 - 1;
    ModelConfig {
        hidden_size: hidden,
        codebook_size,
        last_unit_id: last,
        audio_end_token_id: last + 1,
        vocab_size: last as usize + 2,
        logit_scale: 1.0,
        ..config
    }
}

fn export(hidden: usize, rows: usize) -> Export {
    let config = config(hidden, rows);
    let still = model::layer(&config, vec![1.0; hidden], |_, n, k| model::zeros(n, k));
    model::export(config, vec![still])
}

/// Judges all of it.
pub(super) fn judge(judge: &mut Judge<'_>, ordinal: usize) -> Result<()> {
    for hidden in [3 * GROUP, 16 * GROUP] {
        let int8 = export(hidden, ROWS[0]);
        let mut probe = Probe::open(ordinal, &int8, Products::Table)?;
        let mut warps_probe = Probe::open(ordinal, &int8, Products::Warps)?;
        let bf16 =
            Export { head: bf16_head(&Floats { n: 1, k: hidden, values: vec![0.0; hidden] }, ROWS[0], hidden), ..int8 };
        let mut bf16_probe = Probe::open(ordinal, &bf16, Products::Table)?;
        for count in COLUMNS {
            judge_int8(judge, &mut probe, count)?;
            judge_bf16(judge, &mut bf16_probe, count)?;
        }
        for count in COLUMNS_OF_WARPS {
            judge_int8(judge, &mut warps_probe, count)?;
        }
        for count in [1, 3] {
            judge_last_norm(judge, &mut probe, count)?;
        }
    }
    for (hidden, rows) in COMPANY_SIZES {
        judge_company(judge, ordinal, &random(hidden, rows))?;
    }
    for rows in ROWS {
        let export = export(2 * GROUP, rows);
        let probe = Probe::open(ordinal, &export, Products::Table)?;
        let rows = export.config.audio_rows();
        choice::judge(judge, "choose_token", rows, &|case| choose(&probe, &export, case));
        judge_after(judge, &probe, &export)?;
    }
    Ok(())
}

fn bf16_head(w: &Floats, rows: usize, hidden: usize) -> Head {
    let mut data = vec![0; rows * hidden * 2];
    for (row, from) in data.chunks_mut(hidden * 2).zip(w.bf16().chunks(w.k * 2)) {
        row[..w.k * 2].copy_from_slice(from);
    }
    let (name, place) = ("head.audio_weight".to_owned(), "known answers".into());
    Head::Bf16(Tensor { name, dtype: Dtype::BF16, shape: vec![rows, hidden], data: data.into(), place })
}

fn int8_head(w: &Int8Matrix, rows: usize, hidden: usize) -> Head {
    let mut codes = vec![0; rows * hidden];
    for (row, from) in codes.chunks_mut(hidden).zip(w.codes.chunks(w.k)) {
        row[..w.k].copy_from_slice(from);
    }
    let mut scale = w.scale.clone();
    scale.resize(rows, half::f16::ZERO);
    Head::Int8(Int8Matrix { n: rows, k: hidden, codes: codes.into(), scale })
}

/// Logits of `x: [columns, k]`, which the weight of the last LayerNorm brings in, one vector a launch of `count` columns.
fn logits(probe: &mut Probe, x: &[f32], k: usize, n: usize, count: usize) -> Result<Vec<f32>> {
    let (hidden, rows) = (probe.config().hidden_size, probe.config().audio_rows());
    let mut y = Vec::new();
    for (index, x) in x.chunks(k).enumerate() {
        let target = (index * 5 + 2) % count;
        let signs: Vec<Vec<f32>> = (0..count).map(|c| balanced((100 * index + c) as u32, hidden)).collect();
        let weight: Vec<f32> = signs[target].iter().enumerate().map(|(i, s)| s * x.get(i).unwrap_or(&0.0)).collect();
        let columns: Vec<Column> =
            (0..count).map(|c| Column { slot: 0, position: 0, live: 1, row: (count - c) as i32 }).collect();
        probe.poison()?;
        probe.set_last_norm(&weight, NO_EPS)?;
        probe.set_columns(&columns, &signs.concat())?;
        y.extend_from_slice(&probe.scores(count)?.0[target * rows..][..n]);
    }
    Ok(y)
}

fn judge_int8(judge: &mut Judge<'_>, probe: &mut Probe, count: usize) -> Result<()> {
    let (hidden, rows) = (probe.config().hidden_size, probe.config().audio_rows());
    let (probe, failed) = (RefCell::new(probe), FirstError::default());
    products::judge_int8(judge, &format!("scores_int8_{count}_columns"), hidden / GROUP, &|w, x| {
        let probe = &mut probe.borrow_mut();
        let set = probe.set_head(&int8_head(w, rows, hidden));
        failed.or_empty(set.and_then(|()| logits(probe, x, w.k, w.n, count)))
    });
    failed.check()
}

fn judge_bf16(judge: &mut Judge<'_>, probe: &mut Probe, count: usize) -> Result<()> {
    let (hidden, rows) = (probe.config().hidden_size, probe.config().audio_rows());
    let (probe, failed) = (RefCell::new(probe), FirstError::default());
    let name = format!("scores_bf16_{count}_columns");
    products::judge_floats(judge, &name, products::BF16, hidden, products::SUM_TOLERANCE, &|w: &Floats, x| {
        let probe = &mut probe.borrow_mut();
        let set = probe.set_head(&bf16_head(w, rows, hidden));
        failed.or_empty(set.and_then(|()| logits(probe, x, w.k, w.n, count)))
    });
    failed.check()
}

/// The vector stands in the middle one of `count` columns.
fn judge_last_norm(judge: &mut Judge<'_>, probe: &mut Probe, count: usize) -> Result<()> {
    let hidden = probe.config().hidden_size;
    let (probe, failed) = (RefCell::new(probe), FirstError::default());
    let norm = |x: &[f32], weight: &[f32], eps: f32| -> Result<Vec<f32>> {
        let (probe, target) = (&mut probe.borrow_mut(), count / 2);
        let columns: Vec<Column> =
            (0..count).map(|c| Column { slot: 0, position: 0, live: 1, row: 3 + c as i32 }).collect();
        let mut all = noise(5, count * hidden);
        all[target * hidden..][..hidden].copy_from_slice(x);
        probe.poison()?;
        probe.set_last_norm(weight, eps)?;
        probe.set_columns(&columns, &all)?;
        Ok(probe.scores(count)?.1[target * hidden..][..hidden].to_vec())
    };
    let norm = |x: &[f32], weight: &[f32], eps: f32| failed.or_empty(norm(x, weight, eps));
    let name = format!("last_norm_{count}_columns");
    super::super::vectors::judge_layer_norm(judge, &name, &[hidden], 10.0 * FLOAT_TOLERANCE, &norm);
    failed.check()
}

/// A model whose heads and last LayerNorms are random.
fn random(hidden: usize, rows: usize) -> Export {
    let weight = |seed: u32| noise(seed, hidden).iter().map(|w| 1.0 + 0.5 * w).collect();
    let stop = StopHead {
        inner: STOP_INNER,
        norm_weight: weight(32),
        norm_bias: noise(33, hidden),
        up_weight: noise(34, STOP_INNER * hidden),
        up_bias: noise(35, STOP_INNER),
        down_weight: noise(36, STOP_INNER),
        down_bias: 0.5,
    };
    Export { norm: weight(31), stop, ..export(hidden, rows) }
}

/// Scores by warps and by warpgroups have the same bits, and those of a column are its own in any company. A column that has ended changes
/// nothing, and where all have, nothing is written.
fn judge_company(judge: &mut Judge<'_>, ordinal: usize, export: &Export) -> Result<()> {
    let (hidden, rows) = (export.config.hidden_size, export.config.audio_rows());
    let probes = [Probe::open(ordinal, export, Products::Warps)?, Probe::open(ordinal, export, Products::Table)?];
    let x = noise(37, 64 * hidden);
    let name = "scores_company";
    for count in COMPANIES {
        let dead = if count > 2 { count / 2 } else { count };
        let column = |c: usize| Column { slot: 0, position: 0, live: i32::from(c != dead), row: (count - c) as i32 };
        let columns: Vec<Column> = (0..count).map(column).collect();
        let run = |probe: &Probe| -> Result<[Vec<f32>; 3]> {
            probe.poison()?;
            probe.set_columns(&columns, &x[..count * hidden])?;
            let ((logits, normed), stop) = (probe.scores(count)?, probe.stop_terms(count)?);
            let live = |values: Vec<f32>, width: usize| {
                let of_columns = values.chunks(width).enumerate().filter(|(c, _)| *c != dead);
                of_columns.flat_map(|(_, values)| values.to_vec()).collect::<Vec<f32>>()
            };
            Ok([live(logits, rows), live(normed, hidden), live(stop, STOP_INNER)])
        };
        let ([logits, normed, stop], expected) = (run(&probes[1])?, run(&probes[0])?);
        judge.exact(name, "logits", &logits, &expected[0]);
        judge.exact(name, "normed", &normed, &expected[1]);
        judge.exact(name, "stop", &stop, &expected[2]);
        let finite = logits.iter().chain(&normed).chain(&stop).all(|value| value.is_finite());
        judge.same(name, "finite", &[finite], &[true]);
    }
    for (probe, count) in probes.iter().flat_map(|probe| [(probe, 3), (probe, 43)]) {
        let ended = Column { slot: 0, position: 0, live: 0, row: 1 };
        probe.poison()?;
        probe.set_columns(&vec![ended; count], &x[..count * hidden])?;
        let (logits, _) = probe.scores(count)?;
        judge.exact(name, "all_ended", &logits, &vec![f32::NAN; count * rows]);
    }
    Ok(())
}

/// What the device needs to know of a case.
fn sequence(case: &choice::Case) -> Sequence {
    Sequence {
        temperature: case.sampling.temperature,
        top_k: i32::try_from(case.sampling.top_k).unwrap_or(i32::MAX),
        max_new: case.max_new_tokens as i32,
        step: case.noise.step as i32,
        seed_low: case.noise.seed as u32,
        seed_high: (case.noise.seed >> 32) as u32,
        sequence: case.noise.sequence,
        ..Sequence::default()
    }
}

/// `None`: the device called something not finite.
fn choose(probe: &Probe, export: &Export, case: &choice::Case) -> Option<Choice> {
    let (out, ..) = probe.choose(&case.logits, case.stop, sequence(case)).ok()?;
    let end = match out.end {
        0 => None,
        END_STOP_HEAD => Some(End::StopHead),
        END_AUDIO => Some(End::AudioEnd),
        END_LENGTH => Some(End::Length),
        _ => return None,
    };
    let row = export.audio_ids.iter().position(|&id| id == out.token[0])?;
    Some(Choice { row, end })
}

/// What follows a choice: the next position, the embedding row, and frames that put tokens together.
fn judge_after(judge: &mut Judge<'_>, probe: &Probe, export: &Export) -> Result<()> {
    let rows = export.config.audio_rows();
    let start =
        Sequence { temperature: 0.0, top_k: 1, max_new: 1000, step: MIN_NEW_TOKENS as i32, ..Sequence::default() };
    let choose = |row: usize, state: Sequence| {
        let mut logits = vec![0.0; rows];
        logits[row] = 1.0;
        probe.choose(&logits, -3.0, state)
    };
    for row in [0, 1, rows / 2, rows - 2, rows - 1] {
        let (out, column, state, x) = choose(row, start)?;
        let ends = row == rows - 1;
        judge.same(
            "choose_token",
            "moves_on",
            &[column.position, column.live, state.step, out.tokens],
            &[4, i32::from(!ends), start.step + 1, 1],
        );
        let mut expected = vec![0.0; x.len()];
        crate::engine::cpu::plain::embedding_row(&export.embedding, export.audio_ids[row] as usize, &mut expected);
        judge.exact("choose_token", "embedding", &x, &expected);
    }
    for sequence in &choice::SEQUENCES {
        let (mut state, mut found) = (start, Vec::new());
        for unit in sequence.units {
            let (out, .., next, _) = choose(unit.map_or(rows - 1, |(code, q)| (code * 3 + q) as usize), state)?;
            found.extend_from_slice(&out.code[..out.frames as usize * 3]);
            state = next;
            if out.end != 0 {
                break; // nothing is chosen after the end
            }
        }
        judge.same("choose_token", &format!("frames_{}", sequence.test), &found, sequence.frames.as_flattened());
    }
    Ok(())
}
