//! What may go on while a runtime shuts down, and what may be called after that.

mod limit;

use limit::ends;
use std::cell::RefCell;
use std::future::{pending, poll_fn, ready};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use warmcore_runtime::{Handle, JoinHandle, Runtime, block_in_place, spawn, yield_now};

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().worker_threads(workers).build().unwrap()
}

/// Calls a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Polls once. `None`: pending.
fn now<T>(handle: JoinHandle<T>) -> Option<Result<T, warmcore_runtime::JoinError>> {
    match pin!(handle).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

#[test]
fn a_shutdown_waits_for_blocking_operations_if_that_is_set() {
    ends(|| {
        let waiting = || {
            let runtime = Runtime::builder().worker_threads(2).wait_for_blocking(true).build().unwrap();
            let (is_done, (begun, begins)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
            let sets = is_done.clone();
            let closure = move |until: Duration| {
                begun.send(()).unwrap();
                thread::sleep(until);
                sets.store(true, SeqCst);
            };
            (runtime, is_done, closure, begins)
        };
        let (runtime, is_done, closure, begins) = waiting();
        drop(runtime.spawn(async move {
            drop(tokio::task::spawn_blocking(move || closure(Duration::from_millis(20))));
        }));
        begins.recv().unwrap();
        drop(runtime);
        assert!(is_done.load(SeqCst));
        // With a timeout the wait ends at its time.
        let (runtime, is_done, closure, begins) = waiting();
        drop(runtime.spawn(async move {
            drop(tokio::task::spawn_blocking(move || closure(Duration::from_secs(5))));
        }));
        begins.recv().unwrap();
        assert!(!runtime.shutdown_timeout(Duration::from_millis(20)));
        assert!(!is_done.load(SeqCst));
    });
}

#[test]
fn shutdown_background_returns_during_a_poll_which_then_ends() {
    ends(|| {
        let runtime = runtime(2);
        let (begins, has_begun) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let in_poll = runtime.spawn(async move {
            begins.send(()).unwrap();
            wait.recv().unwrap();
            7
        });
        let waits = runtime.spawn(pending::<()>());
        has_begun.recv().unwrap();
        let handle = runtime.handle();
        runtime.shutdown_background();
        assert!(!in_poll.is_finished());
        go.send(()).unwrap();
        assert_eq!(handle.block_on(in_poll).unwrap(), 7);
        assert!(handle.block_on(waits).unwrap_err().is_cancelled());
    });
}

#[test]
fn a_task_may_shut_down_its_runtime_or_another_in_the_background() {
    ends(|| {
        let (own, other) = (runtime(1), runtime(1));
        let handle = own.handle();
        let in_other = other.spawn(pending::<()>());
        let (late, spawned) = mpsc::channel();
        let task = handle.spawn(async move {
            other.shutdown_background();
            own.shutdown_background();
            late.send(spawn(ready(()))).unwrap();
        });
        handle.block_on(task).unwrap();
        let spawned_late = spawned.recv().unwrap();
        assert!(handle.block_on(spawned_late).unwrap_err().is_cancelled());
        assert!(handle.block_on(in_other).unwrap_err().is_cancelled());
    });
}

#[test]
fn tasks_that_spawn_for_ever_do_not_hold_up_the_end() {
    fn chain(polls: Arc<AtomicU32>) {
        drop(spawn(async move {
            polls.fetch_add(1, SeqCst);
            chain(polls);
        }));
    }
    ends(|| {
        for workers in [1, 2] {
            let (runtime, polls) = (runtime(workers), Arc::new(AtomicU32::new(0)));
            runtime.with_context(|| (0..3).for_each(|_| chain(polls.clone())));
            while polls.load(SeqCst) < 1000 {
                thread::yield_now();
            }
            drop(runtime);
            assert_eq!(Arc::strong_count(&polls), 1, "no future is left");
        }
    });
}

#[test]
fn a_future_that_spawns_when_it_is_dropped_gets_a_cancelled_task() {
    ends(|| {
        let runtime = runtime(1);
        let (sends, spawned) = mpsc::channel();
        let handle = runtime.handle();
        drop(runtime.spawn(async move {
            let _spawns = OnDrop(|| {
                let of_handle = handle.spawn(async { 1 });
                let of_context = spawn(async { 2 });
                sends.send([of_handle, of_context]).unwrap();
            });
            pending::<()>().await
        }));
        runtime.block_on(runtime.spawn(yield_now())).unwrap();
        drop(runtime);
        for task in spawned.recv().unwrap() {
            assert!(now(task).expect("it has ended").unwrap_err().is_cancelled());
        }
    });
}

#[test]
fn tasks_that_wake_each_other_when_they_are_dropped_all_end() {
    ends(|| {
        for _ in 0..100 {
            let runtime = runtime(2);
            let wakers: Arc<[Mutex<Option<Waker>>; 2]> = Arc::default();
            let tasks: Vec<_> = (0..2)
                .map(|me| {
                    let (own, other) = (wakers.clone(), wakers.clone());
                    runtime.spawn(async move {
                        let _wakes = OnDrop(|| {
                            let waker = other[1 - me].lock().unwrap().take();
                            waker.into_iter().for_each(Waker::wake);
                        });
                        poll_fn(|cx| {
                            *own[me].lock().unwrap() = Some(cx.waker().clone());
                            Poll::<()>::Pending
                        })
                        .await
                    })
                })
                .collect();
            while !wakers.iter().all(|waker| waker.lock().unwrap().is_some()) {
                thread::yield_now();
            }
            drop(runtime);
            for task in tasks {
                assert!(now(task).expect("it has ended").unwrap_err().is_cancelled());
            }
        }
    });
}

#[test]
fn a_panic_of_a_drop_during_the_shutdown_is_its_tasks_own() {
    ends(|| {
        let runtime = runtime(2);
        let bad = runtime.spawn(async {
            let _panics = OnDrop(|| panic!("of a drop"));
            pending::<()>().await
        });
        let good = runtime.spawn(pending::<()>());
        runtime.block_on(runtime.spawn(yield_now())).unwrap();
        while bad.name().is_none() && runtime.metrics().total().polls < 3 {
            thread::yield_now();
        }
        drop(runtime);
        assert!(now(bad).expect("it has ended").unwrap_err().is_panic());
        assert!(now(good).expect("it has ended").unwrap_err().is_cancelled());
    });
}

#[test]
fn each_task_that_a_thread_spawns_beside_a_shutdown_ends() {
    ends(|| {
        for round in 0..20 {
            let runtime = runtime(2);
            let handle = runtime.handle();
            let is_over = Arc::new(AtomicBool::new(false));
            let stop = is_over.clone();
            let spawner = thread::spawn(move || {
                let mut tasks = Vec::new();
                while !stop.load(SeqCst) {
                    tasks.push(handle.spawn(yield_now()));
                    tasks.push(handle.spawn(pending()));
                }
                tasks
            });
            thread::sleep(Duration::from_micros(200 * round));
            drop(runtime);
            is_over.store(true, SeqCst);
            for task in spawner.join().unwrap() {
                now(task).expect("it has ended").map_or_else(|error| assert!(error.is_cancelled()), |()| ());
            }
        }
    });
}

/// The shutdown waits for no task that was spawned after it began: at no moment all of these have ended.
#[test]
fn threads_that_spawn_and_join_for_ever_do_not_hold_up_the_end() {
    /// Takes a while to drop.
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(Duration::from_micros(50));
        }
    }
    ends(|| {
        let runtime = runtime(2);
        let is_over = Arc::new(AtomicBool::new(false));
        let spawners: Vec<_> = (0..8)
            .map(|_| {
                let (handle, is_over) = (runtime.handle(), is_over.clone());
                thread::spawn(move || {
                    while !is_over.load(SeqCst) {
                        let slow = Slow;
                        _ = handle.block_on(handle.spawn(async move { drop(slow) }));
                    }
                })
            })
            .collect();
        drop(runtime);
        is_over.store(true, SeqCst);
        spawners.into_iter().for_each(|spawner| spawner.join().unwrap());
    });
}

