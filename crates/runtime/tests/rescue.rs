//! Tasks, sockets and timers that wait behind a long poll, or behind a closure that blocks, go on.
//!
//! The poll or the closure ends only when the tasks behind it have gone on. If no worker takes them over, the test
//! hangs. So the tests assert the order of events, and no time. Most tests have two workers, one of which is stuck.
//! Tests of `block_in_place`, which needs no second worker, have one too. README.md, "Notes on parking", describes the
//! mechanism. Issue tokio#4941 describes how a task in the LIFO slot waits behind a long poll.

mod limit;

use limit::{as_task, ends, with_workers};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time;
use warmcore_runtime::{Handle, Placement, Runtime, block_in_place, spawn, task_builder, yield_now};

/// Shortest duration of a call of [`hog_until`], the long poll of most tests.
const HOG: Duration = Duration::from_millis(10);

const SHORT: Duration = Duration::from_millis(1);

/// Computes until `is_done`, and at least for [`HOG`]. False: `is_done` did not come true in time.
fn hog_until(is_done: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < HOG || !is_done() {
        if began.elapsed() > limit::HANGS_AFTER / 2 {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// Starts an echo server and its client as tasks, on the driver of the worker that calls this. Returns a counter of round
/// trips.
async fn echo_here() -> Arc<AtomicU32> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    // `connect` returns before `accept` is called, because the kernel completes the connection.
    let mut client = TcpStream::connect(to).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let rounds = Arc::new(AtomicU32::new(0));
    let counted = rounds.clone();
    drop(spawn(async move {
        let mut byte = [0];
        while server.read_exact(&mut byte).await.is_ok() && server.write_all(&byte).await.is_ok() {}
    }));
    drop(spawn(async move {
        let mut byte = [0];
        while client.write_all(&byte).await.is_ok() && client.read_exact(&mut byte).await.is_ok() {
            counted.fetch_add(1, SeqCst);
            // With this the next round trip also waits for a timer of this driver.
            time::sleep(SHORT).await;
        }
    }));
    rounds
}

/// Calls `test` with two workers that have a driver each, and with two that share one.
fn with_both(test: impl Fn(&Runtime) + Copy + Send + 'static) {
    with_workers(2, test);
    ends(move || test(&Runtime::builder().worker_threads(2).share_drivers(true).build().expect("a runtime")));
}

/// The placement on the first worker alone.
fn first(runtime: &Runtime) -> Placement {
    Placement::cpu(runtime.metrics().workers[0].cpu)
}

#[test]
fn an_echo_gets_on_while_a_hog_polls_in_a_loop_on_the_worker_that_drives_it() {
    with_both(|runtime| {
        let here = first(runtime);
        let hog = runtime.task_builder().placement(here).spawn(async {
            let rounds = echo_here().await;
            for _ in 0..10 {
                yield_now().await;
                let before = rounds.load(SeqCst);
                if !hog_until(|| rounds.load(SeqCst) >= before + 3) {
                    return false;
                }
            }
            true
        });
        assert!(runtime.block_on(hog).unwrap(), "the echo did not get on during a long poll");
    });
}

/// Whether a waker was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Long polls of a worker whose polls were short until then, before it polls its driver for a timer that is due after
/// the first of them. If `that_end`, each long poll is the last poll of its task. There is no other worker.
fn long_polls_before_the_driver_is_asked(that_end: bool) -> u32 {
    as_task(1, async move {
        for _ in 0..20_000 {
            yield_now().await;
        }
        let (is_due, before) = (Arc::new(Woken::default()), Arc::new(AtomicU32::new(0)));
        let mut timer = Box::pin(time::sleep(SHORT));
        assert!(timer.as_mut().poll(&mut Context::from_waker(&is_due.clone().into())).is_pending());
        let long = |_| {
            let (is_due, before) = (is_due.clone(), before.clone());
            spawn(async move {
                let began = Instant::now();
                while began.elapsed() < SHORT && !is_due.0.load(SeqCst) {
                    std::hint::spin_loop();
                }
                before.fetch_add(u32::from(!is_due.0.load(SeqCst)), SeqCst);
                if !that_end {
                    yield_now().await;
                }
            })
        };
        for task in (0..300).map(long).collect::<Vec<_>>() {
            task.await.unwrap();
        }
        before.load(SeqCst)
    })
}

#[test]
fn polls_that_become_long_do_not_keep_the_driver_waiting_until_their_round_is_over() {
    // At least one poll of 32 is measured. An event interval of short polls, after which the driver is polled, has 640.
    for that_end in [true, false] {
        let polls = long_polls_before_the_driver_is_asked(that_end);
        assert!(polls <= 100, "the timer waited for {polls} polls of {SHORT:?}; do they end: {that_end}");
    }
}

#[test]
#[cfg_attr(feature = "counted-clock", ignore = "that clock counts polls, and a long one is none to it")]
fn a_long_poll_that_begins_while_all_sleep_is_watched() {
    with_both(|runtime| {
        for _ in 0..5 {
            // Long enough for all workers to park, which is the hard case. If a worker has not parked, the test is only
            // easier to pass.
            thread::sleep(HOG * 2);
            let hog = runtime.spawn(async {
                let is_rung = Arc::new(AtomicBool::new(false));
                let ring = is_rung.clone();
                drop(spawn(async move {
                    time::sleep(SHORT).await;
                    ring.store(true, SeqCst);
                }));
                yield_now().await;
                yield_now().await;
                hog_until(|| is_rung.load(SeqCst))
            });
            assert!(runtime.block_on(hog).unwrap(), "no thread served the timers of a worker in a long poll");
        }
    });
}

#[test]
fn what_waits_in_the_queue_and_in_the_slot_of_a_stuck_worker_runs_elsewhere() {
    with_both(|runtime| {
        let here = first(runtime);
        let hog = runtime.task_builder().placement(here).spawn(async {
            let ran = Arc::new(AtomicU32::new(0));
            for _ in 0..20 {
                let ran = ran.clone();
                drop(spawn(async move { ran.fetch_add(1, SeqCst) }));
            }
            hog_until(|| ran.load(SeqCst) == 20)
        });
        assert!(runtime.block_on(hog).unwrap(), "tasks waited for a worker in a long poll");
    });
}

#[test]
fn what_is_handed_to_a_stuck_worker_runs_elsewhere() {
    with_both(|runtime| {
        let here = first(runtime);
        let (tell, hear) = tokio::sync::oneshot::channel();
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let is_woken = Arc::new(AtomicBool::new(false));
        let (woken, hog_sees) = (is_woken.clone(), is_woken.clone());
        let hog = runtime.task_builder().placement(here).spawn(async move {
            // This becomes the task's previous worker.
            drop(spawn(async move {
                wait.await.unwrap();
                woken.store(true, SeqCst);
            }));
            yield_now().await;
            yield_now().await;
            tell.send(()).unwrap();
            hog_until(|| hog_sees.load(SeqCst))
        });
        runtime.block_on(hear).unwrap();
        go.send(()).unwrap();
        assert!(runtime.block_on(hog).unwrap(), "a wake from outside waited for a worker in a long poll");
    });
}

#[test]
#[cfg_attr(feature = "counted-clock", ignore = "that clock counts polls, and a long one is none to it")]
fn a_long_poll_of_what_tokio_spawned_holds_no_task_of_ours_up() {
    // The task runs inside the driver, which no other worker can serve meanwhile: sockets and timers there wait. Tasks
    // that only wait for the worker must go on.
    with_both(|runtime| {
        let here = first(runtime);
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let (tell, hear) = tokio::sync::oneshot::channel();
        let is_woken = Arc::new(AtomicBool::new(false));
        let (woken, hog_sees) = (is_woken.clone(), is_woken.clone());
        let caller = runtime.task_builder().placement(here).spawn(async move {
            // This becomes the task's previous worker.
            drop(spawn(async move {
                wait.await.unwrap();
                woken.store(true, SeqCst);
            }));
            yield_now().await;
            yield_now().await;
            let foreign = tokio::spawn(async move {
                tell.send(()).unwrap();
                hog_until(|| hog_sees.load(SeqCst))
            });
            foreign.await.unwrap()
        });
        runtime.block_on(hear).unwrap();
        // The other worker parks, and is not the watchdog, because all workers seem to be parked. If that takes longer
        // than this sleep, the test is only easier to pass.
        thread::sleep(HOG * 5);
        go.send(()).unwrap();
        assert!(runtime.block_on(caller).unwrap(), "a task waited for what tokio spawned");
    });
}

#[test]
fn a_long_poll_of_what_tokio_spawned_holds_no_task_without_a_home_up() {
    // The task goes into the injection queue, and placement chooses the worker that is notified. So each of the two workers
    // has the long poll once.
    with_both(|runtime| {
        for worker in 0..2 {
            let there = Placement::cpu(runtime.metrics().workers[worker].cpu);
            let (tell, hear) = tokio::sync::oneshot::channel();
            let has_run = Arc::new(AtomicBool::new(false));
            let (run, hog_sees) = (has_run.clone(), has_run.clone());
            let caller = runtime.task_builder().placement(there).spawn(async move {
                let foreign = tokio::spawn(async move {
                    tell.send(()).unwrap();
                    hog_until(|| hog_sees.load(SeqCst))
                });
                foreign.await.unwrap()
            });
            runtime.block_on(hear).unwrap();
            // As above.
            thread::sleep(HOG * 5);
            drop(runtime.spawn(async move { run.store(true, SeqCst) }));
            assert!(runtime.block_on(caller).unwrap(), "a task without a home waited for what tokio spawned");
        }
    });
}

#[test]
fn block_in_place_strands_neither_its_workers_queue_nor_its_driver() {
    for workers in [1, 2] {
        as_task(workers, async {
            let rounds = echo_here().await;
            let ran = Arc::new(AtomicU32::new(0));
            for _ in 0..20 {
                let ran = ran.clone();
                drop(spawn(async move { ran.fetch_add(1, SeqCst) }));
            }
            let before = rounds.load(SeqCst);
            let got_on =
                block_in_place(|| hog_until(|| rounds.load(SeqCst) >= before + 10 && ran.load(SeqCst) == 20));
            assert!(got_on);
        });
    }
}

#[test]
fn what_follows_block_in_place_is_in_the_runtime() {
    for workers in [1, 2] {
        let sum = as_task(workers, async {
            let mut sum = 0;
            for i in 0..10 {
                let n = block_in_place(|| i);
                // This is the same poll, on a thread that no longer runs a worker.
                assert!(Handle::try_current().is_some());
                sum += spawn(async move { n }).await.unwrap();
                sum += tokio::spawn(async move { n }).await.unwrap();
                time::sleep(SHORT).await;
            }
            sum
        });
        assert_eq!(sum, 90);
    }
}

#[test]
fn many_block_in_place_at_once() {
    for workers in [1, 2] {
        with_workers(workers, |runtime| {
            let barrier = Arc::new(Barrier::new(16));
            for _ in 0..5 {
                let tasks: Vec<_> = (0..16)
                    .map(|_| {
                        let barrier = barrier.clone();
                        runtime.spawn(async move {
                            // Returns when all sixteen closures have come here.
                            block_in_place(|| barrier.wait().is_leader())
                        })
                    })
                    .collect();
                let leaders =
                    tasks.into_iter().map(|task| u32::from(runtime.block_on(task).unwrap())).sum::<u32>();
                assert_eq!(leaders, 1);
            }
        });
    }
}

#[test]
fn block_in_place_in_block_in_place_just_calls() {
    assert_eq!(as_task(1, async { block_in_place(|| block_in_place(|| 7)) }), 7);
}

#[test]
fn block_on_works_inside_block_in_place() {
    let heard = as_task(1, async {
        block_in_place(|| {
            Handle::current().block_on(async {
                time::sleep(SHORT).await;
                spawn(async { 7 }).await.unwrap()
            })
        })
    });
    assert_eq!(heard, 7);
}

#[test]
fn a_panic_in_block_in_place_costs_its_task_only() {
    with_workers(1, |runtime| {
        for _ in 0..3 {
            let blocked = runtime.spawn(async { block_in_place(|| panic!("cold")) });
            assert!(runtime.block_on(blocked).unwrap_err().is_panic());
            assert_eq!(runtime.block_on(runtime.spawn(async { 7 })).unwrap(), 7);
        }
    });
}

#[test]
fn a_wake_during_block_in_place_is_not_lost() {
    as_task(1, async {
        for _ in 0..50 {
            let mut is_first = true;
            std::future::poll_fn(|cx| {
                if !std::mem::take(&mut is_first) {
                    return Poll::Ready(());
                }
                let waker = cx.waker().clone();
                // Another thread wakes the task, while this poll goes on on a thread that no longer runs a worker.
                block_in_place(|| thread::spawn(move || waker.wake()).join().unwrap());
                Poll::Pending
            })
            .await;
        }
    });
}

#[test]
fn dropping_a_runtime_waits_for_what_is_in_block_in_place() {
    ends(|| {
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        let (begin, has_begun) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        drop(runtime.spawn(async move {
            block_in_place(|| {
                begin.send(()).unwrap();
                thread::sleep(HOG);
                over.store(true, SeqCst);
            });
        }));
        has_begun.recv().unwrap();
        drop(runtime);
        assert!(is_over.load(SeqCst));
    });
}

#[test]
fn shutdown_does_not_wait_beyond_its_deadline() {
    ends(|| {
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        let (begin, has_begun) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        drop(runtime.spawn(async move {
            begin.send(()).unwrap();
            block_in_place(|| wait.recv())
        }));
        has_begun.recv().unwrap();
        assert!(!runtime.shutdown_timeout(HOG), "it is still there");
        go.send(()).unwrap();
    });
}

#[test]
fn a_runtime_that_its_own_task_drops_ends() {
    ends(|| {
        for workers in [1, 2] {
            let runtime = Arc::new(Runtime::builder().worker_threads(workers).build().unwrap());
            let (inside, (go, wait)) = (runtime.clone(), mpsc::channel::<()>());
            let (tell, hear) = mpsc::channel();
            let owner = task_that_drops(&runtime, inside, wait, tell);
            drop(runtime);
            go.send(()).unwrap();
            hear.recv().unwrap();
            drop(owner);
        }
    });
}

/// Spawns a task that drops the runtime `inside`, as its last owner, after a message from `wait`.
fn task_that_drops(
    runtime: &Runtime,
    inside: Arc<Runtime>,
    wait: mpsc::Receiver<()>,
    tell: mpsc::Sender<()>,
) -> warmcore_runtime::JoinHandle<()> {
    runtime.spawn(async move {
        wait.recv().unwrap();
        drop(inside);
        tell.send(()).unwrap();
    })
}

#[test]
fn a_runtime_that_ends_inside_block_in_place_ends() {
    ends(|| {
        let runtime = Arc::new(Runtime::builder().worker_threads(1).build().unwrap());
        let (inside, (go, wait)) = (runtime.clone(), mpsc::channel::<()>());
        let (tell, hear) = mpsc::channel();
        drop(runtime.spawn(async move {
            block_in_place(|| {
                wait.recv().unwrap();
                drop(inside);
                tell.send(()).unwrap();
            })
        }));
        drop(runtime);
        go.send(()).unwrap();
        hear.recv().unwrap();
    });
}

#[test]
fn a_task_on_its_cpu_alone_waits_for_a_hog_there() {
    // A task that may run on this worker alone can't be stolen; it runs after the hog's poll.
    with_workers(2, |runtime| {
        let here = first(runtime);
        let hog = runtime.task_builder().placement(here).spawn(async move {
            let has_run = Arc::new(AtomicBool::new(false));
            let run = has_run.clone();
            let pinned = task_builder().placement(here).spawn(async move { run.store(true, SeqCst) });
            hog_until(|| true);
            let ran_meanwhile = has_run.load(SeqCst);
            pinned.await.unwrap();
            ran_meanwhile
        });
        let ran_meanwhile = runtime.block_on(hog).unwrap();
        let cpus = runtime.metrics().workers.iter().map(|worker| worker.cpu).collect::<Vec<_>>();
        assert!(!ran_meanwhile || cpus[0] == cpus[1]);
    });
}

/// A task blocks `times` times for 30 ms, while another task is always ready. Waits each time until one more long poll
/// is counted, and hangs if it is not.
fn each_long_poll_is_counted(workers: usize, times: u64) {
    with_workers(workers, move |runtime| {
        let handle = runtime.handle();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let ticks = runtime.task_builder().placement(first(runtime)).spawn(async move {
            while !over.load(SeqCst) {
                yield_now().await;
            }
        });
        let counted = move || handle.metrics().total().long_polls;
        let blocks = runtime.task_builder().placement(first(runtime)).spawn(async move {
            for _ in 0..times {
                let before = counted();
                thread::sleep(Duration::from_millis(30));
                while counted() == before {
                    yield_now().await;
                }
            }
        });
        runtime.block_on(blocks).unwrap();
        is_over.store(true, SeqCst);
        runtime.block_on(ticks).unwrap();
    });
}

#[test]
#[cfg_attr(feature = "counted-clock", ignore = "that clock counts polls, and a long one is none to it")]
fn each_long_poll_is_counted_where_no_worker_is_idle() {
    each_long_poll_is_counted(1, 20);
}

#[test]
fn each_long_poll_is_counted_where_a_worker_is_idle() {
    each_long_poll_is_counted(2, 20);
}

#[test]
fn the_first_long_poll_after_a_while_is_counted_though_it_is_not_measured() {
    for _ in 0..5 {
        each_long_poll_is_counted(1, 1);
    }
}
