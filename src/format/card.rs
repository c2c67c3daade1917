//! The texts of an export: the list of modifications for NOTICE and the model card.

use super::plan::HeadKind;
use super::report::{Encoding, Report};

impl Report {
    /// The source's NOTICE with the list of modifications that its licence asks for.
    pub fn notice(&self, original: &str) -> String {
        let mut text = original.trim_end().to_owned();
        text += &format!(
            "\n\nModifications\n=============\n\n\
             This folder is a modified version of {}. rumik-export made these changes:\n\n\
             * every attention and MLP projection is quantized to 4 bits in groups of {} columns\n\
             * the input embedding is quantized to 8 bits, one scale a row\n",
            self.origin(),
            self.group_size
        );
        text += match self.options.head {
            HeadKind::Bf16 => "* the output head keeps the audio rows of the embedding only, in bfloat16\n",
            HeadKind::Int8 => {
                "* the output head keeps the audio rows of the embedding only, quantized to 8 bits, one scale a row\n"
            }
        };
        text += match self.options.codec {
            true => "* the codec is unchanged\n",
            false => "* the codec is left out\n",
        };
        text += "* norms, stop head, configuration, tokenizer and licence are unchanged\n";
        for note in &self.notes {
            text += &format!("* {note}\n");
        }
        text
    }

    /// The model card, Markdown with the metadata that the Hub reads.
    pub fn card(&self, licence_heading: &str) -> String {
        let mut text = String::from("---\nlicense: other\nlicense_name: see-LICENSE\nlicense_link: LICENSE\n");
        if self.source.name.contains('/') {
            text += &format!("base_model: {}\nbase_model_relation: quantized\n", self.source.name);
        }
        text += "pipeline_tag: text-to-speech\nlibrary_name: rumik\n---\n\n";
        text += &format!("# {} in int4\n\n", self.source.name);
        text += &format!(
            "A quantized version of {}, format `{}` version {}, made by rumik-export. \
             It is run by `rumik-run` and checked by `rumik-verify`.\n\n## What is inside\n\n",
            self.origin(),
            self.format,
            self.version
        );
        text += &format!(
            "* projections: int4, groups of {} columns, f16 scale and minimum from the smallest and largest weight\n\
             * input embedding: int8, one f16 scale a row\n* output head (audio rows): {}\n* codec: {}\n\
             * `model.safetensors`: {} bytes, SHA-256 `{}`\n\n## What it lost\n\n",
            self.group_size,
            self.options.head,
            if self.options.codec { "unchanged, in `codec/`" } else { "not included" },
            self.output.content.bytes,
            self.output.content.sha256
        );
        text += &self.error_table();
        text += "\nWeight errors say little about speech: judge an export with `rumik-verify`.\n\n## Licence\n\n";
        text += &format!(
            "The licence of the source applies: {licence_heading} (`LICENSE`). `NOTICE` lists the modifications.\n"
        );
        text
    }

    fn error_table(&self) -> String {
        let percent = |x: f64| format!("{:.2} %", 100.0 * x);
        let mut text = "| matrix | relative error |\n| --- | --- |\n".to_owned();
        text += &format!("| int4 projections, mean | {} |\n", percent(self.mean_relative_error));
        let worst = self.matrices.iter().find(|m| m.name == self.worst_matrix);
        let others = self.matrices.iter().filter(|m| m.encoding != Encoding::Int4);
        let rows = worst.map(|m| (format!("worst, `{}`", m.name), m)).into_iter();
        for (label, matrix) in rows.chain(others.map(|m| (format!("`{}`", m.name), m))) {
            text += &format!("| {label} | {} |\n", percent(matrix.error.relative_error));
        }
        text
    }

    /// The source with its revision.
    fn origin(&self) -> String {
        match &self.source.revision {
            Some(revision) => format!("{} (revision {revision})", self.source.name),
            None => self.source.name.clone(),
        }
    }
}
