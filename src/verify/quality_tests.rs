use super::*;

const SAMPLING: Sampling = Sampling { temperature: 0.8, top_k: 3 };

fn context(drawn: Option<usize>) -> Context {
    Context { step: 20, drawn, stop: [0.25, 0.125], codebook: 3, sampling: SAMPLING }
}

/// Logits that bf16 holds exactly, the same on every run.
fn logits(seed: u32, rows: usize, spread: f32) -> Vec<f32> {
    let value = |row: usize| {
        let word = crate::engine::sampler::philox([row as u32, seed, 0, 0], [1, 2])[0];
        half::bf16::from_f32((word as f32 / u32::MAX as f32 - 0.5) * spread).to_f32()
    };
    (0..rows).map(value).collect()
}

/// KL in f64, straight from the definition.
fn plain_kl(p: &[f32], q: &[f32]) -> f64 {
    let log = |logits: &[f32]| {
        let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        logits.iter().map(|l| f64::from(*l) - total.ln()).collect::<Vec<f64>>()
    };
    let (p, q) = (log(p), log(q));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

#[test]
fn the_compact_reference_costs_less_than_its_bound_and_that_is_small() {
    for (seed, rows, spread) in [(1, 2049, 20.0), (2, 2049, 60.0), (3, 16385, 40.0), (4, 16385, 8.0), (5, 40, 90.0)] {
        let (p, noise) = (logits(seed, rows, spread), logits(seed + 100, rows, 2.0));
        let q: Vec<f32> = p.iter().zip(&noise).map(|(p, n)| p + n).collect();
        let compact = Compact::of(&p).unwrap();
        let step = Step::compare(&compact, &q, context(None));
        let error = plain_kl(&p, &q) - step.kl;
        assert!(error > -1e-9 && error <= step.kl_error + 1e-9, "{rows} rows: {error} of {}", step.kl_error);
        assert!(step.kl_error <= 1e-4, "{rows} rows: {}", step.kl_error);
    }
}

#[test]
fn a_model_against_itself_differs_in_nothing() {
    let p = logits(7, 500, 12.0);
    let step = Step::compare(&Compact::of(&p).unwrap(), &p, context(Some(3)));
    assert!(step.kl.abs() < 1e-9 && step.draw_distance < 1e-9, "{step:?}");
    assert!(step.same_top && step.top5 == 5);
    let (by_reference, by_engine) = step.drawn.unwrap();
    assert!((by_reference - by_engine).abs() < 1e-6 || by_reference.is_nan(), "{step:?}");
}

/// D18: differences of 1e-8 and of 1e4 in one row, against the definition in f64.
#[test]
fn tiny_and_huge_differences_come_out_right() {
    for (row, shift) in [(0, 1e-8f32), (1, -1e4), (2, 1e-3)] {
        let p = logits(9, 64, 4.0);
        let mut q = p.clone();
        q[row] += shift;
        let found = Step::compare(&Compact::of(&p).unwrap(), &q, context(None)).kl;
        assert!((found - plain_kl(&p, &q)).abs() < 1e-9 * found.abs().max(1.0), "{shift}: {found}");
    }
}

#[test]
fn what_is_not_a_number_stays_one() {
    let p = logits(9, 64, 4.0);
    for wrong in [f32::NAN, f32::INFINITY] {
        let mut q = p.clone();
        q[5] = wrong;
        assert!(Step::compare(&Compact::of(&p).unwrap(), &q, context(None)).kl.is_nan());
    }
    let none: Figures = std::iter::empty::<&Step>().collect();
    assert!(none.mean_kl.is_nan() && none.relative(none.mean_kl).is_nan() && none.perplexity_engine.is_nan());
}

#[test]
fn draws_are_compared_as_they_are_drawn() {
    let p = [3.0, 2.0, 1.0, 0.0, -1.0];
    let reference = Compact::of(&p).unwrap();
    let distance = |q: &[f32], step| Step::compare(&reference, q, Context { step, ..context(None) }).draw_distance;
    assert_eq!(distance(&[3.0, 2.0, 1.0, -9.0, -9.0], 20), 0.0); // rows that are never drawn count for nothing
    let q = [-9.0, 2.0, 1.0, 0.0, 3.0];
    let weight = |l: f64| (l / f64::from(0.8f32)).exp();
    let p_total = weight(3.0) + weight(2.0) + weight(1.0);
    let expected = weight(3.0) / p_total; // the mass that moves from row 0 to row 4
    assert!((distance(&q, 20) - expected).abs() < 1e-9);
    // the last row is the end, which cannot be drawn yet: rows 1, 2, 3 remain
    let early = weight(2.0) + weight(1.0) + weight(0.0);
    let moved = [weight(2.0) / early - weight(2.0) / p_total, weight(1.0) / early - weight(1.0) / p_total];
    assert!((distance(&q, 3) - (moved.iter().sum::<f64>() + weight(0.0) / early)).abs() < 1e-9);
}

#[test]
fn ties_go_to_the_lower_row_on_both_sides() {
    let tied = [1.0, 2.0, 2.0, 0.5];
    let step = Step::compare(&Compact::of(&tied).unwrap(), &tied, context(None));
    assert!(step.same_top);
    assert_eq!(best_rows(&tied, 1), [1]);
    assert_eq!(best_rows(&tied, 3), [1, 2, 0]);
    let higher = [1.0, 2.0, 2.5, 0.5];
    assert!(!Step::compare(&Compact::of(&tied).unwrap(), &higher, context(None)).same_top);
}

#[test]
fn stop_decisions_count_only_where_they_are_made() {
    let p = logits(7, 50, 12.0);
    let compare = |step, stop| {
        let context = Context { step, stop, ..context(None) };
        Step::compare(&Compact::of(&p).unwrap(), &p, context)
    };
    assert!(compare(8, [0.6, 0.4]).stop_changed && !compare(7, [0.6, 0.4]).stop_changed);
    assert!(!compare(8, [0.9, 0.6]).stop_changed);
    assert!((compare(8, [0.9, 0.6]).stop_difference - 0.3).abs() < 1e-6);
}
