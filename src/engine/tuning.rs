//! Which kernels run on which card: a table, and what `rumik-run tune` measured to be better on this one.
//!
//! Nothing here changes a bit of what is computed, only how soon. The table is a plain function of a card's properties, so
//! that it can be tested without one.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::error::{Error, Result};

/// What a card is, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Most shared memory of a block in bytes.
    pub shared_bytes: usize,
}

/// The choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// A frame period in one persistent kernel, instead of a launch a phase.
    pub persistent: bool,
    /// Packets of weights that a block of the persistent kernel has under way: enough to keep the memory busy, few enough to
    /// keep its queues short.
    pub packets: usize,
    /// Several columns, slots or a prompt's positions, multiplied by warpgroups instead of warps.
    pub warpgroups: bool,
    /// Seven tiles ahead of each warp in the kernels of single phases, instead of three.
    pub deep_rings: bool,
}

/// Compute capability of the persistent kernel (bulk copies, registers dealt anew among warps) and of warpgroups' products.
const HOPPER: (i32, i32) = (9, 0);
/// Shared memory that the deep rings of a block need (compute capability 8.0 and 9.0 have it, 8.6, 8.9 and 12.0 do not).
const DEEP_SHARED_BYTES: usize = 160 << 10;
/// Shared memory that their blocks need: below it the persistent kernel's ring is too short to be worth it.
const HOPPER_SHARED_BYTES: usize = 200 << 10;
/// Multiprocessors below which a card is bound by its memory anyway, and launches cost it 2 to 4 %: the plain kernels are as
/// good there, and a card that also draws a desktop must not be held by one kernel for a whole frame.
const PERSISTENT_MULTIPROCESSORS: usize = 64;

impl Tuning {
    /// The choice for a card that nobody has measured: the persistent kernel wherever it runs (`docs/cuda.md`).
    pub fn of(card: Card) -> Tuning {
        Tuning {
            persistent: Tuning::can_persist(card),
            packets: 2,
            warpgroups: Tuning::has_warpgroups(card),
            deep_rings: Tuning::can_be_deep(card),
        }
    }

    /// All choices that a card can run and that may be worth a measurement, the table's own first.
    pub fn candidates(card: Card) -> Vec<Tuning> {
        let first = Tuning::of(card);
        let mut all = vec![first];
        for persistent in [true, false] {
            for warpgroups in [true, false] {
                for deep_rings in [true, false] {
                    all.extend((2..=5).map(|packets| Tuning { persistent, packets, warpgroups, deep_rings }));
                }
            }
        }
        all.retain(|tuning| tuning.fits(card));
        // A persistent kernel has no rings of its own, the other kernels have no packets, and the rings are for one column where
        // warpgroups make the rest: no candidate twice.
        let settled = |t: Tuning| match t {
            Tuning { persistent: true, .. } => Tuning { packets: t.packets, ..first },
            Tuning { warpgroups: true, .. } => Tuning { persistent: false, ..first },
            _ => Tuning { packets: first.packets, ..t },
        };
        let mut seen = Vec::new();
        all.into_iter().map(settled).for_each(|tuning| {
            if !seen.contains(&tuning) {
                seen.push(tuning);
            }
        });
        seen
    }

    /// True when a card can run it.
    pub fn fits(self, card: Card) -> bool {
        let packets = (1..=8).contains(&self.packets);
        packets
            && (!self.persistent || Tuning::can_persist(card))
            && (!self.warpgroups || Tuning::has_warpgroups(card))
            && (!self.deep_rings || Tuning::can_be_deep(card))
    }

    fn has_warpgroups(card: Card) -> bool {
        card.capability == HOPPER && card.shared_bytes >= HOPPER_SHARED_BYTES
    }

    fn can_persist(card: Card) -> bool {
        card.capability == HOPPER
            && card.shared_bytes >= HOPPER_SHARED_BYTES
            && card.multiprocessors >= PERSISTENT_MULTIPROCESSORS
            && card.multiprocessors.is_multiple_of(2) // its blocks come in pairs
    }

    fn can_be_deep(card: Card) -> bool {
        card.shared_bytes >= DEEP_SHARED_BYTES
    }
}

impl std::fmt::Display for Tuning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tuning { persistent, packets, warpgroups, deep_rings } = self;
        match (persistent, warpgroups) {
            (true, _) => write!(f, "persistent kernel, {packets} packets under way"),
            (false, true) => write!(f, "a kernel a phase, by warpgroups"),
            (false, false) => write!(f, "a kernel a phase, {} rings", if *deep_rings { "deep" } else { "shallow" }),
        }
    }
}

/// Which of the measured choices is worth pinning: the one with the least median, if the table's own, the first, is slower than
/// that by more than either of them spreads; else none.
pub fn best(measured: &[(Tuning, Spread)]) -> Option<usize> {
    let (_, table) = measured.first()?;
    let least = (1..measured.len()).min_by(|&a, &b| measured[a].1.median.total_cmp(&measured[b].1.median))?;
    let found = measured[least].1;
    let noise = |s: &Spread| (s.high - s.low) / 2.0;
    (table.median - found.median > noise(table).max(noise(&found))).then_some(least)
}

/// What a measured choice holds for; a pin of anything else is not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Name of the card.
    pub card: String,
    /// Version of its driver's CUDA.
    pub driver: String,
    /// Hash of the kernels in this build.
    pub build: String,
}

/// A measured choice, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// What it holds for.
    pub key: Key,
    /// The choice.
    pub tuning: Tuning,
    /// Milliseconds of a frame period with it and with the table's choice.
    pub frame_ms: [f64; 2],
}

