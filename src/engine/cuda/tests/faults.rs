//! What goes wrong ends in an error with a clear message, and never in a hang.

use std::process::Command;

use super::*;
use crate::error::Error;

/// Set in the process that makes the GPU fail.
const CHILD: &str = "RUMIK_TEST_FAULT";

/// A score that is not a number ends the request with an error; the slot works again afterwards.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn scores_that_are_not_finite_end_the_request() {
    let export = demo();
    let prompt = ids(&golden("fixtures/demo"), "prompt.0.ids");
    let mut engine = open(&export, 1, 512);
    let expected = speak(&mut engine, 0, &request(&prompt, 40, 3));
    engine.start(0, &request(&[2, 5, 9, 14], 40, 3)).unwrap();
    let hidden = engine.info.config.hidden_size;
    let spoiled = vec![f32::NAN; hidden];
    engine.device.write(&engine.main, engine.decoder.residual(0), &spoiled).unwrap();
    let error = engine.step(&mut |_| panic!("a step of nothing")).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("slot 0") && message.contains("finite"), "{message}");
    engine.reset(0);
    assert!(speak(&mut engine, 0, &request(&prompt, 40, 3)) == expected);
}

/// A block that waits for something that never comes stops after a while, and the driver reports it. The fault ends the use of
/// the GPU for a process, so that another process makes it.
#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 9.0, where blocks wait for each other"]
fn a_wait_without_end_becomes_an_error() {
    if std::env::var_os(CHILD).is_some() {
        return fault();
    }
    let name = "engine::cuda::tests::faults::a_wait_without_end_becomes_an_error";
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
}

fn fault() {
    let export = persistent();
    let tuning = Some(Tuning { persistent: true, ..Tuning::of(identify(0).unwrap().0) });
    let options = Options { positions: 512, tuning, ..Options::default() };
    let mut engine = CudaEngine::open(&export, &options).unwrap();
    engine.start(0, &request(&[2, 5, 9, 14], 40, 3)).unwrap();
    // A counter that is past its end never reports the last arrival.
    engine.device.write(&engine.main, engine.decoder.buffers.attention_arrivals, &[1u32 << 20]).unwrap();
    let error = engine.step(&mut |_| ()).and_then(|()| engine.step(&mut |_| ())).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::Device { .. }), "{message}");
    assert!(message.contains("cuda:0") && !message.contains('\n'), "{message}");
}
