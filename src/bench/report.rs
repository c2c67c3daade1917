//! The figures of one run, for people and as JSON.

use std::fmt;

use serde::Serialize;

use super::{Beginning, Decoding};
use crate::engine::{KernelTime, MemoryUse, Spread, Traffic};

/// From the program's start to a model that can speak.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Start {
    /// Opening and checking the files.
    pub files_seconds: f64,
    /// Setting up the engine: copying the weights, reserving memory.
    pub engine_seconds: f64,
}

/// A clip spoken from the request to the last sample.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Clip {
    /// Its length.
    pub seconds: f64,
    /// Seconds of audio a second of computing.
    pub real_time_factor: Spread,
}

/// Everything measured in one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// The backend.
    pub backend: String,
    /// How long it takes to be ready.
    pub start: Start,
    /// Device memory of an engine for one stream; `null` on the CPU, where the model runs from its file.
    pub memory: Option<MemoryUse>,
    /// Bytes a second that a copy reads and writes.
    pub copy_bytes_per_second: f64,
    /// What a token reads.
    pub traffic: Traffic,
    /// Prefill and first frame.
    pub beginning: Beginning,
    /// Milliseconds of the codec for one frame; `null` without a codec.
    pub codec_ms: Option<Spread>,
    /// A whole clip.
    pub clip: Clip,
    /// Decoding, a line for each number of streams and positions.
    pub decoding: Vec<Decoding>,
    /// Kernels, each alone; empty on the CPU.
    pub kernels: Vec<KernelTime>,
}

/// `3.16 (3.14 .. 3.18)`
struct Figures(Spread, usize);

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures(Spread { median, low, high }, digits) = *self;
        write!(f, "{median:.digits$} ({low:.digits$} .. {high:.digits$})")
    }
}

fn gb(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", self.model, self.backend)?;
        writeln!(f, "medians, 10th and 90th percentile in brackets\n")?;
        self.summary(f)?;
        self.decoding_table(f)?;
        if self.kernels.is_empty() {
            return Ok(());
        }
        self.kernel_table(f)
    }
}

impl Report {
    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Start { files_seconds, engine_seconds } = self.start;
        writeln!(f, "ready after   {:.2} s (files {files_seconds:.2} s)", files_seconds + engine_seconds)?;
        if let Some(MemoryUse { decoder, codec, beside }) = self.memory {
            let all = gb(decoder + codec);
            writeln!(f, "reserved      {all:.3} GB (model {:.3}, codec {:.3})", gb(decoder), gb(codec))?;
            writeln!(f, "beside it     {:.3} GB (the driver's context, other programs)", gb(beside))?;
        }
        let Traffic { weight_bytes, cache_bytes_per_position, launches } = self.traffic;
        write!(f, "a token       {:.4} GB of weights, {cache_bytes_per_position} bytes a position", gb(weight_bytes))?;
        match launches {
            Some(launches) => writeln!(f, ", {launches} launches")?,
            None => writeln!(f)?,
        }
        writeln!(f, "copy rate     {:.1} GB/s, read and written", self.copy_bytes_per_second / 1e9)?;
        let Beginning { prompt, prefill_ms, first_frame_ms } = &self.beginning;
        writeln!(f, "prefill       {} ms, {prompt} tokens", Figures(*prefill_ms, 2))?;
        writeln!(f, "first audio   {} ms after the request", Figures(*first_frame_ms, 2))?;
        if let Some(codec) = self.codec_ms {
            writeln!(f, "codec         {} ms a frame", Figures(codec, 3))?;
        }
        let Clip { seconds, real_time_factor } = self.clip;
        writeln!(f, "whole clip    {} × real time, {seconds:.1} s of audio", Figures(real_time_factor, 2))
    }

    fn decoding_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nstreams  positions    tokens/s  × real time   weights GB/s  of copy  ms a frame period")?;
        for run in &self.decoding {
            let head = if run.approximate { ", approximate (phase head)" } else { "" };
            writeln!(
                f,
                "{:7}  {:9}  {:10.1}  {:11.2}  {:13.1}  {:5.0} %  {}{head}",
                run.slots,
                run.positions,
                run.tokens_per_second,
                run.real_time_factor,
                run.weight_bytes_per_second / 1e9,
                run.of_copy_rate * 100.0,
                Figures(run.frame_ms, 2),
            )?;
        }
        Ok(())
    }

    fn kernel_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ncolumns  kernel            a token    weights GB/s  read twin  compute twin  µs a launch")?;
        let percent = |fraction: Option<f64>| fraction.map_or("–".to_owned(), |f| format!("{:.0} %", f * 100.0));
        for time in &self.kernels {
            let rate = time.bytes as f64 / time.micros.median / 1e3;
            let rate = if time.bytes == 0 { "–".to_owned() } else { format!("{rate:.1}") };
            let (read, compute) = (percent(time.of_read_twin), percent(time.of_compute_twin));
            let KernelTime { columns, name, launches, .. } = time;
            let micros = Figures(time.micros, 2);
            writeln!(f, "{columns:7}  {name:16}  {launches:7}  {rate:>14}  {read:>9}  {compute:>12}  {micros}")?;
        }
        Ok(())
    }
}
