//! What a model needs on a card, added up before anything is copied to it.

use crate::engine::kv::KvShape;
use crate::error::{Error, Result};
use crate::format::{self, Export};

/// Bytes a model needs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Layers, audio head, the embedding's audio rows, stop head.
    pub weights: usize,
    /// The codec's decoder half.
    pub codec: usize,
    /// Keys and values.
    pub cache: usize,
    /// Sequences and positions that the cache is for.
    pub cache_for: [usize; 2],
    /// Scratch memory, and what the codec keeps of its streams.
    pub working: usize,
}

impl Footprint {
    /// Of an export, with `codec` when its codec is loaded.
    pub fn of(export: &Export, kv: KvShape, codec: bool, working: usize) -> Footprint {
        let config = &export.config;
        let bytes_per_row = if matches!(export.head, format::Head::Bf16(_)) { 3 } else { 2 };
        let decoder = |name: &str| !name.starts_with("encoder") && !name.starts_with("downsample");
        let codec = export.codec.as_ref().filter(|_| codec).map_or(0, |codec| {
            let tensors = codec.weights.tensors().iter().filter(|(name, _)| decoder(name));
            tensors.map(|(_, tensor)| tensor.data.len()).sum()
        });
        Footprint {
            weights: export.layers.iter().map(format::Layer::bytes).sum::<usize>()
                + config.audio_rows() * config.hidden_size * bytes_per_row
                + export.stop.up_weight.len() * size_of::<f32>(),
            codec,
            cache: kv.elements() * 2 * size_of::<half::f16>(),
            cache_for: [kv.slots, kv.positions],
            working,
        }
    }

    /// All of it.
    pub fn bytes(&self) -> usize {
        self.weights + self.codec + self.cache + self.working
    }

    /// Refuses a card with too little free memory, and says what is needed for what.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check(&self, card: &str, model: &str, [free, total]: [usize; 2]) -> Result<()> {
        if self.bytes() <= free {
            return Ok(());
        }
        let gb = |bytes: usize| format!("{:.2} GB", bytes as f64 / 1e9);
        let Footprint { weights, codec, cache, cache_for: [slots, positions], working } = *self;
        let parts = format!(
            "weights {}, codec {}, cache {} for {slots} {} of {positions} positions, working memory {}",
            gb(weights),
            gb(codec),
            gb(cache),
            if slots == 1 { "slot" } else { "slots" },
            gb(working),
        );
        let found = format!("{} of {} are free", gb(free), gb(total));
        let why = format!(
            "it needs {} of GPU memory ({parts}) and {found}; take fewer slots or positions, or --device cpu",
            gb(self.bytes())
        );
        Err(Error::Unsupported { what: format!("{card}: {model}"), why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The real model with an int8 head: a codec, and one slot of 2304 positions.
    const REAL: Footprint = Footprint {
        weights: 1_566_000_000,
        codec: 190_000_000,
        cache: 169_869_312,
        cache_for: [1, 2304],
        working: 150_000_000,
    };

    #[test]
    fn a_card_too_small_is_refused_with_the_sizes() {
        let free = [1_900_000_000, 4_000_000_000];
        let error = REAL.check("cuda:0 (a laptop's)", "rumik-int4", free).unwrap_err().to_string();
        let sizes = [
            "2.08 GB",
            "weights 1.57 GB",
            "codec 0.19 GB",
            "cache 0.17 GB for 1 slot of 2304 positions",
            "1.90 GB of 4.00 GB",
        ];
        for part in sizes.iter().chain(&["cuda:0 (a laptop's)", "rumik-int4", "fewer slots or positions"]) {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
        assert!(!error.contains('\n'));
    }

    #[test]
    fn a_card_with_just_enough_is_taken() {
        REAL.check("card", "model", [REAL.bytes(), REAL.bytes()]).unwrap();
        REAL.check("card", "model", [REAL.bytes() - 1, REAL.bytes()]).unwrap_err();
    }
}
