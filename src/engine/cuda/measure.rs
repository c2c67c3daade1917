//! What a benchmark asks of the device: times of single kernels and of the codec, rates and use of the memory.

use super::codec::{self, Codec};
use super::decoder::Reach;
use super::device::{Event, Graph, Variant};
use super::kernels::{Column, FrameOut, Sequence};
use super::{CudaEngine, Slot};
use crate::engine::{KernelTime, MemoryUse, Metered, Spread, Traffic};
use crate::error::{Error, Result};

/// Bytes copied to measure the copy rate: many times the largest L2 cache.
const COPY_BYTES: usize = 1 << 30;
/// Replays that are not counted.
const WARM_UP: usize = 3;

/// Launches of one kind, captured: what is replayed, how many they are, and the weight bytes of one.
struct Work {
    name: &'static str,
    launches: usize,
    bytes: usize,
    graph: Graph,
}

impl CudaEngine {
    /// At most [`codec::LEAST_FRAMES`] replays, of which three do not count.
    fn time(&self, graph: &Graph, repeats: usize) -> Result<Spread> {
        let repeats = repeats.min(codec::LEAST_FRAMES - WARM_UP);
        let mut micros = Vec::with_capacity(repeats);
        for repeat in 0..repeats + WARM_UP {
            let from: Event = self.device.event(&self.main, true)?;
            self.device.replay(graph)?;
            let to = self.device.event(&self.main, true)?;
            self.device.wait(&to)?;
            if repeat >= WARM_UP {
                micros.push(f64::from(self.device.elapsed_ms(&from, &to)?) * 1e3);
            }
        }
        Ok(Spread::of(micros))
    }

    /// Puts `columns` live columns at `position` onto the device.
    /// `prompt`: as the first positions of one slot.
    fn occupy(&self, columns: usize, position: usize, prompt: bool) -> Result<()> {
        if self.slots.iter().any(|slot| *slot != Slot::Free) {
            return Err(Error::input("slots", "expected all of them free for a measurement, found one in use"));
        }
        // The codec may still be at the last frame of a slot that is free since.
        self.device.synchronize(&self.side)?;
        let slots = self.slots.len();
        let column = |i| {
            let (slot, position) = if prompt { (0, i) } else { (i % slots, position) };
            Column { slot: slot as i32, position: position as i32, live: 1, row: i as i32 }
        };
        let columns: Vec<Column> = (0..columns).map(column).collect();
        self.device.write(&self.main, self.decoder.columns(), &columns)?;
        // Choices must not end a sequence: the next replay would find nothing to do.
        let sequence = Sequence { temperature: 1.0, top_k: 30, max_new: i32::MAX, ..Sequence::default() };
        for slot in 0..slots {
            self.device.write(&self.main, self.decoder.sequence(slot), &[sequence])?;
        }
        let frame = FrameOut { frames: 1, ..FrameOut::default() };
        self.device.write(&self.main, self.decoder.out(), &vec![frame; columns.len()])?;
        let rows: Vec<f32> =
            (0..columns.len() * self.info.config.hidden_size).map(|i| (i % 97) as f32 - 48.0).collect();
        self.device.write(&self.main, self.decoder.residual(0), &rows)?;
        self.device.synchronize(&self.main)
    }

    /// The kernels of a pass, each in a graph of its launches in all layers, so that no weights are left in the cache.
    fn layer_works(&self, columns: usize, reach: Reach) -> Result<Vec<Work>> {
        let (on, decoder, layers) = (self.main(), &self.decoder, self.info.config.num_layers());
        let every =
            |work: &dyn Fn(usize) -> Result<()>| on.device.capture(on.stream, || (0..layers).try_for_each(work));
        let (input, output) = decoder.layer_bytes();
        let work = |name, bytes, graph| Work { name, launches: layers, bytes, graph };
        Ok(vec![
            work("project_in", input, every(&|l| decoder.project_in(on, l, columns, l > 0))?),
            work("attend", 0, every(&|l| decoder.attend(on, l, columns, reach))?),
            work("project_out", output, every(&|l| decoder.project_out(on, l, columns, false))?),
            Work {
                name: "a pass",
                launches: 1,
                bytes: layers * (input + output),
                graph: self.whole_pass(columns, reach)?,
            },
        ])
    }

    fn whole_pass(&self, columns: usize, reach: Reach) -> Result<Graph> {
        let (on, decoder) = (self.main(), &self.decoder);
        on.device.capture(on.stream, || decoder.forward(on, columns, reach))
    }

