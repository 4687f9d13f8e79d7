//! The order in which an idle worker steals the tasks that wait at a busy worker.
//!
//! Eight tasks belong to one of two workers. A task there wakes them one after the other and does not return from its poll
//! until all have run. The other worker becomes idle when all eight wait.

mod limit;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::oneshot;
use warmcore_runtime::{PolicyKind, Runtime, spawn};

const TASKS: usize = 8;

fn spin_until(is_done: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < limit::HANGS_AFTER, "the other worker never got on");
        // The other worker may need this thread's CPU.
        std::thread::yield_now();
    }
}

/// The order in which an idle worker runs the tasks that wait at a busy one.
fn order_under(policy: PolicyKind) -> Vec<usize> {
    limit::ends(move || {
        let runtime = Runtime::builder().worker_threads(2).policy(policy).build().unwrap();
        let has_begun = Arc::new(AtomicBool::new(false));
        let is_queued = Arc::new(AtomicBool::new(false));
        let order = Arc::new(Mutex::new(Vec::new()));
        let busy = runtime.spawn({
            let (is_queued, has_begun) = (is_queued.clone(), has_begun.clone());
            async move {
                has_begun.store(true, SeqCst);
                spin_until(|| is_queued.load(SeqCst));
            }
        });
        spin_until(|| has_begun.load(SeqCst));
        // From here on one worker is in the poll of `busy`, so that the other worker polls all other tasks. No task is placed
        // on a CPU: two workers that share a CPU count as one there.
        let waker = runtime.spawn({
            let order = order.clone();
            async move {
                let mut tasks = Vec::new();
                for number in 0..TASKS {
                    let order = order.clone();
                    let (began, has_run_here) = oneshot::channel();
                    let (go, goes) = oneshot::channel();
                    drop(spawn(async move {
                        began.send(()).unwrap();
                        goes.await.unwrap();
                        order.lock().unwrap().push(number);
                    }));
                    // The task runs here once, because the other worker is busy. So this becomes the task's previous
                    // worker.
                    has_run_here.await.unwrap();
                    tasks.push(go);
                }
                tasks.into_iter().for_each(|go| go.send(()).unwrap());
                is_queued.store(true, SeqCst);
                spin_until(|| order.lock().unwrap().len() == TASKS);
            }
        });
        runtime.block_on(async {
            busy.await.unwrap();
            waker.await.unwrap();
        });
        std::mem::take(&mut *order.lock().unwrap())
    })
}

#[test]
fn a_shared_queue_is_first_in_first_out() {
    assert_eq!(order_under(PolicyKind::SharedQueue), Vec::from_iter(0..TASKS));
}
