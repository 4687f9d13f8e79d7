//! Counts of events of a tenant's ids: for policies, reports and threads that read slots.
//!
//! Counts are kept under the lock; only retaken ids are counted without it. The ends of the ids that were used so far
//! can be read without the lock: every sum over slots reads them (`Ids::allocated`).

use super::{Ids, Shared};
use crate::pcpu_cid::{PcpuCids, State};
use crate::policy::Facts;
use crate::sync::Ordering::*;
use std::ops::Range;
use warmcore_types::{Cid, CpuId, ignore_poison};

/// Counts of events so far, and the present state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Users now.
    pub users: u32,
    /// CPUs that any user was ever allowed on or entered on, or that `Ids::allow` added.
    pub nr_cpus_allowed: u32,
    /// Ids that CPUs have now, whether a user holds them or not.
    pub in_use: u32,
    /// Overflow ids held now.
    pub overflow_in_use: u32,
    /// One more than the highest id that was allocated as a new one (`Pick::New`). After the bound fell, the next pick
    /// or retaken id lowers it to the bound.
    pub max_nr_cid: u32,
    /// One more than the highest id that was ever in use, without overflow ids.
    pub allocated: u32,
    /// Entries on a CPU without an id that got the CPU's recent id again.
    pub recent_hits: u64,
    /// Entries that got a new id, because fewer ids were allocated as new ones than users can run at once.
    pub expansions: u64,
    /// Entries that got the lowest free id.
    pub lowest: u64,
    /// Overflow ids given out: by `enter`, where another user that did not run there then still held the CPU's id, and
    /// by `enter_overflow`.
    pub overflows: u64,
    /// Ids that went with a user to another CPU.
    pub moves: u64,
    /// Ids that were freed because their user moved to another CPU and they did not follow it.
    pub freed_by_moves: u64,
    /// Compactions.
    pub compactions: u64,
    /// Ids that compactions took back, without those that holders gave back because of a recall.
    pub compacted: u64,
}

impl<S: PcpuCids> Ids<S> {
    /// Returns the counts of events so far, and the present state.
    pub fn stats(&self) -> Stats {
        let shared = ignore_poison(self.shared.lock());
        Stats {
            recent_hits: shared.counts.recent_hits + self.lockless.retaken.load(Relaxed),
            nr_cpus_allowed: shared.allowed.len(),
            max_nr_cid: self.lockless.max_nr_cid.load(Relaxed),
            in_use: self.used.len(),
            overflow_in_use: shared.overflow.len(),
            ..shared.counts
        }
    }

    /// How many ids CPUs have now.
    ///
    /// If a thread makes a SeqCst store and this then returns 0, every thread that gets an id afterwards sees that
    /// store with a SeqCst load after its entry.
    pub fn in_use(&self) -> u32 {
        self.used.len()
    }

    /// The ids that were ever allocated: those of CPUs, then the overflow ids. Only their slots may have been written.
    pub fn allocated(&self) -> [Range<u32>; 2] {
        let (cpus, ends) = (self.pcpu_cids.cpus(), &self.lockless);
        [0..ends.cids_end.load(Relaxed), cpus..cpus + ends.overflow_end.load(Relaxed)]
    }

    /// The id that a CPU has now and whether a user holds it; `None` if the CPU has no id. If a user is just taking
    /// back its last id there, this may return that id as held before the user has it. For displays and tests.
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
            max_nr_cid: self.lockless.max_nr_cid.load(Relaxed),
            in_use: self.used.len(),
            cpus: self.pcpu_cids.cpus(),
        }
    }
}
