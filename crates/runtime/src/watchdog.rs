//! Watchdog: one worker that has nothing to do sees whether the others get on.
//!
//! Model.   While somebody runs, one of the workers that sleep sleeps with an alarm. When it rings it compares
//!          which poll each worker is in with what it saw last time: the same one is a long poll. That worker is
//!          *stuck*: what waits there may be taken, and the watcher serves its driver, until it comes back.
//!          Where no poll was long in the last second the alarm rings seldom.
//! Number.  A worker is stuck at the second look that finds it so, and not before the runtime's limit: 1.25 ms
//!          where polls are long, 20 ms where none was.
//!          It is the first that falls asleep while another runs; who goes to work while all others sleep sets
//!          the alarm of one of them.
//! Writers. `watcher`: workers that fall asleep or wake. `seen`: the watcher.

use crate::shared::Shared;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*, fence};
use warmcore_line::Line;
use warmcore_types::{CpuId, Nanos, ignore_poison};

/// Between two looks where polls were long lately.
const SHORT_INTERVAL: Nanos = Nanos(250_000);

/// Between two looks where none was.
const LONG_INTERVAL: Nanos = Nanos(10_000_000);

/// Lately.
const RECENT: Nanos = Nanos(1_000_000_000);

const NO_WORKER: u32 = u32::MAX;

/// See the head of this file.
#[derive(Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub(crate) struct Watchdog {
    watcher: AtomicU32,
    /// When it is to look.
    at: AtomicU64,
    /// When a poll was last long.
    last_long_poll: AtomicU64,
    seen: Mutex<Vec<(u64, Nanos)>>,
}

impl Watchdog {
    pub(crate) fn new(workers: usize) -> Self {
        let (watcher, at, last_long_poll) = (AtomicU32::new(NO_WORKER), AtomicU64::new(0), AtomicU64::new(0));
        Self { watcher, at, last_long_poll, seen: Mutex::new(vec![(0, Nanos(0)); workers]) }
    }

    fn next_check(&self, now: Nanos) -> Nanos {
        let last_long_poll = self.last_long_poll.load(Relaxed);
        let is_short = last_long_poll > 0 && now.0 < last_long_poll + RECENT.0;
        let at = Nanos(now.0 + if is_short { SHORT_INTERVAL.0 } else { LONG_INTERVAL.0 });
        self.at.store(at.0, Relaxed);
        at
    }

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

    /// It has other things to do.
    pub(crate) fn end(&self, me: CpuId) {
        if self.watcher.load(Relaxed) == me.0 {
            let _ = self.watcher.compare_exchange(me.0, NO_WORKER, Relaxed, Relaxed);
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

    /// Whether this worker is the one, and it is time.
    pub(crate) fn is_due(&self, me: CpuId, now: Nanos) -> bool {
        self.watcher.load(Relaxed) == me.0 && now.0 >= self.at.load(Relaxed)
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
