//! Tokio's budget of operations in tasks of this runtime.
//!
//! Each test has one worker, so that a loop that never yields hangs the test.

mod common;
mod limit;

use common::polls_of;
use limit::{as_task, with_workers};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::coop::has_budget_remaining;
use warmcore_runtime::{block_in_place, spawn, yield_now};

/// Two tasks that wake each other, and never themselves.
#[derive(Default)]
struct Turns {
    whose: AtomicUsize,
    wakers: [Mutex<Option<Waker>>; 2],
}

impl Turns {
    async fn wait(&self, me: usize) {
        poll_fn(|cx| {
            *self.wakers[me].lock().unwrap() = Some(cx.waker().clone());
            if self.whose.load(SeqCst) == me { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn end(&self, me: usize) {
        self.whose.store(1 - me, SeqCst);
        if let Some(waker) = self.wakers[1 - me].lock().unwrap().take() {
            waker.wake();
        }
    }
}

#[test]
fn a_loop_over_a_channel_that_is_never_empty_lets_other_tasks_run() {
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
            // 100 messages and the end of a poll: the polls together use the budget many times.
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

/// The operations of two tasks in a poll exceed one budget, and polls of the two alternate.
#[test]
fn a_poll_that_begins_without_budget_is_stopped_once_only() {
    const TURNS: u32 = 200;
    as_task(1, async {
        let turns = Arc::new(Turns::default());
        let tasks: Vec<_> = [0, 1]
            .map(|me| {
                let turns = turns.clone();
                spawn(async move {
                    let (say, mut hear) = tokio::sync::mpsc::unbounded_channel();
                    let mut polls = 0;
                    for _ in 0..TURNS {
                        turns.wait(me).await;
                        polls += polls_of(async {
                            for i in 0..100 {
                                say.send(i).unwrap();
                                hear.recv().await.unwrap();
                            }
                        })
                        .await;
                        turns.end(me);
                    }
                    polls
                })
            })
            .into();
        let mut polls = 0;
        for task in tasks {
            polls += task.await.unwrap();
        }
        assert!((2 * TURNS..=2 * TURNS + 2).contains(&polls), "{polls} polls in {} turns", 2 * TURNS);
    });
}

/// Code that polls a channel once, with a waker that wakes no task, takes `Pending` to mean that the channel is empty.
/// The poll before it has used the budget up to the last operation, and its task did not wake itself.
#[test]
fn a_poll_after_one_that_used_the_budget_up_finds_what_is_ready() {
    const TURNS: usize = 64;
    as_task(1, async {
        let turns = Arc::new(Turns::default());
        let (theirs, ours) = (turns.clone(), turns);
        let uses = spawn(async move {
            let (say, mut hear) = tokio::sync::mpsc::unbounded_channel();
            for _ in 0..TURNS {
                theirs.wait(0).await;
                while has_budget_remaining() {
                    say.send(()).unwrap();
                    hear.recv().await.unwrap();
                }
                theirs.end(0);
            }
        });
        let asks = spawn(async move {
            let (say, mut hear) = tokio::sync::mpsc::unbounded_channel();
            for turn in 0..TURNS {
                ours.wait(1).await;
                say.send(turn).unwrap();
                let found = hear.poll_recv(&mut Context::from_waker(Waker::noop()));
                assert_eq!(found, Poll::Ready(Some(turn)));
                ours.end(1);
            }
        });
        asks.await.unwrap();
        uses.await.unwrap();
    });
}

/// How many messages one poll gets from a channel that is never empty, at most 1000.
fn received_at_once(hear: &mut UnboundedReceiver<u32>) -> u32 {
    let mut cx = Context::from_waker(Waker::noop());
    (0..1000).find(|_| hear.poll_recv(&mut cx).is_pending()).unwrap_or(1000)
}

#[test]
fn what_blocks_in_place_is_not_stopped_by_the_budget_of_its_poll_and_the_rest_of_the_poll_is() {
    async fn check() {
        let (say, mut hear) = unbounded_channel();
        (0..3000).for_each(|i| say.send(i).unwrap());
        assert_eq!(block_in_place(|| received_at_once(&mut hear)), 1000);
        assert!((1..=128).contains(&received_at_once(&mut hear)));
        // Without a budget left it is the same.
        assert_eq!(block_in_place(|| received_at_once(&mut hear)), 1000);
        assert_eq!(received_at_once(&mut hear), 0);
        yield_now().await;
        assert!((1..=128).contains(&received_at_once(&mut hear)));
    }
    as_task(1, check());
    with_workers(1, |runtime| runtime.block_on(check()));
}
