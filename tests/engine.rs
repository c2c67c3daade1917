//! The CPU engine against the golden results, and against itself in other company.

#[path = "common/exports.rs"]
mod common;

use common::{Golden, HeadKind, export, files, fixture, quantized, relative_error, silent_export};
use rumik::engine::cpu::{CpuEngine, Kernels, Options};
use rumik::engine::sampler::Noise;
use rumik::engine::{End, Engine, Observer, Request, Sampling, Scores, Step};
use rumik::format::{Export, Head};

/// Limit on the relative error of hidden states and logits against float arithmetic on the same dequantized weights.
/// Rounding activations and the f16 cache cost a few parts in ten thousand; the smallest modelling mistake that the
/// golden's README lists costs 1e-2.
const RELATIVE_LIMIT: f64 = 2e-3;

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 1 };

fn tiny() -> std::path::PathBuf {
    fixture("golden/tiny")
}

fn engine_with(head: HeadKind, slots: usize) -> CpuEngine {
    CpuEngine::new(silent_export(&tiny(), head), Options { slots, ..Options::default() }).unwrap()
}

fn request(prompt: &[u32], seed: u64) -> Request<'_> {
    Request { prompt, sampling: Sampling::default(), max_new_tokens: 60, seed, sequence: 0 }
}

/// Everything a slot gave.
#[derive(Clone, Debug, Default, PartialEq)]
struct Spoken {
    tokens: Vec<u32>,
    codes: Vec<u32>,
    pcm: Vec<u32>,
    end: Option<End>,
}

impl Spoken {
    fn add(&mut self, step: &Step<'_>) {
        assert_eq!(self.end, None, "a step after the end");
        self.tokens.extend(step.tokens);
        self.codes.extend(step.codes);
        self.pcm.extend(step.pcm.iter().map(|sample| sample.to_bits()));
        self.end = step.end;
    }
}

/// Runs one request in a slot to its end.
fn speak(engine: &mut CpuEngine, slot: usize, request: &Request<'_>) -> Spoken {
    engine.start(slot, request).unwrap();
    let mut spoken = Spoken::default();
    while spoken.end.is_none() {
        engine
            .step(&mut |step| {
                if step.slot == slot {
                    spoken.add(&step)
                }
            })
            .unwrap();
    }
    engine.reset(slot);
    spoken
}

/// All that `score` shows, as bits where exactness is the point.
#[derive(Default)]
struct Seen {
    hidden: Vec<Vec<f32>>,
    logits: Vec<Vec<f32>>,
    stop: Vec<f32>,
    layers: Vec<(usize, usize, Vec<f32>)>,
}

impl Observer for Seen {
    fn position(&mut self, scores: Scores<'_>) {
        assert_eq!(scores.position, self.hidden.len());
        self.hidden.push(scores.hidden.to_vec());
        self.logits.push(scores.logits.to_vec());
        self.stop.push(scores.stop_probability);
    }

    fn layer(&mut self, layer: usize, position: usize, residual: &[f32]) {
        self.layers.push((layer, position, residual.to_vec()));
    }
}

fn seen(engine: &mut CpuEngine, tokens: &[u32]) -> Seen {
    let mut seen = Seen::default();
    engine.score(0, tokens, &mut seen).unwrap();
    seen
}

/// The audio rows, in the engine's order, of logits of the whole vocabulary.
fn audio_rows(engine: &CpuEngine, logits: &[f32]) -> Vec<f32> {
    engine.info().audio_ids.iter().map(|&id| logits[id as usize]).collect()
}

fn assert_close(what: &str, ours: &[f32], expected: &[f32]) {
    let error = relative_error(ours, expected);
    assert!(error <= RELATIVE_LIMIT, "{what}: relative error {error:.2e} above {RELATIVE_LIMIT:.0e}");
}

