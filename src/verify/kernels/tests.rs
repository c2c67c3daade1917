//! The tests pass here, and each planted fault fails the test that is there for it.

use std::collections::BTreeSet;

use half::f16;

use super::judge::{Judge, POISON};
use super::products::{Floats, plain_int4, plain_int8, rounded};
use super::values::transposed;
use super::*;
use crate::config::{LayerType, STOP_THRESHOLD};
use crate::engine::cpu::plain::{self, Rounded};
use crate::engine::cpu::{CpuEngine, Options};
use crate::engine::sampler::Choice;
use crate::engine::{Engine, Info, Observer, Request, Step, mimi};
use crate::format::layout::GROUP;
use crate::format::{Export, Head, Int4Matrix, Int8Matrix};

#[test]
fn the_processor_passes_on_every_instruction_set() {
    let verdict = run(Backend::Cpu).unwrap();
    let failed: Vec<String> = verdict.failures().map(|c| format!("{} = {}: {}", c.name, c.measured, c.note)).collect();
    assert!(verdict.passed(), "{} comparisons:\n{}", verdict.comparisons.len(), failed.join("\n"));
}

/// Names of the tests that fail.
fn failures(work: impl FnOnce(&mut Judge<'_>)) -> BTreeSet<String> {
    let mut verdict = Verdict::default();
    work(&mut Judge::new(&mut verdict, "mutant"));
    assert!(!verdict.comparisons.is_empty());
    verdict.failures().map(|c| c.name.rsplit('.').next().unwrap_or_default().to_owned()).collect()
}

/// Planted faults: what is wrong, the test that must fail, and the fault.
type Faults<F> = Vec<(&'static str, &'static str, F)>;

/// Every planted fault must fail the test named with it.
fn caught<F>(faults: Faults<F>, judge: impl Fn(&mut Judge<'_>, F)) {
    for (fault, test, faulty) in faults {
        let failed = failures(|j| judge(j, faulty));
        assert!(failed.contains(test), "{fault}: failed {failed:?}, not {test}");
    }
}

/// The matrix with its codes changed by `(row, byte of the row, byte)`.
fn recoded(w: &Int4Matrix, code: impl Fn(usize, usize, u8) -> u8) -> Int4Matrix {
    let bytes = w.codes.iter().enumerate().map(|(i, &byte)| code(i / (w.k / 2), i % (w.k / 2), byte));
    Int4Matrix { codes: bytes.collect::<Vec<u8>>().into(), ..w.clone() }
}

/// The values of the next group, or of the next row.
fn shifted(values: &[f16], by: usize) -> Vec<f16> {
    (0..values.len()).map(|i| values[(i + by) % values.len()]).collect()
}

/// The product folded group after group, without the sixteen partial sums.
fn folded_in_line(w: &Int4Matrix, x: &[f32]) -> Vec<f32> {
    let part = |g: usize| {
        let keep = |(i, x): (usize, &f32)| if i % w.k / GROUP == g { *x } else { 0.0 };
        plain_int4(w, &x.iter().enumerate().map(keep).collect::<Vec<f32>>())
    };
    let add = |sum: Vec<f32>, part: Vec<f32>| sum.iter().zip(part).map(|(sum, part)| sum + part).collect();
    (0..w.k / GROUP).map(part).reduce(add).unwrap_or_default()
}

type Int4Fault = fn(&Int4Matrix, &[f32]) -> Vec<f32>;

#[test]
fn faults_of_int4_products_are_caught() {
    let faults: Faults<Int4Fault> = vec![
        ("nibbles swapped", "one_hot", |w, x| plain_int4(&recoded(w, |_, _, b| b.rotate_left(4)), x)),
        ("nibbles swapped", "alternating", |w, x| plain_int4(&recoded(w, |_, _, b| b.rotate_left(4)), x)),
        ("high nibble signed", "one_hot", |w, x| plain_int4(&recoded(w, |_, _, b| b & 0x7f), x)),
        ("one bit of one weight", "one_hot", |w, x| {
            plain_int4(&recoded(w, |row, at, b| b ^ u8::from(row == 3 && at == 41)), x)
        }),
        ("scales of the next group", "one_group", |w, x| {
            plain_int4(&Int4Matrix { scale: shifted(&w.scale, 1), ..w.clone() }, x)
        }),
        ("minima of the next group", "one_group", |w, x| {
            plain_int4(&Int4Matrix { min: shifted(&w.min, 1), ..w.clone() }, x)
        }),
        ("scales of the next row", "one_hot", |w, x| {
            plain_int4(&Int4Matrix { scale: shifted(&w.scale, w.k / GROUP), ..w.clone() }, x)
        }),
        ("minimum twice", "min_alone", |w, x| {
            plain_int4(&Int4Matrix { min: w.min.iter().map(|m| *m * f16::from_f32(2.0)).collect(), ..w.clone() }, x)
        }),
        ("scale twice", "scale_alone", |w, x| {
            plain_int4(&Int4Matrix { scale: w.scale.iter().map(|s| *s * *s).collect(), ..w.clone() }, x)
        }),
        ("no minimum", "constant", |w, x| {
            plain_int4(&Int4Matrix { min: vec![f16::ZERO; w.min.len()], ..w.clone() }, x)
        }),
        ("high digit only", "digits", |w, x| {
            plain_int4(w, &x.iter().map(|x| (x / 256.0).trunc() * 256.0).collect::<Vec<f32>>())
        }),
        ("low digit unsigned", "digits", |w, x| {
            let wrong = |x: &f32| if (*x as i32).rem_euclid(256) > 127 { x - 256.0 } else { *x };
            plain_int4(w, &x.iter().map(wrong).collect::<Vec<f32>>())
        }),
        ("another order of groups", "fold_order", folded_in_line),
        ("the last row not written", "one_hot", |w, x| {
            let mut y = plain_int4(w, x);
            y.chunks_mut(w.n).for_each(|y| y[w.n - 1] = POISON);
            y
        }),
        ("a value that is not finite as 0", "not_finite", |w, x| {
            plain_int4(w, &x.iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect::<Vec<f32>>())
        }),
        ("the neighbour's activations", "random", |w, x| {
            let mut y = plain_int4(w, x);
            y.rotate_left(w.n);
            y
        }),
    ];
    caught(faults, |judge, faulty| products::judge_int4(judge, "k", 1000, &faulty));
}

type Int8Fault = fn(&Int8Matrix, &[f32]) -> Vec<f32>;

#[test]
fn faults_of_int8_products_are_caught() {
    let faults: Faults<Int8Fault> = vec![
        ("-128 as -127", "constant", |w, x| {
            let codes: Vec<u8> = w.codes.iter().map(|&c| if c == 0x80 { 0x81 } else { c }).collect();
            plain_int8(&Int8Matrix { codes: codes.into(), ..w.clone() }, x)
        }),
        ("the scale of the next row", "one_hot", |w, x| {
            plain_int8(&Int8Matrix { scale: shifted(&w.scale, 1), ..w.clone() }, x)
        }),
        ("columns in pairs swapped", "one_hot", |w, x| {
            let codes: Vec<u8> = w.codes.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
            plain_int8(&Int8Matrix { codes: codes.into(), ..w.clone() }, x)
        }),
        ("high digit only", "digits", |w, x| {
            plain_int8(w, &x.iter().map(|x| (x / 256.0).trunc() * 256.0).collect::<Vec<f32>>())
        }),
    ];
    caught(faults, |judge, faulty| products::judge_int8(judge, "k", 1000, &faulty));
}

type FloatFault = fn(&Floats, &[f32]) -> Vec<f32>;

/// The plain product of float weights.
fn plain_floats(w: &Floats, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; w.n * x.len() / w.k];
    plain::f32_rows(&w.values, x, w.k, &mut y);
    transposed(&y, x.len() / w.k)
}

#[test]
fn faults_of_float_products_are_caught() {
    let faults: Faults<FloatFault> = vec![
        ("bf16 where f32 is meant", "random", |w, x| {
            let values = w.values.iter().map(|v| f32::from_bits(v.to_bits() & products::BF16)).collect();
            plain_floats(&Floats { values, ..*w }, x)
        }),
        ("sums in f32 in line", "random", |w, x| {
            let dot = |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
            x.chunks(w.k).flat_map(|x| w.values.chunks(w.k).map(|w| dot(w, x))).collect()
        }),
        ("the last column left out", "one_hot", |w, x| {
            let keep = |(i, x): (usize, &f32)| if i % w.k == w.k - 1 { 0.0 } else { *x };
            plain_floats(w, &x.iter().enumerate().map(keep).collect::<Vec<f32>>())
        }),
    ];
    caught(faults, |judge, faulty| products::judge_floats(judge, "k", u32::MAX, 1 << 20, 0.0, &faulty));
}

#[test]
fn faults_of_rounding_are_caught() {
    let faults: Faults<fn(&mut Rounded)> = vec![
        ("half away from zero", "half_to_even", |r| r.q[1] = 1),
        ("a scale of 32767 steps", "scale", |r| r.scale.iter_mut().for_each(|s| *s *= 32512.0 / 32767.0)),
        ("digits of columns in order", "digits", |r| r.digits.iter_mut().for_each(|d| d.0.swap(1, 64))),
        ("a sum of 127", "sum", |r| r.sum.iter_mut().zip(r.q.chunks(GROUP)).for_each(|(s, q)| *s -= i32::from(q[127]))),
        ("an offset without its scale", "offset", |r| r.offset = r.sum.iter().map(|s| *s as f32).collect()),
        ("not finite as 0", "not_finite", |r| {
            r.scale.iter_mut().filter(|s| !s.is_finite()).for_each(|s| *s = 0.0);
        }),
    ];
    caught(faults, |judge, change| {
        vectors::judge_round(judge, "k", &|x, order| {
            let mut out = rounded(x, x.len(), order);
            change(&mut out);
            out
        });
    });
}

type NormFault = fn(&[f32], &[f32], f32) -> Vec<f32>;

fn plain_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    plain::layer_norm(x, weight, eps, &mut out);
    out
}

