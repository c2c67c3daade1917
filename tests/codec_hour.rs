//! One stream of an hour: memory stays flat and the end is as exact as the beginning.

mod codec;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicIsize, Ordering};

use rumik::config::CodecConfig;
use rumik::engine::mimi::Decoder;
use rumik::tensors::TensorFile;

/// An hour at 12.5 frames a second.
const HOUR_FRAMES: usize = 45_000;
/// Frames compared at the end.
const COMPARED_FRAMES: usize = 100;
/// How far back a sample of the tiny codec can see: two layers of 249 earlier positions each, two positions a frame,
/// and at most 12 positions for all convolutions.
const RECEPTIVE_FRAMES: usize = (2 * 249 + 12) / 2;
/// Issue 2: streams agree within 1e-4 of full scale. Only rotary angles of other absolute positions differ here.
const TOLERANCE: f32 = 1e-4;
/// The thread pool's queue grows and shrinks by blocks of about a kilobyte. A leak of one byte a frame would exceed it.
const LIVE_SLACK_BYTES: isize = 16 << 10;

/// Bytes allocated and not freed. This file has one test, so nobody else allocates.
static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is left to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[test]
fn an_hour_needs_no_more_memory_than_a_minute_and_ends_exactly() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden/tiny/codec");
    let config = CodecConfig::parse("config.json", &std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let weights = TensorFile::open(&folder.join("model.safetensors")).unwrap();
    let decoder = Decoder::load(&config, &weights, codec::NUM_QUANTIZERS).unwrap();
    let codes = codec::random_codes(&config, 1, HOUR_FRAMES);

    let (mut state, mut wave, mut end) = (decoder.state(), Vec::new(), Vec::new());
    end.reserve(COMPARED_FRAMES * config.samples_per_frame());
    let mut live_after_a_minute = 0;
    for (frame, codes) in codes.chunks(codec::NUM_QUANTIZERS).enumerate() {
        wave.clear();
        decoder.step(&mut state, codes, &mut wave).unwrap();
        assert_eq!(wave.len(), config.samples_per_frame());
        if frame >= HOUR_FRAMES - COMPARED_FRAMES {
            end.extend_from_slice(&wave);
        }
        if frame == 750 {
            live_after_a_minute = LIVE_BYTES.load(Ordering::Relaxed);
        }
    }
    let growth = LIVE_BYTES.load(Ordering::Relaxed) - live_after_a_minute;
    assert!(growth.abs() <= LIVE_SLACK_BYTES, "{growth} bytes more than after a minute");

    let start = HOUR_FRAMES - COMPARED_FRAMES - RECEPTIVE_FRAMES;
    let mut fresh = Vec::new();
    decoder.step(&mut decoder.state(), &codes[start * codec::NUM_QUANTIZERS..], &mut fresh).unwrap();
    let fresh = &fresh[RECEPTIVE_FRAMES * config.samples_per_frame()..];
    let worst = end.iter().zip(fresh).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("after an hour: at most {worst:.1e} from a fresh stream");
    assert!(end.len() == fresh.len() && worst <= TOLERANCE, "{worst}");
}
