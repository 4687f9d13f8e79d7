//! Look: what happened to a tenant's ids, for policies, pictures and whoever reads slots.
//!
//! Model.   Counts are kept under the lock, but for entries that take none. The ends of the ids that
//!          were handed out stand where one may read them without it: every sum over slots does.

use super::{Ids, Shared};
use crate::pcpu_cid::{PcpuCids, State};
use crate::policy::Facts;
use crate::sync::Ordering::*;
use std::ops::Range;
use warmcore_types::{Cid, CpuId, ignore_poison};

/// What happened so far, and what is now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Users now.
    pub users: u32,
    /// CPUs that any user was ever allowed on.
    pub nr_cpus_allowed: u32,
    /// Ids that CPUs have now, whether somebody runs on them or not.
    pub in_use: u32,
    /// Overflow ids held now.
    pub overflow_in_use: u32,
    /// How many ids were handed out by expanding, since the bound was last that low.
    pub max_nr_cid: u32,
    /// How many ids were ever handed out, the overflow aside: one more than the highest.
    pub allocated: u32,
    /// Entries that found the CPU's recent id free.
    pub recent_hits: u64,
    /// Entries that got a new id, because fewer than can run at once were handed out.
    pub expansions: u64,
    /// Entries that got the lowest free id.
    pub lowest: u64,
    /// Entries that got an overflow id: somebody lost this CPU while holding its id.
    pub overflows: u64,
    /// Ids that went with a task to another CPU.
    pub moves: u64,
    /// Ids that were freed because their task had moved where another was.
    pub freed_by_moves: u64,
    /// Compactions.
    pub compactions: u64,
    /// Ids that compactions took back.
    pub compacted: u64,
}

impl<S: PcpuCids> Ids<S> {
    /// What happened so far, and what is now.
    pub fn stats(&self) -> Stats {
        let shared = ignore_poison(self.shared.lock());
        Stats {
            recent_hits: shared.counts.recent_hits + self.seen.retaken.load(Relaxed),
            nr_cpus_allowed: shared.allowed.len(),
            max_nr_cid: self.seen.max_nr_cid.load(Relaxed),
            in_use: self.used.len(),
            overflow_in_use: shared.overflow.len(),
            ..shared.counts
        }
    }

    /// How many ids CPUs have now.
    ///
    /// Who stores something SeqCst before it asks, and is told 0, knows that whoever gets an id
    /// from now on will see what was stored, if he looks SeqCst after his entry.
    pub fn in_use(&self) -> u32 {
        self.used.len()
    }

    /// The ids that were ever handed out: those of pcpu_cids, then the overflow ids. Their slots are
    /// the ones that may have been written.
    pub fn allocated(&self) -> [Range<u32>; 2] {
        let (cpus, seen) = (self.pcpu_cids.cpus(), &self.seen);
        [0..seen.cids_end.load(Relaxed), cpus..cpus + seen.overflow_end.load(Relaxed)]
    }

    /// The id that a CPU has now, and whether somebody runs on it. For pictures and tests.
    pub fn at(&self, cpu: CpuId) -> Option<(Cid, bool)> {
        let _no_move_meanwhile = ignore_poison(self.shared.lock());
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        let cid = pcpu_cid.cid_word().cid()?;
        match pcpu_cid.state() {
            State::Empty => None,
            State::Cached | State::Stale => Some((cid, false)),
            State::InUse(_) => Some((cid, true)),
        }
    }

    pub(super) fn facts(&self, shared: &Shared) -> Facts {
        Facts {
            users: shared.counts.users,
            nr_cpus_allowed: shared.allowed.len(),
            max_nr_cid: self.seen.max_nr_cid.load(Relaxed),
            in_use: self.used.len(),
            cpus: self.pcpu_cids.cpus(),
        }
    }
}
