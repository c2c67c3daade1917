//! From token ids to frames of codes.
//!
//! Unit ids are code-major, `id = first_unit_id + code * num_quantizers + q`, and a frame is the codes of quantizers
//! 0, 1, 2, … in that order. The model may break the order; then the frame it was in is lost and nothing else.

use crate::config::ModelConfig;

/// Assembles frames from the ids of one sequence.
#[derive(Clone, Debug)]
pub struct Frames {
    first_unit_id: u32,
    last_unit_id: u32,
    audio_end_token_id: u32,
    num_quantizers: usize,
    partial: Vec<u32>,
    ended: bool,
}

impl Frames {
    /// An assembler for the ids of a model.
    pub fn new(config: &ModelConfig) -> Frames {
        Frames {
            first_unit_id: config.first_unit_id,
            last_unit_id: config.last_unit_id,
            audio_end_token_id: config.audio_end_token_id,
            num_quantizers: config.num_quantizers,
            partial: Vec::with_capacity(config.num_quantizers),
            ended: false,
        }
    }

    /// Takes the next id and appends the frame it completes, if any, to `codes: [frames, num_quantizers]`.
    ///
    /// `</audio>` ends the audio: ids after it are ignored. Any other id outside the units drops the partial frame. A
    /// unit whose quantizer is not the next one drops the partial frame too, and starts a new one if its quantizer is 0.
    pub fn push(&mut self, id: u32, codes: &mut Vec<u32>) {
        if self.ended {
            return;
        }
        if !(self.first_unit_id..=self.last_unit_id).contains(&id) {
            self.partial.clear();
            self.ended = id == self.audio_end_token_id;
            return;
        }
        let unit = (id - self.first_unit_id) as usize;
        let (code, quantizer) = (unit / self.num_quantizers, unit % self.num_quantizers);
        if quantizer != self.partial.len() {
            self.partial.clear();
        }
        if quantizer == self.partial.len() {
            self.partial.push(code as u32);
        }
        if self.partial.len() == self.num_quantizers {
            codes.append(&mut self.partial);
        }
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.partial.clear();
        self.ended = false;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const GOLDEN: &[u8] = include_bytes!("../../fixtures/golden/tiny/golden.json");
    const CONFIG: &[u8] = include_bytes!("../../fixtures/golden/tiny/config.json");

    fn numbers(value: &Value) -> Vec<u32> {
        value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
    }

    #[test]
    fn assembles_every_golden_case() {
        let config = ModelConfig::parse("config.json", CONFIG).unwrap();
        let golden: Value = serde_json::from_slice(GOLDEN).unwrap();
        let cases = golden["frame_cases"].as_array().unwrap();
        assert!(cases.len() >= 10);
        let mut frames = Frames::new(&config);
        for case in cases {
            let expected: Vec<u32> = case["frames"].as_array().unwrap().iter().flat_map(numbers).collect();
            let mut codes = Vec::new();
            frames.reset(); // one assembler for all cases: nothing of a case may reach the next
            for id in numbers(&case["ids"]) {
                frames.push(id, &mut codes);
            }
            assert_eq!(codes, expected, "{}", case["name"]);
        }
    }
}
