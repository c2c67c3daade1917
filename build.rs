//! Takes the digest of the engine's sources, and compiles the CUDA kernels with nvcc when the feature `cuda` is on.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// Everything that decides what an engine computes: a pass of the gate holds for these sources and no others.
const ENGINE: &str = "src/engine";
/// What the gate measures, and against what: what a stopped run kept holds for these sources and no others.
const GATE: [&str; 2] = ["src/verify", "src/reference"];
/// Folder of the kernels, one fatbin for each `.cu` file.
const KERNELS: &str = "src/engine/cuda/kernels";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for (variable, folders) in [("RUMIK_ENGINE_SOURCES", &[ENGINE][..]), ("RUMIK_GATE_SOURCES", &GATE)] {
        folders.iter().for_each(|folder| println!("cargo:rerun-if-changed={folder}"));
        match digest(folders) {
            Ok(digest) => println!("cargo:rustc-env={variable}={digest}"),
            Err(message) => fail(&message),
        }
    }
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        println!("cargo:rerun-if-changed={KERNELS}");
        for variable in ["CUDA_HOME", "CUDA_PATH", "RUMIK_CUDA_ARCHS"] {
            println!("cargo:rerun-if-env-changed={variable}");
        }
        if let Err(message) = compile_kernels() {
            fail(&message);
        }
    }
}

fn fail(message: &str) -> ! {
    println!("cargo:warning={message}");
    std::process::exit(1)
}

/// SHA-256 over name and content of every file below folders, in the order of the names.
fn digest(folders: &[&str]) -> Result<String, String> {
    let mut files = Vec::new();
    folders.iter().try_for_each(|folder| collect(Path::new(folder), &mut files))?;
    files.sort();
    let mut digest = Sha256::new();
    for path in files {
        let content = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.to_string_lossy().replace('\\', "/");
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name);
        digest.update((content.len() as u64).to_le_bytes());
        digest.update(content);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let complaint = |e| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(complaint)? {
        let path = entry.map_err(complaint)?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

fn compile_kernels() -> Result<(), String> {
    let nvcc = nvcc();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let entries = std::fs::read_dir(KERNELS).map_err(|e| format!("{KERNELS}: {e}"))?;
    let mut sources: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    let kernels = digest(&[KERNELS])?;
    // What `rumik-run tune` measured holds for these kernels only.
    println!("cargo:rustc-env=RUMIK_KERNELS={kernels}");
    let twins = std::env::var_os("CARGO_FEATURE_TWINS").is_some();
    // This script also runs when only the Rust half of the engine changed.
    let stamp = format!("{kernels} {} {} twins: {twins}", nvcc.display(), architectures().join(" "));
    let stamp_file = out.join("kernels.stamp");
    if std::fs::read_to_string(&stamp_file).is_ok_and(|made| made == stamp) {
        return Ok(());
    }
    let mut work = Vec::new();
    for source in &sources {
        work.push((source, &Variant::WHOLE));
        if twins && has_twins(source) {
            work.extend(TWINS.iter().map(|variant| (source, variant)));
        }
    }
    std::thread::scope(|scope| {
        let (nvcc, out) = (&nvcc, &out);
        let mut jobs = Vec::new();
        for &(source, variant) in &work {
            jobs.push(scope.spawn(move || compile(nvcc, source, variant, out)));
        }
        jobs.into_iter().try_for_each(|job| job.join().unwrap_or_else(|_| Err("a compile thread panicked".into())))
    })?;
    std::fs::write(&stamp_file, stamp).map_err(|e| format!("{}: {e}", stamp_file.display()))
}

fn nvcc() -> PathBuf {
    let home = std::env::var_os("CUDA_HOME").or_else(|| std::env::var_os("CUDA_PATH"));
    home.map_or_else(|| PathBuf::from("nvcc"), |home| Path::new(&home).join("bin/nvcc"))
}

/// One architecture as nvcc names it: machine code for the GPUs at hand, and PTX that a newer GPU's driver translates.
///
/// `RUMIK_CUDA_ARCHS` replaces the list (`90a` alone shortens a developer's build).
fn architectures() -> Vec<String> {
    let list = std::env::var("RUMIK_CUDA_ARCHS").unwrap_or_else(|_| "80,86,89,90a,120,ptx80".into());
    let flag = |name: &str| match name.strip_prefix("ptx") {
        Some(version) => format!("-gencode=arch=compute_{version},code=compute_{version}"),
        None => format!("-gencode=arch=compute_{name},code=sm_{name}"),
    };
    list.split(',').map(|name| flag(name.trim())).collect()
}

/// A way to compile the kernels (`kernels/twin.cuh`).
struct Variant {
    define: &'static str,
    suffix: &'static str,
}

impl Variant {
    const WHOLE: Variant = Variant { define: "-DTWIN=0", suffix: "fatbin" };
}

const TWINS: [Variant; 2] =
    [Variant { define: "-DTWIN=1", suffix: "read.fatbin" }, Variant { define: "-DTWIN=2", suffix: "compute.fatbin" }];

/// All but the codec, whose sums are not bound by its weights.
fn has_twins(source: &Path) -> bool {
    source.file_stem().is_some_and(|name| name != "codec")
}

fn compile(nvcc: &Path, source: &Path, variant: &Variant, out: &Path) -> Result<(), String> {
    let name = source.file_stem().unwrap_or_default();
    let fatbin = out.join(name).with_extension(variant.suffix);
    let mut command = Command::new(nvcc);
    command.args(["-fatbin", "-O3", "-std=c++17", "-Werror", "all-warnings", variant.define]).args(architectures());
    let output = command.arg("-o").arg(&fatbin).arg(source).output().map_err(|e| {
        format!("feature cuda: cannot start {}: {e}; set CUDA_HOME to a CUDA 13.0 toolkit, or make one with scripts/cuda-home.sh", nvcc.display())
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: nvcc failed: {}", source.display(), stderr.trim().replace('\n', " | ")))
}
