//! What was said and how fast: for people, for machines, and token by token.

use std::time::Duration;

use serde_json::{Value, json};

use super::sinks::Playback;
use crate::cli::model::Model;
use crate::engine::End;
use crate::pipeline::{Spoken, Timings};

fn end_name(end: End) -> &'static str {
    match end {
        End::StopHead => "stop_head",
        End::AudioEnd => "audio_end",
        End::Length => "length",
    }
}

/// Prompt ids, token ids and frames of every chunk, for `--tokens-out`.
pub(super) fn tokens_document(spoken: &Spoken, q: usize) -> Value {
    let utterances = spoken.utterances.iter().map(|u| {
        json!({
            "text": u.text,
            "prompt_ids": u.prompt,
            "token_ids": u.tokens,
            "frames": u.codes.chunks(q).collect::<Vec<_>>(),
            "end": end_name(u.end),
        })
    });
    json!({ "utterances": utterances.collect::<Vec<_>>() })
}

/// Counts and times, for people and for machines.
pub(super) struct Summary {
    model: String,
    backend: String,
    seed: u64,
    prompt_tokens: usize,
    tokens: usize,
    frames: usize,
    seconds: f64,
    ends: Vec<&'static str>,
    loaded: Duration,
    timings: Timings,
    playback: Playback,
}

impl Summary {
    pub(super) fn new(model: &Model, spoken: &Spoken, loaded: Duration, seed: u64, playback: Playback) -> Summary {
        let config = &model.engine.info().config;
        let frames = spoken.frames(config.num_quantizers);
        Summary {
            model: model.name.clone(),
            backend: model.engine.info().backend.clone(),
            seed,
            prompt_tokens: spoken.utterances.iter().map(|u| u.prompt.len()).sum(),
            tokens: spoken.tokens(),
            frames,
            seconds: frames as f64 / config.frame_rate_hz,
            ends: spoken.utterances.iter().map(|u| end_name(u.end)).collect(),
            loaded,
            timings: spoken.timings,
            playback,
        }
    }

    /// Seconds of speech made in a second; above 1 is faster than real time.
    fn times_real_time(&self) -> f64 {
        self.seconds / self.timings.total.as_secs_f64().max(1e-9)
    }

    fn tokens_per_second(&self) -> f64 {
        let speaking = self.timings.total.saturating_sub(self.timings.prefill);
        self.tokens as f64 / speaking.as_secs_f64().max(1e-9)
    }

    pub(super) fn json(&self) -> Value {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let mut document = json!({
            "model": self.model,
            "backend": self.backend,
            "seed": self.seed,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "frames": self.frames,
            "seconds": self.seconds,
            "ends": self.ends,
            "load_ms": ms(self.loaded),
            "prefill_ms": ms(self.timings.prefill),
            "first_frame_ms": ms(self.timings.first_audio),
            "total_ms": ms(self.timings.total),
            "tokens_per_second": self.tokens_per_second(),
            "times_real_time": self.times_real_time(),
            "real_time_factor": 1.0 / self.times_real_time().max(1e-9),
        });
        if let Some(playback) = &self.playback {
            document["playback"] = playback.clone();
        }
        document
    }

    pub(super) fn print(&self) {
        eprintln!(
            "{:.2} s of speech in {:.2} s ({:.1} times real time), first sound after {:.0} ms, {:.0} tokens/s, {}",
            self.seconds,
            self.timings.total.as_secs_f64(),
            self.times_real_time(),
            self.timings.first_audio.as_secs_f64() * 1e3,
            self.tokens_per_second(),
            self.backend,
        );
    }
}
