//! Measures the CUDA engine on an export: `cuda_bench EXPORT [slots [positions]]`. A development tool.

use std::path::Path;
use std::time::Instant;

use rumik::bench;
use rumik::engine::cuda::{CudaEngine, Options};
use rumik::format::Export;

fn list(argument: Option<String>, default: &[usize]) -> Vec<usize> {
    argument.map_or(default.to_vec(), |list| list.split(',').filter_map(|item| item.parse().ok()).collect())
}

fn main() -> rumik::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_default();
    let slots = list(arguments.next(), &[1, 2, 4, 8]);
    let positions = list(arguments.next(), &[200, 500, 2000]);
    let begun = Instant::now();
    let export = Export::open(Path::new(&folder))?;
    let opened = begun.elapsed();
    let most = slots.iter().copied().max().unwrap_or(1);
    let persistent = std::env::var_os("PERSISTENT").is_some();
    let options = Options { slots: 1, endless: true, persistent, ..Options::default() };
    let mut engine = CudaEngine::open(&export, &options)?;
    println!(
        "start {:.2} s (files {:.2} s), {:?}",
        begun.elapsed().as_secs_f64(),
        opened.as_secs_f64(),
        engine.memory()
    );
    let copy = engine.copy_rate()?;
    let bytes = engine.token_bytes();
    println!(
        "copy {:.2} TB/s; a token: {:.3} GB of weights, {} launches",
        copy / 1e12,
        bytes as f64 / 1e9,
        engine.token_launches()
    );
    println!("{:?}", bench::beginning(&mut engine, bench::PROMPT_TOKENS, 20)?);
    for &at in &positions {
        let run = bench::decoding(&mut engine, 1, at, 40)?;
        let rate = bytes as f64 * run.tokens_per_second;
        println!("{run:?}, weights at {:.2} TB/s, {:.0} % of the copy rate", rate / 1e12, 1e2 * rate / copy);
    }
    for time in engine.kernel_times(1, 500, 30)? {
        let rate = time.bytes as f64 / time.micros.median / 1e6;
        println!(
            "{:16} ×{:<3} {:7.2} µs ({:.2} .. {:.2}), {:.2} TB/s",
            time.name, time.launches, time.micros.median, time.micros.low, time.micros.high, rate
        );
    }
    for time in engine.kernel_times(34, 33, 20)? {
        println!("34 columns: {:16} {:7.2} µs", time.name, time.micros.median);
    }
    drop(engine);
    if most > 1 {
        let mut engine = CudaEngine::open(&export, &Options { slots: most, ..options })?;
        for &count in slots.iter().filter(|&&count| count > 1) {
            for &at in &positions {
                println!("{:?}", bench::decoding(&mut engine, count, at, 30)?);
            }
        }
        for time in engine.kernel_times(most, 500, 20)? {
            println!("{most} columns: {:16} {:7.2} µs", time.name, time.micros.median);
        }
    }
    Ok(())
}
