//! Which kernels there are.
//!
//! The CPU's list comes from the dispatch tables themselves, that of a device from the modules that it loaded. The names
//! below are what cannot be listed that way: operations that all instruction sets share, and the CUDA kernels as a machine
//! without a GPU can check them against the sources.

use crate::engine::cpu::Kernels;
use crate::engine::mimi::simd;

/// Operations of the CPU that no instruction set has a version of its own of, and the compositions of kernels.
pub(super) const SHARED: &[&str] =
    &["embedding_row", "rope", "gelu", "kv_cache", "sampler", "noise", "frames", "codec_stream"];

/// What a model of a few known layers makes of a sequence; runs on every table.
pub(super) const COMPOSED: &[&str] = &["residual", "window", "layers", "head_int8", "head_bf16", "stop_head", "decode"];

/// The product of the codec, which has a version for each of its instruction sets, like the loops of `mimi::simd`.
pub(super) const CODEC_PRODUCT: &str = "product";

/// Kernels of a dispatch table, and what is composed of them.
pub(super) fn table() -> impl Iterator<Item = &'static str> {
    Kernels::OPERATIONS.iter().chain(COMPOSED).copied()
}

/// Kernels of an instruction set of the codec.
pub(super) fn codec() -> impl Iterator<Item = &'static str> {
    simd::LOOPS.iter().copied().chain([CODEC_PRODUCT])
}

/// Every `extern "C" __global__` function of `engine/cuda/kernels`.
///
/// A unit test compares the list with the sources, and a run on a device with the functions of the loaded modules; a kernel
/// that is in neither place tested makes them fail.
pub const CUDA: &[&str] = &[
    "add_partial_sums",
    "attend_128",
    "attend_64",
    "attend_ring",
    "carry",
    "choose_token",
    "few_rows_2",
    "few_rows_8",
    "frame_1_128",
    "look_up",
    "many_rows_4",
    "many_rows_8",
    "norm_columns",
    "norm_few",
    "norm_head",
    "project_in_4",
    "project_in_4_deep",
    "project_in_8",
    "project_in_8_deep",
    "project_in_wgmma_40",
    "project_in_wgmma_8",
    "project_in_wide",
    "project_out_4",
    "project_out_4_deep",
    "project_out_8",
    "project_out_8_deep",
    "project_out_wgmma_40",
    "project_out_wgmma_8",
    "project_out_wide",
    "round_columns",
    "scores",
    "scores_wgmma_40",
    "scores_wgmma_8",
    "take_frame",
    "upsample",
];

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Sources of the kernels, with lines joined and comments taken out.
    fn sources() -> Vec<String> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/cuda/kernels");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let text = files.filter(|path| path.extension().is_some_and(|e| e == "cu")).map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
            lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ")
        });
        text.collect()
    }

    /// A macro of a source: parameters and body.
    type Macros<'a> = BTreeMap<&'a str, (Vec<&'a str>, &'a str)>;

    /// The macros that make kernels: those with `__global__` in what they stand for.
    fn macros(text: &str) -> Macros<'_> {
        let mut all = Macros::new();
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("#define ")) {
            let name = &line[..line.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(line.len())];
            let rest = &line[name.len()..];
            let (parameters, body) = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
                Some((parameters, body)) => (parameters.split(',').map(str::trim).collect(), body),
                None => (Vec::new(), rest),
            };
            all.insert(name, (parameters, body));
        }
        let makes = |body: &str| body.contains("__global__") || body.split_whitespace().any(|word| word == "KERNEL");
        all.retain(|_, (_, body)| makes(body));
        all
    }

    /// Text with the uses of a macro replaced by its body.
    fn expanded(text: &str, name: &str, parameters: &[&str], body: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(name) {
            let (before, after) = (&rest[..at], &rest[at + name.len()..]);
            let whole = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            out += before;
            let call = after.strip_prefix('(').and_then(|after| after.split_once(')'));
            match (whole(before.chars().last()) && whole(after.chars().next()), parameters.is_empty(), call) {
                (true, true, _) => (out, rest) = (out + body, after),
                (true, false, Some((arguments, after))) => {
                    let pairs = parameters.iter().zip(arguments.split(',').map(str::trim));
                    let pasted = body.replace(" ## ", "##");
                    let body = pairs.fold(pasted, |body, (parameter, argument)| {
                        body.replace(&format!("##{parameter}##"), argument).replace(&format!("##{parameter}"), argument)
                    });
                    (out, rest) = (out + &body, after);
                }
                _ => (out, rest) = (out + name, after),
            }
        }
        out + rest
    }

    /// Names of the kernels of a source: what stands before the first `(` after `__global__` that opens parameters.
    fn kernels(text: &str) -> Vec<String> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("#define"));
        let mut text_without = lines.collect::<Vec<_>>().join("\n");
        for _ in 0..2 {
            for (name, (parameters, body)) in macros(text) {
                text_without = expanded(&text_without, name, &parameters, body);
            }
        }
        let name = |part: &str| {
            let without = |part: &'_ str, attribute: &str| match part.split_once(attribute) {
                Some((before, after)) if !before.contains('{') => {
                    after.split_once(')').map_or(String::new(), |(_, after)| after.to_owned())
                }
                _ => part.to_owned(),
            };
            let part = without(&without(part, "__launch_bounds__"), "__maxnreg__");
            let before = part.split('(').next().unwrap_or_default();
            before.split_whitespace().last().unwrap_or_default().to_owned()
        };
        text_without.split("__global__").skip(1).map(name).collect()
    }

    #[test]
    fn every_kernel_of_the_sources_is_in_the_registry() {
        let found: BTreeSet<String> = sources().iter().flat_map(|text| kernels(text)).collect();
        let listed: BTreeSet<String> = CUDA.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(found, listed, "kernels of the .cu files, and verify::kernels::registry::CUDA");
    }

    #[test]
    fn kernels_are_found_plainly_and_behind_macros() {
        let text = "extern \"C\" __global__ void one(int a) { f(a); }\n\
                    #define KERNEL extern \"C\" __global__ void\n\
                    #define PAIR(N, M) KERNEL __launch_bounds__(8, 1) two_##N##_##M(int a) { } KERNEL three_##N(int b) { }\n\
                    PAIR(4, 5)\nPAIR(x, 6)\nKERNEL __maxnreg__(9) four(int c) { }\n#define OTHER(A) f(A)\nOTHER(3)\n";
        assert_eq!(kernels(text), ["one", "two_4_5", "three_4", "two_x_6", "three_x", "four"]);
    }

    #[test]
    fn the_lists_of_the_cpu_are_not_empty() {
        assert!(Kernels::OPERATIONS.contains(&"int4_rows") && simd::LOOPS.contains(&"attend"));
    }
}
