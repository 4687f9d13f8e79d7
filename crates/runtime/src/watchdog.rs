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

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*};
use warmcore_line::Line;
use warmcore_types::{CpuId, Nanos};

mod check;

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

    /// It has other things to do.
    pub(crate) fn end(&self, me: CpuId) {
        if self.watcher.load(Relaxed) == me.0 {
            let _ = self.watcher.compare_exchange(me.0, NO_WORKER, Relaxed, Relaxed);
        }
    }

    /// Whether this worker is the one, and it is time.
    pub(crate) fn is_due(&self, me: CpuId, now: Nanos) -> bool {
        self.watcher.load(Relaxed) == me.0 && now.0 >= self.at.load(Relaxed)
    }
}
