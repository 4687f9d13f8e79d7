//! Loom models of how a watcher of drivers is found. `cargo xtask test --full` runs them.

use super::*;
use crate::mock::workers;
use ::loom::{model::Builder, thread};
use std::sync::Arc;
use warmcore_sched::Core;

/// Workers look for a watcher while another one parks, as `Core::search` and `Worker::park` do. Either one of them sees
/// that it is parked, or it sees that a watcher is wanted.
fn becomes_the_watcher(looking: u32, preemptions: Option<usize>) {
    let mut model = Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let parks = CpuId(looking);
        let (mocks, shared) = workers(looking as usize + 1, looking as usize + 1);
        (0..looking as usize)
            .for_each(|busy| mocks[busy].foreign.store(4, std::sync::atomic::Ordering::Relaxed));
        let shared = Arc::new(shared);
        let core = Core::new(&*shared, parks, shared.long_poll);
        let looking: Vec<_> = (0..looking)
            .map(|busy| {
                let shared = shared.clone();
                thread::spawn(move || shared.foreign.begin(&shared, CpuId(busy), 0))
            })
            .collect();
        assert!(core.mark_parked(Nanos(1_000_000_000)));
        shared.foreign.due(&shared, parks, Nanos(1_000_000_000));
        looking.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(shared.foreign.check_at(parks).is_some(), "no worker watches");
    });
}

#[test]
fn a_worker_that_parks_while_another_one_looks_for_a_watcher_becomes_it() {
    becomes_the_watcher(1, None);
}

#[test]
fn a_worker_that_parks_while_two_others_look_for_a_watcher_becomes_it() {
    becomes_the_watcher(2, Some(2));
}
