//! Check: when a worker becomes the watcher, and what the watcher finds.

use super::*;
use crate::shared::Shared;
use crate::sync::fence;
use warmcore_sched::{Inbox, View};
use warmcore_types::ignore_poison;

impl Watchdog {
    /// Called by worker `me`, which is about to park. Returns when it must wake to check, if it is the watcher or
    /// becomes the watcher because there is none. If all workers are parked, none needs to be watched, and this returns
    /// `None`.
    pub(crate) fn begin(&self, shared: &Shared, me: CpuId, now: Nanos) -> Option<Nanos> {
        // `count_idle` includes workers that were unparked and have not left their drivers yet, so the inboxes are read
        // too.
        let workers = &shared.workers;
        if workers.count_idle() >= shared.remotes.len()
            && workers.remotes().all(|remote| remote.inbox.is_parked())
        {
            self.end(me);
            return None;
        }
        match self.watcher.compare_exchange(NO_WORKER, me.0, Relaxed, Relaxed) {
            Ok(_) => Some(self.next_check(now)),
            // A watcher that wakes before its check is due, and parks again, does not postpone the check.
            Err(watcher) => (watcher == me.0).then(|| Nanos(self.at.load(Relaxed))),
        }
    }

    /// Called when worker `me` is no longer idle: if it was the watcher, or there is none, appoints a parked worker.
    /// That worker is woken now only if it sleeps beside a driver that workers share, and for longer than that.
    pub(crate) fn assign(&self, shared: &Shared, me: CpuId, now: Nanos) {
        // ORDERING: SeqCst; the fence is between the write that marks `me` as awake and the read of `watcher`. The
        // fence below is between the write of `watcher` and the read of whether that worker is parked. So a worker that
        // wakes while it is appointed sees the appointment, or the thread that appoints it sees that it is awake.
        fence(SeqCst);
        self.end(me);
        if self.watcher.load(Relaxed) != NO_WORKER || shared.workers.count_idle() == 0 {
            return;
        }
        for other in shared.workers.machine().others(me).filter(|cpu| shared.workers.is_idle(*cpu)) {
            if self.watcher.compare_exchange(NO_WORKER, other.0, Relaxed, Relaxed).is_err() {
                return;
            }
            shared.remote(other).driver.wake_at(self.next_check(now));
            fence(SeqCst);
            if shared.workers.is_idle(other) {
                return;
            }
            self.end(other);
        }
    }

    /// Marks as stuck each other worker that is in the same poll, or the same run inside its driver, as at an earlier
    /// check, if that lasts for about the threshold of long polls. Then serves the drivers of all stuck workers.
    pub(crate) fn check(&self, shared: &Shared, me: CpuId, now: Nanos) {
        let mut seen = ignore_poison(self.seen.lock());
        let all = || shared.remotes.iter().zip(shared.workers.remotes());
        for (i, (remote, scheduled)) in all().enumerate() {
            if i == me.index() {
                continue;
            }
            let (polls, driven) = (scheduled.status.poll_seq.load(Relaxed), remote.driver.run_seq());
            // An even number may change with what other workers do in a driver that they share.
            let driven = if driven % 2 == 1 { driven } else { 0 };
            let both = polls.wrapping_mul(1 << 32) ^ driven;
            let (before, since) = seen[i];
            if both != before || (polls % 2 == 0 && driven % 2 == 0) {
                seen[i] = (both, now);
                continue;
            }
            // `since` may be later than `now`, if another watcher has checked after this one read the clock.
            if now.0.saturating_sub(since.0) >= shared.long_poll.0.max(SHORT_INTERVAL.0 / 2) {
                self.last_long_poll.store(now.0, Relaxed);
                scheduled.is_stuck.store(true, Relaxed);
            }
        }
        drop(seen);
        // Serving another worker's driver runs the tasks that were spawned there, so this worker is no watcher
        // meanwhile.
        self.end(me);
        for (remote, _) in all().filter(|(_, scheduled)| scheduled.is_stuck.load(Relaxed)) {
            remote.driver.poll_events();
        }
    }
}
