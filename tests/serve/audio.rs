//! D13: one seed is one speech, in every format, streamed or not; on the demonstration model.

use std::io::Write;
use std::process::{Command, Stdio};

use base64::Engine as _;
use serde_json::{Value, json};

use crate::http::{Reply, samples, speak};
use crate::{Served, serve_demo};

/// About 7 s, in two pieces.
const TEXT: &str = "Good morning, and welcome to the show. My sister opened the window. We will eat rice and fish.";

fn request(format: &str) -> Value {
    json!({ "input": TEXT, "voice": "aisha", "seed": 7, "response_format": format })
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

#[track_caller]
fn spoken(served: &Served, body: &Value) -> Reply {
    let reply = speak(served.address, body);
    assert_eq!((reply.status, reply.whole), (200, true), "{}", String::from_utf8_lossy(&reply.body));
    reply
}

/// Bytes of all deltas, and the last event.
fn events(reply: &Reply) -> (Vec<Vec<u8>>, Value) {
    let text = std::str::from_utf8(&reply.body).unwrap();
    let events: Vec<Value> = text
        .split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let (last, deltas) = events.split_last().unwrap();
    let delta = |event: &Value| {
        assert_eq!(event["type"], "speech.audio.delta");
        base64::engine::general_purpose::STANDARD.decode(event["audio"].as_str().unwrap()).unwrap()
    };
    (deltas.iter().map(delta).collect(), last.clone())
}

fn wav_samples(bytes: &[u8]) -> Vec<i16> {
    hound::WavReader::new(bytes).unwrap().samples().collect::<Result<_, _>>().unwrap()
}

fn flac_samples(bytes: &[u8]) -> Vec<i16> {
    let mut samples = Vec::new();
    flac_codec::decode::FlacSampleReader::new(bytes).unwrap().read_to_end(&mut samples).unwrap();
    samples.into_iter().map(|sample| sample as i16).collect()
}

/// D13, samples.
#[test]
fn pcm_wav_and_flac_are_the_same_samples_streamed_or_not() {
    let served = serve_demo(2);
    let pcm = spoken(&served, &request("pcm"));
    let expected = pcm.samples();
    assert!((5 * 24_000..12 * 24_000).contains(&expected.len()), "{} samples", expected.len());
    assert_eq!(expected.len() % 1920, 0);
    assert!(pcm.chunks.len() > 20 && pcm.chunks.iter().all(|size| size % 2 == 0), "{:?}", pcm.chunks);

    let wav = spoken(&served, &request("wav"));
    assert_eq!(wav.body[40..44], (u32::MAX - 44).to_le_bytes(), "a stream's length is open");
    assert_eq!(samples(&wav.body[44..]), expected);
    assert_eq!(wav.body.windows(4).filter(|window| window == b"RIFF").count(), 1);
    let flac = spoken(&served, &request("flac"));
    assert_eq!(flac_samples(&flac.body), expected);

    let whole = |format: &str| spoken(&served, &with(request(format), "stream", json!(false)));
    assert_eq!(whole("pcm").samples(), expected);
    let file = whole("wav").body;
    assert_eq!(wav_samples(&file), expected);
    assert_eq!(file.len(), 44 + 2 * expected.len(), "bytes follow the samples");
    assert_eq!(file[4..8], (file.len() as u32 - 8).to_le_bytes());
    let file = whole("flac").body;
    assert_eq!(flac_samples(&file), expected);
    assert_eq!(file[26..42], md5::compute(expected.iter().flat_map(|s| s.to_le_bytes()).collect::<Vec<u8>>()).0);
}

#[test]
fn events_carry_the_same_bytes_and_end_with_the_account() {
    let served = serve_demo(1);
    let expected = spoken(&served, &request("pcm")).body;
    let sse = spoken(&served, &with(request("pcm"), "stream_format", json!("sse")));
    assert_eq!(sse.header("content-type"), Some("text/event-stream"));
    let (deltas, done) = events(&sse);
    assert!(deltas.iter().all(|bytes| bytes.len() % 2 == 0));
    assert_eq!(deltas.concat(), expected);
    assert_eq!(done["type"], "speech.audio.done");
    let (usage, ours) = (&done["usage"], &done["rumik"]);
    let count = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(count("input_tokens") + count("output_tokens"), count("total_tokens"));
    assert_eq!(ours["seconds"].as_f64().unwrap(), expected.len() as f64 / 48_000.0);
    assert_eq!((&ours["seed"], &ours["truncated"], &ours["dropped"]), (&json!(7), &json!(false), &json!([])));
    assert!(ours["first_audio_ms"].as_f64().unwrap() > 0.0 && ours["real_time_factor"].as_f64().unwrap() > 0.0);
}

/// D13, the formats that lose something: as long as the speech to the frame, and clean to another decoder, which reads an
/// answer of known size as a file and a stream as a stream.
#[test]
fn a_strict_decoder_reads_every_format() {
    const FRAME: usize = 1920;
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        eprintln!("SKIPPED: ffmpeg is not installed (apt-get install ffmpeg); no other decoder has read the formats");
        return;
    }
    let served = serve_demo(1);
    let expected = spoken(&served, &request("pcm")).samples().len();
    for format in ["mp3", "opus", "flac", "wav"] {
        for stream in [true, false] {
            let reply = spoken(&served, &with(request(format), "stream", json!(stream)));
            let decoded = ffmpeg(&reply.body, format, stream);
            let off = decoded.abs_diff(expected);
            assert!(off <= FRAME, "{format}, stream {stream}: {decoded} samples of {expected}");
            assert!(off == 0 || (stream && format == "mp3"), "{format}, stream {stream}: {off} samples off");
        }
    }
}

