//! Foreign: says once that tasks of `tokio::spawn` keep one worker busy while another worker idles.
//!
//! `tokio::spawn`, `JoinSet` and `axum::serve` put a task on the driver of the worker that calls them, and it stays
//! there: a program that spawns in no other way uses one worker. No poll of such a task is seen, so drivers are looked
//! at. A driver that begins to run such tasks appoints a worker that sleeps, which looks ten times a second which
//! drivers run, until none does. A worker whose driver runs at more than two looks of three gathers points; with
//! [`POINTS`] of them the runtime says so, and never looks again.
//!
//! # Cost
//! Each time that a driver comes back from a wait, and that a worker falls asleep, a load; while no worker looks, another
//! one, of how many such tasks the driver has. Where they are, a worker that sleeps wakes ten times a second for as long
//! as drivers run them. In polls nothing.

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*};
use warmcore_types::{CpuId, Nanos, ignore_poison};

/// Between two looks.
const CHECK_INTERVAL: Nanos = Nanos(100_000_000);

/// A worker that is appointed and has looked at nothing for so long does other things.
const OVERDUE: Nanos = Nanos(1_000_000_000);

/// A second of looks at a driver that always runs.
const POINTS: u8 = 10;

/// Once in so many waits a driver that finds another worker appointed checks whether that one still looks.
const VERIFY_EVERY: u64 = 1024;

const NO_WORKER: u32 = u32::MAX;
/// It was said.
const REPORTED: u32 = u32::MAX - 1;
/// No other worker slept when one was wanted: the next that falls asleep looks.
const WANTED: u32 = u32::MAX - 2;

/// See the head of this file.
pub(crate) struct Foreign {
    /// The worker that looks. Written by the workers that appoint, and by the one that looks.
    watcher: AtomicU32,
    /// When it looks. Written as `watcher`.
    at: AtomicU64,
    /// By worker. Written by the one that looks.
    points: Mutex<Vec<u8>>,
}

impl Foreign {
    pub(crate) fn new(workers: usize) -> Self {
        let points = Mutex::new(vec![0; workers]);
        Self { watcher: AtomicU32::new(NO_WORKER), at: AtomicU64::new(0), points }
    }

    /// A worker falls asleep: when it is to wake to look, if it is the one, or one is wanted.
    pub(crate) fn due(&self, me: CpuId, now: Nanos) -> Option<Nanos> {
        if self.watcher.load(Relaxed) == WANTED
            && self.watcher.compare_exchange(WANTED, me.0, Relaxed, Relaxed).is_ok()
        {
            self.at.store(now.0 + CHECK_INTERVAL.0, Relaxed);
        }
        self.check_at(me)
    }

    /// When this worker is to wake to look, if it is the one.
    fn check_at(&self, me: CpuId) -> Option<Nanos> {
        (self.watcher.load(Relaxed) == me.0).then(|| Nanos(self.at.load(Relaxed)))
    }
}

/// The points of a worker after one more look.
fn update_points(points: u8, runs: bool) -> u8 {
    if runs { (points + 1).min(POINTS) } else { points.saturating_sub(2) }
}

mod check;

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;
    use crate::driver::mock::workers;

    /// It sleeps, and wakes ten times a second: its driver's waits end, and each end would ask for what is counted.
    #[test]
    fn the_worker_that_looks_asks_nothing_of_its_own_driver() {
        let (mocks, shared) = workers(2, 2);
        let (looks, runs) = (CpuId(0), CpuId(1));
        mocks[1].foreign.store(4, Relaxed);
        assert!(shared.remote(looks).inbox.try_park());
        shared.foreign.begin(&shared, runs, 7);
        assert_eq!(shared.foreign.check_at(looks), Some(Nanos(1_000_000_000 + CHECK_INTERVAL.0)));
        (0..10_000).for_each(|n| shared.foreign.begin(&shared, looks, n));
        assert_eq!([mocks[0].asked.load(Relaxed), mocks[1].asked.load(Relaxed)], [0, 1]);
        assert!(shared.foreign.check_at(looks).is_some());
    }

    #[test]
    fn the_worker_that_looks_and_never_sleeps_again_is_replaced_by_its_own_driver() {
        let (mocks, shared) = workers(2, 2);
        let (busy, idle) = (CpuId(0), CpuId(1));
        mocks[0].foreign.store(4, Relaxed);
        shared.foreign.watcher.store(busy.0, Relaxed);
        assert!(shared.remote(idle).inbox.try_park());
        // By the clock of these hosts it was to look a second ago.
        shared.foreign.at.store(0, Relaxed);
        (1..=VERIFY_EVERY).for_each(|n| shared.foreign.begin(&shared, busy, n));
        assert_eq!([busy, idle].map(|cpu| shared.foreign.check_at(cpu).is_some()), [false, true]);
    }

    #[test]
    fn most_of_the_time_is_two_looks_of_three() {
        let most = |looks: &[bool]| {
            let mut points = 0;
            let after = looks.iter().cycle().take(3000).map(|runs| {
                points = update_points(points, *runs);
                points
            });
            after.max()
        };
        assert_eq!((0..POINTS).fold(0, |points, _| update_points(points, true)), POINTS);
        assert_eq!(most(&[true, true, true, false]), Some(POINTS));
        for seldom in [&[true, false][..], &[true, true, false], &[false]] {
            assert!(most(seldom) < Some(POINTS), "{seldom:?}");
        }
    }
}