    /// The head alone would find itself in the cache: a pass through the layers goes before it.
    fn head_works(&self, columns: usize, reach: Reach) -> Result<Vec<Work>> {
        let (on, decoder, layers) = (self.main(), &self.decoder, self.info.config.num_layers());
        let (input, output) = decoder.layer_bytes();
        let scores = on.device.capture(on.stream, || {
            decoder.forward(on, columns, reach)?;
            decoder.scores(on, columns, 0, Some(0))
        })?;
        let bytes = layers * (input + output) + decoder.head_bytes();
        let quantizers = self.info.config.num_quantizers;
        let choose = on.device.capture(on.stream, || {
            on.device.fill(on.stream, decoder.out(), 0, columns * size_of::<FrameOut>())?;
            (0..quantizers).try_for_each(|q| decoder.choose(on, columns, Some(q)))
        })?;
        let mut works = vec![
            Work { name: "a pass, scores", launches: 1, bytes, graph: scores },
            Work { name: "choose_token", launches: quantizers, bytes: 0, graph: choose },
        ];
        if let Some(codec) = &self.codec {
            works.push(Work { name: "codec", launches: 1, bytes: 0, graph: self.codec_graph(codec, columns)? });
        }
        Ok(works)
    }

    fn variant_times(&self, columns: usize, position: usize, repeats: usize) -> Result<Vec<KernelTime>> {
        // The slots' own buffers end with their number; more columns are those of a prompt.
        let prompt = columns > self.slots.len();
        let reach = if prompt { Reach::prompt(columns) } else { Reach::decoding(position + 1) };
        self.occupy(columns, position, prompt)?;
        let mut works = self.layer_works(columns, reach)?;
        if !prompt {
            works.extend(self.head_works(columns, reach)?);
        }
        let mut times = Vec::new();
        for Work { name, launches, bytes, graph } in works {
            self.occupy(columns, position, prompt)?;
            let micros = self.time(&graph, repeats)?.map(|micros| micros / launches as f64);
            times.push(KernelTime {
                name,
                columns,
                launches,
                micros,
                bytes,
                of_read_twin: None,
                of_compute_twin: None,
            });
        }
        Ok(times)
    }

    /// The same with a twin of every kernel; empty when this build has none.
    fn twin_times(
        &mut self,
        variant: Variant,
        columns: usize,
        position: usize,
        repeats: usize,
    ) -> Result<Vec<KernelTime>> {
        let Some(device) = self.device.variant(variant)? else { return Ok(Vec::new()) };
        let twins = self.decoder.find_kernels(&device, &self.info.config)?;
        let whole = self.decoder.exchange_kernels(twins);
        let times = self.variant_times(columns, position, repeats);
        self.decoder.exchange_kernels(whole);
        times
    }

    fn codec_graph(&self, codec: &Codec, columns: usize) -> Result<Graph> {
        codec.take(self.main(), columns, &self.decoder)?;
        (0..columns).try_for_each(|slot| codec.grow_old(self.main(), slot))?;
        self.device.capture(&self.main, || codec.frame(self.main(), columns))
    }
}

impl Metered for CudaEngine {
    fn traffic(&self) -> Traffic {
        let (input, output) = self.decoder.layer_bytes();
        let config = &self.info.config;
        Traffic {
            weight_bytes: config.num_layers() * (input + output) + self.decoder.head_bytes(),
            cache_bytes_per_position: config.num_layers() * config.key_value_size() * 4,
            launches: Some(self.decoder.launches_a_token(1).ceil() as usize),
        }
    }

    fn copy_rate(&self) -> Result<f64> {
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

    fn codec_ms(&mut self, repeats: usize) -> Result<Option<Spread>> {
        let Some(codec) = &self.codec else { return Ok(None) };
        self.occupy(1, 0, false)?;
        let graph = self.codec_graph(codec, 1)?;
        Ok(Some(self.time(&graph, repeats)?.map(|micros| micros / 1e3)))
    }

    fn memory(&self) -> Result<Option<MemoryUse>> {
        let (free, total) = self.device.memory()?;
        let (decoder, codec) =
            (self.decoder.bytes() + self.normed.bytes(), self.codec.as_ref().map_or(0, Codec::bytes));
        Ok(Some(MemoryUse { decoder, codec, beside: (total - free).saturating_sub(decoder + codec) }))
    }

    fn kernel_times(&mut self, columns: usize, position: usize, repeats: usize) -> Result<Vec<KernelTime>> {
        let mut times = self.variant_times(columns, position, repeats)?;
        let read = self.twin_times(Variant::ReadTwin, columns, position, repeats)?;
        let compute = self.twin_times(Variant::ComputeTwin, columns, position, repeats)?;
        let of = |twins: &[KernelTime], i: usize, micros: Spread| Some(twins.get(i)?.micros.median / micros.median);
        for (i, time) in times.iter_mut().enumerate().filter(|(_, time)| time.bytes > 0) {
            time.of_read_twin = of(&read, i, time.micros);
            time.of_compute_twin = of(&compute, i, time.micros);
        }
        Ok(times)
    }
}
