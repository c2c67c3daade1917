//! `--phase-head`: only the rows of the audio head that the open frame expects next, and `</audio>`.
//!
//! A frame is one code of each codebook in order, so at any step seven eighths of the head's rows would break it. Leaving them
//! out saves their bytes and forbids what the model might have done: it is an approximation, and said to be one everywhere.

use crate::config::ModelConfig;

/// Rows of the audio head that hold codes of each codebook, in ascending order, `[num_quantizers][codebook_size]`; `</audio>`
/// is in none.
///
/// `audio_ids` names the token of each row. Unit ids are code-major: `first_unit_id + code * num_quantizers + q`.
pub fn rows_by_codebook(config: &ModelConfig, audio_ids: &[u32]) -> Vec<Vec<u32>> {
    let mut rows = vec![Vec::with_capacity(config.codebook_size); config.num_quantizers];
    for (row, &id) in audio_ids.iter().enumerate() {
        if let Some(unit) = id.checked_sub(config.first_unit_id).filter(|_| id <= config.last_unit_id) {
            rows[unit as usize % config.num_quantizers].push(row as u32);
        }
    }
    rows
}

/// What a backend says of itself when it runs this way.
pub const NOTE: &str = "phase head: approximate";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_but_the_end_is_in_the_codebook_of_its_unit() {
        let config =
            ModelConfig::parse("config.json", include_bytes!("../../fixtures/golden/tiny/config.json")).unwrap();
        let mut ids = config.audio_ids();
        ids.rotate_right(3); // an export may order its rows otherwise
        let rows = rows_by_codebook(&config, &ids);
        assert_eq!(rows.len(), config.num_quantizers);
        for (q, rows) in rows.iter().enumerate() {
            assert_eq!(rows.len(), config.codebook_size, "codebook {q}");
            assert!(rows.is_sorted());
            for &row in rows {
                let unit = ids[row as usize] - config.first_unit_id;
                assert_eq!(unit as usize % config.num_quantizers, q);
            }
        }
    }
}
