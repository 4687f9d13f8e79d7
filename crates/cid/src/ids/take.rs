//! Take: how ids come back from seats where nobody runs.
//!
//! Model.   Compaction takes what lay unused and what is above the bound; a task that moved takes its
//!          id along, or frees it; a change of owner takes everything from the former. All of it
//!          under the lock, and every seat by a CAS that fails if somebody entered. Who cannot be
//!          taken from is asked: a flag that its leave, or the next entry, finds.
//! Number.  64 ids on 384 CPUs: a compaction looks at 64 seats, each a line of another CPU.
//! Source.  Linux 6.4 `task_mm_cid_work`, `sched_mm_cid_migrate_to`, which 6.13 changed; 6.19 for owners.

use super::{Ids, NOWHERE, Shared, User};
use crate::policy::{Destination, LeftBehind, Owner};
use crate::seat::{Rest, Seats, State};
use crate::sync::{Ordering::Relaxed, lock};
use warmcore_types::CpuId;

impl<S: Seats> Ids<S> {
    /// Moves the ids of a user that moved to another CPU, before it enters there. `enter` does so
    /// by itself; this is for hosts that know of the move earlier.
    pub fn migrate(&self, user: &User, to: CpuId) {
        let shared = &mut *lock(&self.shared);
        self.arrive(shared, to);
        let by_cpu = shared.owner == Owner::Cpu && user.task.is_none();
        if by_cpu && user.cpu != NOWHERE && user.cpu != to.0 && !self.holds(user) {
            self.look_behind(shared, user, to);
        }
    }

    /// Takes back ids that nobody used since the last compaction, and those above the bound. To be
    /// called every 100 ms; says how many are in use then.
    ///
    /// Nothing in use is taken. Who runs on an id above the bound gives it back when it leaves.
    ///
    /// **Touches** the lines of all seats that have an id.
    pub fn compact(&self) -> u32 {
        self.compact_if(|_, unused_since_last| unused_since_last)
    }

    /// As [`compact`](Ids::compact), for a host that knows better what is old: it is asked for
    /// every CPU that keeps an id, and told whether that was unused since the last compaction. It is asked
    /// under the lock, so it must not come back here.
    pub fn compact_if(&self, is_old: impl Fn(CpuId, bool) -> bool) -> u32 {
        let shared = &mut *lock(&self.shared);
        let mut taken = 0;
        self.each_seat(|number| {
            let seat = self.seats.seat(number);
            let state = seat.state();
            if !self.policy.expires() || !matches!(state, State::Kept | State::Old) {
                return;
            }
            let old = is_old(CpuId(number), state == State::Old);
            if old && (seat.take_old() || state == State::Kept && seat.take()) {
                self.free(number, seat.rest().recent());
                taken += 1;
            } else {
                seat.age();
            }
        });
        let bound = self.policy.bound(&self.facts(shared));
        self.each_seat(|number| {
            let seat = self.seats.seat(number);
            let is_owners = (number >= self.seats.cpus()) == (shared.owner == Owner::Task);
            if seat.rest().cid_held().0 >= bound || !is_owners {
                taken += u64::from(self.take_or_ask(number));
            } else if seat.rest().is_asked() && self.policy.keeps() {
                seat.set_rest(seat.rest().kept()); // the bound rose again
            }
        });
        // Who runs above the bound finds an id below it only if those do not keep them all.
        self.each_seat(|number| {
            let seat = self.seats.seat(number);
            if self.used.len() > bound && seat.take() {
                self.free(number, seat.rest().recent());
                taken += 1;
            }
        });
        shared.counts.compactions += 1;
        shared.counts.compacted += taken;
        self.used.len()
    }

    /// Every seat that has an id. Under the lock, so that none is freed meanwhile by somebody else.
    fn each_seat(&self, mut act: impl FnMut(u32)) {
        let mut from = 0;
        while let Some(number) = self.seated.next(from) {
            act(number);
            from = number + 1;
        }
    }

    /// After a change of users or CPUs.
    pub(super) fn settle_owner(&self, shared: &mut Shared) {
        let facts = self.facts(shared);
        let retake_end = if self.policy.retakes() { facts.bound() } else { 0 };
        self.seen.retake_end.store(retake_end, Relaxed);
        let owner = self.policy.owner(&facts, Some(shared.owner));
        if owner == std::mem::replace(&mut shared.owner, owner) {
            return;
        }
        self.each_seat(|number| {
            let of_task = number >= self.seats.cpus();
            if of_task != (owner == Owner::Task) {
                self.take_or_ask(number);
            }
        });
    }

    /// The task moved: what becomes of the id that it left on the CPU where it was.
    pub(super) fn look_behind(&self, shared: &mut Shared, user: &User, to: CpuId) {
        let (from, dest) = (self.seats.seat(user.seat), self.seats.seat(to.0));
        // Another id by now, or one that is to be given back: not ours to decide.
        if from.rest() != user.rest || !matches!(from.state(), State::Kept | State::Old) {
            return;
        }
        let destination =
            Destination { has_id: dest.state() != State::Empty, has_recent: dest.rest().cid().is_some() };
        let left = self.policy.left_behind(&self.facts(shared), user.nr_cpus_allowed, destination);
        if left == LeftBehind::Stays || !from.take() {
            return;
        }
        // As the kernel does: the CPU forgets an id that left it with its task. It may have its next
        // one in this moment, without the lock; then ours does not follow.
        let follows = left == LeftBehind::Follows && dest.claim(user.token);
        if !follows {
            self.free(user.seat, Rest::default());
            shared.counts.freed_by_moves += 1;
            return;
        }
        from.set_rest(Rest::default());
        self.seated.remove(user.seat);
        dest.set_rest(user.rest);
        self.seated.insert(to.0);
        dest.leave();
        shared.counts.moves += 1;
    }

    /// An empty seat's id is nobody's from now on; the seat remembers what it is told to.
    ///
    /// The id last: whoever has it then may be on that seat, and finds it in order.
    pub(super) fn free(&self, number: u32, remembers: Rest) {
        let seat = self.seats.seat(number);
        let cid = seat.rest().cid_held();
        seat.set_rest(remembers);
        let was = self.seated.remove(number) & self.used.remove(cid.0);
        assert!(was, "{cid} of seat {number} was freed twice");
    }

    /// Takes a seat's id if nobody runs on it, else asks whoever does to give it back on leaving.
    fn take_or_ask(&self, number: u32) -> bool {
        let seat = self.seats.seat(number);
        if !seat.take() {
            seat.set_rest(seat.rest().asked());
            // It may have left between the two, and not have seen that it was asked.
            if !seat.take() {
                return false;
            }
        }
        self.free(number, seat.rest().recent());
        true
    }
}
