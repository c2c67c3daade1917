//! `rumik-run batch` as people use it, with the demonstration voice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Short sentences of words that the demonstration voice knows, one of them with a number, one in Hindi, one in several chunks.
const LINES: &str = r#"{"id":"hello","input":"Good morning, and welcome to the show."}
{"input":"I have 25 books.","voice":"zoya","seed":7,"tone":"happy","pace":"fast"}

{"id":"hindi","input":"आज मौसम बहुत अच्छा है।","temperature":0.5,"top_k":20}
{"id":"long","input":"My sister opened the window. The weather is very good today. We will eat rice and fish in the evening. Please close the door.","seed":3}
{"id":"short","input":"Please close the door.","max_seconds":0.5}
{"id":"described","input":"Please close the door.","instructions":"angry, fast pace","normalize":false}
"#;

/// A folder with an input file and an output folder to be.
struct Desk(TempDir);

impl Desk {
    fn with(lines: &str) -> Desk {
        let desk = Desk(tempfile::tempdir().unwrap());
        desk.write(lines);
        desk
    }

    fn write(&self, lines: &str) {
        std::fs::write(self.0.path().join("in.jsonl"), lines).unwrap();
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rumik-run"));
        command.current_dir(self.0.path()).args(["batch", "in.jsonl", "--out", "out", "--json"]).args(arguments);
        command
    }

    /// Runs to the end with this exit code and hands out the summary.
    #[track_caller]
    fn run(&self, exit: i32, arguments: &[&str]) -> Value {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(exit), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    #[track_caller]
    fn refuses(&self, arguments: &[&str], part: &str) {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains(part), "{part:?} is missing in: {}", stderr(&output));
    }

    fn manifest(&self) -> Vec<Value> {
        rows(&self.out().join("manifest.jsonl"))
    }
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn rows(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The WAV files of a folder by name.
fn sounds(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "wav"))
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect()
}

/// Names of everything in a folder that is not a WAV file.
fn others(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.ends_with(".wav")).collect();
    names.sort();
    names
}

fn say(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let path = folder.join("said.wav");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rumik-run"));
    let output = command.arg("say").args(arguments).arg("--out").arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    std::fs::read(path).unwrap()
}

#[test]
fn every_line_becomes_the_file_that_say_makes() {
    let desk = Desk::with(LINES);
    let summary = desk.run(0, &[]);
    assert_eq!((&summary["lines"], &summary["spoken"], &summary["refused"]), (&json!(6), &json!(6), &json!(0)));
    let manifest = desk.manifest();
    let lines: Vec<u64> = manifest.iter().map(|row| row["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [1, 2, 4, 5, 6, 7]);
    let ids: Vec<Option<&str>> = manifest.iter().map(|row| row["id"].as_str()).collect();
    assert_eq!(ids, [Some("hello"), None, Some("hindi"), Some("long"), Some("short"), Some("described")]);

    let sounds = sounds(&desk.out());
    assert_eq!(sounds.len(), 6);
    let long = "My sister opened the window. The weather is very good today. We will eat rice and fish in the evening. \
                Please close the door.";
    let door = "Please close the door.";
    let said: [&[&str]; 6] = [
        &["Good morning, and welcome to the show."],
        &["I have 25 books.", "--voice", "zoya", "--seed", "7", "--tone", "happy", "--pace", "fast"],
        &["आज मौसम बहुत अच्छा है।", "--temperature", "0.5", "--top-k", "20"],
        &[long, "--seed", "3"],
        &[door, "--max-seconds", "0.5"],
        &[door, "--description", "angry, fast pace", "--no-normalize"],
    ];
    for (row, arguments) in manifest.iter().zip(said) {
        let sound = &sounds[row["file"].as_str().unwrap()];
        assert!(*sound == say(desk.0.path(), arguments), "{row}");
        assert_eq!(row["bytes"], sound.len());
        assert_eq!(row["seconds"].as_f64().unwrap(), (sound.len() - 44) as f64 / 48_000.0);
        assert_eq!(row["truncated"], row["id"] == "short");
    }
    assert_eq!(others(&desk.out()), ["manifest.jsonl"]);
}

#[test]
fn neither_shards_nor_slots_change_a_byte() {
    let (whole, parts) = (Desk::with(LINES), Desk::with(LINES));
    whole.run(0, &["--slots", "1"]);
    let mut lines = String::new();
    for shard in ["2/3", "0/3", "1/3"] {
        let summary = parts.run(0, &["--shard", shard, "--slots", "3"]);
        assert_eq!(summary["spoken"], 2, "{summary}");
        lines += &std::fs::read_to_string(parts.0.path().join(summary["manifest"].as_str().unwrap())).unwrap();
    }
    assert!(sounds(&whole.out()) == sounds(&parts.out()));
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&lines), sorted(&std::fs::read_to_string(whole.out().join("manifest.jsonl")).unwrap()));
    // what the shards made counts for the whole
    assert_eq!(parts.run(0, &[])["spoken"], 0);
}