#[test]
fn hidden_states_and_logits_match_the_golden_at_every_position() {
    let golden = Golden::of(&tiny());
    let mut engine = engine_with(HeadKind::Int8, 1);
    let (width, vocabulary) = (engine.info().config.hidden_size, engine.info().config.vocab_size);
    let prompts = golden.count(|i| format!("prompt.{i}.ids"));
    let (mut whole, mut longest) = (0, 0);
    for i in 0..prompts {
        let ids = golden.ids(&format!("prompt.{i}.ids"));
        longest = longest.max(ids.len());
        let seen = seen(&mut engine, &ids);
        assert_eq!(seen.hidden.len(), ids.len());
        if golden.0.find(&format!("prompt.{i}.int4.hidden")).is_some() {
            whole += 1;
            let hidden = golden.floats(&format!("prompt.{i}.int4.hidden"));
            let logits = golden.floats(&format!("prompt.{i}.int4.logits"));
            for (t, (hidden, logits)) in hidden.chunks(width).zip(logits.chunks(vocabulary)).enumerate() {
                assert_close(&format!("prompt {i}, hidden {t}"), &seen.hidden[t], hidden);
                assert_close(&format!("prompt {i}, logits {t}"), &seen.logits[t], &audio_rows(&engine, logits));
            }
        } else {
            let last = ids.len() - 1;
            let (hidden, logits) = (format!("prompt.{i}.int4.last_hidden"), format!("prompt.{i}.int4.last_logits"));
            assert_close(&hidden, &seen.hidden[last], &golden.floats(&hidden));
            assert_close(&logits, &seen.logits[last], &audio_rows(&engine, &golden.floats(&logits)));
        }
    }
    assert!(prompts >= 8 && whole >= 3, "{prompts} prompts, {whole} with every position");
    assert!(longest > 2 * engine.info().config.sliding_window, "no prompt is longer than the window");
}

#[test]
fn the_bf16_head_matches_the_golden() {
    let golden = Golden::of(&tiny());
    let mut engine = engine_with(HeadKind::Bf16, 1);
    for i in 0..golden.count(|i| format!("prompt.{i}.ids")) {
        let seen = seen(&mut engine, &golden.ids(&format!("prompt.{i}.ids")));
        let name = format!("prompt.{i}.int4_bf16head.last_logits");
        assert_close(&name, seen.logits.last().unwrap(), &golden.floats(&name));
    }
}

/// Greedy tokens of a fixture's prompts, up to the first close choice, which is where the golden ends.
fn assert_greedy_tokens(folder: &str, head: HeadKind, generated: &str) {
    let golden = Golden::of(&fixture(folder));
    let mut engine = CpuEngine::new(silent_export(&fixture(folder), head), Options::default()).unwrap();
    let count = golden.count(|i| format!("{generated}.{i}.ids"));
    assert!(count >= 4);
    for i in 0..count {
        let prompt = golden.ids(&format!("prompt.{i}.ids"));
        let expected = golden.ids(&format!("{generated}.{i}.ids"));
        let request = Request { prompt: &prompt, sampling: GREEDY, max_new_tokens: 250, seed: 0, sequence: 0 };
        let spoken = speak(&mut engine, 0, &request);
        assert_eq!(spoken.tokens[..expected.len().min(spoken.tokens.len())], expected, "{generated}.{i}");
    }
}

#[test]
fn greedy_tokens_are_the_golden_ones() {
    assert_greedy_tokens("golden/tiny", HeadKind::Int8, "gen_int4");
    assert_greedy_tokens("golden/tiny", HeadKind::Bf16, "gen_int4_bf16head");
}

#[test]
fn greedy_tokens_of_the_demo_model_are_the_golden_ones() {
    assert_greedy_tokens("demo", HeadKind::Int8, "gen_int4");
}

