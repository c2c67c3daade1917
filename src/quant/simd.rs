//! Instruction sets, and reading source weights of any float type.

use half::f16;

use crate::tensors::Dtype;

/// Lanes of the fixed summation order: sums over columns run in this many partial sums, whatever the registers' width.
pub(super) const LANES: usize = 16;

/// An instruction set that the fast functions are compiled for. AVX-512 was tried and lost to AVX2 by a tenth: the compiler
/// turns the clamps into mask registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// What every machine of this architecture has (SSE2, NEON).
    Baseline,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Simd {
    /// All that this machine can run, the fastest last.
    pub fn available() -> Vec<Simd> {
        #[allow(unused_mut)]
        let mut found = vec![Simd::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                found.push(Simd::Avx2);
            }
        }
        found
    }

    /// The fastest that this machine can run.
    pub fn best() -> Simd {
        static BEST: std::sync::OnceLock<Simd> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| *Simd::available().last().unwrap_or(&Simd::Baseline))
    }
}

/// Compiles `$body`, an `#[inline(always)]` function, once per instruction set, and defines `$name`, which runs the one
/// asked for. A set that the machine lacks falls back to the baseline: the bits are the same.
macro_rules! per_instruction_set {
    ($(#[$doc:meta])* pub fn $name:ident = $body:ident($($arg:ident: $kind:ty),* $(,)?) -> $result:ty) => {
        $(#[$doc])*
        #[allow(unsafe_code)]
        pub fn $name(simd: Simd, $($arg: $kind),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $kind),*) -> $result {
                    $body($($arg),*)
                }
                if simd == Simd::Avx2 && Simd::best() == Simd::Avx2 {
                    // SAFETY: the best instruction set is Avx2 only where it was detected.
                    return unsafe { avx2($($arg),*) };
                }
            }
            let _ = simd;
            $body($($arg),*)
        }
    };
}
pub(super) use per_instruction_set;

/// A float type that source weights may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Float {
    /// The float type of a tensor, if it is one of the three.
    pub fn of(dtype: Dtype) -> Option<Float> {
        match dtype {
            Dtype::BF16 => Some(Float::Bf16),
            Dtype::F16 => Some(Float::F16),
            Dtype::F32 => Some(Float::F32),
            _ => None,
        }
    }

    /// Bytes an element.
    pub fn width(self) -> usize {
        match self {
            Float::Bf16 | Float::F16 => 2,
            Float::F32 => 4,
        }
    }

    /// Converts `out.len()` little-endian elements to f32, exactly.
    #[inline(always)]
    pub(super) fn load(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            // bf16 is the upper half of an f32; its own conversion also quiets NaNs, which would cost a branch a value
            Float::Bf16 => convert(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
            Float::F16 => convert(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Float::F32 => convert(bytes, out, f32::from_le_bytes),
        }
    }
}

#[inline(always)]
fn convert<const WIDTH: usize>(bytes: &[u8], out: &mut [f32], to_f32: impl Fn([u8; WIDTH]) -> f32) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = to_f32(*bytes);
    }
}

/// Bit pattern of the largest magnitude; [`INFINITY_BITS`] or more when a value is not finite.
#[inline(always)]
pub(super) fn largest_magnitude_bits(values: &[f32]) -> u32 {
    let mut largest = [0u32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            largest[lane] = largest[lane].max(chunk[lane].to_bits() & 0x7fff_ffff);
        }
    }
    rest.iter().map(|v| v.to_bits() & 0x7fff_ffff).fold(reduce(largest, u32::max), u32::max)
}

/// Bit pattern of infinity: magnitudes at or above it are not finite.
pub(super) const INFINITY_BITS: u32 = 0x7f80_0000;

/// 1.5 * 2^23: adding it to a value of magnitude below 2^22 rounds that value to an integer, ties to even, and leaves the
/// integer in the low bits of the sum. Every instruction set has an adder; not all can round.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Reduces the lanes pairwise, in a fixed order: half to half, so that the chain is short.
#[inline(always)]
pub(super) fn reduce<T: Copy>(mut lanes: [T; LANES], join: impl Fn(T, T) -> T) -> T {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
    }
    lanes[0]
}
