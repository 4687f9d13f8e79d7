//! The budget of operations: tokio's, for tasks of ours.
//!
//! One worker each: a loop that never yields hangs the test.

mod limit;

use limit::as_task;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use warmcore_runtime::{block_in_place, spawn, yield_now};

/// How often the future was polled until it was ready.
async fn polls_of(future: impl Future<Output = ()>) -> u32 {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        future.as_mut().poll(cx)
    })
    .await;
    polls
}

#[test]
fn a_loop_over_a_channel_that_is_never_empty_lets_others_run() {
    as_task(1, async {
        let has_run = Arc::new(AtomicBool::new(false));
        let runs = has_run.clone();
        let (say, mut hear) = tokio::sync::mpsc::unbounded_channel();
        say.send(()).unwrap();
        let loops = spawn(async move {
            while hear.recv().await.is_some() && !has_run.load(SeqCst) {
                say.send(()).unwrap();
            }
        });
        drop(spawn(async move { runs.store(true, SeqCst) }));
        loops.await.unwrap();
    });
}

#[test]
fn each_poll_has_a_budget_of_its_own() {
    as_task(1, async {
        let (say, mut hear) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..50 {
            // 100 messages and the end of a poll: together the polls do many times the budget.
            let polls = polls_of(async {
                for i in 0..100 {
                    say.send(i).unwrap();
                    hear.recv().await.unwrap();
                }
            });
            assert_eq!(polls.await, 1, "a poll paid for what others did");
            yield_now().await;
        }
    });
}

#[test]
fn what_blocks_in_place_is_not_stopped_by_the_budget_of_its_poll() {
    as_task(1, async {
        let (say, mut hear) = tokio::sync::mpsc::unbounded_channel();
        (0..1000).for_each(|i| say.send(i).unwrap());
        block_in_place(|| {
            let mut cx = Context::from_waker(Waker::noop());
            for i in 0..1000 {
                assert_eq!(hear.poll_recv(&mut cx), Poll::Ready(Some(i)));
            }
        });
    });
}