/// A prompt in one pass, in any company of columns, is the same as a token at a time: bit for bit.
#[test]
fn decoding_continues_a_prompt_exactly() {
    let golden = Golden::of(&tiny());
    for head in [HeadKind::Int8, HeadKind::Bf16] {
        let mut engine = engine_with(head, 1);
        let prompt = golden.ids("prompt.6.ids"); // longer than a chunk of the prefill and than the window
        let spoken = speak(&mut engine, 0, &Request { sampling: GREEDY, ..request(&prompt, 0) });
        let all: Vec<u32> = prompt.iter().chain(&spoken.tokens).copied().collect();
        let seen = seen(&mut engine, &all);
        let end = engine.info().config.audio_end_token_id;
        for (step, token) in spoken.tokens.iter().enumerate() {
            let logits = &seen.logits[prompt.len() - 1 + step];
            let allowed = |row: &usize| step >= 8 || engine.info().audio_ids[*row] != end;
            let best =
                (0..logits.len()).filter(allowed).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
            let forced = step >= 8 && seen.stop[prompt.len() - 1 + step] > 0.5;
            let expected = if forced { end } else { engine.info().audio_ids[best.unwrap()] };
            assert_eq!(*token, expected, "step {step}");
        }
    }
}

#[test]
fn a_prefix_scores_the_same_bits_whatever_follows() {
    let golden = Golden::of(&tiny());
    let mut engine = engine_with(HeadKind::Int8, 1);
    let ids = golden.ids("prompt.6.ids");
    let whole = seen(&mut engine, &ids);
    for length in [1, 2, 31, 32, 33, 64, 65, ids.len() - 1] {
        let prefix = seen(&mut engine, &ids[..length]);
        assert_eq!(prefix.hidden, whole.hidden[..length], "{length} tokens");
        assert_eq!(prefix.logits, whole.logits[..length], "{length} tokens");
        assert_eq!(prefix.stop, whole.stop[..length], "{length} tokens");
    }
    let layers = engine.info().config.num_layers();
    assert_eq!(whole.layers.len(), layers * ids.len());
    assert!(whole.layers.iter().all(|(layer, position, x)| *layer < layers && *position < ids.len() && x.len() == 256));
}

/// Seven sequences through three slots, joining when a slot is free, against each of them alone.
#[test]
fn slots_speak_the_same_alone_and_together() {
    let golden = Golden::of(&tiny());
    let prompts: Vec<Vec<u32>> = (0..7).map(|i| golden.ids(&format!("prompt.{i}.ids"))).collect();
    let requests: Vec<Request<'_>> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| Request { max_new_tokens: 11 + 13 * i, sequence: i as u32, ..request(prompt, 99) })
        .collect();
    let alone: Vec<Spoken> = requests.iter().map(|r| speak(&mut tiny_with_codec(1), 0, r)).collect();

    let mut engine = tiny_with_codec(3);
    let mut together = vec![Spoken::default(); requests.len()];
    let mut waiting = 0..requests.len();
    let mut inside = [None; 3];
    let mut period = 0;
    while together.iter().any(|spoken| spoken.end.is_none()) {
        for (slot, inside) in inside.iter_mut().enumerate() {
            // A slot is taken one period after another, so that sequences of different ages share a pass.
            if inside.is_none() && period >= slot {
                *inside = waiting.next();
                inside.iter().for_each(|&i| engine.start(slot, &requests[i]).unwrap());
            }
        }
        engine.step(&mut |step| together[inside[step.slot].unwrap()].add(&step)).unwrap();
        for (slot, inside) in inside.iter_mut().enumerate() {
            if inside.is_some_and(|i| together[i].end.is_some()) {
                engine.reset(slot);
                *inside = None;
            }
        }
        period += 1;
    }
    for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert_eq!(alone, together, "sequence {i}");
        assert_eq!(alone.pcm.len(), alone.codes.len() / 8 * engine.info().samples_per_frame);
    }
    assert!(alone.iter().any(|spoken| !spoken.pcm.is_empty()), "no sequence made a frame");
}

