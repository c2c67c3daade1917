//! The phases of a decoder layer, in the narrow kernels (up to 4, up to 8 columns), the wide ones, and those of warpgroups.

use std::cell::RefCell;

use crate::config::{LayerType, ModelConfig};
use crate::engine::cpu::plain::{self, Order, Rounded};
use crate::engine::cuda::kernels::Column;
use crate::engine::cuda::probe::{POSITIONS, Probe, Products, SLOTS};
use crate::error::Result;
use crate::format::layout::GROUP;
use crate::format::{Export, Int4Matrix, Layer};

use super::super::attention;
use super::super::judge::Judge;
use super::super::model::{self, zeros};
use super::super::products::{self, rounded};
use super::super::values::{bits, noise, random_int4, transposed};
use super::super::vectors::{NO_EPS, balanced};
use super::FirstError;

/// Sizes of a model.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    hidden: usize,
    intermediate: usize,
    head_dim: usize,
}

/// Every warp has a group, and the tiles are more than the multiprocessors; past 32 groups in down_proj.
pub(super) const WIDE: Sizes = Sizes { hidden: 2048, intermediate: 34 * GROUP, head_dim: 128 };
/// Most warps have none.
pub(super) const NARROW: Sizes = Sizes { hidden: 3 * GROUP, intermediate: 5 * GROUP, head_dim: 64 };

/// Columns of a launch for each kind of kernel, full and not; the kernels for little shared memory are narrow ones.
const COLUMNS: [usize; 7] = [1, 4, 5, 8, 9, 23, 43];
const SHALLOW_COLUMNS: [usize; 2] = [3, 7];

/// f32 sums and the rounding to 16 bits after them (2^-16 of a group's largest value), relative to the largest.
const ROUNDED_TOLERANCE: f64 = 8e-5;

/// The two layers of the probes.
const LAYERS: [LayerType; 2] = [LayerType::Full, LayerType::Sliding];

fn config(sizes: Sizes, eps: f32) -> ModelConfig {
    let config = model::config(sizes.head_dim, LAYERS.to_vec(), eps);
    ModelConfig { hidden_size: sizes.hidden, intermediate_size: sizes.intermediate, ..config }
}

/// A matrix in the upper left corner of one of zeros.
fn padded(w: &Int4Matrix, n: usize, k: usize) -> Int4Matrix {
    let mut out = zeros(n, k);
    let mut codes = out.codes.to_vec();
    for row in 0..w.n {
        codes[row * k / 2..][..w.k / 2].copy_from_slice(&w.codes[row * w.k / 2..][..w.k / 2]);
        let (to, from) = (row * k / GROUP, row * w.k / GROUP);
        out.scale[to..][..w.k / GROUP].copy_from_slice(&w.scale[from..][..w.k / GROUP]);
        out.min[to..][..w.k / GROUP].copy_from_slice(&w.min[from..][..w.k / GROUP]);
    }
    Int4Matrix { codes: codes.into(), ..out }
}

/// Columns in slots and rows that are not their own number.
fn columns(count: usize, position: impl Fn(usize) -> usize) -> Vec<Column> {
    let column = |i: usize| Column {
        slot: ((i + 3) % SLOTS) as i32,
        position: position(i) as i32,
        live: 1,
        row: (count - 1 - i + 2) as i32,
    };
    (0..count).map(column).collect()
}

/// Judges the phases of a layer of some sizes.
pub(super) fn judge(judge: &mut Judge<'_>, ordinal: usize, sizes: Sizes, products: Products) -> Result<()> {
    let exact = config(sizes, NO_EPS);
    let blank = model::layer(&exact, vec![1.0; sizes.hidden], |_, n, k| zeros(n, k));
    let mut probe = Probe::open(ordinal, &model::export(exact, vec![blank.clone(), blank.clone()]), products)?;
    for &count in if products == Products::Shallow { &SHALLOW_COLUMNS[..] } else { &COLUMNS } {
        judge_project_in(judge, &probe, &blank, count)?;
        judge_project_out(judge, &probe, &blank, count)?;
    }
    if products == Products::Shallow {
        return Ok(());
    }
    judge_attention(judge, &mut probe)?;
    let random = random(sizes);
    let probe = Probe::open(ordinal, &random, products)?;
    for (layer, count) in [(0, 9), (1, 33), (0, 64), (1, 21)] {
        judge_layer(judge, &probe, &random, layer, count)?;
    }
    Ok(())
}

