//! What goes into the model and what is made of its output, both plain ids: the tokenizer, the prompts made with it,
//! and frames.

use tokenizers::Tokenizer;

use super::{Judge, Prompt};
use crate::engine::frames::Frames;
use crate::error::{Error, Result};
use crate::speech::{Speech, Style};
use crate::tensors::Bytes;

/// Compares the saved tokenizer's ids of strings, and the ids of whole prompts as this program builds them.
pub(super) fn compare(judge: &mut Judge, prompts: &[Prompt]) -> Result<()> {
    let golden = judge.golden;
    let written = |prompt: &Prompt| prompt.facts.is_some_and(|facts| facts.prompt.is_some());
    if golden.facts.tokenizer_cases.is_empty() && !prompts.iter().any(written) {
        return Ok(());
    }
    let path = golden.folder.join("tokenizer.json");
    let place = path.display().to_string();
    let json = Bytes::map(&path)?;
    let saved = Tokenizer::from_bytes(&*json).map_err(|e| Error::invalid(&place, "content", "a saved tokenizer", e))?;
    let encode = |text: &str, with_bos: bool| -> Result<Vec<u32>> {
        let encoding = saved.encode(text, with_bos).map_err(|e| Error::invalid(&place, "encoding", "token ids", e))?;
        Ok(encoding.get_ids().to_vec())
    };
    for (index, case) in golden.facts.tokenizer_cases.iter().enumerate() {
        for (expected, with_bos) in [(&case.ids, true), (&case.ids_without_bos, false)] {
            if let Some(expected) = expected {
                let found = encode(&case.text, with_bos)?;
                judge.same_ids("tokenizer.ids", &format!("tokenizer_cases[{index}]"), &found, expected);
            }
        }
    }
    let speech = Speech::load(&golden.config, &json)?;
    for prompt in prompts {
        let Some(text) = prompt.facts.and_then(|facts| facts.prompt.as_deref()) else { continue };
        let place = format!("prompts[{}]", prompt.number);
        judge.same_ids("tokenizer.ids", &place, &encode(text, true)?, &prompt.ids);
        if let Some(listed) = prompt.facts.and_then(|facts| facts.prompt_ids.as_ref()) {
            judge.same_ids("tokenizer.ids", &place, &prompt.ids, listed);
        }
        if let Some((style, text)) = parts(text, speech.voices()) {
            judge.same_ids("speech.prompt_ids", &place, &speech.prompt(&style, text)?.ids, &prompt.ids);
        }
    }
    Ok(())
}

/// `frame_cases` and `gen.N.frames`: frames assembled from ids.
pub(super) fn compare_frames(judge: &mut Judge, prompts: &[Prompt]) -> Result<()> {
    let golden = judge.golden;
    let mut assembler = Frames::new(&golden.config);
    let mut assemble = |ids: &[u32]| {
        let mut codes = Vec::new();
        assembler.reset(); // one for all cases: nothing of a case may reach the next
        ids.iter().for_each(|&id| assembler.push(id, &mut codes));
        codes
    };
    for case in &golden.facts.frame_cases {
        judge.same_ids(
            "frames.codes",
            &format!("frame case {:?}", case.name),
            &assemble(&case.ids),
            &case.frames.concat(),
        );
    }
    for prompt in prompts {
        let (ids_key, key) = (format!("gen.{}.ids", prompt.number), format!("gen.{}.frames", prompt.number));
        if let Some(ids) = golden.ids(&ids_key)?.or_else(|| prompt.generated_ids())
            && let Some((_, frames)) = golden.integers(&key, &[None, Some(golden.config.num_quantizers)])?
        {
            judge.same_ids("frames.codes", &key, &assemble(&ids), &frames);
        }
    }
    Ok(())
}

/// Speaker, description and text of a prompt in the model's template for one of `voices`; `None` for anything else.
fn parts<'a>(prompt: &'a str, voices: &[String]) -> Option<(Style, &'a str)> {
    let body = prompt.strip_prefix("<text>")?.strip_suffix("<audio>")?;
    let (voice, rest) = body.split_once(": ").filter(|(voice, _)| voices.iter().any(|known| known == voice))?;
    let described = rest.strip_prefix("<description=\"").and_then(|rest| rest.split_once("\"> "));
    let (description, text) = match described {
        Some((description, text)) => (Some(description.to_owned()), text),
        None => (None, rest),
    };
    Some((Style { voice: Some(voice.to_owned()), description, ..Style::default() }, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_template_apart() {
        let voices = ["Ira", "Zoya"].map(str::to_owned);
        let (style, text) = parts("<text>Ira: <description=\"calm, slow pace\"> Hello: you.<audio>", &voices).unwrap();
        assert_eq!((style.voice.as_deref(), style.description.as_deref()), (Some("Ira"), Some("calm, slow pace")));
        assert_eq!(text, "Hello: you.");
        let (style, text) = parts("<text>Zoya: Hi!<audio>", &voices).unwrap();
        assert_eq!((style.description, text), (None, "Hi!"));
        assert!(parts("Hi!", &voices).is_none());
        assert!(parts("<text>Nobody: Hi!<audio>", &voices).is_none());
    }
}