#[test]
fn only_what_is_new_changed_or_damaged_is_spoken_again() {
    let desk = Desk::with(LINES);
    desk.run(0, &[]);
    let before = (std::fs::read(desk.out().join("manifest.jsonl")).unwrap(), sounds(&desk.out()));
    let again = desk.run(0, &[]);
    assert_eq!((&again["spoken"], &again["kept"]), (&json!(0), &json!(6)));
    assert!(before == (std::fs::read(desk.out().join("manifest.jsonl")).unwrap(), sounds(&desk.out())));

    let file = |id: &str| {
        let row = desk.manifest().into_iter().find(|row| row["id"] == id).unwrap();
        row["file"].as_str().unwrap().to_owned()
    };
    let hello = file("hello");
    // a line before all others moves the rest, one more word changes one
    desk.write(&format!("{{\"input\":\"My sister opened the window.\"}}\n{LINES}").replace("the show", "the house"));
    assert_eq!(desk.run(0, &[])["spoken"], 2);
    assert_ne!(file("hello"), hello);

    std::fs::remove_file(desk.out().join(file("hindi"))).unwrap();
    let long = desk.out().join(file("long"));
    let whole = std::fs::read(&long).unwrap();
    std::fs::write(&long, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(desk.run(0, &[])["spoken"], 2);
    assert!(std::fs::read(&long).unwrap() == whole);
}

#[test]
fn the_digest_sees_everything_that_decides_the_sound() {
    let variants = [
        r#""seed":1"#,
        r#""temperature":0.7"#,
        r#""top_k":29"#,
        r#""max_seconds":20"#,
        r#""voice":"Zoya""#,
        r#""pace":"slow""#,
        r#""accent":"tamil""#,
    ];
    let line = |extra: &str| format!("{{\"input\":\"Please close the door.\"{extra}}}\n");
    let mut lines = line("");
    lines.extend(variants.map(|variant| line(&format!(",{variant}"))));
    lines += &line(r#","voice":"IRA","seed":0"#); // says what the first leaves to the defaults
    let desk = Desk::with(&lines);
    let summary = desk.run(0, &[]);
    assert_eq!((&summary["spoken"], &summary["kept"]), (&json!(1 + variants.len()), &json!(1)));
    let manifest = desk.manifest();
    assert_eq!(manifest[0]["file"], manifest[variants.len() + 1]["file"]);
}

#[test]
fn bad_lines_are_told_by_number_and_the_others_are_spoken() {
    let lines = [
        r#"{"id":"good","input":"Please close the <audio> door."}"#,
        r#"{"input":"Please close the door.""#,
        r#"{"input":"x","speed":2}"#,
        r#"{"id":"silent","input":"।।…!?"}"#,
        r#"{"input":"x","voice":"../x"}"#,
        r#"{"input":"x","tone":"cheerful"}"#,
        r#"{"input":"x","temperature":-1}"#,
        r#"{"input":"x","max_seconds":0}"#,
        r#"{"id":"good","input":"x"}"#,
        r#"{"id":"../../x","input":"x"}"#,
        r#"{"input":"half an emoji \ud83d"}"#,
        r#"[1]"#,
        r#"{"input":"x","instructions":"calm","pace":"slow"}"#,
    ];
    let desk = Desk::with(&lines.join("\n"));
    let output = desk.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["spoken"], &summary["refused"]), (&json!(1), &json!(lines.len() - 1)));
    let parts = [
        "in.jsonl:2: json: EOF",
        "in.jsonl:3: json: unknown field `speed`",
        "in.jsonl:4: input: nothing to say",
        "in.jsonl:5: voice: unknown \"../x\"; voices: Ira, Aisha, Siya, Zoya",
        "in.jsonl:6: tone: unknown \"cheerful\"",
        "in.jsonl:7: temperature",
        "in.jsonl:8: max_seconds",
        "in.jsonl:9: id: \"good\" is the id of line 1 already",
        "in.jsonl:10: id: expected",
        "in.jsonl:11: json",
        "in.jsonl:12: json",
        "in.jsonl:13: description",
    ];
    for part in parts {
        assert!(stderr(&output).contains(part), "{part:?} is missing in: {}", stderr(&output));
    }
    let manifest = desk.manifest();
    assert_eq!(manifest.len(), lines.len());
    assert_eq!((&manifest[0]["status"], &manifest[0]["left_out"]), (&json!("done"), &json!(["<audio>"])));
    assert_eq!((&manifest[3]["status"], &manifest[3]["id"]), (&json!("refused"), &json!("silent")));
    assert!(manifest[4]["error"].as_str().unwrap().starts_with("voice: unknown"));
    // the same lines are bad for whichever shard they fall to
    let shards = [desk.run(1, &["--shard", "0/2"]), desk.run(1, &["--shard", "1/2"])];
    assert_eq!(shards.map(|summary| summary["refused"].as_u64().unwrap()).iter().sum::<u64>(), 12);
}

