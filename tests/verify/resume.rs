//! A check that is stopped, and gone on with.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Export, REFERENCE, until};

/// Parts of the run that are kept in a cache folder.
fn parts(cache: &Path) -> usize {
    let runs = std::fs::read_dir(cache.join("rumik")).into_iter().flatten().flatten();
    let runs = runs.filter(|entry| entry.file_name().to_string_lossy().starts_with("verify-"));
    runs.flat_map(|run| std::fs::read_dir(run.path()).into_iter().flatten()).count()
}

#[cfg(unix)]
#[test]
fn a_check_that_is_stopped_leaves_nothing_and_goes_on_to_the_same_record() {
    use std::os::unix::process::ExitStatusExt;
    let export = Export::new();
    let folder = export.folder.path().to_str().unwrap();
    let options = ["--reference", REFERENCE, "--quick", "--device", "cpu"];
    let files = || std::fs::read_dir(export.folder.path()).unwrap().count();
    let before = files();

    let mut command = Command::new(env!("CARGO_BIN_EXE_rumik-verify"));
    command.arg(folder).args(options).env("XDG_CACHE_HOME", export.cache.path());
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("some parts are done", || parts(export.cache.path()) >= 8 || running.try_wait().unwrap().is_some());
    let stopped = Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
    assert!(stopped.success(), "it ended before it could be stopped");
    assert_eq!(running.wait().unwrap().signal(), Some(15));
    let kept = parts(export.cache.path());
    assert!(kept >= 8 && files() == before, "{kept} parts kept, {} files", files());

    let output = export.verify(&options);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let resumed: usize = said.trim().strip_prefix("note: ").unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((8..=kept).contains(&resumed), "{said}");
    let record = std::fs::read(export.path("verify.json")).unwrap();
    assert_eq!(parts(export.cache.path()), 0, "a finished run keeps nothing");

    let anew = export.verify(&options);
    assert_eq!((anew.status.code(), anew.stderr.len()), (Some(0), 0));
    assert!(std::fs::read(export.path("verify.json")).unwrap() == record, "going on gives another record");
}