/// Its poll has to end, so that the next one sees that the task is cancelled.
#[test]
fn tasks_that_spawn_and_join_for_ever_do_not_hold_up_the_end() {
    ends(|| {
        let runtime = runtime(2);
        for _ in 0..4 {
            drop(runtime.spawn(async {
                loop {
                    _ = warmcore_runtime::spawn(async {}).await;
                }
            }));
        }
        thread::sleep(Duration::from_millis(2));
        drop(runtime);
    });
}

#[test]
fn after_the_shutdown_a_handle_blocks_on_what_needs_no_driver_and_spawns_cancelled_tasks() {
    ends(|| {
        let runtime = runtime(2);
        let handle = runtime.handle();
        let entered = handle.clone();
        let _guard = entered.enter();
        assert!(runtime.shutdown_timeout(Duration::from_secs(60)));
        assert_eq!(handle.block_on(ready(7)), 7);
        let (send, receive) = tokio::sync::oneshot::channel();
        let other = thread::spawn(move || send.send(8).unwrap());
        assert_eq!(handle.block_on(receive).unwrap(), 8);
        other.join().unwrap();
        handle.block_on(async {
            yield_now().await;
            block_in_place(|| Handle::current().block_on(yield_now()));
        });
        assert!(now(spawn(ready(1))).expect("it has ended").unwrap_err().is_cancelled());
        assert!(handle.block_on(handle.spawn(ready(1))).unwrap_err().is_cancelled());
        assert_eq!(handle.num_alive_tasks(), 0);
        let binds = handle.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        assert!(binds.is_err());
        let sleeps = || handle.block_on(tokio::time::sleep(Duration::from_millis(1)));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(sleeps)).is_err());
    });
}