#[test]
fn faults_of_operations_on_vectors_are_caught() {
    let norms: Faults<NormFault> = vec![
        ("mean not taken off", "mean", |x, w, eps| {
            let root = (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32 + eps).sqrt();
            x.iter().zip(w).map(|(x, w)| x / root * w).collect()
        }),
        ("epsilon outside of the root", "epsilon", |x, w, eps| {
            let unit = plain_norm(x, w, 0.0);
            let deviation = (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt();
            unit.iter().map(|y| if deviation > 0.0 { y * deviation / (deviation + eps) } else { 0.0 }).collect()
        }),
        ("weight left out", "signs", |x, w, eps| plain_norm(x, &vec![1.0; w.len()], eps)),
        ("variance over n - 1", "signs", |x, w, eps| {
            let n = x.len() as f32;
            plain_norm(x, w, eps).iter().map(|y| y * ((n - 1.0) / n).sqrt()).collect()
        }),
    ];
    caught(norms, |judge, norm| vectors::judge_layer_norm(judge, "k", &[18, 256], 0.0, &norm));

    let plain_silu = |gate: &[f32], up: &[f32]| {
        let mut out = vec![0.0; gate.len()];
        plain::silu_up(gate, up, &mut out);
        out
    };
    let failed = failures(|j| vectors::judge_silu_up(j, "k", &|gate, up| plain_silu(up, gate)));
    assert!(failed.contains("known"), "gate and up exchanged: {failed:?}");
    let sigmoid = |gate: &[f32], up: &[f32]| gate.iter().zip(up).map(|(g, u)| u / (1.0 + (-g).exp())).collect();
    assert!(failures(|j| vectors::judge_silu_up(j, "k", &sigmoid)).contains("known"), "sigmoid for silu");

    let rope = vectors::plain_rope(8);
    type Rotate<'a> = Box<dyn Fn(&mut [f32], usize) + 'a>;
    let rotations: Faults<Rotate<'_>> = vec![
        (
            "half-split pairs",
            "even",
            Box::new(|x, position| {
                for head in x.chunks_mut(8) {
                    mimi::ops::rotate_half(head, mimi::ops::rotary(position as u64, vectors::THETA, 8));
                }
            }),
        ),
        ("the position before", "odd", Box::new(|x, position| rope.rotate(x, position.saturating_sub(1)))),
        (
            "turned backwards",
            "both",
            Box::new(|x, position| {
                x.chunks_mut(2).for_each(<[f32]>::reverse);
                rope.rotate(x, position);
                x.chunks_mut(2).for_each(<[f32]>::reverse);
            }),
        ),
        ("the first head only", "even", Box::new(|x, position| rope.rotate(&mut x[..8], position))),
    ];
    caught(rotations, |judge, rotate| vectors::judge_rope(judge, "k", 8, &*rotate));

    let row = |w: &Int8Matrix, row: usize| {
        let mut x = vec![0.0; w.k];
        plain::embedding_row(&Int8Matrix { scale: shifted(&w.scale, 1), ..w.clone() }, row, &mut x);
        x
    };
    assert!(failures(|j| vectors::judge_embedding(j, "k", &row)).contains("rows"), "the scale of another row");
    let tanh =
        |x: &[f32]| x.iter().map(|x| 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x.powi(3))).tanh())).collect();
    assert!(failures(|j| vectors::judge_gelu(j, "k", vectors::FLOAT_TOLERANCE, &tanh)).contains("known"), "tanh GELU");
}

