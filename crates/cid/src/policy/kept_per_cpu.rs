//! `KeptPerCpu`: an id stays with its CPU until it was not used for a while, as on Linux 6.4 to 6.12.
//!
//! A user (a task or thread) that enters on a CPU that has an id gets that id. An id that was not used between two
//! compactions is taken back. After a pause in which this happened (compactions run every 100 ms) the CPU gets the
//! lowest free id, whose data may be in another core's cache.
//!
//! A user that moves to a CPU with an id frees the one that it left, unless another user holds that id now or there are
//! at least as many users as CPUs in that user's own mask. Linux 6.13 compares with the number of CPUs in the process's
//! set instead; earlier versions don't have that set.
//!
//! # Source
//! Linux 6.4 `__mm_cid_try_get`, `sched_mm_cid_migrate_to`, `task_mm_cid_work`.

use super::*;

/// An id per CPU while it is used, the lowest free one after a pause, as in Linux 6.4 to 6.12.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptPerCpu;

impl Policy for KeptPerCpu {
    fn name(&self) -> &'static str {
        "kept-per-cpu"
    }

    fn end(&self, facts: &Facts) -> u32 {
        facts.cpus
    }

    /// The number of ids in use. A compaction takes back ids that are not below it, so that the ids in use stay dense,
    /// as Linux's `sched_mm_cid_remote_clear_weight` does.
    fn bound(&self, facts: &Facts) -> u32 {
        facts.in_use
    }

    fn pick(&self, facts: &Facts, _: Option<Cid>, used: &Used) -> Option<Pick> {
        used.lowest_free(self.end(facts)).map(Pick::Lowest)
    }

    fn left_behind(&self, facts: &Facts, own_cpus_allowed: u32, to: Destination) -> LeftBehind {
        match to.has_id {
            false => LeftBehind::Follows,
            true if facts.users >= own_cpus_allowed => LeftBehind::Stays,
            true => LeftBehind::Freed,
        }
    }
}
