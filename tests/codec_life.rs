//! Case D6: a codec serves request after request. candle's decoder counts positions over all of them and stops for
//! good after 327.68 s; seven minutes here must end like the first.

mod codec;

use rumik::engine::mimi::Decoder;

const REQUESTS: usize = 7;
/// 60 s at 12.5 frames a second.
const FRAMES: usize = 750;
/// Frames per step; any number gives the same samples, more are faster.
const STEP_FRAMES: usize = 25;

#[test]
fn the_seventh_minute_is_as_good_as_the_first() {
    let config = codec::published_config();
    let decoder = Decoder::load(&config, &codec::random_weights(&config), codec::NUM_QUANTIZERS).unwrap();
    let codes = codec::random_codes(&config, 1, FRAMES);
    let mut state = decoder.state();
    let mut first = Vec::new();
    for request in 0..REQUESTS {
        let mut wave = Vec::new();
        for codes in codes.chunks(STEP_FRAMES * codec::NUM_QUANTIZERS) {
            decoder.step(&mut state, codes, &mut wave).unwrap();
        }
        assert_eq!(wave.len(), FRAMES * config.samples_per_frame(), "request {request}");
        assert!(wave.iter().all(|sample| sample.is_finite()), "request {request}");
        match request {
            0 => first = wave,
            _ => assert!(wave == first, "request {request} differs from the first"),
        }
        state.reset();
    }
}
