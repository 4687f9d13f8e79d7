//! Foreign: warns once if tasks of `tokio::spawn` keep one worker busy while another worker idles.
//!
//! `tokio::spawn`, `JoinSet` and `axum::serve` put a task on the driver of the worker that calls them, where the task
//! stays. A program that spawns all its tasks in one of these ways may use one worker only. The runtime does not see
//! the polls of such a task, so it observes the drivers. When a driver that has such tasks returns from a wait, and no
//! worker is the watcher, a parked worker is appointed as the watcher. Ten times a second the watcher checks which
//! drivers of the other workers run such tasks, until [`QUIET_CHECKS`] checks in a row find none. A check that finds a
//! worker's driver running them adds a point to that worker; a check that does not takes away two. When a worker has [`POINTS`] points
//! the runtime warns, and checks no more.
//!
//! # Cost
//! A load each time that a driver returns from a wait and each time that a worker parks. While there is no watcher, the
//! driver also loads the number of such tasks on it. Until the warning, one parked worker wakes ten times a second
//! while drivers run such tasks. Polls pay nothing.

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*};
use warmcore_types::{CpuId, Nanos, ignore_poison};

/// Time between two checks.
const CHECK_INTERVAL: Nanos = Nanos(100_000_000);

/// A watcher whose check is late by this much is taken to be busy, and another parked worker, if there is one, becomes
/// the watcher.
const OVERDUE: Nanos = Nanos(1_000_000_000);

/// Points at which the runtime warns. It takes a second of checks, if all of them find the driver running.
const POINTS: u8 = 10;

/// A driver that finds a watcher appointed verifies about once in this many increments of its `Driver::run_seq`, at
/// least two a wait, that the watcher is not late.
const VERIFY_EVERY: u64 = 1024;

/// Checks in a row that find no driver running after which the watcher ends. A driver that runs such tasks is sometimes
/// found outside of its run, for a long time if its thread is preempted there. If no task waits for an event, nothing appoints
/// a watcher again.
const QUIET_CHECKS: u8 = 10;

const NO_WORKER: u32 = u32::MAX;
/// The warning was given.
const REPORTED: u32 = u32::MAX - 1;
/// A watcher was wanted, and no other worker was parked: the next worker that parks becomes the watcher.
const WANTED: u32 = u32::MAX - 2;

/// The watcher, and the points of each worker.
pub(crate) struct Foreign {
    /// The watcher, or one of the values above. Written by workers that appoint a watcher, and by the watcher.
    watcher: AtomicU32,
    /// Time of the next check. Written as `watcher` is.
    at: AtomicU64,
    /// Written by the watcher.
    seen: Mutex<Seen>,
}

/// What the checks have found.
struct Seen {
    /// Points of each worker.
    points: Vec<u8>,
    /// Checks in a row that found no driver running.
    quiet: u8,
}

impl Foreign {
    pub(crate) fn new(workers: usize) -> Self {
        let seen = Mutex::new(Seen { points: vec![0; workers], quiet: 0 });
        Self { watcher: AtomicU32::new(NO_WORKER), at: AtomicU64::new(0), seen }
    }

    /// Time of the next check, if this worker is the watcher.
    fn check_at(&self, me: CpuId) -> Option<Nanos> {
        (self.watcher.load(Relaxed) == me.0).then(|| Nanos(self.at.load(Relaxed)))
    }
}

/// The points of a worker after one more check.
fn update_points(points: u8, runs: bool) -> u8 {
    if runs { (points + 1).min(POINTS) } else { points.saturating_sub(2) }
}

mod check;

#[cfg(all(test, warmcore_loom))]
mod loom;

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;
    use crate::mock::workers;
    use warmcore_sched::Inbox;

    /// The watcher's own driver returns from a wait ten times a second; it must not count its tasks each time.
    #[test]
    fn the_worker_that_looks_asks_nothing_of_its_own_driver() {
        let (mocks, shared) = workers(2, 2);
        let (looks, runs) = (CpuId(0), CpuId(1));
        mocks[1].foreign.store(4, Relaxed);
        assert!(shared.workers.remote(looks).inbox.try_park());
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
        assert!(shared.workers.remote(idle).inbox.try_park());
        // For the clock of these drivers the check is overdue by a second.
        shared.foreign.at.store(0, Relaxed);
        (1..=VERIFY_EVERY).for_each(|n| shared.foreign.begin(&shared, busy, n));
        assert_eq!([busy, idle].map(|cpu| shared.foreign.check_at(cpu).is_some()), [false, true]);
    }

    #[test]
    fn a_worker_on_its_way_into_a_wait_becomes_the_watcher_unless_its_driver_has_such_tasks() {
        for (foreign, is_watcher) in [(0, true), (1, false)] {
            let (mocks, shared) = workers(2, 2);
            let (busy, other) = (CpuId(0), CpuId(1));
            mocks[0].foreign.store(4, Relaxed);
            mocks[1].foreign.store(foreign, Relaxed);
            mocks[1].run_seq.store(1, Relaxed);
            assert!(shared.workers.remote(other).inbox.try_park());
            shared.foreign.begin(&shared, busy, 0);
            assert_eq!(shared.foreign.check_at(other).is_some(), is_watcher);
        }
    }

    /// A driver between two runs may be preempted there for several checks.
    #[test]
    fn the_watcher_ends_after_ten_checks_that_find_no_driver_running() {
        let (mocks, shared) = workers(2, 2);
        let (looks, foreign) = (CpuId(1), &shared.foreign);
        foreign.watcher.store(looks.0, Relaxed);
        mocks[0].foreign.store(4, Relaxed);
        let check =
            |n: u64| (0..n).for_each(|_| foreign.check(&shared, looks, Nanos(foreign.at.load(Relaxed))));
        check(u64::from(QUIET_CHECKS) - 1);
        mocks[0].run_seq.store(1, Relaxed);
        check(1);
        mocks[0].run_seq.store(2, Relaxed);
        check(u64::from(QUIET_CHECKS) - 1);
        assert!(foreign.check_at(looks).is_some());
        check(1);
        assert!(foreign.check_at(looks).is_none());
    }

    #[test]
    fn the_worker_that_wants_a_watcher_does_not_become_it() {
        let (mocks, shared) = workers(2, 2);
        mocks[0].foreign.store(4, Relaxed);
        shared.foreign.begin(&shared, CpuId(0), 0);
        let due = [0, 1].map(|worker| shared.foreign.due(&shared, CpuId(worker), Nanos(0)).is_some());
        assert_eq!(due, [false, true]);
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