impl Pin {
    /// The file of a key: in `$XDG_CACHE_HOME/rumik`, or `~/.cache/rumik`; `None` without a home.
    pub fn path(key: &Key) -> Option<PathBuf> {
        let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
        Some(cache.join("rumik").join(key.file_name()))
    }

    /// Reads the pin of a key that a card can run. A file that is missing, of something else, or damaged is no pin: the table
    /// is always there.
    pub fn read(path: &Path, key: &Key, card: Card) -> Option<Tuning> {
        let pin: Pin = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        (pin.key == *key && pin.tuning.fits(card)).then_some(pin.tuning)
    }

    /// Writes the pin so that its file is whole or absent.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let temporary = path.with_extension(format!("{}.part", std::process::id()));
        let mut text =
            serde_json::to_string_pretty(self).map_err(std::io::Error::from).map_err(Error::io("write", path))?;
        text.push('\n');
        std::fs::write(&temporary, text).map_err(Error::io("write", &temporary))?;
        std::fs::rename(&temporary, path).map_err(Error::io("rename the finished file to", path))
    }
}

impl Key {
    fn file_name(&self) -> String {
        let all = format!("tuning-{}-{}-{}", self.card, self.driver, self.build);
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        all.chars().map(plain).collect::<String>() + ".json"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Card = Card { capability: (9, 0), multiprocessors: 132, shared_bytes: 232_448 };
    const A100: Card = Card { capability: (8, 0), multiprocessors: 108, shared_bytes: 166_912 };
    const RTX_3050: Card = Card { capability: (8, 6), multiprocessors: 16, shared_bytes: 101_376 };
    const L4: Card = Card { capability: (8, 9), multiprocessors: 58, shared_bytes: 101_376 };
    const RTX_5090: Card = Card { capability: (12, 0), multiprocessors: 170, shared_bytes: 101_376 };

    fn key() -> Key {
        Key { card: "NVIDIA H200".into(), driver: "13000".into(), build: "0123abcd".into() }
    }

    #[test]
    fn the_table_knows_each_kind_of_card() {
        for (card, deep) in [(H200, true), (A100, true), (RTX_3050, false), (L4, false), (RTX_5090, false)] {
            let Tuning { persistent, warpgroups, deep_rings, .. } = Tuning::of(card);
            assert_eq!((persistent, warpgroups, deep_rings), (card == H200, card == H200, deep), "{card:?}");
        }
        let persistent = |card| Tuning::candidates(card).iter().any(|tuning| tuning.persistent);
        assert!(persistent(H200) && !persistent(A100) && !persistent(RTX_5090));
        // A slice of a Hopper card has the instructions, but not the multiprocessors.
        assert!(!persistent(Card { multiprocessors: 16, ..H200 }));
    }

    #[test]
    fn every_candidate_runs_and_the_table_comes_first() {
        for card in [H200, A100, RTX_3050, L4, RTX_5090] {
            let candidates = Tuning::candidates(card);
            assert_eq!(candidates[0], Tuning::of(card));
            assert!(candidates.iter().all(|tuning| tuning.fits(card)), "{card:?}");
            for (i, tuning) in candidates.iter().enumerate() {
                assert!(!candidates[..i].contains(tuning), "{tuning} twice");
            }
        }
        assert_eq!(Tuning::candidates(RTX_3050).len(), 1);
        assert!(Tuning::candidates(H200).len() > 3);
    }

    #[test]
    fn only_a_difference_beyond_the_noise_is_worth_pinning() {
        let candidates = Tuning::candidates(H200);
        let run = |i: usize, median: f64, noise: f64| {
            (candidates[i], Spread { median, low: median - noise, high: median + noise })
        };
        assert_eq!(best(&[run(0, 4.0, 0.1), run(1, 3.8, 0.05), run(2, 3.7, 0.05)]), Some(2));
        assert_eq!(best(&[run(0, 4.0, 0.4), run(1, 3.8, 0.05)]), None, "the table's figure is noisy");
        assert_eq!(best(&[run(0, 4.0, 0.05), run(1, 3.8, 0.4)]), None, "the other's is");
        assert_eq!(best(&[run(0, 4.0, 0.0), run(1, 4.1, 0.0)]), None);
        assert_eq!(best(&[run(0, 4.0, 0.0)]), None);
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn a_pin_holds_for_its_card_driver_and_build_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join(key().file_name());
        let tuning = Tuning { persistent: true, packets: 4, ..Tuning::of(H200) };
        Pin { key: key(), tuning, frame_ms: [3.9, 4.1] }.write(&path).unwrap();
        assert_eq!(Pin::read(&path, &key(), H200), Some(tuning));
        let others = [
            Key { card: "NVIDIA L4".into(), ..key() },
            Key { driver: "13010".into(), ..key() },
            Key { build: "4567cdef".into(), ..key() },
        ];
        assert!(others.iter().all(|other| Pin::read(&path, other, H200).is_none()));
        assert_eq!(Pin::read(&path, &key(), A100), None, "a card that cannot run it");
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Pin::read(&path, &key(), H200), None, "damaged");
        assert_eq!(Pin::read(&path.with_extension("no"), &key(), H200), None, "missing");
    }

    #[test]
    fn a_file_name_has_no_place_for_a_path() {
        let key = Key { card: "../NVIDIA H200/x".into(), ..key() };
        assert_eq!(key.file_name(), "tuning-..-NVIDIA-H200-x-13000-0123abcd.json");
    }
}