/// LayerNorm of balanced signs is its weight with these signs, so the weight brings any activations into the product; they
/// stand in one column of several, the others have the same magnitudes with other signs.
fn judge_project_in(judge: &mut Judge<'_>, probe: &Probe, blank: &Layer, count: usize) -> Result<()> {
    let (hidden, query) = (probe.config().hidden_size, probe.config().query_size());
    let run = |w: &Int4Matrix, x: &[f32]| -> Result<Vec<f32>> {
        probe.set_layer(0, &Layer { q: padded(w, query, hidden), ..blank.clone() })?;
        let mut y = Vec::new();
        for (index, x) in x.chunks(w.k).enumerate() {
            let target = (index * 5 + 2) % count;
            let signs: Vec<Vec<f32>> = (0..count).map(|c| balanced((100 * index + c) as u32, hidden)).collect();
            let weight: Vec<f32> =
                signs[target].iter().enumerate().map(|(i, sign)| sign * x.get(i).unwrap_or(&0.0)).collect();
            probe.poison()?;
            probe.set_norm(0, &weight)?;
            probe.set_columns(&columns(count, |_| 7), &signs.concat())?;
            probe.project_in(0, count)?;
            y.extend_from_slice(&probe.queries(count)?[target * query..][..w.n]);
        }
        Ok(y)
    };
    let name = format!("project_in_{count}_columns");
    let failed = FirstError::default();
    products::judge_int4(judge, &name, hidden / GROUP, &|w, x| failed.or_empty(run(w, x)));
    failed.check()
}

/// Activations are given as digits, for o_proj where they fit and for down_proj; the residual before is zero.
fn judge_project_out(judge: &mut Judge<'_>, probe: &Probe, blank: &Layer, count: usize) -> Result<()> {
    let config = probe.config();
    let (hidden, query, wide) = (config.hidden_size, config.query_size(), config.intermediate_size);
    let run = |w: &Int4Matrix, x: &[f32], is_down: bool| -> Result<Vec<f32>> {
        let width = if is_down { wide } else { query };
        let layer = match is_down {
            true => Layer { down: padded(w, hidden, wide), ..blank.clone() },
            false => Layer { o: padded(w, hidden, query), ..blank.clone() },
        };
        probe.set_layer(0, &layer)?;
        let mut y = Vec::new();
        for x in x.chunks(w.k * count) {
            let used = x.len() / w.k;
            let mut padded = vec![0.0; count * width];
            // The columns that no activations are left for hold others.
            padded[used * width..].copy_from_slice(&noise(used as u32, (count - used) * width));
            x.chunks(w.k).zip(padded.chunks_mut(width)).for_each(|(x, to)| to[..w.k].copy_from_slice(x));
            let (given, none) = (rounded(&padded, width, Order::Bytes), |k| Rounded::zeros(k, count, Order::Bytes));
            let columns = columns(count, |_| 7);
            probe.poison()?;
            match is_down {
                true => probe.set_rounded(&none(query), &given)?,
                false => probe.set_rounded(&given, &none(wide))?,
            }
            probe.set_columns(&columns, &vec![0.0; count * hidden])?;
            probe.project_out(0, count)?;
            let rows = probe.residual(&columns)?;
            rows.chunks(hidden).take(used).for_each(|row| y.extend_from_slice(&row[..w.n]));
        }
        Ok(y)
    };
    let failed = FirstError::default();
    for (part, width, is_down) in [("o", query, false), ("down", wide, true)] {
        let name = format!("project_out_{part}_{count}_columns");
        products::judge_int4(judge, &name, width / GROUP, &|w, x| failed.or_empty(run(w, x, is_down)));
    }
    failed.check()
}

/// Attention over caches that hold a poison wherever the case has no position: before the window, after the newest, in the other
/// slots and heads.
fn judge_attention(judge: &mut Judge<'_>, probe: &mut Probe) -> Result<()> {
    let config = probe.config().clone();
    let (dim, shared) = (config.head_dim, config.num_attention_heads / config.num_key_value_heads);
    let (probe, failed) = (RefCell::new(probe), FirstError::default());
    for (test, before) in [("full", 0), ("window", 1), ("window", 37)] {
        for head in 0..config.num_key_value_heads {
            let name = format!("attend_{dim}_{test}");
            attention::judge(judge, &name, &[dim], shared, ROUNDED_TOLERANCE, &|q, cache, _| {
                failed.or_empty(attend(&mut probe.borrow_mut(), q, cache, before, head))
            });
        }
    }
    probe.borrow_mut().set_window(1, config.sliding_window);
    failed.check()
}

