//! The decoder's elementwise loops and its attention, compiled for the instruction set of the machine.
//!
//! Each loop is written once, in plain Rust that the compiler turns into vectors. There is no reassociation and no
//! implicit contraction in Rust, so results are the same bits on every instruction set.

/// Lanes of the dot product: independent partial sums, folded in a fixed order.
const LANES: usize = 16;

/// Instruction sets that the decoder's loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// What every machine of the architecture has.
    Plain,
    Avx2,
    /// Products only: the other loops run as with AVX2.
    Avx512,
}

impl Set {
    /// The sets this machine has, best first; the last is the plain one.
    pub(crate) fn available() -> Vec<Set> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") {
                sets.push(Set::Avx512);
            }
            if avx2 {
                sets.push(Set::Avx2);
            }
        }
        sets.push(Set::Plain);
        sets
    }

    /// The best set of this machine.
    pub(crate) fn best() -> Set {
        static BEST: std::sync::OnceLock<Set> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Set::available()[0])
    }

    /// Its name, as `engine::cpu::Kernels` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Set::Plain => "plain",
            Set::Avx2 => "avx2",
            Set::Avx512 => "avx512",
        }
    }
}

/// For each loop, defines `fn name(set, args)` that runs `body` compiled for the set, and lists the names. 512-bit registers
/// gain nothing here: attention waits for its keys and values, and the activations are a small part of the work.
macro_rules! dispatch {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) = $body:ident;)+) => {
        /// Names of the loops.
        pub(crate) const LOOPS: &[&str] = &[$(stringify!($name)),+];

        $(
            $(#[$doc])*
            ///
            /// `set` is of [`Set::available`].
            #[allow(unsafe_code)]
            pub(crate) fn $name(set: Set, $($arg: $type),*) {
                #[cfg(target_arch = "x86_64")]
                {
                    #[target_feature(enable = "avx2,fma")]
                    fn avx2($($arg: $type),*) {
                        $body($($arg),*)
                    }
                    if set != Set::Plain {
                        // SAFETY: only a machine with these features has a set beside the plain one.
                        return unsafe { avx2($($arg),*) };
                    }
                }
                let _ = set;
                $body($($arg),*)
            }
        )+
    };
}

dispatch! {
    /// ELU of every value of `x`, appended to `out`.
    fn extend_elu(x: &[f32], out: &mut Vec<f32>) = extend_elu_body;

    /// GELU (erf) of every value, in place.
    fn gelu(x: &mut [f32]) = gelu_body;

    /// Attention of one head at one position: `out = softmax(q . k * scale) v`.
    ///
    /// `q, out: [d]`; `k, v: [t, d]`, in any order of positions; `scores: [t]` is scratch.
    fn attend(q: &[f32], k: &[f32], v: &[f32], scale: f32, scores: &mut [f32], out: &mut [f32]) = attend_body;
}

#[inline(always)]
fn extend_elu_body(x: &[f32], out: &mut Vec<f32>) {
    let start = out.len();
    out.extend_from_slice(x);
    for v in &mut out[start..] {
        let below = exp(v.min(0.0)) - 1.0;
        *v = if *v > 0.0 { *v } else { below };
    }
}

#[inline(always)]
fn gelu_body(x: &mut [f32]) {
    for v in x {
        *v *= 0.5 * (1.0 + erf(*v * std::f32::consts::FRAC_1_SQRT_2));
    }
}

#[inline(always)]
fn attend_body(q: &[f32], k: &[f32], v: &[f32], scale: f32, scores: &mut [f32], out: &mut [f32]) {
    let mut largest = f32::NEG_INFINITY;
    for (score, k) in scores.iter_mut().zip(k.chunks_exact(q.len())) {
        *score = dot(q, k) * scale;
        largest = largest.max(*score);
    }
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
    }
    let total: f32 = scores.iter().sum();
    out.fill(0.0);
    for (&weight, v) in scores.iter().zip(v.chunks_exact(q.len())) {
        for (out, &v) in out.iter_mut().zip(v) {
            *out = weight.mul_add(v, *out);
        }
    }
    for out in out.iter_mut() {
        *out /= total;
    }
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a.remainder().iter().zip(b.remainder()).fold(0.0f32, |sum, (&a, &b)| a.mul_add(b, sum));
    for (a, b) in a.zip(b) {
        for j in 0..LANES {
            sums[j] = a[j].mul_add(b[j], sums[j]);
        }
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for j in 0..width {
            sums[j] += sums[j + width];
        }
    }
    sums[0] + rest
}

/// `e^x` for `x <= 0` within 2e-7 relative; results below 1e-37 become about 1e-37.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it rounds to an integer and leaves that integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 as a short part, 355 / 512, whose multiples are exact, and the rest.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// 1 / k!; on |r| <= ln 2 / 2 the first term left out is below 3e-8 of the result.
    const SERIES: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    let x = x.max(-85.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut series = SERIES[0];
    for term in &SERIES[1..] {
        series = series.mul_add(r, *term);
    }
    let power = series.mul_add(r * r, r) + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    power * f32::from_bits(exponent)
}

/// The error function within 3e-7 absolute: formula 7.1.26 of Abramowitz and Stegun.
#[inline(always)]
fn erf(x: f32) -> f32 {
    const P: f32 = 0.327_591_1;
    const A: [f32; 5] = [1.061_405_4, -1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6];
    let t = 1.0 / x.abs().mul_add(P, 1.0);
    let mut series = A[0];
    for term in &A[1..] {
        series = series.mul_add(t, *term);
    }
    let erf = (-series * t).mul_add(exp(-x * x), 1.0);
    erf.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::super::ops;
    use super::super::testing::{assert_close, noise};
    use super::*;

    /// Sums of a few hundred f32 products of size 1, against f64.
    const TOLERANCE: f32 = 2e-5;

    #[test]
    fn activations_follow_the_plain_ones() {
        let x: Vec<f32> = (-4000..=1000).map(|i| i as f32 / 100.0).collect();
        let mut found = vec![7.0];
        extend_elu(Set::best(), &x, &mut found);
        assert_close(&found[1..], &x.iter().map(|&x| ops::elu(x)).collect::<Vec<_>>(), 2e-7);
        let mut found = x.clone();
        gelu(Set::best(), &mut found);
        for (&found, &x) in found.iter().zip(&x) {
            // The error of erf is absolute, so that of GELU grows with |x|.
            assert!((found - ops::gelu(x)).abs() <= 3e-7 * x.abs().max(1.0), "gelu({x}) = {found}");
        }
    }

    #[test]
    fn attention_follows_the_plain_one() {
        for (t, d) in [(1, 4), (7, 16), (250, 64), (33, 20)] {
            let (q, k, v) = (noise(5, d), noise(6, t * d), noise(7, t * d));
            let (mut scores, mut out) = (vec![0.0; t], vec![f32::NAN; d]);
            attend(Set::best(), &q, &k, &v, 1.0 / (d as f32).sqrt(), &mut scores, &mut out);
            assert_close(&out, &ops::attention(&q, &k, &v, t), TOLERANCE);
        }
    }
}