/// A prompt cut into pieces by the frames of others, and slots held for a while at random, change no bit.
#[test]
fn held_slots_and_prompts_in_pieces_speak_the_same() {
    let golden = Golden::of(&tiny());
    let (long, short) = (golden.ids("prompt.6.ids"), golden.ids("prompt.4.ids"));
    let requests = [Request { max_new_tokens: 120, ..request(&short, 7) }, request(&long, 8)];
    let alone = requests.map(|r| speak(&mut tiny_with_codec(1), 0, &r));

    let mut engine = tiny_with_codec(2);
    let mut together = [Spoken::default(), Spoken::default()];
    engine.start(0, &requests[0]).unwrap();
    engine.admit(1, &requests[1]).unwrap();
    let mut pieces = 1;
    while !engine.prefill(1).unwrap() {
        pieces += 1;
        engine.step(&mut |step| together[step.slot].add(&step)).unwrap();
        assert!(together[1].tokens.is_empty(), "a slot spoke before its prompt was read");
    }
    assert!(pieces > 2, "the prompt was read in {pieces} pieces");
    let mut period = 0u32;
    while together.iter().any(|spoken| spoken.end.is_none()) {
        let held = [period % 3 == 1, period % 5 < 2];
        held.iter().enumerate().for_each(|(slot, &held)| engine.hold(slot, held));
        engine
            .step(&mut |step| {
                assert!(!held[step.slot], "a held slot was stepped");
                together[step.slot].add(&step);
            })
            .unwrap();
        period += 1;
    }
    assert_eq!(together, alone);
}

fn tiny_with_codec(slots: usize) -> CpuEngine {
    CpuEngine::new(export(&tiny(), HeadKind::Int8), Options { slots, ..Options::default() }).unwrap()
}

#[test]
fn a_reset_slot_is_a_new_one() {
    let golden = Golden::of(&tiny());
    let (first, second) = (golden.ids("prompt.6.ids"), golden.ids("prompt.7.ids"));
    let fresh = speak(&mut tiny_with_codec(1), 0, &request(&second, 5));
    let mut engine = tiny_with_codec(1);
    engine.start(0, &request(&first, 4)).unwrap();
    engine.step(&mut |_| {}).unwrap();
    engine.reset(0); // in the middle of a sequence
    assert_eq!(speak(&mut engine, 0, &request(&second, 5)), fresh);
    engine.reset(0); // a free slot
    seen(&mut engine, &first);
    assert_eq!(speak(&mut engine, 0, &request(&second, 5)), fresh);
}

#[test]
fn a_seed_says_everything_about_the_noise() {
    let golden = Golden::of(&tiny());
    let prompt = golden.ids("prompt.4.ids");
    let mut engine = engine_with(HeadKind::Int8, 2);
    let base = speak(&mut engine, 0, &request(&prompt, 1));
    assert_eq!(speak(&mut engine, 1, &request(&prompt, 1)), base);
    assert_ne!(speak(&mut engine, 0, &request(&prompt, 2)).tokens, base.tokens);
    assert_ne!(speak(&mut engine, 0, &Request { sequence: 1, ..request(&prompt, 1) }).tokens, base.tokens);
}

#[test]
fn every_instruction_set_and_thread_count_speaks_the_same() {
    let golden = Golden::of(&fixture("demo"));
    let prompt = golden.ids("prompt.0.ids");
    let speak_with = |kernels, threads| {
        let options = Options { threads: Some(threads), ..Options::default() };
        let export = silent_export(&fixture("demo"), HeadKind::Int8);
        let mut engine = CpuEngine::with_kernels(export, options, kernels).unwrap();
        speak(&mut engine, 0, &Request { max_new_tokens: 24, ..request(&prompt, 3) })
    };
    let tables = Kernels::available();
    let base = speak_with(tables[0], 1);
    assert_eq!(speak_with(tables[0], 3), base);
    for table in &tables[1..] {
        assert_eq!(speak_with(table, 2), base, "{}", table.name());
    }
}

