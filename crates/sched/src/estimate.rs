//! Estimate: how an estimate follows what is measured.
//!
//! The learned costs and the tasks' averages have the same weight. With [`average`], a cost that becomes ten times as large is learned
//! in about twelve samples.

/// A sample counts for one part in this many of the new estimate.
pub(crate) const WEIGHT: u32 = 8;

/// A sample counts as at most this many times the estimate. One time slice of another process says little about the next.
pub(crate) const SAMPLE_MAX: u64 = 4;

/// Maintenance, and moves for the sake of equal shares, each take about one part in this many of a worker's time or polls.
/// Maintenance takes more where other tasks would wait too long for it.
pub(crate) const UPKEEP_SHARE: u64 = 160;

/// The new average, in ns, after a sample.
pub(crate) fn average(old: u64, sample: u64) -> u64 {
    let weight = u64::from(WEIGHT);
    old - old / weight + sample.min(old.saturating_mul(SAMPLE_MAX)) / weight
}
