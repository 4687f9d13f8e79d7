//! Takes ids back from CPUs where no user holds them.
//!
//! Compaction takes ids that were not used since the last one, and ids that are not below the bound (`Policy::bound`).
//! When a user moves, the id that it left moves with it, stays or is freed, as the policy decides. Both happen under
//! the tenant's lock, and each id is taken by a compare-and-swap that fails if a user entered. An id in use that is not
//! below the bound is *recalled* instead: the compaction sets a flag in the `cid_word`, and the holder's last leave, or
//! the next entry, finds the flag and gives the id back.
//!
//! With 64 ids on 384 CPUs a compaction looks at 64 `PcpuCid`s, each on a cache line of another CPU.
//!
//! # Source
//! Linux 6.4 `task_mm_cid_work` and `sched_mm_cid_migrate_to`, which 6.13 changed.

use super::{Ids, Shared, User};
use crate::pcpu_cid::{CidWord, PcpuCids, State};
use crate::policy::{Destination, LeftBehind};
use crate::sync::Ordering::Relaxed;
use warmcore_types::{CpuId, ignore_poison};

impl<S: PcpuCids> Ids<S> {
    /// Takes back ids that were not used since the last compaction (if the policy says so: `Policy::expires`), and ids
    /// that are not below the bound (`Policy::bound`). If CPUs then still have more ids than the bound, it takes
    /// further ids that no user holds. Returns how many CPUs have an id then. To be called every 100 ms.
    ///
    /// An id in use is not taken: the holder of one that is not below the bound gives it back at its last leave, or the
    /// next user that enters there does.
    ///
    /// **Touches** the lines of all `PcpuCid`s that have an id.
    pub fn compact(&self) -> u32 {
        self.compact_if(|_, unused_since_last| unused_since_last)
    }

    /// As [`compact`](Ids::compact), but the caller decides which ids are taken for their age. `is_old` gets each CPU
    /// that has an id no user holds, and whether that id was unused since the last compaction; it is not called if the
    /// policy takes no ids for their age. It runs under the lock, so it must not call methods of this `Ids`.
    pub fn compact_if(&self, is_old: impl Fn(CpuId, bool) -> bool) -> u32 {
        let shared = &mut *ignore_poison(self.shared.lock());
        let mut taken = 0;
        self.each_occupied(|cpu| {
            let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
            let state = pcpu_cid.state();
            if !self.policy.expires() || !matches!(state, State::Cached | State::Stale) {
                return;
            }
            let old = is_old(cpu, state == State::Stale);
            if old && (pcpu_cid.take_stale() || state == State::Cached && pcpu_cid.take()) {
                self.free(cpu, pcpu_cid.cid_word().recent());
                taken += 1;
            } else {
                pcpu_cid.mark_stale();
            }
        });
        let bound = self.policy.bound(&self.facts(shared));
        self.each_occupied(|cpu| {
            let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
            if pcpu_cid.cid_word().assigned_cid().0 >= bound {
                taken += u64::from(self.take_or_recall(cpu));
            } else if pcpu_cid.cid_word().is_recalled() && self.policy.keeps() {
                pcpu_cid.set_cid_word(pcpu_cid.cid_word().without_recall()); // the bound rose again
            }
        });
        // The holder of an id that is not below the bound gets one that is only if one of those is free: so idle ids
        // are taken while CPUs have more ids than the bound.
        self.each_occupied(|cpu| {
            let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
            if self.used.len() > bound && pcpu_cid.take() {
                self.free(cpu, pcpu_cid.cid_word().recent());
                taken += 1;
            }
        });
        shared.counts.compactions += 1;
        shared.counts.compacted += taken;
        self.used.len()
    }

    /// Calls `act` for every CPU that has an id. Called under the lock, so that no other thread frees one in between. A
    /// CPU that retakes an id during the call may be left out.
    fn each_occupied(&self, mut act: impl FnMut(CpuId)) {
        let mut from = 0;
        while let Some(number) = self.occupied.next(from) {
            act(CpuId(number));
            from = number + 1;
        }
    }

    /// Updates the bound below which ids may be retaken. Called after each change of the number of users or of the
    /// tenant's set.
    pub(super) fn update_retake_end(&self, shared: &Shared) {
        let retake_end = if self.policy.retakes() { self.facts(shared).bound() } else { 0 };
        self.lockless.retake_end.store(retake_end, Relaxed);
    }

    /// Decides what becomes of the id that a user left on its previous CPU, now that it runs on `to`.
    pub(super) fn release_previous(&self, shared: &mut Shared, user: &User, to: CpuId) {
        let previous = CpuId(user.cpu);
        let (from, dest) = (self.pcpu_cids.pcpu_cid(previous), self.pcpu_cids.pcpu_cid(to));
        // There is nothing to decide if the CPU has another id by now or none, or if its id is recalled or in use.
        if from.cid_word() != user.cid_word || !matches!(from.state(), State::Cached | State::Stale) {
            return;
        }
        let destination =
            Destination { has_id: dest.state() != State::Empty, has_recent: dest.cid_word().cid().is_some() };
        let left = self.policy.left_behind(&self.facts(shared), user.nr_cpus_allowed, destination);
        if left == LeftBehind::Stays || !from.take() {
            return;
        }
        // As in the kernel, a CPU forgets an id that is freed or follows its user. The destination may get an id at
        // this moment without the lock: then the user's id is freed and does not follow.
        let follows = left == LeftBehind::Follows && dest.claim(user.token);
        if !follows {
            self.free(previous, CidWord::default());
            shared.counts.freed_by_moves += 1;
            return;
        }
        from.set_cid_word(CidWord::default());
        self.occupied.remove(previous.0);
        dest.set_cid_word(user.cid_word);
        self.occupied.insert(to.0);
        dest.leave();
        shared.counts.moves += 1;
    }

    /// Frees the id of an empty `PcpuCid`, and stores `remembers` as the id that it had last.
    ///
    /// The id's bit is cleared last: a thread that sets it again may hold this same `PcpuCid`, and must see
    /// `remembers`.
    pub(super) fn free(&self, cpu: CpuId, remembers: CidWord) {
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        let cid = pcpu_cid.cid_word().assigned_cid();
        pcpu_cid.set_cid_word(remembers);
        let was = self.occupied.remove(cpu.0) & self.used.remove(cid.0);
        assert!(was, "{cid} of {cpu} was freed twice");
    }

    /// Takes a CPU's id back if no user holds it; otherwise recalls it. Returns whether it took the id.
    fn take_or_recall(&self, cpu: CpuId) -> bool {
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        if !pcpu_cid.take() {
            pcpu_cid.set_cid_word(pcpu_cid.cid_word().with_recall());
            // The holder may have left after the first attempt, before it could see the recall.
            if !pcpu_cid.take() {
                return false;
            }
        }
        self.free(cpu, pcpu_cid.cid_word().recent());
        true
    }
}