#[test]
fn a_kill_leaves_only_whole_files_and_the_next_run_goes_on_from_there() {
    let lines: String = (0..40).map(|seed| format!("{{\"input\":\"I have 25 books.\",\"seed\":{seed}}}\n")).collect();
    let (calm, killed) = (Desk::with(&lines), Desk::with(&lines));
    calm.run(0, &[]);
    let expected = sounds(&calm.out());
    let mut child = killed.command(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let journal = killed.out().join(".rumik-batch-0-of-1/journal.jsonl");
    while !std::fs::read_to_string(&journal).is_ok_and(|text| text.lines().count() > 5) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let left = sounds(&killed.out());
    assert!((5..40).contains(&left.len()), "{} files", left.len());
    assert!(left.iter().all(|(name, bytes)| expected[name] == *bytes));
    assert!(!killed.out().join("manifest.jsonl").exists());

    let summary = killed.run(0, &[]);
    assert!(summary["kept"].as_u64().unwrap() >= 5, "{summary}");
    assert!(sounds(&killed.out()) == expected);
    assert_eq!(others(&killed.out()), ["manifest.jsonl"]);
    let manifest = |desk: &Desk| std::fs::read(desk.out().join("manifest.jsonl")).unwrap();
    assert!(manifest(&calm) == manifest(&killed));
}

#[test]
fn a_journal_that_a_kill_cut_short_costs_one_line() {
    let desk = Desk::with(LINES);
    desk.run(0, &[]);
    let rows = desk.manifest();
    let working = desk.out().join(".rumik-batch-0-of-1");
    std::fs::create_dir(&working).unwrap();
    let facts = |row: &Value| {
        let mut row = row.clone();
        for field in ["line", "id", "status"] {
            row.as_object_mut().unwrap().remove(field);
        }
        row.to_string()
    };
    let cut = facts(&rows[1]);
    let journal = format!("{}\n{}", facts(&rows[0]), &cut[..cut.len() / 2]);
    std::fs::write(working.join("journal.jsonl"), journal).unwrap();
    std::fs::write(working.join(".half.wav.1.part"), b"RIFF").unwrap();
    std::fs::remove_file(desk.out().join("manifest.jsonl")).unwrap();
    let summary = desk.run(0, &[]);
    assert_eq!((&summary["spoken"], &summary["kept"]), (&json!(5), &json!(1)));
    assert_eq!(others(&desk.out()), ["manifest.jsonl"]);
}

#[test]
fn what_cannot_run_at_all_is_one_line_and_exit_2() {
    let desk = Desk::with(LINES);
    for shard in ["3/3", "1", "-1/2", "0/0"] {
        let shard = format!("--shard={shard}");
        let output = desk.command(&[&shard]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("expected I/N with I from 0 to N - 1"), "{}", stderr(&output));
    }
    desk.refuses(&["--slots", "0", "--device", "cpu"], "slots");
    desk.refuses(&["--lexicon", "absent.txt"], "absent.txt");
    desk.refuses(&["--model", "no such model"], "no such model");
    assert!(!desk.out().exists());
    desk.write("\n  \n");
    desk.refuses(&[], "in.jsonl: content: expected one JSON object a line");
    std::fs::remove_file(desk.0.path().join("in.jsonl")).unwrap();
    desk.refuses(&[], "in.jsonl: cannot read");
}

#[cfg(unix)]
#[test]
fn two_runs_of_one_shard_do_not_mix() {
    let desk = Desk::with(LINES);
    let working = desk.out().join(".rumik-batch-0-of-1");
    std::fs::create_dir_all(&working).unwrap();
    let lock = std::fs::File::open(&working).unwrap();
    lock.try_lock().unwrap();
    let output = desk.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("another run is writing"), "{}", stderr(&output));
    desk.run(0, &["--shard", "0/2"]);
    drop(lock);
    assert_eq!(desk.run(0, &[])["spoken"], 3);
}
