//! Loom models of the word. `cargo xtask test --full` runs them.

use super::*;
use crate::task_cell::join_waker::JoinWaker;
use ::loom::{
    cell::UnsafeCell,
    model,
    sync::{Arc, Mutex, atomic::AtomicBool},
    thread,
};
use std::task::{Wake, Waker};

/// A task without a future.
struct Model {
    state: State,
    /// Written by each poll. Loom fails where two polls do not follow one another.
    polls: UnsafeCell<usize>,
    /// What wakers write before they wake.
    written: [AtomicUsize; 2],
    /// What the last poll saw of it.
    seen: UnsafeCell<[usize; 2]>,
    output: UnsafeCell<Option<usize>>,
    join_waker: JoinWaker,
    /// Whether the join waker was called.
    is_woken: Arc<AtomicBool>,
}

// SAFETY: loom checks the accesses.
unsafe impl Sync for Model {}
// SAFETY: as above.
unsafe impl Send for Model {}

impl Model {
    /// A task in a list of owned tasks.
    fn new() -> Arc<Self> {
        let task = Self::spawned();
        task.state.set_owned();
        task
    }

    fn spawned() -> Arc<Self> {
        Arc::new(Self {
            state: State::new(),
            polls: UnsafeCell::new(0),
            written: [AtomicUsize::new(0), AtomicUsize::new(0)],
            seen: UnsafeCell::new([0; 2]),
            output: UnsafeCell::new(None),
            join_waker: JoinWaker::new(),
            is_woken: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Polls until the task is not woken during its poll.
    fn run(&self) {
        loop {
            self.state.start();
            // SAFETY: loom checks it.
            self.polls.with_mut(|polls| unsafe { *polls += 1 });
            let seen = [0, 1].map(|i| self.written[i].load(Relaxed));
            // SAFETY: loom checks it.
            self.seen.with_mut(|last| unsafe { *last = seen });
            if !self.state.pend() {
                return;
            }
        }
    }

    /// Polls for the last time.
    fn run_last(&self) {
        self.state.start();
        // SAFETY: loom checks it.
        self.output.with_mut(|output| unsafe { *output = Some(42) });
        let before = self.state.complete();
        if !before.has_join_interest() {
            // SAFETY: loom checks it.
            assert_eq!(self.output.with_mut(|output| unsafe { (*output).take() }), Some(42));
        } else if before.has_join_waker() {
            self.join_waker.wake();
        }
    }

    fn waker(&self) -> Waker {
        struct Flag(Arc<AtomicBool>);
        impl Wake for Flag {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, Relaxed);
            }
        }
        Waker::from(std::sync::Arc::new(Flag(self.is_woken.clone())))
    }
}

/// Two threads wake while a third one polls. The last poll sees what both wrote before they woke.
#[test]
fn a_poll_follows_each_wake_and_sees_what_the_waker_wrote() {
    // Without the bound the model takes minutes.
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let task = Model::new();
        let wakers: Vec<_> = (0..2)
            .map(|i| {
                let task = task.clone();
                thread::spawn(move || {
                    task.written[i].store(1, Relaxed);
                    let is_mine = match i {
                        0 => task.state.wake_by_ref(),
                        _ => {
                            task.state.add_reference();
                            task.state.wake_by_val() == WakeByVal::Schedule
                        }
                    };
                    if is_mine {
                        // The thread that queues the task reads what the last poll wrote of it.
                        // SAFETY: loom checks it.
                        task.polls.with(|polls| unsafe { *polls });
                        task.run();
                    }
                })
            })
            .collect();
        task.run();
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        // SAFETY: loom checks it. A joined thread's accesses come before.
        assert_eq!(task.seen.with(|seen| unsafe { *seen }), [1, 1]);
        // The handle and the list of owned tasks.
        assert!(task.state.release(2), "a reference too many or too few");
    });
}

/// A task ends while its handle registers two wakers, one after the other. The handle gets the output, or is woken.
#[test]
fn a_handle_gets_the_output_or_is_woken() {
    model(|| {
        let task = Model::new();
        let polls = task.clone();
        let polls = thread::spawn(move || polls.run_last());
        let is_pending = task.join_waker.register(&task.state, &Waker::noop())
            && task.join_waker.register(&task.state, &task.waker());
        if is_pending {
            polls.join().unwrap();
            assert!(task.is_woken.load(Relaxed), "the handle was not woken");
        }
        assert!(task.state.load().is_complete());
        // SAFETY: loom checks it.
        assert_eq!(task.output.with_mut(|output| unsafe { (*output).take() }), Some(42));
    });
}