/// What ffmpeg says at the end of every WAV whose header leaves the length open, its own streams included; it decodes all of it.
const OPEN_WAV: [&str; 2] = ["Packet corrupt", "corrupt input packet"];

/// Samples that ffmpeg decodes; it says nothing meanwhile.
fn ffmpeg(bytes: &[u8], format: &str, stream: bool) -> usize {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let input = if stream { "pipe:0".as_ref() } else { file.path().as_os_str() };
    let demuxer = if format == "opus" { "ogg" } else { format };
    let mut child = Command::new("ffmpeg")
        .args(["-hide_banner", "-v", "warning", "-guess_layout_max", "0", "-f", demuxer, "-i"])
        .arg(input)
        .args(["-f", "s16le", "-ar", "24000", "pipe:1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || if stream { stdin.write_all(&bytes) } else { Ok(()) });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let open_wav = |line: &&str| stream && format == "wav" && OPEN_WAV.iter().any(|known| line.contains(known));
    let mut complaints = said.lines().filter(|line| !open_wav(line));
    assert!(output.status.success() && complaints.next().is_none(), "{format}, stream {stream}: {said}");
    output.stdout.len() / 2
}

/// What shares the batch changes nothing; and the server says what `rumik-run say` says.
#[test]
fn a_request_sounds_the_same_alone_and_in_company() {
    let served = serve_demo(3);
    let alone = spoken(&served, &request("pcm")).body;
    std::thread::scope(|scope| {
        let company = |seed: u64| {
            let body = json!({ "input": "The weather is very good today.", "voice": "Zoya", "seed": seed, "response_format": "pcm" });
            let served = &served;
            scope.spawn(move || spoken(served, &body).body)
        };
        let others: Vec<_> = (0..4).map(company).collect();
        assert!(spoken(&served, &request("pcm")).body == alone, "company changed the speech");
        others.into_iter().for_each(|other| assert!(!other.join().unwrap().is_empty()));
    });
    let said = Command::new(env!("CARGO_BIN_EXE_rumik-run"))
        .args(["say", TEXT, "--voice", "Aisha", "--seed", "7", "--device", "cpu", "--out", "-"])
        .output()
        .unwrap();
    assert!(said.stdout == alone, "the server and the program speak differently");
}

#[test]
fn every_field_has_its_effect() {
    let served = serve_demo(2);
    let base = json!({ "input": "I have 25 books.", "seed": 1, "temperature": 0, "response_format": "pcm" });
    let plain = spoken(&served, &base).body;
    let changes = [
        ("voice", json!("Siya")),
        ("tone", json!("angry")),
        ("accent", json!("tamil")),
        ("pace", json!("slow")),
        ("instructions", json!("sad, fast pace")),
        ("temperature", json!(1.0)),
        ("normalize", json!(false)),
        ("max_seconds", json!(0.5)),
    ];
    for (field, value) in changes {
        assert_ne!(spoken(&served, &with(base.clone(), field, value)).body, plain, "{field}");
    }
    let sampled = with(base.clone(), "temperature", json!(1.0));
    assert_ne!(spoken(&served, &with(sampled.clone(), "seed", json!(2))).body, spoken(&served, &sampled).body);
    assert_eq!(spoken(&served, &with(sampled, "top_k", json!(1))).body, plain);
    for neutral in [("speed", json!(1.0)), ("model", json!("rumik-demo")), ("instructions", json!(""))] {
        assert_eq!(spoken(&served, &with(base.clone(), neutral.0, neutral.1)).body, plain, "{}", neutral.0);
    }
}

#[test]
fn headers_and_trailers_tell_what_happened() {
    let served = serve_demo(1);
    let text = "Good morning <audio> and welcome";
    let body = json!({ "input": text, "seed": 3, "response_format": "pcm", "max_seconds": 0.5 });
    for stream in [true, false] {
        let reply = spoken(&served, &with(body.clone(), "stream", json!(stream)));
        assert_eq!(reply.header("content-type"), Some("audio/pcm; rate=24000; channels=1"));
        assert_eq!(reply.header("x-rumik-seed"), Some("3"));
        assert_eq!(reply.header("x-rumik-sample-rate"), Some("24000"));
        assert_eq!(reply.header("x-rumik-warning"), Some("left out of the text: <audio>"));
        assert_eq!(reply.header("x-rumik-truncated"), Some("true"), "stream {stream}");
        assert_eq!(reply.header("x-rumik-seconds"), Some("0.48"));
        assert_eq!(reply.header("x-rumik-tokens"), Some("50"));
        assert_eq!(reply.header("content-length").is_none(), stream);
    }
    let random = json!({ "input": "Good morning", "response_format": "pcm" });
    let reply = spoken(&served, &random);
    let seed: u64 = reply.header("x-rumik-seed").unwrap().parse().unwrap();
    assert_eq!(spoken(&served, &with(random, "seed", json!(seed))).body, reply.body);
}

/// D8, from outside: what cannot be seen cannot be heard.
#[test]
fn invisible_characters_change_nothing() {
    let served = serve_demo(1);
    let pcm = |text: &str| {
        let body = json!({ "input": text, "seed": 4, "response_format": "pcm", "max_seconds": 1 });
        spoken(&served, &body).body
    };
    let clean = pcm("नमस्ते दुनिया");
    for text in ["नमस्ते\r\nदुनिया", "नमस्ते\u{0} दुनिया", "\u{feff}नमस्ते दुनिया", "नमस्ते\u{200b} दुनिया"]
    {
        assert!(pcm(text) == clean, "{text:?}");
    }
}
