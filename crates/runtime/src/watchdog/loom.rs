//! Loom models of how a watcher of drivers is found. `cargo xtask test --full` runs them.

use super::*;
use crate::mock::workers;
use ::loom::{model::Builder, thread};
use std::sync::Arc;
use warmcore_sched::Core;

/// Workers whose drivers have tasks look for a watcher and park, while another one parks, as `Core::search` and `Worker::park` do.
/// The other one becomes the watcher, or stays it if it `watches` already.
fn becomes_the_watcher(looking: u32, watches: bool, preemptions: Option<usize>) {
    let mut model = Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let parks = CpuId(looking);
        let now = Nanos(1_000_000_000);
        let (mocks, shared) = workers(looking as usize + 1, looking as usize + 1);
        (0..looking as usize)
            .for_each(|busy| mocks[busy].foreign.store(4, std::sync::atomic::Ordering::Relaxed));
        if watches {
            shared.watchdog.watcher.store(parks.0, Relaxed);
        }
        let shared = Arc::new(shared);
        let looking: Vec<_> = (0..looking)
            .map(|busy| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let busy = Core::new(&*shared, CpuId(busy), shared.long_poll);
                    assert!(busy.mark_parked(&shared, now));
                    shared.watchdog.watch_driver(&shared, busy.me());
                    shared.watchdog.begin(&shared, busy.me(), now);
                })
            })
            .collect();
        let core = Core::new(&*shared, parks, shared.long_poll);
        assert!(core.mark_parked(&shared, now));
        shared.watchdog.begin(&shared, parks, now);
        looking.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(shared.watchdog.watcher.load(Relaxed), parks.0, "it does not watch");
    });
}

#[test]
fn a_worker_that_parks_while_another_one_looks_for_a_watcher_becomes_it() {
    becomes_the_watcher(1, false, None);
}

#[test]
fn a_worker_that_parks_while_two_others_look_for_a_watcher_becomes_it() {
    becomes_the_watcher(2, false, Some(2));
}

#[test]
fn a_watcher_that_found_none_running_goes_on_while_another_worker_parks_with_tasks() {
    becomes_the_watcher(1, true, None);
}