fn plain_attend(q: &[f32], (keys, values): (&[u16], &[u16]), dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; q.len()];
    plain::attend(q, keys, values, dim, &mut Vec::new(), &mut out);
    out
}

type Attend = fn(&[f32], (&[u16], &[u16]), usize) -> Vec<f32>;

#[test]
fn faults_of_attention_are_caught() {
    let faults: Faults<Attend> = vec![
        ("the oldest position left out", "uniform", |q, (k, v), d| {
            let first = if k.len() > d { d } else { 0 };
            plain_attend(q, (&k[first..], &v[first..]), d)
        }),
        ("the newest position left out", "sharp", |q, (k, v), d| {
            let last = k.len().max(2 * d) - d;
            plain_attend(q, (&k[..last], &v[..last]), d)
        }),
        ("one stale position", "uniform", |q, (k, v), d| {
            plain_attend(q, (&[&k[..d], k].concat(), &[&v[..d], v].concat()), d)
        }),
        ("no scale", "ratio", |q, kv, d| {
            plain_attend(&q.iter().map(|q| q * (d as f32).sqrt()).collect::<Vec<f32>>(), kv, d)
        }),
        ("values of the position before", "sharp", |q, (k, v), d| {
            let mut v = v.to_vec();
            v.rotate_right(d);
            plain_attend(q, (k, &v), d)
        }),
        ("the first head's query for all", "sharp", |q, kv, d| {
            plain_attend(&q.iter().enumerate().map(|(i, _)| q[i % d]).collect::<Vec<f32>>(), kv, d)
        }),
        ("exponentials of the whole score", "ratio", |q, (k, v), d| {
            let score = |q: &[f32], k: &[u16]| q.iter().zip(k).map(|(q, k)| q * plain::widen(*k)).sum::<f32>();
            let head = |q: &[f32]| {
                let w: Vec<f32> = k.chunks(d).map(|k| (score(q, k) / (d as f32).sqrt()).exp()).collect();
                let sum: f32 = w.iter().sum();
                let at = |i: usize| v.chunks(d).zip(&w).map(|(v, w)| w / sum * plain::widen(v[i])).sum::<f32>();
                (0..d).map(at).collect::<Vec<f32>>()
            };
            q.chunks(d).flat_map(head).collect()
        }),
    ];
    caught(faults, |judge, attend| attention::judge(judge, "k", &[64], 8, 0.0, &attend));
}

