use super::*;

const RATE_HZ: u32 = 24_000;
const BLOCK: usize = 1920;

/// 7.3 s that sound like something: two tones that come and go.
fn sound() -> Vec<i16> {
    let sample = |i: usize| {
        let t = i as f32 / RATE_HZ as f32;
        let loud = 0.5 + 0.5 * (t * 2.0).sin();
        8000.0 * loud * ((t * 220.0 * std::f32::consts::TAU).sin() + 0.3 * (t * 1850.0 * std::f32::consts::TAU).sin())
    };
    (0..91 * BLOCK + 480).map(|i| sample(i) as i16).collect()
}

/// Bytes of a stream in pushes of `block`, and the final head.
fn streamed(format: Format, pcm: &[i16], block: usize) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut encoder = format.encoder(RATE_HZ, BLOCK, &mut bytes).unwrap();
    for block in pcm.chunks(block) {
        encoder.push(block, &mut bytes).unwrap();
    }
    let head = encoder.finish(&mut bytes).unwrap();
    (bytes, head)
}

#[test]
fn a_file_is_the_stream_with_its_final_head() {
    let pcm = sound();
    for format in Format::ALL {
        let (stream, head) = streamed(format, &pcm, BLOCK);
        let file = whole(format, RATE_HZ, BLOCK, &pcm).unwrap();
        assert_eq!(file.len(), stream.len(), "{format:?}");
        assert_eq!(file[head.len()..], stream[head.len()..], "{format:?}");
        assert_eq!(Format::of(format.name()), Some(format));
    }
}

#[test]
fn how_samples_are_pushed_changes_nothing() {
    let pcm = sound();
    for format in Format::ALL {
        assert_eq!(streamed(format, &pcm, BLOCK), streamed(format, &pcm, 777), "{format:?}");
    }
}

#[test]
fn wav_has_exact_sizes_in_a_file_and_open_ones_in_a_stream() {
    let pcm = sound();
    let file = whole(Format::Wav, RATE_HZ, BLOCK, &pcm).unwrap();
    let samples = hound::WavReader::new(file.as_slice()).unwrap().into_samples();
    assert_eq!(samples.collect::<std::result::Result<Vec<i16>, _>>().unwrap(), pcm);
    let (stream, _) = streamed(Format::Wav, &pcm, BLOCK);
    assert_eq!(stream[40..44], UNKNOWN_LENGTH.to_le_bytes());
}

#[test]
fn flac_gives_every_sample_back_streamed_or_not() {
    let pcm = sound();
    let decode = |bytes: &[u8]| -> Vec<i16> {
        let mut reader = flac_codec::decode::FlacSampleReader::new(bytes).unwrap();
        let mut samples = Vec::new();
        reader.read_to_end(&mut samples).unwrap();
        samples.into_iter().map(|sample| sample as i16).collect()
    };
    let file = whole(Format::Flac, RATE_HZ, BLOCK, &pcm).unwrap();
    assert!(file.len() < 2 * pcm.len());
    assert_eq!(decode(&file), pcm);
    assert_eq!(decode(&streamed(Format::Flac, &pcm, BLOCK).0), pcm);
    assert_eq!(file[26..42], md5::compute(pcm.iter().flat_map(|s| s.to_le_bytes()).collect::<Vec<u8>>()).0);
}

/// Correlation with the original at lag 0: a codec that adds or loses a few samples at the start falls far below.
fn likeness(found: &[f32], pcm: &[i16]) -> f64 {
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (&x, &y) in found.iter().zip(pcm) {
        let (x, y) = (f64::from(x), f64::from(y) / 32768.0);
        (xy, xx, yy) = (xy + x * y, xx + x * x, yy + y * y);
    }
    xy / (xx * yy).sqrt()
}

#[test]
fn opus_ends_at_the_sample_where_the_sound_ends() {
    let pcm = sound();
    let (stream, _) = streamed(Format::Opus, &pcm, BLOCK);
    let mut reader = opus_pure::OggOpusReader::new(stream.as_slice()).unwrap();
    let mut decoder = reader.head().decoder(RATE_HZ as i32).unwrap();
    let mut trim = opus_pure::Trim::new(reader.head(), RATE_HZ as i32, 1).unwrap();
    let (mut samples, mut buffer) = (Vec::new(), vec![0f32; 5760]);
    while let Some(packet) = reader.read_packet().unwrap() {
        let count = decoder.decode(&packet.data, 2880, &mut buffer).unwrap();
        samples.extend_from_slice(trim.keep(&packet, &buffer[..count]));
    }
    assert_eq!(samples.len(), pcm.len());
    assert!(likeness(&samples, &pcm) > 0.98, "{}", likeness(&samples, &pcm));
}

#[test]
fn an_mp3_file_says_where_the_sound_begins_and_ends() {
    const DECODER_DELAY: usize = 529; // of every MPEG layer III decoder
    let pcm = sound();
    let file = whole(Format::Mp3, RATE_HZ, BLOCK, &pcm).unwrap();
    let tag = file.windows(4).position(|w| w == b"Info").unwrap();
    let gaps = &file[tag + 0x8d..][..3]; // encoder delay and padding, 12 bits each
    let delay = usize::from(gaps[0]) << 4 | usize::from(gaps[1] >> 4);
    let padding = usize::from(gaps[1] & 15) << 8 | usize::from(gaps[2]);
    let mut decoder = rusty_mp3::Mp3Decoder::new();
    decoder.push(&file);
    decoder.flush();
    let mut samples = Vec::new();
    while let Ok(frame) = decoder.next_frame() {
        samples.extend_from_slice(&frame.samples);
    }
    let frames = samples.len() - (samples.len() / 576).saturating_sub((pcm.len() + delay + padding) / 576) * 576;
    assert_eq!(frames, pcm.len() + delay + padding);
    let from = samples.len() - frames + delay + DECODER_DELAY;
    assert!(likeness(&samples[from..], &pcm) > 0.98, "{}", likeness(&samples[from..], &pcm));
}
