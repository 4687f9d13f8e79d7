//! CacheLocal: a CPU gets the id back that it used last (Linux 6.13 to 6.18). Ours by default.
//!
//! Model.   1. The CPU's recent id, if it is free and below the bound. 2. While fewer ids than
//!          the bound were handed out, one that never was: spread over the whole range, each CPU
//!          has its own, and the range is still compact. 3. The lowest free one.
//! Number.  Bound: min(CPUs allowed, users). 4 threads on 384 CPUs use ids 0 to 3.
//! Source.  6.13, "sched: Improve cache locality of RSEQ concurrency IDs for intermittent workloads": the recent id,
//!          whatever its number; the second rule, where the count of ids handed out only grows; the process's set of
//!          allowed CPUs, for the third rule and for moves.
//!          6.14, "sched: Compact RSEQ concurrency IDs with reduced threads and affinity": the count falls with the
//!          bound, and a recent id is taken only below the count. Below the bound here: when users left and came again,
//!          the count has fallen to the fewest, and a CPU whose id lies between the two has it back.
//!          Compaction takes ids above how many are in use in both; here above the bound, so that an id in daily
//!          use is not lost to another CPU's pause.

use super::*;

/// The id that this CPU used last, wherever that is possible, as Linux 6.13 to 6.18 do it, with 6.14's bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheLocal;

impl Policy for CacheLocal {
    fn name(&self) -> &'static str {
        "cache-local"
    }

    fn retakes(&self) -> bool {
        true // the first rule
    }

    fn pick(&self, facts: &Facts, recent: Option<Cid>, used: &Used) -> Option<Pick> {
        let bound = facts.bound();
        if let Some(cid) = recent.filter(|cid| cid.0 < bound && used.is_free(*cid)) {
            return Some(Pick::Recent(cid));
        }
        // An id above `max_nr_cid` may be in use already: handed out as the lowest free one.
        if let Some(cid) = (facts.max_nr_cid..bound).map(Cid).find(|cid| used.is_free(*cid)) {
            return Some(Pick::New(cid));
        }
        used.lowest_free(self.end(facts)).map(Pick::Lowest)
    }

    fn left_behind(&self, facts: &Facts, _: u32, to: Destination) -> LeftBehind {
        match to.has_id || to.has_recent {
            false => LeftBehind::Follows,
            // Every CPU can have an id of its own: nothing is gained by giving one back.
            true if facts.users >= facts.nr_cpus_allowed => LeftBehind::Stays,
            true => LeftBehind::Freed,
        }
    }
}
