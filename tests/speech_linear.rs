//! Time grows with the length of the text and no faster, whatever the text repeats.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use rumik::speech::{Options, prepare};

/// The slowest texts of `examples/speech_floods.rs`, and others that make some reader, scanner or chunker look far ahead.
const PIECES: [&str; 48] = [
    "7",
    "7 ",
    "1,",
    "12,34,567,",
    "1-1-",
    "11-",
    "1-0",
    "1:",
    "1.1:",
    "1/",
    "1.",
    "+1",
    "1%-",
    "₹1-₹1-",
    "1<",
    "<1_",
    "1<0",
    "0`>",
    "0A",
    "2x",
    "0[",
    "0s:",
    "1 >",
    ":IA",
    "(II",
    "IV ",
    "AB ",
    "IIT ",
    "A.",
    "ab. ",
    ":a.1",
    "a@b:",
    "http:",
    "a:/",
    "<a",
    "<!--",
    "<|",
    "<description=",
    "[x](",
    "&a",
    "`a",
    "|a",
    "5 km ",
    "FY2024-25 ",
    "DL 3C AB 1234 ",
    "0*\u{200b}_",
    "क\u{93c}",
    "a\u{301}",
];
/// Bytes of the shorter text; long enough that what every text costs does not count.
const SHORT: usize = 1 << 16;
const TIMES: usize = 4;
/// What quadratic time would be is 16; linear time is 4 on an idle machine.
const MOST: f64 = 8.0;
/// Seconds below which a time says nothing: the system counts CPU time in ticks of some milliseconds.
const SHORTEST: f64 = 0.008;
/// A machine that is busy with other things is asked again.
const TRIES: usize = 6;

#[test]
fn four_times_the_text_takes_at_most_eight_times_as_long() {
    // Tables that are made once are made before.
    prepare("१२ मार्च 5 kg, Dr. A", &Options::default());
    let rows = format!("{}{}|\n", " ".repeat(1990), "|a".repeat(900));
    let marks = format!("x{} ", "\u{301}".repeat(5000));
    for piece in PIECES.into_iter().chain([rows.as_str(), marks.as_str()]) {
        let (mut short, mut long) = (f64::INFINITY, f64::INFINITY);
        let linear = (0..TRIES).any(|_| {
            short = short.min(seconds(piece, SHORT));
            long = long.min(seconds(piece, TIMES * SHORT));
            long <= MOST * short.max(SHORTEST)
        });
        let shown: String = piece.chars().take(20).collect();
        assert!(linear, "{shown:?}: {short:.4} s for {SHORT} bytes, {long:.4} s for {TIMES} times as many");
    }
}

/// Seconds for a repetition of the piece.
fn seconds(piece: &str, length: usize) -> f64 {
    let text = piece.repeat(length / piece.len());
    let start = Clock::now();
    black_box(prepare(&text, &Options::default()));
    start.elapsed()
}

/// CPU time of this thread where the system tells it, so that other jobs count little; else wall time.
struct Clock {
    cpu: Option<f64>,
    wall: Instant,
}

impl Clock {
    fn now() -> Clock {
        Clock { cpu: cpu_seconds(), wall: Instant::now() }
    }

    fn elapsed(&self) -> f64 {
        match (self.cpu, cpu_seconds()) {
            (Some(start), Some(end)) => end - start,
            _ => self.wall.elapsed().as_secs_f64(),
        }
    }
}

fn cpu_seconds() -> Option<f64> {
    let statistics = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(statistics.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}