#[test]
fn a_waker_that_outlives_its_runtime_does_nothing() {
    ends(|| {
        let runtime = runtime(1);
        let (sends, waker) = mpsc::channel();
        let task = runtime.spawn(poll_fn(move |cx| {
            _ = sends.send(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let waker = waker.recv().unwrap();
        drop(runtime);
        waker.wake_by_ref();
        assert!(now(task).expect("it has ended").unwrap_err().is_cancelled());
        waker.wake();
    });
}

#[test]
fn a_waker_in_a_thread_local_variable_of_a_worker_is_woken_when_its_thread_ends() {
    struct Wakes(Option<Waker>, mpsc::Sender<()>);
    impl Drop for Wakes {
        fn drop(&mut self) {
            self.0.take().unwrap().wake();
            self.1.send(()).unwrap();
        }
    }
    thread_local! {
        static WAKES: RefCell<Option<Wakes>> = const { RefCell::new(None) };
    }
    ends(|| {
        for is_pending in [false, true] {
            let runtime = runtime(1);
            let (sends, woken) = mpsc::channel();
            let task = runtime.spawn(poll_fn(move |cx| {
                let wakes = Wakes(Some(cx.waker().clone()), sends.clone());
                WAKES.with_borrow_mut(|here| *here = Some(wakes));
                if is_pending { Poll::Pending } else { Poll::Ready(()) }
            }));
            while runtime.metrics().total().polls == 0 {
                thread::yield_now();
            }
            drop(runtime);
            woken.recv().unwrap();
            assert_eq!(now(task).expect("it has ended").is_err(), is_pending);
        }
    });
}

#[test]
fn a_runtime_in_a_thread_local_variable_ends_with_its_thread() {
    thread_local! {
        static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
    }
    ends(|| {
        let task = thread::spawn(|| {
            let runtime = runtime(2);
            let task = runtime.spawn(pending::<()>());
            RUNTIME.set(Some(runtime));
            task
        });
        assert!(now(task.join().unwrap()).expect("it has ended").unwrap_err().is_cancelled());
    });
}

#[test]
fn a_drop_waits_for_a_task_that_blocks_in_place_until_another_one_is_cancelled() {
    ends(|| {
        let runtime = runtime(1);
        let (sends, receive) = mpsc::channel::<()>();
        let (begins, has_begun) = mpsc::channel();
        let blocks = runtime.spawn(async move {
            block_in_place(|| {
                begins.send(()).unwrap();
                receive.recv().is_err()
            })
        });
        has_begun.recv().unwrap();
        let keeps = runtime.spawn(async move {
            let _sends = sends;
            pending::<()>().await
        });
        drop(runtime);
        assert!(now(keeps).expect("it has ended").unwrap_err().is_cancelled());
        assert!(now(blocks).expect("it has ended").unwrap());
    });
}

#[test]
fn a_runtime_may_be_dropped_inside_block_in_place_of_its_own_task() {
    ends(|| {
        let runtime = runtime(1);
        let (handle, began) = (runtime.handle(), Instant::now());
        let (sends, receive) = mpsc::channel();
        let waits = handle.spawn(pending::<()>());
        let drops = handle.spawn(async move {
            block_in_place(|| drop(runtime));
            sends.send(()).unwrap();
            pending::<()>().await
        });
        receive.recv().unwrap();
        assert!(handle.block_on(waits).unwrap_err().is_cancelled());
        assert!(handle.block_on(drops).unwrap_err().is_cancelled());
        assert!(began.elapsed() < limit::HANGS_AFTER);
    });
}

#[test]
fn the_only_worker_is_handed_off_by_nested_blocking() {
    ends(|| {
        let runtime = runtime(1);
        let barrier = Arc::new(Barrier::new(2));
        for _ in 0..100 {
            let (handle, waits) = (runtime.handle(), barrier.clone());
            let task = runtime.spawn(async move {
                block_in_place(|| {
                    let inner = handle.block_on(async {
                        block_in_place(|| handle.block_on(spawn(async { block_in_place(|| 7) })).unwrap())
                    });
                    waits.wait();
                    inner
                })
            });
            barrier.wait();
            assert_eq!(runtime.block_on(task).unwrap(), 7);
        }
    });
}