/// Attention of the query heads of one key/value head over positions from `before` on, in the second of three columns.
fn attend(
    probe: &mut Probe,
    q: &[f32],
    (keys, values): (&[u16], &[u16]),
    before: usize,
    head: usize,
) -> Result<Vec<f32>> {
    let (count, target, config) = (3, 1, probe.config().clone());
    let (dim, query, kv) = (config.head_dim, config.query_size(), config.num_key_value_heads);
    let (t, slot) = (keys.len() / dim, (target + 3) % SLOTS);
    // A window of t positions, or all from 0 on where nothing lies before.
    let layer = usize::from(before > 0);
    probe.set_window(layer, if before > 0 { t } else { 0 });
    probe.poison()?;
    probe.set_cache([layer, slot, head], before, (keys, values))?;
    for other in (0..kv).filter(|&other| other != head) {
        // The other heads of the slot attend, too, and must find numbers.
        probe.set_cache([layer, slot, other], before, (&bits(&noise(1, t * dim)), &bits(&noise(2, t * dim))))?;
    }
    let live = |(c, column): (usize, Column)| Column { live: i32::from(c == target), ..column };
    let columns: Vec<Column> = columns(count, |_| before + t - 1).into_iter().enumerate().map(live).collect();
    probe.set_columns(&columns, &vec![0.0; count * config.hidden_size])?;
    let mut all = noise(3, count * query);
    let at = target * query + head * query / kv;
    all[at..at + q.len()].copy_from_slice(q);
    probe.set_queries(&all)?;
    probe.attend(layer, count, before + t)?;
    Ok(values_of(&probe.rounded_attention(count)?)[at..at + q.len()].to_vec())
}

/// The numbers that digits stand for.
fn values_of(x: &Rounded) -> Vec<f32> {
    x.q.iter().enumerate().map(|(i, &q)| f32::from(q) * x.scale[i / GROUP]).collect()
}

/// A model of random layers of some sizes.
fn random(sizes: Sizes) -> Export {
    let config = config(sizes, 1e-5);
    let make = |index: u32| {
        let norm = noise(80 + index, sizes.hidden).iter().map(|w| 1.0 + 0.5 * w).collect();
        model::layer(&config, norm, |seed, n, k| random_int4(100 * index + 7 * seed, n, k))
    };
    model::export(config.clone(), vec![make(0), make(1)])
}

/// One layer of a wide pass, phase by phase: each against the plain operation on what the device fed it.
fn judge_layer(judge: &mut Judge<'_>, probe: &Probe, export: &Export, index: usize, count: usize) -> Result<()> {
    let (config, layer) = (probe.config(), &export.layers[index]);
    let (dim, kv, kind) = (config.head_dim, config.num_key_value_heads, config.layer_types[index]);
    let columns: Vec<Column> =
        (0..count).map(|i| Column { slot: 2, position: i as i32, live: 1, row: (SLOTS + i) as i32 }).collect();
    let x = noise(7 + index as u32, count * config.hidden_size);
    probe.poison()?;
    probe.set_columns(&columns, &x)?;
    probe.layer(index, count, count)?;
    let name = "layer";

    let h = probe.rounded_norm(count)?;
    let mut normed = vec![0.0; x.len()];
    for (x, out) in x.chunks(config.hidden_size).zip(normed.chunks_mut(config.hidden_size)) {
        plain::layer_norm(x, &layer.norm, config.layer_norm_eps, out);
    }
    judge.close(name, "layer_norm", &values_of(&h), &normed, ROUNDED_TOLERANCE);
    let product = |w: &Int4Matrix, x: &Rounded| {
        let mut y = vec![0.0; w.n * count];
        plain::int4_rows(w, 0, x, &mut y);
        transposed(&y, count)
    };
    let rope = plain::Rope::new(config.rope_theta, dim, POSITIONS);
    let turned = |mut x: Vec<f32>, width: usize| {
        if kind == LayerType::Sliding {
            x.chunks_mut(width).enumerate().for_each(|(position, x)| rope.rotate(x, position));
        }
        x
    };
    let q = turned(product(&layer.q, &h), config.query_size());
    judge.exact(name, "queries", &probe.queries(count)?, &q);
    let (k, v) = (turned(product(&layer.k, &h), config.key_value_size()), product(&layer.v, &h));
    let of_head = |x: &[f32], head: usize| -> Vec<u16> {
        x.chunks(kv * dim).flat_map(|row| bits(&row[head * dim..(head + 1) * dim])).collect()
    };
    let mut attended = vec![0.0; q.len()];
    let shared = config.num_attention_heads / kv * dim;
    for head in 0..kv {
        let (keys, values) = probe.cache(index, 2, head, count)?;
        judge.same(name, "keys", &keys, &of_head(&k, head));
        judge.same(name, "values", &values, &of_head(&v, head));
        for p in 0..count {
            let oldest = if kind == LayerType::Sliding { (p + 1).saturating_sub(config.sliding_window) } else { 0 };
            let (seen, at) = (oldest * dim..(p + 1) * dim, p * config.query_size() + head * shared);
            let (q, out) = (&q[at..at + shared], &mut attended[at..at + shared]);
            plain::attend(q, &keys[seen.clone()], &values[seen], dim, &mut Vec::new(), out);
        }
    }
    let mut activated = vec![0.0; count * config.intermediate_size];
    plain::silu_up(&product(&layer.gate, &h), &product(&layer.up, &h), &mut activated);
    judge.exact(name, "silu_up", &probe.activated(count)?, &activated);
    let inner = probe.rounded_inner(count)?;
    let expected = rounded(&activated, config.intermediate_size, Order::Bytes);
    judge.same(name, "rounded_integers", &inner.q, &expected.q);
    judge.exact(
        name,
        "rounded_scales",
        &[&inner.scale[..], &inner.offset].concat(),
        &[&expected.scale[..], &expected.offset].concat(),
    );
    let attention = probe.rounded_attention(count)?;
    judge.close(name, "attention", &values_of(&attention), &attended, ROUNDED_TOLERANCE);
    let (o, down) = (product(&layer.o, &attention), product(&layer.down, &inner));
    let expected: Vec<f32> = x.iter().zip(o.iter().zip(&down)).map(|(x, (o, d))| (x + o) + d).collect();
    judge.exact(name, "residual", &probe.residual(&columns)?, &expected);
    Ok(())
}

