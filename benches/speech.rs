//! Preparing text: ordinary text by language, and the worst texts known, 1 MiB each. All times must grow in step with the length;
//! `docs/speech.md` has the figures.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rumik::speech::{Options, prepare};

const MIB: usize = 1 << 20;

fn repeated(piece: &str, length: usize) -> String {
    piece.repeat(length.div_ceil(piece.len()))
}

/// Ordinary sentences with a number in each.
const ORDINARY: [(&str, &str); 3] = [
    ("Hindi", "बारिश के बाद हवा ठंडी हो गई, बच्चे बाहर खेलने निकले। कुल 1,250 लोग 15 अगस्त 1947 को आए और ₹500 दिए। "),
    (
        "English",
        "After the rain the air was cool, and the children went out. In all 1,250 people came on 15 August 1947. ",
    ),
    ("romanised Hindi", "Baarish ke baad hawa thandi ho gayi aur bachche bahar khelne nikle. Kul 1,250 log aaye the. "),
];

/// Texts that each made some scanner of numbers or markup slow, or might.
const ADVERSARIAL: [&str; 24] = [
    "7",
    "7 ",
    "1,",
    "12,34,567,",
    "1.",
    "1-1-",
    "1/",
    "1:",
    "a:",
    "a.",
    "a@b.",
    "<",
    "<a",
    "[a](",
    "|a",
    "**",
    "\u{200b}a",
    "\u{93c}\u{94d}",
    "₹1-₹1-",
    "1%-",
    "Dr.",
    "IV ",
    "क्षि",
    "<description=",
];

fn ordinary(c: &mut Criterion) {
    let mut group = c.benchmark_group("prepare");
    for (name, sentence) in ORDINARY {
        let text = repeated(sentence, MIB);
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.sample_size(10);
        group.bench_function(name, |b| b.iter(|| prepare(black_box(&text), &Options::default())));
    }
    group.finish();
}

fn adversarial(c: &mut Criterion) {
    let mut group = c.benchmark_group("prepare 1 MiB of");
    group.sample_size(10);
    for piece in ADVERSARIAL {
        let text = repeated(piece, MIB);
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(format!("{piece:?}"), |b| b.iter(|| prepare(black_box(&text), &Options::default())));
    }
    group.finish();
    let mut group = c.benchmark_group("prepare digits");
    for length in [1_000, 10_000, 100_000] {
        let text = repeated("7", length);
        group.bench_with_input(BenchmarkId::from_parameter(length), &text, |b, text| {
            b.iter(|| prepare(black_box(text), &Options::default()));
        });
    }
    group.finish();
}

criterion_group!(benches, ordinary, adversarial);
criterion_main!(benches);