#[test]
fn the_cap_ends_a_sequence_in_the_middle_of_a_frame() {
    let golden = Golden::of(&tiny());
    let prompt = golden.ids("prompt.4.ids");
    let mut engine = engine_with(HeadKind::Int8, 1);
    for cap in [1, 7, 8, 9] {
        let spoken = speak(&mut engine, 0, &Request { sampling: GREEDY, max_new_tokens: cap, ..request(&prompt, 0) });
        assert_eq!((spoken.tokens.len(), spoken.end), (cap, Some(End::Length)), "cap {cap}");
    }
}

fn assert_refused(engine: &mut CpuEngine, slot: usize, request: &Request<'_>, words: &[&str]) {
    let error = engine.start(slot, request).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)) && !error.contains('\n'), "{error}");
}

#[test]
fn requests_that_cannot_run_are_refused_and_leave_the_slot_free() {
    let golden = Golden::of(&tiny());
    let prompt = golden.ids("prompt.7.ids");
    let mut engine = engine_with(HeadKind::Int8, 1);
    let good = request(&prompt, 0);
    assert_refused(&mut engine, 0, &Request { prompt: &[], ..good }, &["prompt", "none"]);
    assert_refused(&mut engine, 0, &Request { prompt: &[2, 1122], ..good }, &["prompt", "1122"]);
    assert_refused(&mut engine, 0, &Request { max_new_tokens: 1016, ..good }, &["9 prompt", "1016", "1024"]);
    assert_refused(&mut engine, 0, &Request { max_new_tokens: usize::MAX, ..good }, &["prompt"]);
    assert_refused(&mut engine, 0, &Request { max_new_tokens: 0, ..good }, &["max_new_tokens"]);
    let sampling = Sampling { temperature: f32::NAN, top_k: 30 };
    assert_refused(&mut engine, 0, &Request { sampling, ..good }, &["temperature"]);
    let sampling = Sampling { temperature: 1.0, top_k: 0 };
    assert_refused(&mut engine, 0, &Request { sampling, ..good }, &["top_k"]);
    assert_refused(&mut engine, 1, &good, &["slot"]);
    engine.start(0, &Request { max_new_tokens: 1015, ..good }).unwrap(); // exactly full
    assert_refused(&mut engine, 0, &good, &["slot", "not free"]);
    assert!(engine.score(0, &prompt, &mut Seen::default()).is_err());
}

#[test]
fn options_out_of_range_are_refused() {
    let defaults = Options::default();
    for (options, word) in [
        (Options { slots: 0, ..defaults }, "slots"),
        (Options { slots: 1025, ..defaults }, "slots"),
        (Options { threads: Some(0), ..defaults }, "threads"),
        (Options { positions: Some(0), ..defaults }, "positions"),
        (Options { positions: Some(1025), ..defaults }, "positions"),
    ] {
        let error = CpuEngine::new(silent_export(&tiny(), HeadKind::Int8), options).err().unwrap().to_string();
        assert!(error.starts_with(word), "{error}");
    }
}

/// A head whose weights overflow: the sequence ends with an error, not with whatever NaN compares as.
#[test]
fn logits_that_are_not_finite_end_the_request() {
    let mut tensors = quantized(&tiny(), HeadKind::Bf16);
    let head = tensors.get_mut("head.audio_weight").unwrap();
    head.2[..512].copy_from_slice(&[0x7f; 512]); // row 0: 3.4e38 everywhere
    let export = Export { codec: None, ..Export::from_files(files(&tiny(), &tensors)).unwrap() };
    assert!(matches!(export.head, Head::Bf16(_)));
    let mut engine = CpuEngine::new(export, Options::default()).unwrap();
    engine.start(0, &request(&Golden::of(&tiny()).ids("prompt.0.ids"), 0)).unwrap();
    let error = engine.step(&mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("logit of row 0 at step 0") && error.contains("finite"), "{error}");
}