type Choose = fn(&choice::Case) -> Option<Choice>;

#[test]
fn faults_of_the_choice_are_caught() {
    let with = |case: &choice::Case, change: fn(&mut choice::Case)| {
        let mut case = case.clone();
        change(&mut case);
        choice::plain(&case)
    };
    let changes: Faults<fn(&mut choice::Case)> = vec![
        ("top-k of one more", "random", |case| case.sampling.top_k += 1),
        ("top-k of one less", "random", |case| case.sampling.top_k = (case.sampling.top_k - 1).max(1)),
        ("temperature ignored", "random", |case| case.sampling.temperature = case.sampling.temperature.min(1.0).ceil()),
        ("the noise of another step", "random", |case| case.noise.step ^= 64),
        ("the noise of another sequence", "random", |case| case.noise.sequence = 0),
        ("half of the seed", "random", |case| case.noise.seed &= 0xffff_ffff),
        ("end allowed one step early", "end_masked", |case| case.noise.step += u32::from(case.noise.step == 7)),
        ("stop head asked one step early", "stop_not_asked", |case| case.noise.step += u32::from(case.noise.step == 7)),
        ("stop head off", "stop_forced", |case| case.stop = case.stop.min(-1.0)),
        ("stop at the threshold itself", "stop_at_threshold", |case| {
            case.stop += if case.stop_probability() == STOP_THRESHOLD { 1e-3 } else { 0.0 };
        }),
        ("cap one late", "cap", |case| case.max_new_tokens += 1),
        ("NaN as a small number", "not_finite", |case| {
            case.logits.iter_mut().filter(|l| !l.is_finite()).for_each(|l| *l = -9.0);
        }),
    ];
    caught(changes, |judge, change| choice::judge(judge, "k", 385, &|case| with(case, change)));
    let choosers: Faults<Choose> = vec![("ties to the higher row", "tie", |case| {
        let Choice { row, end } = choice::plain(case)?;
        let last = case.logits.iter().rposition(|l| *l == case.logits[row]);
        Some(Choice { row: last.unwrap_or(row), end })
    })];
    caught(choosers, |judge, choose| choice::judge(judge, "k", 385, &choose));
}

