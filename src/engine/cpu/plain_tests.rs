use super::*;

#[test]
fn widens_every_f16_exactly() {
    for bits in 0..=u16::MAX {
        let (ours, expected) = (widen(bits), f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == expected.to_bits() || ours.is_nan() && expected.is_nan(), "{bits:#06x}");
    }
}

#[test]
fn digits_give_back_every_integer() {
    let all: Vec<i16> = (-32512..=32512).collect();
    for order in [Order::Bytes, Order::Nibbles] {
        for q in all.as_chunks::<GROUP>().0 {
            let mut digits = [0; GROUP_DIGITS];
            split_digits(q, order, &mut digits);
            for (i, q) in q.iter().enumerate() {
                let place = if order == Order::Bytes { i } else { i % 2 * GROUP / 2 + i / 2 };
                assert_eq!(256 * i32::from(digits[place]) + i32::from(digits[GROUP + place]), i32::from(*q));
            }
        }
    }
}

#[test]
fn rounds_half_to_even_and_keeps_the_largest_value() {
    let mut x = [0.0; GROUP];
    x[..6].copy_from_slice(&[LARGEST, 0.5, 1.5, -2.5, 2.500001, -LARGEST]); // scale 1
    let mut q = [1; GROUP];
    assert_eq!(round_group(&x, &mut q), 1.0);
    assert_eq!(q[..7], [32512, 0, 2, -2, 3, -32512, 0]);
}

#[test]
fn groups_that_cannot_be_scaled_have_integers_of_zero() {
    let mut q = [1; GROUP];
    assert_eq!(round_group(&[0.0; GROUP], &mut q), 0.0);
    assert_eq!(round_group(&[f32::from_bits(3); GROUP], &mut q), 0.0);
    assert_eq!(q, [0; GROUP]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = [1.0; GROUP];
        x[77] = bad;
        q = [1; GROUP];
        assert!(!round_group(&x, &mut q).is_finite());
        assert_eq!(q, [0; GROUP]);
    }
}

/// Twice the documented error, for the rounding of the reference to f32.
const EXP_TOLERANCE: f64 = 2.4e-7;

#[test]
fn exp_is_close_everywhere_and_bounded_beyond() {
    for i in -87_000..=88_000 {
        let x = i as f32 / 1000.0;
        let expected = f64::from(x).exp();
        let error = (f64::from(exp(x)) - expected).abs() / expected;
        assert!(error < EXP_TOLERANCE, "exp({x}): relative error {error:e}");
    }
    assert_eq!(exp(-1e30), exp(-87.0));
    assert!(exp(1e30).is_finite() && exp(f32::NAN).is_nan());
    assert_eq!(exp(0.0), 1.0);
}

/// Values of erf from Abramowitz and Stegun, table 7.1.
#[test]
fn erf_has_the_tabulated_values() {
    for (x, expected) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)] {
        assert!((erf(x) - expected).abs() < 5e-11, "erf({x})");
        assert_eq!(erf(-x), -erf(x));
    }
    assert_eq!(erf(7.0), 1.0);
    assert!(gelu(f32::NAN).is_nan());
}

#[test]
fn layer_norm_centres_and_scales() {
    let x: Vec<f32> = (0..37).map(|i| (i * i % 11) as f32 + 100.0).collect();
    let mut out = vec![0.0; 37];
    layer_norm(&x, &[2.0; 37], 1e-5, &mut out);
    let mean = out.iter().map(|&v| f64::from(v)).sum::<f64>() / 37.0;
    let square = out.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 37.0;
    assert!(mean.abs() < 1e-5 && (square - 4.0).abs() < 1e-4, "mean {mean}, mean square {square}");
}

#[test]
fn rope_turns_neighbouring_pairs() {
    let rope = Rope::new(10000.0, 4, 8);
    let mut x = [1.0, 0.0, 0.0, 1.0];
    rope.rotate(&mut x, 3);
    let slow = 0.03f32; // 3 * 10000^(-2/4)
    let expected = [3f32.cos(), 3f32.sin(), -slow.sin(), slow.cos()];
    assert!(x.iter().zip(expected).all(|(x, e)| (x - e).abs() < 1e-6), "{x:?} {expected:?}");
}

#[test]
fn attention_to_equal_keys_is_the_mean_of_the_values() {
    let bits = |v: f32| f16::from_f32(v).to_bits();
    let keys = vec![bits(0.25); 3 * 8];
    let values: Vec<u16> = (0..24).map(|i| bits((i / 8) as f32)).collect();
    let mut out = [0.0; 16];
    attend(&[1.0; 16], &keys, &values, 8, &mut Vec::new(), &mut out);
    assert!(out.iter().all(|v| (v - 1.0).abs() < 1e-6), "{out:?}");
}
