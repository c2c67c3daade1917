//! The phase head against the CPU's, and against the whole head.

use super::*;
use crate::engine::cpu::{self, CpuEngine};

fn open_phased(export: &Export, slots: usize) -> CudaEngine {
    CudaEngine::open(export, &Options { slots, positions: 512, phase_head: true, ..Options::default() }).unwrap()
}

/// Every token is of the codebook whose turn it is, or the end; the CPU chooses the same ones.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_phase_head_keeps_to_the_codebooks_and_to_the_cpu() {
    for head in [HeadKind::Int8, HeadKind::Bf16] {
        let export = tiny(head);
        let config = export.config.clone();
        let mut engine = open_phased(&export, 2);
        assert!(engine.info().backend.contains("approximate"), "{}", engine.info().backend);
        let options = cpu::Options { phase_head: true, ..Default::default() };
        let mut cpu = CpuEngine::new(export.clone(), options).unwrap();
        for seed in 0..10 {
            let prompt = [2, config.audio_start_token_id, 9 + seed, config.audio_start_token_id];
            let request = request(&prompt, 60, u64::from(seed));
            let made = speak(&mut engine, (seed % 2) as usize, &request);
            for (step, &id) in made.tokens.iter().enumerate().filter(|(_, id)| **id != config.audio_end_token_id) {
                let unit = id.checked_sub(config.first_unit_id).expect("a unit or the end") as usize;
                assert!(id <= config.last_unit_id, "token {id}");
                assert_eq!(unit % config.num_quantizers, step % config.num_quantizers, "seed {seed} step {step}");
            }
            let mut tokens: Vec<u32> = Vec::new();
            let mut ended = false;
            cpu.start(0, &request).unwrap();
            while !ended {
                cpu.step(&mut |step| {
                    tokens.extend(step.tokens);
                    ended = step.end.is_some();
                })
                .unwrap();
            }
            cpu.reset(0);
            assert_eq!(made.tokens, tokens, "seed {seed}");
        }
    }
}

/// Seen as a whole (`Engine::score`), a head grouped by codebook has the logits of one in the file's order, row by row.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn grouping_the_rows_changes_no_logit() {
    #[derive(Default)]
    struct Logits(Vec<f32>);
    impl Observer for Logits {
        fn position(&mut self, scores: Scores<'_>) {
            self.0.extend(scores.logits);
        }
    }
    for head in [HeadKind::Int8, HeadKind::Bf16] {
        let export = tiny(head);
        let tokens: Vec<u32> = (0..30).map(|i| i * 37 % 1000).collect();
        let seen = |engine: &mut CudaEngine| {
            let mut logits = Logits::default();
            engine.score(0, &tokens, &mut logits).unwrap();
            logits.0
        };
        assert_same(&seen(&mut open_phased(&export, 1)), &seen(&mut open(&export, 1, 512)), "logits");
    }
}
