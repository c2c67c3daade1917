//! What a benchmark asks of the device: times of single kernels and of the codec, and the rates of the memory.

use serde::Serialize;

use super::CudaEngine;
use super::device::{Event, Graph};
use super::kernels::{Column, FrameOut};
use crate::error::Result;

/// Bytes copied to measure the copy rate: many times the largest L2 cache.
const COPY_BYTES: usize = 1 << 30;

/// Median, and the 10th and 90th percentile.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        Spread { median: values[n / 2], low: values[n / 10], high: values[n - 1 - n / 10] }
    }
}

/// Time of one kind of kernel within a token.
#[derive(Clone, Debug, Serialize)]
pub struct KernelTime {
    /// The kernel.
    pub name: &'static str,
    /// Launches a token.
    pub launches: usize,
    /// Microseconds a launch, the launch itself included.
    pub micros: Spread,
    /// Weight bytes it reads a launch.
    pub bytes: usize,
}

impl CudaEngine {
    fn time(&self, graph: &Graph, repeats: usize) -> Result<Spread> {
        let mut micros = Vec::with_capacity(repeats);
        for repeat in 0..repeats + 3 {
            let from: Event = self.device.event(&self.main, true)?;
            self.device.replay(graph)?;
            let to = self.device.event(&self.main, true)?;
            self.device.wait(&to)?;
            if repeat >= 3 {
                micros.push(f64::from(self.device.elapsed_ms(&from, &to)?) * 1e3);
            }
        }
        Ok(Spread::of(micros))
    }

    /// Puts `columns` live columns at `position` onto the device, for measurements; all slots must be free.
    fn occupy(&self, columns: usize, position: usize) -> Result<()> {
        let slots = self.slots.len();
        let column = |i| Column { slot: (i % slots) as i32, position: position as i32, live: 1, row: i as i32 };
        let columns: Vec<Column> = (0..columns).map(column).collect();
        self.device.write(&self.main, self.decoder.columns(), &columns)?;
        let frame = FrameOut { frames: 1, ..FrameOut::default() };
        self.device.write(&self.main, self.decoder.out(), &vec![frame; columns.len()])?;
        let rows: Vec<f32> =
            (0..columns.len() * self.info.config.hidden_size).map(|i| (i % 97) as f32 - 48.0).collect();
        self.device.write(&self.main, self.decoder.residual(0), &rows)?;
        self.device.synchronize(&self.main)
    }

    /// Times every kernel of a token, each alone: a graph of its launches in all layers, so that no weights are left in the
    /// cache, divided by their number. All slots must be free.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn kernel_times(&self, columns: usize, position: usize, repeats: usize) -> Result<Vec<KernelTime>> {
        let (on, device, main, decoder) = (self.main(), &self.device, &self.main, &self.decoder);
        let layers = self.info.config.num_layers();
        self.occupy(columns, position)?;
        let mut times = Vec::new();
        let mut measure = |name, launches: usize, bytes, graph: Graph| -> Result<()> {
            let Spread { median, low, high } = self.time(&graph, repeats)?;
            let each = |micros: f64| micros / launches as f64;
            let micros = Spread { median: each(median), low: each(low), high: each(high) };
            times.push(KernelTime { name, launches, micros, bytes });
            Ok(())
        };
        let every = |work: &dyn Fn(usize) -> Result<()>| device.capture(main, || (0..layers).try_for_each(work));
        let (input, output) = decoder.layer_bytes();
        measure("project_in", layers, input, every(&|l| decoder.project_in(on, l, columns))?)?;
        measure("attend", layers, 0, every(&|l| decoder.attend(on, l, columns, 0))?)?;
        measure("project_out", layers, output, every(&|l| decoder.project_out(on, l, columns))?)?;
        measure("layers", 1, layers * (input + output), every(&|l| decoder.layer(on, l, columns, 0))?)?;
        // Two scores after each other would find the head in the cache: a pass through the layers goes between them.
        if columns > self.slots.len() {
            return Ok(times); // the slots' buffers end here
        }
        let scores = device.capture(main, || {
            decoder.forward(on, columns, 0)?;
            decoder.scores(on, columns, 0)
        })?;
        measure("layers + scores", 1, layers * (input + output) + decoder.head_bytes(), scores)?;
        let choose = device.capture(main, || {
            device.fill(main, decoder.out(), 0, columns * size_of::<FrameOut>())?;
            (0..8).try_for_each(|_| decoder.choose(on, columns))
        })?;
        measure("choose_token", 8, 0, choose)?;
        self.occupy(columns, position)?;
        if let Some(codec) = self.codec.as_ref().filter(|_| columns <= self.slots.len()) {
            measure("codec frame", 1, codec.bytes(), device.capture(main, || codec.frame(on, columns))?)?;
        }
        Ok(times)
    }

    /// Device-to-device copy rate in bytes a second, counting bytes read and written.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn copy_rate(&self) -> Result<f64> {
        let from = self.device.zeros(&self.main, COPY_BYTES)?;
        let to = self.device.zeros(&self.main, COPY_BYTES)?;
        let mut seconds = Vec::new();
        for _ in 0..10 {
            let begun = self.device.event(&self.main, true)?;
            self.device.copy(&self.main, to.address(), from.address(), COPY_BYTES)?;
            let ended = self.device.event(&self.main, true)?;
            self.device.wait(&ended)?;
            seconds.push(f64::from(self.device.elapsed_ms(&begun, &ended)?) / 1e3);
        }
        Ok(2.0 * COPY_BYTES as f64 / Spread::of(seconds).low)
    }

    /// Weight bytes of one token.
    pub fn token_bytes(&self) -> usize {
        let (input, output) = self.decoder.layer_bytes();
        self.info.config.num_layers() * (input + output) + self.decoder.head_bytes()
    }

    /// Kernel launches of one token.
    pub fn token_launches(&self) -> usize {
        self.info.config.num_layers() * 3 + 2
    }
}