/// An engine on the plain table for a model that `change` spoils.
fn spoilt(export: &Export, slots: usize, change: impl FnOnce(&mut Export)) -> Result<Box<dyn Engine>> {
    let mut export = export.clone();
    change(&mut export);
    let options = Options { slots, positions: Some(model::POSITIONS), threads: Some(1) };
    Ok(Box::new(CpuEngine::new(export, options)?))
}

#[test]
fn faults_of_models_are_caught() {
    let faults: Faults<fn(&mut Export)> = vec![
        ("window of one more", "sliding", |e| e.config.sliding_window += 1),
        ("window of one less", "sliding", |e| e.config.sliding_window -= 1),
        ("window on full layers", "full", |e| e.config.layer_types.fill(LayerType::Sliding)),
        ("RoPE on full layers", "residual", |e| {
            e.config.layer_types.fill(LayerType::Sliding);
            e.config.sliding_window = model::POSITIONS;
        }),
        ("RoPE of another base", "residual", |e| e.config.rope_theta *= 1.01),
        ("gate and up exchanged", "mlp_added_once", |e| {
            e.layers.iter_mut().for_each(|l| std::mem::swap(&mut l.gate, &mut l.up));
        }),
        ("o_proj twice", "full", |e| {
            e.layers.iter_mut().for_each(|l| l.o.scale.iter_mut().for_each(|s| *s *= f16::from_f32(2.0)));
        }),
        ("keys for values", "full", |e| e.layers.iter_mut().for_each(|l| l.v = l.k.clone())),
        ("norm weight left out", "residual", |e| e.layers.iter_mut().for_each(|l| l.norm.fill(1.0))),
        ("last norm left out", "hidden", |e| e.norm.fill(1.0)),
        ("logits not scaled", "logits", |e| e.config.logit_scale = 1.0),
        ("head rows permuted", "logits", |e| match &mut e.head {
            Head::Int8(w) => w.scale.reverse(),
            Head::Bf16(w) => w.data = w.data.iter().rev().copied().collect::<Vec<u8>>().into(),
        }),
        ("stop head off", "known", |e| e.stop.down_bias = -1e3),
        ("stop bias left out", "known", |e| e.stop.up_bias.fill(0.0)),
    ];
    caught(faults, |judge, change| {
        model::judge_scores(judge, 64, 0.0, &|export, slots| spoilt(export, slots, change)).unwrap();
    });
}

