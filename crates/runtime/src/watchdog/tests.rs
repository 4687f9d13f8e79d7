use super::*;
use crate::mock::{Mock, workers};
use crate::shared::Shared;
use std::sync::Arc;
use warmcore_sched::Core;

const BUSY: CpuId = CpuId(0);
const OTHER: CpuId = CpuId(1);
/// When the drivers' clocks stand still.
const NOW: Nanos = Nanos(1_000_000_000);

/// Two workers; the first one's driver has tasks of `tokio::spawn`, and both are parked.
fn two() -> (Vec<Arc<Mock>>, Shared) {
    let (mocks, shared) = workers(2, 2);
    mocks[0].foreign.store(4, Relaxed);
    [BUSY, OTHER].iter().for_each(|worker| assert!(core(&shared, *worker).mark_parked(&shared, NOW)));
    (mocks, shared)
}

fn core(shared: &Shared, worker: CpuId) -> Core<Shared> {
    Core::new(shared, worker, shared.long_poll)
}

fn watcher(shared: &Shared) -> Option<CpuId> {
    let watcher = shared.watchdog.watcher.load(Relaxed);
    (watcher != NO_WORKER).then_some(CpuId(watcher))
}

#[test]
fn a_driver_with_tasks_appoints_another_worker_and_one_without_none() {
    let (mocks, shared) = two();
    shared.watchdog.driver_runs(&shared, OTHER);
    assert_eq!(watcher(&shared), None);
    shared.watchdog.driver_runs(&shared, BUSY);
    assert_eq!(watcher(&shared), Some(OTHER));
    (0..1000).for_each(|_| shared.watchdog.driver_runs(&shared, BUSY));
    assert_eq!(mocks[0].asked.load(Relaxed), 1, "while one watches, the tasks are not counted");
}

/// The other worker may have been appointed while the first one polled, and its check may come before the tasks run.
#[test]
fn a_worker_that_parks_with_tasks_keeps_the_watch_going() {
    for tasks in [0, 4] {
        let (mocks, shared) = two();
        mocks[0].foreign.store(tasks, Relaxed);
        shared.watchdog.watcher.store(OTHER.0, Relaxed);
        shared.watchdog.watch_driver(&shared, BUSY);
        assert_eq!(shared.watchdog.begin(&shared, OTHER, NOW).is_some(), tasks > 0);
        assert_eq!(watcher(&shared), (tasks > 0).then_some(OTHER));
    }
}

#[test]
fn a_watcher_whose_own_driver_has_tasks_gives_the_watch_away_unless_its_check_is_due() {
    for (at, is_given) in [(NOW.0 + 1, true), (NOW.0, false)] {
        let (_mocks, shared) = two();
        shared.watchdog.watcher.store(BUSY.0, Relaxed);
        shared.watchdog.at.store(at, Relaxed);
        shared.watchdog.driver_runs(&shared, BUSY);
        assert_eq!(watcher(&shared), Some(if is_given { OTHER } else { BUSY }));
    }
}

#[test]
fn a_worker_whose_driver_runs_its_tasks_does_not_watch() {
    for (tasks, run_seq, watches) in [(0, 1, true), (1, 2, true), (1, 1, false)] {
        let (mocks, shared) = two();
        mocks[1].foreign.store(tasks, Relaxed);
        mocks[1].run_seq.store(run_seq, Relaxed);
        shared.watchdog.driver_runs(&shared, BUSY);
        assert_eq!(watcher(&shared), watches.then_some(OTHER), "{tasks} tasks, {run_seq}");
    }
}

/// While no other worker is parked, the one whose driver has tasks watches itself; the next one that parks takes over.
#[test]
fn a_worker_that_parks_takes_the_watch_of_one_whose_driver_has_tasks() {
    let (mocks, shared) = workers(2, 2);
    mocks[0].foreign.store(4, Relaxed);
    assert!(core(&shared, BUSY).mark_parked(&shared, NOW));
    shared.watchdog.driver_runs(&shared, BUSY);
    assert!(shared.watchdog.begin(&shared, BUSY, NOW).is_some());
    assert!(core(&shared, OTHER).mark_parked(&shared, NOW));
    assert_eq!(shared.watchdog.begin(&shared, OTHER, NOW), Some(Nanos(NOW.0 + LONG_INTERVAL.0)));
    assert_eq!(shared.watchdog.begin(&shared, BUSY, NOW), None);
    // Both have tasks: the watch stays where it is.
    mocks[1].foreign.store(1, Relaxed);
    assert_eq!(shared.watchdog.begin(&shared, BUSY, NOW), None);
    assert_eq!(watcher(&shared), Some(OTHER));
}

/// A driver between two runs may be preempted there for several checks.
#[test]
fn the_watch_ends_after_ten_checks_that_find_no_driver_running() {
    let (mocks, shared) = two();
    shared.watchdog.driver_runs(&shared, BUSY);
    let mut now = NOW.0;
    let mut checks = |n: u32| {
        let looks = (0..n).take_while(|_| {
            now += LONG_INTERVAL.0;
            shared.watchdog.check(&shared, OTHER, Nanos(now));
            shared.watchdog.begin(&shared, OTHER, Nanos(now)).is_some()
        });
        looks.count() as u32
    };
    assert_eq!(checks(QUIET_CHECKS - 1), QUIET_CHECKS - 1);
    mocks[0].run_seq.store(1, Relaxed);
    assert_eq!(checks(1), 1);
    mocks[0].run_seq.store(2, Relaxed);
    assert_eq!(checks(100), QUIET_CHECKS - 1);
    assert_eq!(watcher(&shared), None);
}

/// A worker that runs briefly, again and again, appoints no watcher each time.
#[test]
fn the_watch_goes_on_for_one_more_check_after_a_worker_has_run() {
    let (_mocks, shared) = two();
    shared.watchdog.watcher.store(OTHER.0, Relaxed);
    let goes_on = |after: u64| {
        let now = Nanos(NOW.0 + after * LONG_INTERVAL.0);
        assert!(!shared.watchdog.check(&shared, OTHER, now), "none is stuck");
        shared.watchdog.begin(&shared, OTHER, now).is_some()
    };
    shared.workers.remote(BUSY).status.poll_seq.store(2, Relaxed);
    assert_eq!([1, 2].map(goes_on), [true, false]);
    assert_eq!(watcher(&shared), None);
}

#[test]
fn most_of_the_time_is_two_checks_of_three() {
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