/// Quantizers of the tokens, `None` for the end.
fn quantizers(engine: &CpuEngine, tokens: &[u32]) -> Vec<Option<usize>> {
    let config = &engine.info().config;
    let units = config.first_unit_id..=config.last_unit_id;
    let quantizer = |id: &u32| (id - config.first_unit_id) as usize % config.num_quantizers;
    tokens.iter().map(|id| units.contains(id).then(|| quantizer(id))).collect()
}

#[test]
fn the_phase_head_chooses_only_the_codebook_whose_turn_it_is_or_the_end() {
    for head in [HeadKind::Int8, HeadKind::Bf16] {
        let open = |slots, phase_head| {
            let options = Options { slots, phase_head, ..Options::default() };
            CpuEngine::new(silent_export(&tiny(), head), options).unwrap()
        };
        let (mut exact, mut phased) = (open(1, false), open(2, true));
        assert!(phased.info().backend.contains("approximate"), "{}", phased.info().backend);
        assert!(!exact.info().backend.contains("approximate"));
        let mut strayed = 0;
        for seed in 0..12 {
            let request = request(&[2, 1112, 9, 1113], seed);
            let count = exact.info().config.num_quantizers;
            let right = |(step, quantizer): (usize, &Option<usize>)| quantizer.is_none_or(|q| q == step % count);
            let spoken = speak(&mut phased, 0, &request);
            let found = quantizers(&phased, &spoken.tokens);
            assert!(found.iter().enumerate().all(right), "seed {seed}: {found:?}");
            assert_eq!(spoken.codes.len(), spoken.tokens.len() / count * count, "no frame is lost");
            let end = spoken.tokens.iter().position(|&id| id == phased.info().config.audio_end_token_id);
            assert!(end.is_none_or(|at| at + 1 == spoken.tokens.len()));
            let free = speak(&mut exact, 0, &request);
            strayed += usize::from(!quantizers(&exact, &free.tokens).iter().enumerate().all(right));
        }
        assert!(strayed > 0, "a random model breaks frames when nothing stops it");
    }
}

#[test]
fn the_phase_head_and_the_whole_head_give_the_same_logits_and_noise() {
    let options = Options { phase_head: true, ..Options::default() };
    let mut phased = CpuEngine::new(silent_export(&tiny(), HeadKind::Int8), options).unwrap();
    let mut exact = engine_with(HeadKind::Int8, 1);
    let prompt = [2, 1112, 9, 1113];
    let spoken = speak(&mut phased, 0, &request(&prompt, 5));
    let seen = seen(&mut exact, &[&prompt[..], &spoken.tokens].concat());
    let (config, ids) = (exact.info().config.clone(), exact.info().audio_ids.clone());
    // Sampling among the rows allowed, by the rule itself, from the whole head's logits.
    for (step, &token) in spoken.tokens.iter().enumerate() {
        let logits = &seen.logits[prompt.len() - 1 + step];
        let noise = Noise { seed: 5, sequence: 0, step: step as u32 };
        if token == config.audio_end_token_id {
            break;
        }
        let allowed =
            |id: u32| (id - config.first_unit_id) as usize % config.num_quantizers == step % config.num_quantizers;
        let mut rows: Vec<usize> =
            (0..ids.len()).filter(|&r| ids[r] <= config.last_unit_id && allowed(ids[r])).collect();
        if step >= 8 {
            rows.push(ids.iter().position(|&id| id == config.audio_end_token_id).unwrap());
        }
        rows.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        rows.truncate(30);
        let score = |row: usize| f64::from(logits[row]) / f64::from(0.8f32) + noise.gumbel(row as u32);
        let best = rows.iter().copied().max_by(|&a, &b| score(a).total_cmp(&score(b)).then(b.cmp(&a))).unwrap();
        assert_eq!(token, ids[best], "step {step}");
    }
}
