//! Refill: how much longer the first poll of a task takes after it moved to another worker of its last-level cache.
//!
//! That poll fetches the task's data line by line. How much that is does not follow from the length of a poll: a poll of
//! 15 µs may chase pointers through 100 KiB, or be two system calls. So it is learned, in sixteenths of the task's usual poll,
//! for four lengths of polls. The estimate is the median of the moves seen: each goes one step towards its sample, so a poll
//! that was preempted counts no more than any other.
//!
//! # Cost
//! A poll after a move reads the clock twice and writes a word that all workers share. To use the estimate: a load.

use crate::estimate::WEIGHT;
use crate::policy::{MIGRATION_COST_MAX, MIGRATION_COST_PER_POLL};
use crate::sync::{AtomicU32, Ordering::*};
use warmcore_types::Nanos;

/// A refill is counted in this part of a poll.
const PARTS: u32 = 16;

/// Until a move was seen, a refill takes as long as this.
const START: u32 = MIGRATION_COST_PER_POLL as u32 * PARTS;

/// A shorter poll, in ns, counts as short: until a move was measured its task counts as light, and a tenant's polls of this length are not
/// measured one by one, as two readings of the clock would be a large part of each.
pub const SHORT_POLL_NS: u32 = 4_000;

/// Up to which length a poll belongs to each of the first three classes, in ns.
const CLASSES: [u32; 3] = [SHORT_POLL_NS, 4 * SHORT_POLL_NS, 16 * SHORT_POLL_NS];

/// The refills of the tasks of one scheduler.
#[derive(Debug)]
pub(crate) struct Refills([AtomicU32; CLASSES.len() + 1]);

impl Refills {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(START)))
    }

    fn of(&self, poll_ns: u32) -> &AtomicU32 {
        &self.0[CLASSES.iter().position(|longest| poll_ns < *longest).unwrap_or(CLASSES.len())]
    }

    /// The first poll after a move took `took` ns, of a task whose polls usually take `poll_ns`.
    pub(crate) fn learn(&self, poll_ns: u32, took: u64) {
        let refill = self.of(poll_ns);
        let old = refill.load(Relaxed);
        let longer = took.saturating_sub(poll_ns.into()) * u64::from(PARTS) / u64::from(poll_ns.max(1));
        // A step of one part of a poll at least.
        let step = (old / WEIGHT).max(1);
        // No more than the largest cost of a move, of a task with such polls.
        let most = MIGRATION_COST_MAX.0 * u64::from(PARTS) / u64::from(poll_ns.max(1));
        let rises = longer > old.into();
        let new = if rises { old.saturating_add(step) } else { old.saturating_sub(step).max(1) };
        if !rises || u64::from(new) <= most {
            refill.store(new, Relaxed);
        }
    }

    /// The length of a poll for which the policy's rule, of [`START`], gives what a move of this task was learned to cost.
    pub(crate) fn scale(&self, poll_ns: u32) -> Nanos {
        Nanos(u64::from(poll_ns) * u64::from(self.of(poll_ns).load(Relaxed)) / u64::from(START))
    }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;

    const POLL: u32 = 10_000;

    fn cost(refills: &Refills, poll_ns: u32) -> u64 {
        refills.scale(poll_ns).0 * MIGRATION_COST_PER_POLL
    }

    #[test]
    fn a_refill_is_the_median_of_what_was_seen_for_polls_of_that_length() {
        let refills = Refills::new();
        assert_eq!(cost(&refills, POLL), 40_000);
        // One poll of ten was preempted for 4 ms.
        (0..400).for_each(|n| refills.learn(POLL, if n % 10 == 0 { 4_000_000 } else { 13_000 }));
        let learned = cost(&refills, POLL);
        assert!((1_800..=5_000).contains(&learned), "{learned} ns");
        assert_eq!(cost(&refills, 3 * POLL), 120_000, "longer polls are another class");
    }

    #[test]
    fn one_long_poll_of_a_class_changes_its_refill_by_a_step() {
        let (refills, short, long) = (Refills::new(), 70_000, 20_000_000);
        (0..100).for_each(|_| refills.learn(short, 350_000));
        let before = cost(&refills, short);
        refills.learn(long, u64::from(long) + 300_000);
        let after = cost(&refills, short);
        assert!(before > 200_000 && after > before * 3 / 4, "{before} {after}");
    }

    #[test]
    fn a_refill_that_becomes_ten_times_as_long_is_learned_in_forty_moves_and_has_a_limit() {
        let refills = Refills::new();
        (0..100).for_each(|_| refills.learn(POLL, 15_000));
        let before = cost(&refills, POLL);
        (0..40).for_each(|_| refills.learn(POLL, 60_000));
        let after = cost(&refills, POLL);
        assert!(before < 7_000 && after > 40_000, "{before} {after}");
        (0..100).for_each(|_| refills.learn(POLL, u64::MAX / 64));
        let limit = cost(&refills, POLL);
        assert!((87_500..=MIGRATION_COST_MAX.0).contains(&limit), "{limit}");
        refills.learn(20 * POLL, u64::MAX / 64);
        assert_eq!(cost(&refills, POLL), limit, "longer polls are another class");
    }
}
