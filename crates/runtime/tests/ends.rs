//! The ends of runtimes: dropped in tasks, and builders that fail.
//!
//! Dropping a runtime waits for the polls that are under way. Two runtimes that are each dropped in a poll of the other
//! must not wait for each other. Each runtime that a task drops has one worker.

mod limit;

use limit::ends;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use warmcore_runtime::{Runtime, block_in_place};

fn runtime() -> Runtime {
    Runtime::builder().worker_threads(1).build().unwrap()
}

/// The place where a runtime is dropped.
#[derive(Clone, Copy)]
enum Where {
    Poll,
    BlockInPlace,
    SpawnBlocking,
    /// In a task of `tokio::spawn`, which runs inside a worker's driver.
    Foreign,
}

/// Drops `one` in a task of `other` and `other` in a task of `one`, at the same moment. The receiver gets a message
/// from each drop when it has returned.
fn drop_crosswise(place: Where) -> Receiver<()> {
    let (one, other) = (runtime(), runtime());
    let (begin, (done, is_done)) = (Arc::new(Barrier::new(2)), channel());
    let handles = [one.handle(), other.handle()];
    for (handle, dropped) in handles.into_iter().zip([other, one]) {
        let (begin, done) = (begin.clone(), done.clone());
        let drop_it = move || {
            begin.wait();
            drop(dropped);
            done.send(()).unwrap();
        };
        drop(handle.spawn(async move {
            match place {
                Where::Poll => drop_it(),
                Where::BlockInPlace => block_in_place(drop_it),
                Where::SpawnBlocking => _ = tokio::task::spawn_blocking(drop_it).await,
                Where::Foreign => _ = tokio::spawn(async move { drop_it() }).await,
            }
        }));
    }
    is_done
}

#[test]
fn two_runtimes_may_be_dropped_in_each_others_tasks() {
    for place in [Where::Poll, Where::BlockInPlace, Where::SpawnBlocking, Where::Foreign] {
        let ended = ends(move || drop_crosswise(place).iter().count());
        assert_eq!(ended, 2);
    }
}

#[test]
fn a_circle_of_runtimes_may_be_dropped() {
    let ended = ends(|| {
        let (done, is_done) = channel();
        let all: Vec<Runtime> = (0..3).map(|_| runtime()).collect();
        let begin = Arc::new(Barrier::new(all.len()));
        let mut handles: Vec<_> = all.iter().map(Runtime::handle).collect();
        handles.rotate_left(1);
        for (handle, dropped) in handles.into_iter().zip(all) {
            let (begin, done) = (begin.clone(), done.clone());
            drop(handle.spawn(async move {
                begin.wait();
                drop(dropped);
                done.send(()).unwrap();
            }));
        }
        drop(done);
        is_done.iter().count()
    });
    assert_eq!(ended, 3);
}

#[test]
fn a_name_with_a_nul_is_refused() {
    let error = Runtime::builder().name("a\0b").worker_threads(1).build().unwrap_err();
    assert!(error.to_string().contains("NUL"), "{error}");
}

#[test]
fn no_threads_for_spawn_blocking_are_refused_and_one_is_enough() {
    let error = Runtime::builder().max_blocking_threads(0).build().unwrap_err();
    assert!(error.to_string().contains("spawn_blocking"), "{error}");
    let runtime = Runtime::builder().worker_threads(2).max_blocking_threads(1).build().unwrap();
    let both = runtime.block_on(async {
        let closures = [1, 2].map(|n| tokio::task::spawn_blocking(move || n));
        let mut sum = 0;
        for closure in closures {
            sum += closure.await.unwrap();
        }
        sum
    });
    assert_eq!(both, 3);
}
