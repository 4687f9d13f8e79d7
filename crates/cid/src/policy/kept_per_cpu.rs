//! KeptPerCpu: an id stays with its CPU until nobody used it for a while (Linux 6.4 to 6.12).
//!
//! Model.   Who enters where an id is kept uses it again. An id that lay unused is taken back, and
//!          the CPU forgets it: after a pause of 100 ms it gets the lowest free one, whoever's
//!          core has that one's data. A task that moves to a CPU with an id frees the one that it left, unless there are as
//!          many tasks as CPUs in the mask of that task: the baseline compares with the task's own mask, not with the
//!          process's set of CPUs, which came in 6.13.
//! Source.  Linux 6.4 `__mm_cid_try_get`, `sched_mm_cid_migrate_to`, `task_mm_cid_work`.

use super::*;

/// An id per CPU while it is used, the lowest free one after a pause, as Linux 6.4 to 6.12 do it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptPerCpu;

impl Policy for KeptPerCpu {
    fn name(&self) -> &'static str {
        "kept-per-cpu"
    }

    fn end(&self, facts: &Facts) -> u32 {
        facts.cpus
    }

    /// As many as there are, so that the numbers stay dense: `sched_mm_cid_remote_clear_weight`.
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
