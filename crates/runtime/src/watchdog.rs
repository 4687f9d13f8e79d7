//! Watchdog: one parked worker that checks whether another worker is in a long poll, and whether tasks of `tokio::spawn` keep one
//! busy.
//!
//! While a worker runs, one of the parked workers is the watcher, and parks until the next check. A check compares the
//! poll that each worker is in with the one of the check before. A worker that has been in one poll for as long as the
//! runtime's limit is *stuck*: other workers steal the tasks that wait there, and the watcher serves its driver. The
//! mark is cleared when the poll ends. If no poll was long in the last second, checks are rare.
//!
//! The first worker that parks while another one runs becomes the watcher. A worker that ends its park while there is no
//! watcher appoints a parked one. So a long poll is found at the second check, and not before the runtime's limit: within
//! 1.2 ms if polls were long lately, else within 20 ms. When all workers are parked, the watch ends at the first check since which
//! none has run: not at once, as to appoint a worker that sleeps beside a shared driver wakes it.
//!
//! **Tasks of `tokio::spawn`**, `JoinSet` and `axum::serve` stay on the driver of the worker that spawned them, and run while that
//! worker is parked. A program that spawns all its tasks in one of these ways may use one worker only. So a worker that has such
//! tasks appoints a watcher when its driver returns from a wait, and when it parks after a poll, and checks go on until
//! [`QUIET_CHECKS`] in a row find no driver that runs them. A check that finds a worker's driver running them adds a point to that
//! worker; one that does not takes away two. When a worker has [`POINTS`] the runtime warns, and looks for that no more.
//!
//! # Cost
//! A load each time that a driver returns from a wait. While there is no watcher, and each time that a worker parks after a poll,
//! the number of such tasks on its driver is loaded too. Polls pay nothing.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering::*};
use warmcore_line::Line;
use warmcore_sched::{MIN_STEAL_DELAY, RECENT};
use warmcore_types::{CpuId, Nanos};

mod check;

/// Time between two checks if a poll was long lately: as long as other tasks wait until the last parked worker is kicked for them.
const SHORT_INTERVAL: Nanos = MIN_STEAL_DELAY;

/// Time between two checks otherwise.
const LONG_INTERVAL: Nanos = Nanos(10_000_000);

/// Points at which the runtime warns. It takes a second of checks, if all of them find the driver running. More often than once in
/// [`LONG_INTERVAL`] no points are given.
const POINTS: u8 = 100;

/// A driver that runs tasks of `tokio::spawn` is sometimes found outside of its run, for a long time if its thread is preempted
/// there. If no task waits for an event, nothing appoints a watcher again.
const QUIET_CHECKS: u32 = 10;

const NO_WORKER: u32 = u32::MAX;

/// The watcher and what it has seen: see the module's documentation.
#[derive(Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub(crate) struct Watchdog {
    /// The watcher's number, or [`NO_WORKER`]. Written by workers that park or wake.
    watcher: AtomicU32,
    /// So many checks follow although all workers are parked, or more, if these find that a worker has run since the check before, or
    /// that a driver runs tasks of `tokio::spawn`. Written by the watcher, and by workers that appoint one.
    more_checks: AtomicU32,
    /// Time of the next check. Written as `watcher` is.
    at: AtomicU64,
    /// When a long poll was last found. Written by the watcher.
    last_long_poll: AtomicU64,
    has_warned: AtomicBool,
    /// Written by the watcher.
    seen: Mutex<Seen>,
}

/// What the checks have found.
struct Seen {
    /// The poll that each worker was in at the last check, and since when.
    polls: Vec<(u64, Nanos)>,
    /// The points of each worker, and when they were given.
    points: Vec<u8>,
    pointed_at: Nanos,
}

impl Watchdog {
    pub(crate) fn new(workers: usize) -> Self {
        let seen =
            Seen { polls: vec![(0, Nanos(0)); workers], points: vec![0; workers], pointed_at: Nanos(0) };
        Self {
            watcher: AtomicU32::new(NO_WORKER),
            more_checks: AtomicU32::new(0),
            at: AtomicU64::new(0),
            last_long_poll: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            seen: Mutex::new(seen),
        }
    }

    fn next_check(&self, now: Nanos) -> Nanos {
        let last_long_poll = self.last_long_poll.load(Relaxed);
        let is_short = last_long_poll > 0 && now.0 < last_long_poll + RECENT.0;
        let at = Nanos(now.0 + if is_short { SHORT_INTERVAL.0 } else { LONG_INTERVAL.0 });
        self.at.store(at.0, Relaxed);
        at
    }

    /// Ends the watch of worker `me`, because it has other things to do. Returns whether it was the watcher.
    pub(crate) fn end(&self, me: CpuId) -> bool {
        self.watcher.load(Relaxed) == me.0
            && self.watcher.compare_exchange(me.0, NO_WORKER, Relaxed, Relaxed).is_ok()
    }

    /// Whether worker `me` is the watcher, and the check is due.
    pub(crate) fn is_due(&self, me: CpuId, now: Nanos) -> bool {
        self.watcher.load(Relaxed) == me.0 && now.0 >= self.at.load(Relaxed)
    }
}

/// The points of a worker after one more check.
fn update_points(points: u8, runs: bool) -> u8 {
    if runs { (points + 1).min(POINTS) } else { points.saturating_sub(2) }
}

#[cfg(all(test, warmcore_loom))]
mod loom;

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests;