/// A task ends while its handle is dropped. One of the two drops the output.
#[test]
fn a_handle_or_the_last_poll_has_the_output() {
    model(|| {
        let task = Model::new();
        let polls = task.clone();
        let polls = thread::spawn(move || polls.run_last());
        let is_pending = task.join_waker.register(&task.state, &task.waker());
        match task.state.drop_join_interest() {
            Ok(before) => task.join_waker.take_back(before.has_join_waker()),
            // SAFETY: loom checks it.
            Err(_) => assert_eq!(task.output.with_mut(|output| unsafe { (*output).take() }), Some(42)),
        }
        polls.join().unwrap();
        let _ = is_pending;
        // SAFETY: loom checks it.
        assert_eq!(task.output.with(|output| unsafe { *output }), None);
    });
}

/// A thread cancels the task while it is polled. A poll follows that sees it.
#[test]
fn a_poll_follows_a_cancel_and_sees_it() {
    model(|| {
        let task = Model::new();
        let aborts = task.clone();
        let aborts = thread::spawn(move || aborts.state.cancel());
        let mut is_cancelled = task.state.start().is_cancelled();
        while task.state.pend() {
            is_cancelled = task.state.start().is_cancelled();
        }
        if aborts.join().unwrap() {
            is_cancelled = task.state.start().is_cancelled();
        }
        assert!(is_cancelled);
    });
}

/// The thread that gives up the last reference sees what the others did with the task.
#[test]
fn the_last_reference_frees_once_and_after_all_uses() {
    model(|| {
        let task = Model::new();
        // Of the three references the poll's is given up when it ends.
        assert!(!{
            task.state.start();
            task.state.pend()
        });
        let frees: Vec<_> = (0..2)
            .map(|i| {
                let task = task.clone();
                thread::spawn(move || {
                    // SAFETY: loom checks it: the threads take turns only through the reference counts.
                    task.seen.with(|seen| unsafe { (*seen)[i] });
                    let is_last = task.state.release(1);
                    if is_last {
                        // SAFETY: loom checks it.
                        task.seen.with_mut(|seen| unsafe { *seen = [9; 2] });
                    }
                    is_last
                })
            })
            .collect();
        assert_eq!(frees.into_iter().map(|thread| thread.join().unwrap()).filter(|last| *last).count(), 1);
    });
}

/// The runtime shuts down while a task's first poll returns pending and a waker wakes it. One poll follows that sees that the task is
/// cancelled.
#[test]
fn a_task_that_enters_its_list_during_a_shutdown_is_cancelled() {
    model(|| {
        let task = Model::spawned();
        let (is_closing, list) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(false)));
        let cancelled = Arc::new(AtomicUsize::new(0));
        // As a worker that has the runnable task.
        let run = |task: &Model, cancelled: &AtomicUsize| {
            if task.state.start().is_cancelled() {
                cancelled.fetch_add(1, Relaxed);
                task.state.complete();
                return true;
            }
            false
        };
        let (closes, has_task, counts) = (task.clone(), list.clone(), cancelled.clone());
        let closing = is_closing.clone();
        let closes = thread::spawn(move || {
            closing.store(true, Relaxed);
            let has_task = has_task.lock().unwrap();
            let is_mine = *has_task && closes.state.cancel();
            drop(has_task);
            assert!(!is_mine || run(&closes, &counts), "a poll of a cancelled task sees that");
        });
        if !run(&task, &cancelled) {
            let mut has_task = list.lock().unwrap();
            match is_closing.load(Relaxed) {
                true => assert!(!task.state.cancel(), "this thread polls"),
                false => {
                    *has_task = true;
                    task.state.set_owned();
                }
            }
            drop(has_task);
            if task.state.pend() {
                assert!(run(&task, &cancelled), "no other thread woke the task");
            }
        }
        closes.join().unwrap();
        assert_eq!(cancelled.load(Relaxed), 1);
    });
}
