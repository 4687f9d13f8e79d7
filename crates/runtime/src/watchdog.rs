//! Watchdog: one parked worker that checks whether another worker is in a long poll.
//!
//! While a worker runs, one of the parked workers is the watcher, and parks until the next check. A check compares the
//! poll that each worker is in with the one of the check before. A worker that has been in one poll for as long as the
//! runtime's limit is *stuck*: other workers steal the tasks that wait there, and the watcher serves its driver. The
//! mark is cleared when the poll ends. If no poll was long in the last second, checks are rare.
//!
//! The first worker that parks while another one runs becomes the watcher. A worker that ends its park while there is no
//! watcher appoints a parked one. So a long poll is found at the second check, and not before the runtime's limit: within
//! 1.25 ms if polls were long lately, else within 20 ms.

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*};
use warmcore_line::Line;
use warmcore_types::{CpuId, Nanos};

mod check;

/// Time between two checks if a poll was long lately.
const SHORT_INTERVAL: Nanos = Nanos(250_000);

/// Time between two checks otherwise.
const LONG_INTERVAL: Nanos = Nanos(10_000_000);

/// A poll was long lately if one was found in this time.
const RECENT: Nanos = Nanos(1_000_000_000);

const NO_WORKER: u32 = u32::MAX;

/// The watcher and what it has seen: see the module's documentation.
#[derive(Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub(crate) struct Watchdog {
    /// The watcher's number, or [`NO_WORKER`]. Written by workers that park or wake.
    watcher: AtomicU32,
    /// Time of the next check. Written as `watcher` is.
    at: AtomicU64,
    /// When a long poll was last found. Written by the watcher.
    last_long_poll: AtomicU64,
    /// The poll that each worker was in at the last check, and since when. Written by the watcher.
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

    /// Ends the watch of worker `me`, if it is the watcher, because it has other things to do.
    pub(crate) fn end(&self, me: CpuId) {
        if self.watcher.load(Relaxed) == me.0 {
            let _ = self.watcher.compare_exchange(me.0, NO_WORKER, Relaxed, Relaxed);
        }
    }

    /// Whether worker `me` is the watcher, and the check is due.
    pub(crate) fn is_due(&self, me: CpuId, now: Nanos) -> bool {
        self.watcher.load(Relaxed) == me.0 && now.0 >= self.at.load(Relaxed)
    }
}
