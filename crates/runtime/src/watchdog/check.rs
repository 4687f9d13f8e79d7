//! Check: when a worker becomes the watcher, and what the watcher finds.

use super::*;
use crate::shared::Shared;
use crate::sync::fence;
use warmcore_types::ignore_poison;

impl Watchdog {
    /// A worker falls asleep: says when it is to wake to look, if it is the one.
    pub(crate) fn begin(&self, shared: &Shared, me: CpuId, now: Nanos) -> Option<Nanos> {
        // One that was woken, and whose driver has not come back yet, counts as one that sleeps, and does not.
        if shared.count_idle() >= shared.remotes.len()
            && shared.remotes.iter().all(|remote| remote.inbox.is_parked())
        {
            self.end(me);
            return None;
        }
        match self.watcher.compare_exchange(NO_WORKER, me.0, Relaxed, Relaxed) {
            Ok(_) => Some(self.next_check(now)),
            // Who wakes before its time and finds nothing to do does not put the look off.
            Err(watcher) => (watcher == me.0).then(|| Nanos(self.at.load(Relaxed))),
        }
    }

    /// A worker goes to work: if it was the one, or nobody is, one of those that sleep is to be. It is not woken
    /// for it before its time.
    pub(crate) fn assign(&self, shared: &Shared, me: CpuId, now: Nanos) {
        // ORDERING: SeqCst; that this one is awake was written before, who watches is read after. Below it is the
        // other way round: one that wakes while it is appointed knows, or is known to be awake.
        fence(SeqCst);
        self.end(me);
        if self.watcher.load(Relaxed) != NO_WORKER || shared.count_idle() == 0 {
            return;
        }
        for other in shared.machine.others(me).filter(|cpu| shared.remote(*cpu).inbox.is_parked()) {
            if self.watcher.compare_exchange(NO_WORKER, other.0, Relaxed, Relaxed).is_err() {
                return;
            }
            shared.remote(other).driver.wake_at(self.next_check(now));
            fence(SeqCst);
            if shared.remote(other).inbox.is_parked() {
                return;
            }
            self.end(other);
        }
    }

    /// Looks at all others. Serves the drivers of those that are stuck.
    pub(crate) fn check(&self, shared: &Shared, me: CpuId, now: Nanos) {
        let mut seen = ignore_poison(self.seen.lock());
        for (i, remote) in shared.remotes.iter().enumerate() {
            if i == me.index() {
                continue;
            }
            let (polls, driven) = (remote.status.poll_seq.load(Relaxed), remote.driver.run_seq());
            let both = polls.wrapping_mul(1 << 32) ^ driven;
            let (before, since) = seen[i];
            if both != before || (polls % 2 == 0 && driven % 2 == 0) {
                seen[i] = (both, now);
                continue;
            }
            // Another watcher may have looked since this one read the clock.
            if now.0.saturating_sub(since.0) >= shared.long_poll.0.max(SHORT_INTERVAL.0 / 2) {
                self.last_long_poll.store(now.0, Relaxed);
                remote.is_stuck.store(true, Relaxed);
            }
        }
        drop(seen);
        // Who serves another's driver runs what was spawned there: somebody else is to watch meanwhile.
        self.end(me);
        for remote in shared.remotes.iter().filter(|remote| remote.is_stuck.load(Relaxed)) {
            remote.driver.poll_events();
        }
    }
}
