//! KeptPerCpu: an id stays with its CPU until nobody used it for a while (Linux 6.4 to 6.12).
//!
//! Model.   Who enters where an id is kept uses it again. An id that lay unused is taken back, and
//!          the CPU forgets it: after a pause of 100 ms it gets the lowest free one, whoever's
//!          core has that one's data.

use super::*;

/// An id per CPU while it is used, the lowest free one after a pause, as Linux 6.4 to 6.12 do it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptPerCpu;

impl Policy for KeptPerCpu {
    fn name(&self) -> &'static str {
        "kept-per-cpu"
    }

    /// As many as there are, so that the numbers stay dense: `sched_mm_cid_remote_clear_weight`.
    fn bound(&self, facts: &Facts) -> u32 {
        facts.in_use
    }

    fn pick(&self, facts: &Facts, _: Option<Cid>, used: &Used) -> Option<Pick> {
        used.lowest_free(self.end(facts)).map(Pick::Lowest)
    }

    fn left_behind(&self, facts: &Facts, to: Destination) -> LeftBehind {
        match to.has_id {
            false => LeftBehind::Follows,
            true if facts.users >= facts.nr_cpus_allowed => LeftBehind::Stays,
            true => LeftBehind::Freed,
        }
    }
}
