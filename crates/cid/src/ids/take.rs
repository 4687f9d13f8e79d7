//! Take: how ids come back from pcpu_cids where nobody runs.
//!
//! Model.   Compaction takes what lay unused and what is above the bound; a task that moved takes its
//!          id along, or frees it. All of it under the lock, and every pcpu_cid by a CAS that fails if somebody entered. Who cannot be
//!          taken from is asked: a flag that its leave, or the next entry, finds.
//! Number.  64 ids on 384 CPUs: a compaction looks at 64 pcpu_cids, each a line of another CPU.
//! Source.  Linux 6.4 `task_mm_cid_work`, `sched_mm_cid_migrate_to`, which 6.13 changed.

use super::{Ids, Shared, User};
use crate::pcpu_cid::{CidWord, PcpuCids, State};
use crate::policy::{Destination, LeftBehind};
use crate::sync::Ordering::Relaxed;
use warmcore_types::{CpuId, ignore_poison};

impl<S: PcpuCids> Ids<S> {
    /// Takes back ids that nobody used since the last compaction, and those above the bound. To be
    /// called every 100 ms; says how many are in use then.
    ///
    /// Nothing in use is taken. Who runs on an id above the bound gives it back when it leaves.
    ///
    /// **Touches** the lines of all pcpu_cids that have an id.
    pub fn compact(&self) -> u32 {
        self.compact_if(|_, unused_since_last| unused_since_last)
    }

    /// As [`compact`](Ids::compact), for a host that knows better what is old: it is asked for
    /// every CPU that keeps an id, and told whether that was unused since the last compaction. It is asked
    /// under the lock, so it must not come back here.
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
                taken += u64::from(self.take_or_ask(cpu));
            } else if pcpu_cid.cid_word().is_asked() && self.policy.keeps() {
                pcpu_cid.set_cid_word(pcpu_cid.cid_word().kept()); // the bound rose again
            }
        });
        // Who runs above the bound finds an id below it only if those do not keep them all.
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

    /// Every pcpu_cid that has an id. Under the lock, so that none is freed meanwhile by somebody else.
    fn each_occupied(&self, mut act: impl FnMut(CpuId)) {
        let mut from = 0;
        while let Some(number) = self.occupied.next(from) {
            act(CpuId(number));
            from = number + 1;
        }
    }

    /// After a change of users or CPUs.
    pub(super) fn update_retake_end(&self, shared: &Shared) {
        let retake_end = if self.policy.retakes() { self.facts(shared).bound() } else { 0 };
        self.seen.retake_end.store(retake_end, Relaxed);
    }

    /// The task moved: what becomes of the id that it left on the CPU where it was.
    pub(super) fn release_previous(&self, shared: &mut Shared, user: &User, to: CpuId) {
        let previous = CpuId(user.cpu);
        let (from, dest) = (self.pcpu_cids.pcpu_cid(previous), self.pcpu_cids.pcpu_cid(to));
        // Another id by now, or one that is to be given back: not ours to decide.
        if from.cid_word() != user.cid_word || !matches!(from.state(), State::Cached | State::Stale) {
            return;
        }
        let destination =
            Destination { has_id: dest.state() != State::Empty, has_recent: dest.cid_word().cid().is_some() };
        let left = self.policy.left_behind(&self.facts(shared), user.nr_cpus_allowed, destination);
        if left == LeftBehind::Stays || !from.take() {
            return;
        }
        // As the kernel does: the CPU forgets an id that left it with its task. It may have its next
        // one in this moment, without the lock; then ours does not follow.
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

    /// An empty pcpu_cid's id is nobody's from now on; the pcpu_cid remembers what it is told to.
    ///
    /// The id last: whoever has it then may be on that pcpu_cid, and finds it in order.
    pub(super) fn free(&self, cpu: CpuId, remembers: CidWord) {
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        let cid = pcpu_cid.cid_word().assigned_cid();
        pcpu_cid.set_cid_word(remembers);
        let was = self.occupied.remove(cpu.0) & self.used.remove(cid.0);
        assert!(was, "{cid} of {cpu} was freed twice");
    }

    /// Takes a pcpu_cid's id if nobody runs on it, else asks whoever does to give it back on leaving.
    fn take_or_ask(&self, cpu: CpuId) -> bool {
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        if !pcpu_cid.take() {
            pcpu_cid.set_cid_word(pcpu_cid.cid_word().asked());
            // It may have left between the two, and not have seen that it was asked.
            if !pcpu_cid.take() {
                return false;
            }
        }
        self.free(cpu, pcpu_cid.cid_word().recent());
        true
    }
}
