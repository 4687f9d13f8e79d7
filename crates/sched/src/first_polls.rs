//! FirstPolls: how long polls of new tasks take, by what tasks of the same kind have shown.
//!
//! What a new task costs is not known, but a program spawns tasks of few kinds again and again. A kind is a type of future. Its
//! estimate rises at once to the longest poll that was measured, and falls slowly: a kind that is long now and then counts as long.
//!
//! # Cost
//! To use an estimate: a load. To learn: the same, and a store if the estimate changes.

use crate::estimate::WEIGHT;
use crate::sync::{AtomicU64, Ordering::*};
use warmcore_types::Nanos;

/// How many kinds have a place. Two kinds that want the same one take it from each other.
const KINDS: usize = 64;

/// An estimate is counted in this many ns. It has the low 16 bits of a word; the other bits are the kind.
const UNIT: u64 = 64;

/// The estimates of one scheduler.
#[derive(Debug)]
pub(crate) struct FirstPolls([AtomicU64; KINDS]);

impl FirstPolls {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn place_of(&self, kind: usize) -> &AtomicU64 {
        let hash = (kind as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.0[(hash >> 32) as usize % KINDS]
    }

    /// A poll of a task of this kind took so many ns. The kind 0 is none.
    pub(crate) fn learn(&self, kind: usize, took: u64) {
        let (place, kind) = (self.place_of(kind), kind as u64);
        let took = took.div_ceil(UNIT).clamp(1, u16::MAX.into());
        let word = place.load(Relaxed);
        let old = if word >> 16 == kind { word & u64::from(u16::MAX) } else { 0 };
        // An estimate that is too high by less than half a microsecond stays.
        let new = if took > old { took } else { old - (old - took) / u64::from(WEIGHT) };
        if kind != 0 && new != old {
            place.store(kind << 16 | new, Relaxed);
        }
    }

    /// How long a poll of a new task of this kind takes, at most. `None`: not known.
    pub(crate) fn of(&self, kind: usize) -> Option<Nanos> {
        let word = self.place_of(kind).load(Relaxed);
        (kind != 0 && word >> 16 == kind as u64).then_some(Nanos((word & u64::from(u16::MAX)) * UNIT))
    }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_rises_to_the_longest_poll_at_once_and_falls_to_within_half_a_microsecond() {
        let polls = FirstPolls::new();
        assert_eq!(polls.of(0x1000), None);
        polls.learn(0x1000, 300);
        assert_eq!(polls.of(0x1000), Some(Nanos(320)));
        polls.learn(0x1000, 1_000_000);
        assert_eq!(polls.of(0x1000), Some(Nanos(1_000_000)));
        (0..100).for_each(|_| polls.learn(0x1000, 300));
        let fallen = polls.of(0x1000).expect("known");
        assert!((320..320 + u64::from(WEIGHT) * UNIT).contains(&fallen.0), "{fallen:?}");
        polls.learn(0x1000, u64::MAX);
        assert_eq!(polls.of(0x1000), Some(Nanos(u64::from(u16::MAX) * UNIT)), "no more fits");
    }

    #[test]
    fn each_kind_has_its_own_estimate_and_the_last_one_of_two_in_one_place_is_kept() {
        let polls = FirstPolls::new();
        let kinds: Vec<usize> = (1..=200).map(|n| n * 48).collect();
        kinds.iter().for_each(|kind| polls.learn(*kind, *kind as u64 * UNIT));
        let known = kinds.iter().filter(|kind| polls.of(**kind).is_some()).count();
        assert!((KINDS / 2..=KINDS).contains(&known), "{known}");
        assert!(kinds.iter().all(|kind| polls.of(*kind).is_none_or(|ns| ns.0 == *kind as u64 * UNIT)));
        polls.learn(0, 1);
        assert_eq!(polls.of(0), None, "tasks of no kind");
    }
}
