//! The sound card, through cpal: speech is resampled to the device's own rate and queued; playback starts when
//! [`StartRule`] allows, and resumes by the same rule should it ever run dry.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{FromSample, SampleFormat, SizedSample, SupportedStreamConfig};
use rtrb::{Consumer, Producer, RingBuffer};
use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler};

use super::StartRule;
use crate::error::{Error, Result};

/// Queue between synthesis and the sound card; synthesis waits when it is full.
const QUEUE_SECONDS: usize = 60;
/// Input samples per call of the resampler; divides a frame of 1920.
const RESAMPLE_CHUNK: usize = 480;
const POLL: Duration = Duration::from_millis(10);

/// What playback was like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Playback {
    /// Seconds of speech that were in hand when playback started.
    pub start_lead_seconds: f64,
    /// Times playback ran dry before the speech was complete.
    pub underruns: u32,
}

struct Shared {
    playing: AtomicBool,
    complete: AtomicBool,
    underruns: AtomicU32,
    failure: Mutex<Option<String>>,
}

/// An open output device with its queue.
pub struct Speaker {
    _stream: cpal::Stream,
    queue: Producer<f32>,
    shared: Arc<Shared>,
    resampler: Option<Fft<f32>>,
    pending: Vec<f32>,
    rule: StartRule,
    source_rate_hz: usize,
    device_rate_hz: usize,
    made_samples: usize,
    start_lead_seconds: Option<f64>,
}

impl Speaker {
    /// Opens the default output device for mono speech of `sample_rate_hz`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when there is no output device or it refuses its own configuration.
    pub fn open(sample_rate_hz: usize, rule: StartRule) -> Result<Speaker> {
        let device = cpal::default_host()
            .default_output_device()
            .ok_or_else(|| refused("no output device found; write to a file with --out instead"))?;
        let config = choose_config(&device, sample_rate_hz as u32)?;
        let device_rate_hz = config.sample_rate() as usize;
        let (queue, consumer) = RingBuffer::new(QUEUE_SECONDS * device_rate_hz);
        let shared = Arc::new(Shared {
            playing: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            underruns: AtomicU32::new(0),
            failure: Mutex::new(None),
        });
        let stream = match config.sample_format() {
            SampleFormat::F32 => build::<f32>(&device, config, consumer, shared.clone()),
            SampleFormat::I32 => build::<i32>(&device, config, consumer, shared.clone()),
            SampleFormat::I16 => build::<i16>(&device, config, consumer, shared.clone()),
            SampleFormat::U16 => build::<u16>(&device, config, consumer, shared.clone()),
            SampleFormat::U8 => build::<u8>(&device, config, consumer, shared.clone()),
            other => return Err(refused(format!("the device wants {other} samples"))),
        }?;
        stream.play().map_err(refused)?;
        let resampler = match device_rate_hz == sample_rate_hz {
            true => None,
            false => {
                Some(Fft::new(sample_rate_hz, device_rate_hz, RESAMPLE_CHUNK, 1, FixedSync::Input).map_err(refused)?)
            }
        };
        Ok(Speaker {
            _stream: stream,
            queue,
            shared,
            resampler,
            pending: Vec::new(),
            rule,
            source_rate_hz: sample_rate_hz,
            device_rate_hz,
            made_samples: 0,
            start_lead_seconds: None,
        })
    }

    /// Queues speech that was made within `elapsed` since the prompt was read, and starts playback when it is safe.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device failed.
    pub fn push(&mut self, pcm: &[f32], elapsed: Duration) -> Result<()> {
        self.made_samples += pcm.len();
        self.pending.extend_from_slice(pcm);
        self.drain_pending(false)?;
        self.start_if_safe(elapsed, false);
        Ok(())
    }

    /// Plays what is left and waits for the end.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device failed or stopped taking samples.
    pub fn finish(mut self, elapsed: Duration) -> Result<Playback> {
        self.drain_pending(true)?;
        self.shared.complete.store(true, Ordering::Release);
        self.start_if_safe(elapsed, true);
        self.wait_until(|speaker| speaker.queued() == 0)?;
        std::thread::sleep(Duration::from_millis(200)); // what the device itself still holds
        Ok(Playback {
            start_lead_seconds: self.start_lead_seconds.unwrap_or(0.0),
            underruns: self.shared.underruns.load(Ordering::Relaxed),
        })
    }

    fn queued(&self) -> usize {
        self.queue.buffer().capacity() - self.queue.slots()
    }

