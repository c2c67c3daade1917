//! The quantizer on one core, in bytes of source a second: the plain function, every instruction set, and beside them a
//! read of the same bytes, which nothing can beat. 64 MiB of bf16 do not fit the caches.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use rumik::quant::{
    Float, Simd, quantize_row_int4_reference, quantize_row_int4_with, quantize_row_int8_reference,
    quantize_row_int8_with,
};

const ROWS: usize = 16384;
const COLUMNS: usize = 2048;
const ROW_BYTES: usize = COLUMNS * 2;

/// Weights like those of a trained matrix: about normal, standard deviation 0.02.
fn weights() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let mut normal = move || 0.02 * (uniform() + uniform() + uniform() + uniform()) * 1.732;
    (0..ROWS * COLUMNS).flat_map(|_| bf16::from_f32(normal()).to_le_bytes()).collect()
}

fn read(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    for chunk in bytes.as_chunks::<128>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

fn quantizers(c: &mut Criterion) {
    let source = weights();
    let (mut codes, mut work) = (vec![0u8; COLUMNS], vec![0f32; COLUMNS]);
    let (mut scale, mut min) = (vec![f16::ZERO; COLUMNS / 128], vec![f16::ZERO; COLUMNS / 128]);

    let mut group = c.benchmark_group("quantize");
    group.throughput(Throughput::Bytes(source.len() as u64)).sample_size(10);
    group.bench_function("read", |b| b.iter(|| read(black_box(&source))));
    group.bench_function("int4/plain", |b| {
        b.iter(|| {
            for row in source.chunks_exact(ROW_BYTES) {
                work.iter_mut().zip(row.as_chunks().0).for_each(|(w, b)| *w = bf16::from_le_bytes(*b).to_f32());
                black_box(quantize_row_int4_reference(&work, &mut codes[..COLUMNS / 2], &mut scale, &mut min)).unwrap();
            }
        })
    });
    for simd in Simd::available() {
        group.bench_function(format!("int4/{simd:?}"), |b| {
            b.iter(|| {
                for row in source.chunks_exact(ROW_BYTES) {
                    let codes = &mut codes[..COLUMNS / 2];
                    black_box(quantize_row_int4_with(simd, Float::Bf16, row, codes, &mut scale, &mut min)).unwrap();
                }
            })
        });
    }
    group.bench_function("int8/plain", |b| {
        b.iter(|| {
            for row in source.chunks_exact(ROW_BYTES) {
                work.iter_mut().zip(row.as_chunks().0).for_each(|(w, b)| *w = bf16::from_le_bytes(*b).to_f32());
                black_box(quantize_row_int8_reference(&work, &mut codes)).unwrap();
            }
        })
    });
    for simd in Simd::available() {
        group.bench_function(format!("int8/{simd:?}"), |b| {
            b.iter(|| {
                for row in source.chunks_exact(ROW_BYTES) {
                    black_box(quantize_row_int8_with(simd, Float::Bf16, row, &mut work, &mut codes)).unwrap();
                }
            })
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(std::time::Duration::from_secs(2)).warm_up_time(std::time::Duration::from_millis(500));
    targets = quantizers
}
criterion_main!(benches);