/// A column has the same bits in a prompt, alone, in any company, in the persistent kernel, and by warps or warpgroups.
pub(super) fn judge_company(judge: &mut Judge<'_>, ordinal: usize) -> Result<()> {
    for head_dim in [64, 128] {
        let export = random(Sizes { hidden: 4 * GROUP, intermediate: 6 * GROUP, head_dim });
        let mut of_choices = Vec::new();
        for products in [Products::Warps, Products::Table] {
            let probe = Probe::open(ordinal, &export, products)?;
            of_choices.push(judge_company_of(judge, &probe)?);
        }
        judge.exact("company", "choices", &of_choices[1], &of_choices[0]);
    }
    Ok(())
}

/// Returns the residual rows of nine columns after both layers.
fn judge_company_of(judge: &mut Judge<'_>, probe: &Probe) -> Result<Vec<f32>> {
    let hidden = probe.config().hidden_size;
    let past = 150;
    probe.poison()?;
    for layer in 0..2 {
        for slot in 0..SLOTS {
            for first in (0..past).step_by(50) {
                let column = |i: usize| Column {
                    slot: slot as i32,
                    position: (first + i) as i32,
                    live: 1,
                    row: (SLOTS + i) as i32,
                };
                let seed = (1000 * layer + 10 * slot + first) as u32;
                probe.set_columns(&(0..50).map(column).collect::<Vec<_>>(), &noise(seed, 50 * hidden))?;
                probe.layer(layer, 50, first + 50)?;
            }
        }
    }
    // Every slot at a position of its own, all in one wide launch with a ninth column.
    let column =
        |slot: usize| Column { slot: slot as i32, position: (past - slot * 17) as i32, live: 1, row: slot as i32 };
    let ninth = Column { slot: 0, position: past as i32 + 1, live: 1, row: SLOTS as i32 + 1 };
    let all: Vec<Column> = (0..SLOTS).map(column).chain([ninth]).collect();
    let x = noise(5, 9 * hidden);
    probe.set_columns(&all, &x)?;
    for layer in 0..2 {
        probe.layer(layer, 9, past + 2)?;
    }
    let wide = probe.residual(&all)?;
    for count in 1..=SLOTS {
        let first = SLOTS - count;
        let part: Vec<Column> = (first..SLOTS).rev().map(column).collect(); // another place in the launch
        let of = |values: &[f32]| {
            part.iter().flat_map(|c| values[c.slot as usize * hidden..][..hidden].to_vec()).collect::<Vec<f32>>()
        };
        probe.set_columns(&part, &of(&x))?;
        for layer in 0..2 {
            probe.layer(layer, count, 0)?;
        }
        judge.exact("company", "narrow", &probe.residual(&part)?, &of(&wide));
        probe.set_columns(&part, &of(&x))?;
        probe.forward(count)?;
        judge.exact("company", "persistent", &probe.residual(&part)?, &of(&wide));
    }
    Ok(wide)
}
