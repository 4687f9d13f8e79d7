//! `CacheLocal`: a CPU gets the id back that it used last, as on Linux 6.13 to 6.18. The default of a tenant.
//!
//! 1. The CPU's recent id, if it is free and below the bound, min(CPUs allowed, users).
//! 2. Otherwise the lowest free id that is not below the count (`max_nr_cid`) and below the bound. The count is one
//!    more than the highest id that this rule gave, and falls with the bound. So until the count reaches
//!    the bound, each CPU gets an id of its own, and the range is still compact: 4 threads on 384 CPUs mostly use the
//!    ids 0 to 3.
//! 3. Otherwise the lowest free id.
//!
//! # Source
//! 6.13, "sched: Improve cache locality of RSEQ concurrency IDs for intermittent workloads": the recent id, whatever
//! its number; the second rule, where the count of allocated ids only grows; the process's set of allowed CPUs, for the
//! third rule and for moves. 6.14, "sched: Compact RSEQ concurrency IDs with reduced threads and affinity": the count
//! falls with the bound, and a recent id is taken only below the count.
//!
//! This policy differs in two points. A recent id is taken if it is below the bound, not below the count. If
//! users left and others came, the count has fallen with the number of users, and a CPU whose recent id is
//! between the count and the bound still gets it back. And compaction takes ids that are not below the bound, while
//! both versions of Linux take ids that are not below the number in use: here a CPU does not lose the id that it uses
//! because another CPU pauses.

use super::*;

/// The id that this CPU used last, wherever that is possible, as in Linux 6.13 to 6.18, with 6.14's bound.
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
        // An id at or above `max_nr_cid` may be in use already: allocated as the lowest free one.
        if let Some(cid) = (facts.max_nr_cid..bound).map(Cid).find(|cid| used.is_free(*cid)) {
            return Some(Pick::New(cid));
        }
        used.lowest_free(self.end(facts)).map(Pick::Lowest)
    }

    fn left_behind(&self, facts: &Facts, _: u32, to: Destination) -> LeftBehind {
        match to.has_id || to.has_recent {
            false => LeftBehind::Follows,
            // Every CPU can have an id, so freeing one gains nothing.
            true if facts.users >= facts.nr_cpus_allowed => LeftBehind::Stays,
            true => LeftBehind::Freed,
        }
    }
}
