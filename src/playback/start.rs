//! When to start playing speech that is still being made.
//!
//! With `buffered` seconds in hand, `remaining` seconds still to be made at `speed` seconds a second, making the rest
//! takes `remaining / speed`; playback lasts `buffered + remaining`. It never runs dry when
//!
//! ```text
//! buffered >= remaining * (1 - speed) / speed
//! ```
//!
//! A machine faster than real time needs no lead but the one that hides its own jitter.

use std::time::Duration;

/// Always kept in hand: two frames, so that one late frame is not heard.
const JITTER_SECONDS: f64 = 0.16;
/// The measured speed is trusted this far; the rest of the clip may be slower than its beginning.
const SPEED_TRUST: f64 = 0.9;
/// Audio made before the speed is believed: one frame period says too little.
const MEASURED_SECONDS: f64 = 0.32;

/// Decides from measured speed when playback may start, or resume after it ran dry.
#[derive(Clone, Copy, Debug)]
pub struct StartRule {
    /// Upper estimate of the whole clip, in seconds.
    pub clip_seconds: f64,
}

impl StartRule {
    /// Whether playback may start now.
    ///
    /// `made_seconds` of audio exist so far, made in `elapsed` since the prompt was read; `buffered_seconds` of them are
    /// not played yet; `ended` says that no more will come.
    pub fn may_start(&self, made_seconds: f64, elapsed: Duration, buffered_seconds: f64, ended: bool) -> bool {
        if ended {
            return true;
        }
        made_seconds >= MEASURED_SECONDS && buffered_seconds >= self.lead_seconds(made_seconds, elapsed)
    }

    /// Seconds that must be in hand before playback starts.
    pub fn lead_seconds(&self, made_seconds: f64, elapsed: Duration) -> f64 {
        let speed = SPEED_TRUST * made_seconds / elapsed.as_secs_f64().max(1e-9);
        let remaining = (self.clip_seconds - made_seconds).max(0.0);
        JITTER_SECONDS + (remaining * (1.0 - speed) / speed).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a clip at `speed` frame by frame and plays it by the rule; true when playback never ran dry.
    fn plays_through(clip_seconds: f64, speed: f64) -> (bool, f64) {
        const FRAME_SECONDS: f64 = 0.08;
        let rule = StartRule { clip_seconds };
        let (mut made, mut started_at) = (0.0, None);
        let frames = (clip_seconds / FRAME_SECONDS).round() as usize;
        for frame in 1..=frames {
            let now = frame as f64 * FRAME_SECONDS / speed;
            let played = started_at.map_or(0.0, |start: f64| now - start);
            if started_at.is_some() && played > made + 1e-9 {
                return (false, 0.0);
            }
            made = frame as f64 * FRAME_SECONDS;
            let elapsed = Duration::from_secs_f64(now);
            if started_at.is_none() && rule.may_start(made, elapsed, made, frame == frames) {
                started_at = Some(now);
            }
        }
        (true, started_at.unwrap())
    }

    #[test]
    fn never_runs_dry_at_any_steady_speed() {
        for clip in [0.4, 2.0, 10.0, 30.0] {
            for speed in [0.1, 0.3, 0.7, 0.95, 1.0, 1.2, 3.0, 50.0] {
                assert!(plays_through(clip, speed).0, "clip of {clip} s at {speed} times real time ran dry");
            }
        }
    }

    #[test]
    fn a_fast_machine_starts_at_once_and_a_slow_one_waits_no_longer_than_needed() {
        assert!(plays_through(30.0, 10.0).1 < 0.05);
        let (_, start) = plays_through(10.0, 0.5);
        assert!((10.0..=20.0).contains(&start), "started after {start} s of the 20 s that the clip takes");
    }

    #[test]
    fn plays_what_there_is_once_the_clip_is_complete() {
        let rule = StartRule { clip_seconds: 30.0 };
        assert!(rule.may_start(0.08, Duration::from_secs(9), 0.08, true));
        assert!(!rule.may_start(0.08, Duration::from_secs(9), 0.08, false));
    }
}