/// An engine that hands the work on, with requests changed and slots exchanged.
struct Meddler(Box<dyn Engine>, fn(&mut Request<'_>));

impl Engine for Meddler {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn start(&mut self, slot: usize, request: &Request<'_>) -> Result<()> {
        let mut request = *request;
        (self.1)(&mut request);
        self.0.start(slot, &request)
    }

    fn step(&mut self, sink: &mut dyn FnMut(Step<'_>)) -> Result<()> {
        self.0.step(sink)
    }

    fn reset(&mut self, slot: usize) {
        self.0.reset(slot);
    }

    fn score(&mut self, slot: usize, tokens: &[u32], observer: &mut dyn Observer) -> Result<()> {
        self.0.score(slot, tokens, observer)
    }
}

#[test]
fn faults_of_decoding_are_caught() {
    let faults: Faults<fn(&mut Request<'_>)> = vec![
        ("one seed for all", "slots", |request| request.seed = 5),
        ("one sequence for all", "slots", |request| request.sequence = 0),
        ("the last token of the prompt unseen", "slots", |request| {
            request.prompt = &request.prompt[..request.prompt.len() - 1]
        }),
        ("a cap of one less", "slots", |request| request.max_new_tokens -= 1),
    ];
    caught(faults, |judge, change| {
        let open =
            |export: &Export, slots| Ok(Box::new(Meddler(spoilt(export, slots, |_| {})?, change)) as Box<dyn Engine>);
        model::judge_decode(judge, 64, 2, &open).unwrap();
    });
}

/// Decodes with a fault: in the configuration, or in what is kept from frame to frame.
#[derive(Clone, Copy)]
enum CodecFault {
    Config(fn(&mut crate::config::CodecConfig)),
    Codes(fn(&mut [u32])),
    StateLost,
    StateKept,
}

fn decode(fault: CodecFault, codec: &codec::Codec, codes: &[u32], twice: bool) -> Result<Vec<f32>> {
    let (mut config, mut codes) = (codec.config.clone(), codes.to_vec());
    match fault {
        CodecFault::Config(change) => change(&mut config),
        CodecFault::Codes(change) => change(&mut codes),
        _ => {}
    }
    let decoder = mimi::Decoder::load(&config, &codec.weights, 3)?;
    let (mut state, mut out) = (decoder.state(), Vec::new());
    for round in 0..=usize::from(twice) {
        if round > 0 && !matches!(fault, CodecFault::StateKept) {
            state.reset();
        }
        out.clear();
        for frame in codes.chunks(3) {
            if matches!(fault, CodecFault::StateLost) {
                state.reset();
            }
            decoder.step(&mut state, frame, &mut out)?;
        }
    }
    Ok(out)
}

#[test]
fn faults_of_the_codec_are_caught() {
    let faults = vec![
        ("window of one more", "window", CodecFault::Config(|c| c.sliding_window += 1)),
        ("window of one less", "window", CodecFault::Config(|c| c.sliding_window -= 1)),
        ("RoPE of another base", "random", CodecFault::Config(|c| c.rope_theta *= 1.1)),
        ("epsilon of another size", "random", CodecFault::Config(|c| c.norm_eps = 1e-2)),
        (
            "codes of two codebooks exchanged",
            "lookup",
            CodecFault::Codes(|c| c.chunks_mut(3).for_each(|f| f.swap(1, 2))),
        ),
        ("the next frame's codes", "pass_through", CodecFault::Codes(|c| c.rotate_left(3))),
        ("state lost between frames", "upsample", CodecFault::StateLost),
        ("state lost between frames", "conv_state", CodecFault::StateLost),
        ("state lost between frames", "transposed_state", CodecFault::StateLost),
        ("state lost between frames", "residual_unit_state", CodecFault::StateLost),
        ("state lost between frames", "window", CodecFault::StateLost),
        ("state not reset", "window_after_reset", CodecFault::StateKept),
        ("state not reset", "reset", CodecFault::StateKept),
    ];
    caught(faults, |judge, fault| {
        codec::judge(judge, "k", &|codec, codes, _, twice| decode(fault, codec, codes, twice)).unwrap();
    });
}
