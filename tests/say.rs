//! `rumik-run say` as people use it, with the demonstration voice.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const TEXT: &str = "Good morning, and welcome to the show.";

fn say(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rumik-run"));
    command.arg("say").args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    say(arguments).output().unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Exit 2, nothing on stdout, and one line that holds all of `parts`.
#[track_caller]
fn refuses(arguments: &[&str], parts: &[&str]) {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    assert!(output.stdout.is_empty());
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    for part in parts {
        assert!(stderr(&output).contains(part), "{part:?} is missing in: {}", stderr(&output));
    }
}

#[track_caller]
fn pcm(arguments: &[&str]) -> Vec<u8> {
    let output = run(&[arguments, &["--out", "-"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    output.stdout
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn file_pipe_and_tokens_tell_the_same_story() {
    let folder = tempfile::tempdir().unwrap();
    let (wav, tokens) = (path(&folder, "hello.wav"), path(&folder, "tokens.json"));
    let output = run(&[TEXT, "--out", &wav, "--tokens-out", &tokens, "--json", "--seed", "5"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let frames = summary["frames"].as_u64().unwrap() as usize;
    assert!((15..120).contains(&frames), "{summary}"); // 1.2 to 9.6 s for seven words
    assert_eq!(summary["ends"], serde_json::json!(["stop_head"]));
    for name in ["prefill_ms", "first_frame_ms", "tokens_per_second", "real_time_factor", "load_ms"] {
        assert!(summary[name].as_f64().is_some_and(|v| v > 0.0), "{name}: {summary}");
    }

    let samples: Vec<i16> = hound::WavReader::open(&wav).unwrap().samples().collect::<Result<_, _>>().unwrap();
    assert_eq!(samples.len(), 1920 * frames);
    let loudest = samples.iter().map(|s| s.unsigned_abs()).max().unwrap();
    assert!(loudest > 1000, "the loudest of all samples is {loudest}");
    let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    assert_eq!(pcm(&[TEXT, "--seed", "5"]), bytes);

    let document: Value = serde_json::from_slice(&std::fs::read(&tokens).unwrap()).unwrap();
    let spoken = &document["utterances"][0];
    assert_eq!(spoken["text"], TEXT);
    assert_eq!(spoken["frames"].as_array().unwrap().len(), frames);
    assert_eq!(spoken["token_ids"].as_array().unwrap().len() as u64, summary["tokens"].as_u64().unwrap());
    assert_eq!(entries(folder.path()), 2);
}

#[test]
fn the_seed_decides_and_threads_do_not() {
    let first = pcm(&[TEXT, "--seed", "1"]);
    assert_eq!(first, pcm(&[TEXT, "--seed", "1", "--threads", "1"]));
    assert_ne!(first, pcm(&[TEXT, "--seed", "2"]));
    let greedy = pcm(&[TEXT, "--temperature", "0", "--seed", "1"]);
    assert_eq!(greedy, pcm(&[TEXT, "--temperature", "0", "--seed", "2"]));
}

#[test]
fn sound_leaves_while_it_is_made() {
    let mut child = say(&[TEXT, "--out", "-"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut frame = [0; 2 * 1920];
    stdout.read_exact(&mut frame).unwrap();
    let running = child.try_wait().unwrap().is_none();
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(running, "the first frame came only with the end");
    assert_eq!(rest.len() % frame.len(), 0);
}

#[test]
fn a_reader_that_leaves_is_not_an_error() {
    let mut child = say(&[TEXT, "--out", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains("error"), "{}", stderr(&output));
}

#[test]
fn text_comes_from_an_argument_a_file_or_stdin() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "text.txt");
    std::fs::write(&file, TEXT).unwrap();
    let expected = pcm(&[TEXT]);
    assert_eq!(pcm(&["--file", &file]), expected);
    let mut child =
        say(&["-", "--out", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(TEXT.as_bytes()).unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, expected);
}

#[test]
fn a_streamed_wav_has_one_header_and_says_that_its_length_is_open() {
    let bytes = pcm(&[TEXT, "--format", "wav"]);
    assert_eq!(&bytes[..4], b"RIFF");
    assert_eq!(&bytes[40..44], (u32::MAX - 44).to_le_bytes());
    assert_eq!(bytes[44..], pcm(&[TEXT]));
}

#[test]
fn voices_and_manners_change_the_speech() {
    let plain = pcm(&[TEXT, "--temperature", "0"]);
    let variants: [&[&str]; 4] = [
        &["--voice", "zoya"],
        &["--tone", "sad", "--pace", "slow"],
        &["--accent", "indian-english", "--tone", "happy", "--pace", "steady"],
        &["--description", "angry, fast pace"],
    ];
    for style in variants {
        assert_ne!(pcm(&[&[TEXT, "--temperature", "0"], style].concat()), plain, "{style:?}");
    }
}

#[test]
fn long_text_is_spoken_sentence_by_sentence_without_a_break() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = path(&folder, "tokens.json");
    let text = "Good morning, and welcome to the show. My sister opened the window. The weather is very good today. \
                We will eat rice and fish in the evening. Please close the door.";
    let spoken = pcm(&[text, "--tokens-out", &tokens]);
    let document: Value = serde_json::from_slice(&std::fs::read(&tokens).unwrap()).unwrap();
    let utterances = document["utterances"].as_array().unwrap();
    assert!(utterances.len() > 1, "{document}");
    let joined: Vec<&str> = utterances.iter().map(|u| u["text"].as_str().unwrap()).collect();
    assert_eq!(joined.join(" "), text);
    let frames: usize = utterances.iter().map(|u| u["frames"].as_array().unwrap().len()).sum();
    assert_eq!(spoken.len(), 2 * 1920 * frames);
}

#[test]
fn numbers_are_read_as_words_unless_they_shall_not() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = path(&folder, "tokens.json");
    let heard = |options: &[&str]| {
        let output = run(&[&["I have 25 books.", "--tokens-out", &tokens], options].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let document: Value = serde_json::from_slice(&std::fs::read(&tokens).unwrap()).unwrap();
        document["utterances"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(heard(&[]), "I have twenty-five books.");
    assert_eq!(heard(&["--no-normalize"]), "I have 25 books.");
    std::fs::write(folder.path().join("words.txt"), "books → kitaabein\n").unwrap();
    assert_eq!(heard(&["--lexicon", &path(&folder, "words.txt")]), "I have twenty-five kitaabein.");
}

#[test]
fn text_shows_what_would_be_said() {
    let show = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_rumik-run")).arg("text").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let document: Value = serde_json::from_str(&show(&["₹123.57", "--json"])).unwrap();
    let chunk = &document["chunks"][0];
    assert_eq!(chunk["text"], "एक सौ तेईस रुपये सत्तावन पैसे");
    assert!(chunk["seconds"].as_f64().unwrap() > 1.0);
    assert_eq!(chunk["rewrites"][0]["from"], "₹123.57");
    let report = show(&["₹123.57"]);
    assert!(report.contains("एक सौ तेईस") && report.contains("₹123.57"), "{report}");
    assert_eq!(serde_json::from_str::<Value>(&show(&["😀", "--json"])).unwrap()["chunks"], serde_json::json!([]));
}

#[test]
fn the_length_limit_is_kept_and_told() {
    let output = run(&[TEXT, "--max-seconds", "0.5", "--out", "-"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout.len(), 6 * 2 * 1920);
    assert!(stderr(&output).contains("cut at its length limit"), "{}", stderr(&output));
}

#[test]
fn control_tokens_in_the_text_are_left_out_and_told() {
    let output = run(&["Good morning <audio> and welcome", "--out", "-"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("<audio>"), "{}", stderr(&output));
    assert_eq!(output.stdout, pcm(&["Good morning  and welcome"]));
}

#[test]
fn an_unknown_device_is_refused_with_those_there_are() {
    let output = run(&[TEXT, "--device", "tpu", "--out", "-"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("expected auto, cpu, cuda or cuda:N"), "{}", stderr(&output));
}

#[test]
fn refusals_are_one_line_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = path(&folder, "x.wav");
    refuses(&[TEXT], &["--out", "say where the speech goes"]);
    refuses(&[TEXT, "--out", &path(&folder, "x.mp3")], &["x.mp3", ".wav"]);
    refuses(&[TEXT, "--out", "-", "--json"], &["stdout already carries"]);
    refuses(&["", "--out", &out], &["nothing to say"]);
    refuses(&["।।…!?", "--out", &out], &["nothing to say"]);
    refuses(&[TEXT, "--voice", "../x", "--out", &out], &["voice", "Ira, Aisha, Siya, Zoya"]);
    refuses(&[TEXT, "--temperature=-1", "--out", &out], &["temperature"]);
    refuses(&[TEXT, "--temperature", "NaN", "--out", &out], &["temperature"]);
    refuses(&[TEXT, "--top-k", "0", "--out", &out], &["top_k"]);
    refuses(&[TEXT, "--max-seconds", "0", "--out", &out], &["max_seconds"]);
    refuses(&[TEXT, "--threads", "0", "--device", "cpu", "--out", &out], &["threads"]);
    refuses(&[TEXT, "--chunk-seconds", "31", "--out", &out], &["--chunk-seconds", "1 to 30"]);
    refuses(&[TEXT, "--lexicon", &path(&folder, "absent.txt"), "--out", &out], &["absent.txt"]);
    refuses(&[TEXT, "--model", "no such model", "--out", &out], &["no such model", "org/name"]);
    refuses(&[TEXT, "--model", &path(&folder, ""), "--out", &out], &["one .safetensors file"]);
    refuses(&[TEXT, "--out", &path(&folder, "no/such/folder/x.wav")], &["no/such/folder", "cannot create"]);
    refuses(&[TEXT, "--out", &path(&folder, "")], &["--out"]);
    refuses(
        &["--file", &path(&folder, "absent.txt"), "--out", &out],
        &["absent.txt: cannot open: No such file or directory (os error 2)\n"],
    );
    refuses(&[TEXT, "--out", &out, "--tokens-out", &out], &["would overwrite"]);
    refuses(&[TEXT, "--out", &out, "--tokens-out", "-"], &["--tokens-out"]);
    refuses(&["--file", "README.md", "--out", "README.md", "--format", "pcm"], &["would overwrite README.md"]);
    let model = "fixtures/demo-int4";
    let target = format!("{model}/model.safetensors");
    refuses(&[TEXT, "--model", model, "--out", &target, "--format", "wav"], &["would overwrite"]);
    std::fs::write(folder.path().join("latin1.txt"), b"caf\xe9").unwrap();
    refuses(&["--file", &path(&folder, "latin1.txt"), "--out", &out], &["latin1.txt: byte 3: expected UTF-8"]);
    assert_eq!(entries(folder.path()), 1);
}