    fn start_if_safe(&mut self, elapsed: Duration, ended: bool) {
        let made_seconds = self.made_samples as f64 / self.source_rate_hz as f64;
        let buffered_seconds = self.queued() as f64 / self.device_rate_hz as f64;
        if !self.shared.playing.load(Ordering::Acquire)
            && self.rule.may_start(made_seconds, elapsed, buffered_seconds, ended)
        {
            self.start_lead_seconds.get_or_insert(buffered_seconds);
            self.shared.playing.store(true, Ordering::Release);
        }
    }

    /// Moves pending speech into the queue, at the device's rate. `all` flushes the resampler too.
    fn drain_pending(&mut self, all: bool) -> Result<()> {
        let Some(mut resampler) = self.resampler.take() else {
            let pcm = std::mem::take(&mut self.pending);
            return self.enqueue(&pcm);
        };
        if all {
            // The resampler delays its output; silence pushes the last of the speech out.
            let delay = resampler.output_delay() * self.source_rate_hz / self.device_rate_hz;
            let padded = (self.pending.len() + delay).next_multiple_of(RESAMPLE_CHUNK);
            self.pending.resize(padded, 0.0);
        }
        let pending = std::mem::take(&mut self.pending);
        let (chunks, rest) = pending.as_chunks::<RESAMPLE_CHUNK>();
        for chunk in chunks {
            let input = InterleavedSlice::new(chunk, 1, RESAMPLE_CHUNK).map_err(refused)?;
            let output = resampler.process(&input, None::<&Indexing>).map_err(refused)?;
            self.enqueue(&output.take_data())?;
        }
        self.pending = rest.to_vec();
        self.resampler = Some(resampler);
        Ok(())
    }

    /// Appends to the queue; waits while it is full and draining.
    fn enqueue(&mut self, mut samples: &[f32]) -> Result<()> {
        while !samples.is_empty() {
            samples = self.queue.push_partial_slice(samples).1;
            if !samples.is_empty() {
                self.shared.playing.store(true, Ordering::Release); // a full queue is lead enough
                self.wait_until(|speaker| speaker.queue.slots() > 0)?;
            }
        }
        Ok(())
    }

    fn wait_until(&mut self, done: impl Fn(&Speaker) -> bool) -> Result<()> {
        // The device has twice the queue's own length to make progress before it counts as stuck.
        let limit = 2 * QUEUE_SECONDS * 1000 / POLL.as_millis() as usize;
        for _ in 0..limit {
            if let Some(failure) = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Err(refused(failure));
            }
            if done(self) {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        Err(refused("the device stopped taking samples"))
    }
}

fn refused(reason: impl ToString) -> Error {
    Error::Unsupported { what: "playback".into(), why: reason.to_string() }
}

/// The speech's own rate where the device has it, else the device's default.
fn choose_config(device: &cpal::Device, rate_hz: u32) -> Result<SupportedStreamConfig> {
    let default = device.default_output_config().map_err(refused)?;
    let same_rate = device.supported_output_configs().map_err(refused)?.find_map(|range| {
        let alike = range.sample_format() == default.sample_format() && range.channels() == default.channels();
        range.try_with_sample_rate(rate_hz).filter(|_| alike)
    });
    Ok(same_rate.unwrap_or(default))
}

fn build<T: SizedSample + FromSample<f32>>(
    device: &cpal::Device,
    config: SupportedStreamConfig,
    mut queue: Consumer<f32>,
    shared: Arc<Shared>,
) -> Result<cpal::Stream> {
    let channels = usize::from(config.channels());
    let on_error = {
        let shared = shared.clone();
        move |error: cpal::Error| {
            *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
    };
    let fill = move |out: &mut [T], _: &cpal::OutputCallbackInfo| {
        for frame in out.chunks_mut(channels) {
            frame.fill(T::from_sample(next_sample(&mut queue, &shared)));
        }
    };
    device.build_output_stream(config.config(), fill, on_error, None).map_err(refused)
}

/// One sample for the device: silence before the start and after the queue ran dry.
fn next_sample(queue: &mut Consumer<f32>, shared: &Shared) -> f32 {
    if !shared.playing.load(Ordering::Acquire) {
        return 0.0;
    }
    queue.pop().unwrap_or_else(|_| {
        if !shared.complete.load(Ordering::Acquire) {
            shared.playing.store(false, Ordering::Release);
            shared.underruns.fetch_add(1, Ordering::Relaxed);
        }
        0.0
    })
}
