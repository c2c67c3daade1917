//! The worst texts for the speech front end, looked for systematically: every repetition of up to three signs.
//!
//! ```text
//! cargo run --release --example speech_floods              all of them at 8 KiB, the slowest again at 1 MiB
//! cargo run --release --example speech_floods -- '1,' '7 '   these at 1 MiB
//! ```
//!
//! Times are CPU time of this thread, so that other jobs of the machine count little, the best of three at 1 MiB. Needs Linux.
//! `docs/speech.md` has the figures.

use std::env;
use std::process::Command;

use rumik::speech::{Options, prepare};

/// Signs that begin, join or end something for one of the readers, and letters, marks and joiners of each kind.
const SIGNS: &str = "10५ ,.:;-–/+*%=#@&|~^('\"<>₹$°½²aAkIकरि\u{94d}\u{93c}।\n\u{200d}\u{200b}\u{301}😀_[!`s×";
const SMALL: usize = 1 << 13;
const LARGE: usize = 1 << 20;
/// How many of the slowest are measured again.
const SLOWEST: usize = 24;

fn main() {
    let pieces: Vec<String> = env::args().skip(1).collect();
    if !pieces.is_empty() {
        pieces.iter().for_each(|piece| measure(piece));
        return;
    }
    let signs: Vec<char> = SIGNS.chars().collect();
    let mut times: Vec<(f64, String)> =
        combinations(&signs).into_iter().map(|piece| (seconds(&piece, SMALL, 1), piece)).collect();
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    let total: f64 = times.iter().map(|(time, _)| time).sum();
    let mean = (times.len() * SMALL) as f64 / (1 << 20) as f64 / total;
    println!("{} texts of {SMALL} bytes, {mean:.1} MiB/s over all; the slowest at {LARGE} bytes:", times.len());
    // One process each, so that each has a peak of memory of its own.
    for (_, piece) in times.iter().take(SLOWEST) {
        if let Err(error) = env::current_exe().and_then(|program| Command::new(program).arg(piece).status()) {
            eprintln!("error: cannot run this program again: {error}");
        }
    }
}

/// Every row of one to three signs, once for all rows that are rotations of each other.
fn combinations(signs: &[char]) -> Vec<String> {
    let mut rows = Vec::new();
    for (i, &a) in signs.iter().enumerate() {
        rows.push(a.to_string());
        for (j, &b) in signs.iter().enumerate().skip(i) {
            if i != j {
                rows.push([a, b].iter().collect());
            }
            for &c in &signs[i..] {
                // Of `abc`, `bca`, `cab` the one that begins with its earliest sign; of `aab`, `aba`, `baa` the first.
                if (c != a || b == a) && !(a == b && b == c) {
                    rows.push([a, b, c].iter().collect());
                }
            }
        }
    }
    rows
}

fn measure(piece: &str) {
    let time = seconds(piece, LARGE, 3);
    println!("{piece:?}\t{:.0} ms\t{} MiB", 1000.0 * time, peak_mebibytes());
}

/// CPU seconds for a repetition of the piece, the best of some runs.
fn seconds(piece: &str, length: usize, runs: usize) -> f64 {
    let text = piece.repeat(length.div_ceil(piece.len()));
    let once = |_| {
        let start = cpu_seconds();
        std::hint::black_box(prepare(&text, &Options::default()));
        cpu_seconds() - start
    };
    (0..runs).map(once).fold(f64::INFINITY, f64::min)
}

/// CPU time of this thread.
fn cpu_seconds() -> f64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    statistics.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

/// Largest resident size of this process so far.
fn peak_mebibytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}
