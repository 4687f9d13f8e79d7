//! Slice: how run time is charged to tenants.
//!
//! While a runtime knows several tenants, a worker's polls form slices: a slice is the time in which it polls the tasks of one tenant.
//! It is charged when it ends, with one reading of the clock; no poll is left out and none is estimated. It ends
//!
//! - when a task of another tenant is polled,
//! - before the next pick, if the first task of another tenant came to the run queue: it may be that tenant's turn,
//! - at maintenance, and
//! - when no task is left, or another thread runs the worker.
//!
//! So a slice takes at most the time between two maintenances: 400 µs and a poll, or as many polls as that was, if they have become longer
//! since. What other threads had of the CPU meanwhile is taken off slices of 200 µs and more; and what they had in maintenance before, which is
//! a hundredth of the time at most.

use super::*;
use crate::policy::MIN_STEAL_DELAY;

impl<H: Host> Core<H> {
    /// Called before a poll: begins a slice, unless one of this tenant is under way.
    #[inline]
    pub(super) fn serve_tenant(&self, host: &H, share: Share) {
        if self.slice.get().is_none_or(|slice| slice.share.tenant != share.tenant) {
            self.begin_slice(host, share);
        }
    }

    #[inline(never)]
    fn begin_slice(&self, host: &H, share: Share) {
        self.read_clock(host);
        let ended = self.end_slice(host);
        let mut queue = self.remote.lock_queue();
        if let Some((share, ran)) = ended {
            queue.charge(share, ran);
        }
        // The task may have come from elsewhere.
        queue.set_served(share);
        drop(queue);
        self.slice.set(Some(self.slice_of(share)));
    }

    /// A slice that begins when the clock was read last.
    pub(super) fn slice_of(&self, share: Share) -> Slice {
        Slice { share, since: self.now(), lost: self.lost.get() }
    }

    /// Ends the slice when the clock was read last, which is just now. Returns whose it was, and how long it ran.
    fn end_slice(&self, host: &H) -> Option<(Share, u64)> {
        let slice = self.slice.take()?;
        let ran = self.now().0.saturating_sub(slice.since.0);
        if ran < MIN_STEAL_DELAY.0 {
            return Some((slice.share, ran));
        }
        // The two system calls that say what other threads had take 0.4 µs.
        self.take_lost(host);
        Some((slice.share, ran.saturating_sub(self.lost.get() - slice.lost).max(1)))
    }

    /// Charges the slice until when the clock was read last: call [`read_clock`](Self::read_clock) before. The slice goes on, unless no
    /// task is left. The host calls this before another thread runs the worker; if none does, the slice goes on.
    #[inline(never)]
    pub fn charge_slice(&self, host: &H, goes_on: bool) {
        let Some((share, ran)) = self.end_slice(host) else { return };
        let mut queue = self.remote.lock_queue();
        queue.charge(share, ran);
        match goes_on {
            true => self.slice.set(Some(self.slice_of(share))),
            false => queue.rest(),
        }
    }
}
