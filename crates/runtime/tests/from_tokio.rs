//! Differences from tokio: a test for each line of `docs/from-tokio.md`.
//!
//! The page names a test for each line; `each_line_has_its_test_and_each_test_its_line` checks that both agree. The first
//! table's tests are in `adapters/tokio/tests`, since they run on the package that takes tokio's place. A test
//! shows what happens here and, where that is short, what tokio does. A test has one worker if the order of polls
//! matters, and two if tasks move.

mod common;
mod limit;

use common::polls_of;
use limit::{HANGS_AFTER, as_task, ends, with_workers};
use std::cell::Cell;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId, available_parallelism};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::RuntimeFlavor;
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinSet, LocalSet, coop, spawn_local};
use tokio::time;
use warmcore_runtime::{Handle, Placement, Runtime, block_in_place, scope, spawn, task_builder, yield_now};

const SHORT: Duration = Duration::from_millis(2);

/// A time limit that is not reached.
const LONG: Duration = Duration::from_secs(3600);

const PAGE: &str = include_str!("../../../docs/from-tokio.md");

const TESTS: &str = include_str!("from_tokio.rs");

/// The files with the tests of the page's first table.
const ADAPTER: [&str; 5] = [
    include_str!("../../../adapters/tokio/tests/differences.rs"),
    include_str!("../../../adapters/tokio/tests/drivers.rs"),
    include_str!("../../../adapters/tokio/tests/runtimes.rs"),
    include_str!("../../../adapters/tokio/tests/scheduler.rs"),
    include_str!("../../../adapters/tokio/tests/tasks.rs"),
];

#[test]
fn each_line_has_its_test_and_each_test_its_line() {
    let is_test = |line: &&str| line.starts_with("fn ") && line.ends_with("() {");
    let after = TESTS.lines().zip(TESTS.lines().skip(1)).filter(|(above, _)| *above == "#[test]");
    let name = |line: &str| line["fn ".len()..].trim_end_matches("() {").to_owned();
    let mut tests: Vec<_> = after.map(|(_, line)| line).filter(is_test).map(name).collect();
    tests.retain(|test| test != "each_line_has_its_test_and_each_test_its_line");
    let (adopted, own) = PAGE.split_once("## With Warmcore's own API").unwrap();
    // The last cell of a table's row is a test's name in backticks.
    let names = |text: &'static str| -> Vec<&str> {
        let rows = text.lines().filter(|line| line.starts_with("| ") && line.ends_with(" |"));
        let cells = rows.map(|row| row.trim_end_matches(" |").rsplit(" | ").next().unwrap());
        cells.filter(|cell| *cell != "test").map(|cell| cell.trim_matches('`')).collect()
    };
    let adopted = names(adopted);
    assert!(adopted.len() > 8, "{adopted:?}");
    for test in adopted {
        let function = format!("fn {test}() {{");
        assert!(ADAPTER.iter().any(|file| file.contains(&function)), "adapters/tokio/tests lacks {test}");
    }
    let mut lines = names(own);
    assert!(lines.len() > 20, "{lines:?}");
    tests.sort();
    lines.sort();
    assert_eq!(lines, tests, "left: lines of docs/from-tokio.md; right: tests here");
}

/// Tokio's attribute creates a tokio runtime, so the test builds a runtime of this crate by hand.
#[test]
fn main_makes_a_runtime() {
    fn main() -> Result<(), Box<dyn std::error::Error>> {
        let runtime = Runtime::new()?;
        runtime.block_on(async {
            assert_eq!(spawn(async { 7 }).await?, 7);
            Ok(())
        })
    }
    ends(|| main().unwrap());
}

#[test]
fn a_runtime_lives_inside_tokios_main() {
    ends(|| {
        let tokios = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        tokios.unwrap().block_on(async {
            let ours = Runtime::builder().worker_threads(2).build().unwrap();
            let here = tokio::spawn(async { 1 });
            let there = ours.spawn(async { time::sleep(SHORT).await });
            // Each runtime awaits tasks of the other.
            there.await.unwrap();
            let both = ours.spawn(async { here.await.unwrap() + 1 });
            assert_eq!(tokio::spawn(both).await.unwrap().unwrap(), 2);
            // A tokio runtime may not be dropped here; a runtime of this crate may.
            drop(ours);
        });
    });
}

/// Tasks of `tokio::spawn` on each worker's driver, sorted.
fn foreign_tasks() -> Vec<usize> {
    let mut counts: Vec<_> = Handle::current().metrics().workers.iter().map(|w| w.foreign_tasks).collect();
    counts.sort();
    counts
}

#[test]
fn tokio_spawn_stays_with_its_worker_and_spawn_does_not() {
    as_task(2, async {
        let foreign: Vec<_> = (0..4).map(|_| tokio::spawn(pending::<()>())).collect();
        assert_eq!(foreign_tasks(), [0, 4]);
        foreign.iter().for_each(|task| task.abort());
        drop(spawn(pending::<()>()));
        while foreign_tasks() != [0, 0] {
            yield_now().await;
        }
        assert_eq!(Handle::current().metrics().num_alive_tasks, 2);
    });
}

#[test]
fn join_set_spawns_by_tokio_unless_each_task_spawns_here() {
    as_task(2, async {
        let mut set = JoinSet::new();
        for i in 0..10 {
            set.spawn(async move { i });
        }
        assert_eq!(foreign_tasks(), [0, 10]);
        assert_eq!(set.join_all().await.into_iter().sum::<i32>(), 45);
        // The set keeps a small task that waits; the work itself may run on any worker. Aborting the set does not abort the
        // work; an `AbortHandle` does.
        let mut set = JoinSet::new();
        for i in 0..10 {
            let work = spawn(async move { i });
            set.spawn(async move { work.await.unwrap() });
        }
        assert_eq!(set.join_all().await.into_iter().sum::<i32>(), 45);
    });
}

#[test]
fn a_local_set_works_in_block_on_and_not_in_a_task() {
    with_workers(1, |runtime| {
        let local = LocalSet::new();
        let heard = runtime.block_on(local.run_until(async {
            let shared = std::rc::Rc::new(Cell::new(0));
            let sets = shared.clone();
            let task = spawn_local(async move {
                time::sleep(SHORT).await;
                sets.set(spawn(async { 7 }).await.unwrap());
            });
            task.await.unwrap();
            assert!(std::panic::catch_unwind(|| block_in_place(|| ())).is_err());
            shared.get()
        }));
        assert_eq!(heard, 7);
        // A `LocalSet` is not `Send`, so no task can own one, and without one `spawn_local` panics.
        let task = runtime.spawn(async { drop(spawn_local(async {})) });
        assert!(runtime.block_on(task).unwrap_err().is_panic());
    });
}

tokio::task_local! {
    static NUMBER: u32;
}

#[test]
fn task_locals_go_with_their_future_and_not_into_what_it_spawns() {
    as_task(2, async {
        let body = async {
            for _ in 0..10 {
                time::sleep(SHORT).await;
                assert_eq!(NUMBER.get(), 7);
            }
            spawn(async { NUMBER.try_with(|_| ()).is_err() }).await.unwrap()
        };
        assert!(spawn(NUMBER.scope(7, body)).await.unwrap());
    });
}

#[test]
fn spawn_blocking_works_and_its_threads_may_use_every_cpu() {
    with_workers(1, |runtime| {
        let everywhere = available_parallelism().unwrap();
        let there = runtime.spawn(async {
            tokio::task::spawn_blocking(|| (thread::current().id(), available_parallelism().unwrap()))
                .await
                .unwrap()
        });
        let (thread, cpus) = runtime.block_on(there).unwrap();
        let worker = runtime.block_on(runtime.spawn(async { thread::current().id() })).unwrap();
        assert_ne!(thread, worker);
        assert_eq!(cpus, everywhere);
    });
}

#[test]
fn what_is_started_from_a_pinned_worker_is_pinned_like_it() {
    ends(|| {
        let everywhere = available_parallelism().unwrap();
        let cpus = || thread::spawn(|| available_parallelism().unwrap().get()).join().unwrap();
        let pinned = Runtime::builder().pin(true).build().unwrap();
        assert_eq!(pinned.block_on(pinned.spawn(async move { cpus() })).unwrap(), 1);
        // The allowed CPUs are again all of the process's, as on a runtime whose workers are not pinned.
        let freed = pinned.spawn(async move { block_in_place(cpus) });
        assert_eq!(pinned.block_on(freed).unwrap(), everywhere.get());
        let free = Runtime::builder().pin(false).build().unwrap();
        assert_eq!(free.block_on(free.spawn(async move { cpus() })).unwrap(), everywhere.get());
    });
}

#[test]
fn tokios_block_in_place_just_calls() {
    as_task(1, async {
        let before = thread::current().id();
        let ran = Arc::new(AtomicBool::new(false));
        let runs = ran.clone();
        drop(spawn(async move { runs.store(true, SeqCst) }));
        tokio::task::block_in_place(|| {
            assert_eq!(thread::current().id(), before);
            assert!(!ran.load(SeqCst), "no other thread is this worker meanwhile");
        });
    });
}

#[test]
fn what_tokio_refuses_names_what_to_call_here() {
    /// The text of the task's error.
    fn error_of(future: impl Future<Output = ()> + Send + 'static) -> String {
        as_task(1, async { spawn(future).await.unwrap_err().to_string() })
    }
    let in_our_tasks = [
        (error_of(async { drop(spawn_local(async {})) }), "use warmcore::spawn for what is Send"),
        (error_of(async { _ = tokio::task::id() }), "warmcore::task_builder().name(..)"),
        (
            error_of(async {
                let sleeps = thread::spawn(|| drop(time::sleep(SHORT))).join();
                std::panic::resume_unwind(sleeps.unwrap_err());
            }),
            "inside Runtime::enter",
        ),
    ];
    // The error's text of a task of this runtime that unwraps the error of a task of `tokio::spawn`.
    fn error_of_tokios(act: impl FnOnce() + Send + 'static) -> String {
        error_of(async { tokio::spawn(async { act() }).await.unwrap() })
    }
    let in_tokios_tasks = [
        (error_of_tokios(|| tokio::task::block_in_place(|| {})), "call warmcore::block_in_place"),
        (
            error_of_tokios(|| tokio::runtime::Handle::current().block_on(async {})),
            "await the future, or block on it inside warmcore::block_in_place",
        ),
        (
            error_of_tokios(|| _ = tokio::sync::mpsc::channel::<()>(1).1.blocking_recv()),
            "block inside warmcore::block_in_place",
        ),
        (
            error_of_tokios(|| drop(tokio::runtime::Builder::new_current_thread().build().unwrap())),
            "drop it inside warmcore::block_in_place",
        ),
    ];
    for (said, instead) in in_our_tasks.into_iter().chain(in_tokios_tasks) {
        assert!(said.contains(instead), "{said:?} does not say {instead:?}");
    }
    let other = error_of(async { panic!("of its own") });
    assert!(other.ends_with("panicked: of its own"), "{other}");
}

#[test]
fn our_block_in_place_hands_the_worker_on_even_the_only_one() {
    as_task(1, async {
        let (go, wait) = mpsc::channel();
        drop(spawn(async move { go.send(7).unwrap() }));
        assert_eq!(block_in_place(move || wait.recv().unwrap()), 7);
    });
}

#[test]
fn scope_borrows_where_tokio_wants_static() {
    let sum = as_task(2, async {
        let numbers: Vec<u32> = (0..100).collect();
        let sum = AtomicU32::new(0);
        scope(|scope| {
            for part in numbers.chunks(10) {
                let sum = &sum;
                scope.spawn(move || _ = sum.fetch_add(part.iter().sum::<u32>(), SeqCst));
            }
        });
        sum.into_inner()
    });
    assert_eq!(sum, 4950);
}

#[test]
fn tokios_budget_makes_tasks_of_ours_yield_too() {
    async fn drain() {
        let (say, mut hear) = tokio::sync::mpsc::unbounded_channel();
        (0..1000).for_each(|i| say.send(i).unwrap());
        drop(say);
        while hear.recv().await.is_some() {}
    }
    as_task(1, async {
        let (ours, tokios) = (spawn(polls_of(drain())), tokio::spawn(polls_of(drain())));
        assert_eq!(ours.await.unwrap(), 8, "it is stopped every 127 messages");
        assert_eq!(tokios.await.unwrap(), 8, "tokio stops it every 128 messages");
        assert_eq!(polls_of(coop::unconstrained(drain())).await, 1, "that says that it may go on");
    });
}

#[test]
fn yield_now_lets_other_tasks_run() {
    as_task(1, async {
        let ran = Arc::new(AtomicBool::new(false));
        for yields in [0, 1] {
            let runs = ran.clone();
            drop(spawn(async move { runs.store(true, SeqCst) }));
            match yields {
                0 => yield_now().await,
                _ => tokio::task::yield_now().await,
            }
            assert!(ran.swap(false, SeqCst));
        }
    });
}

#[test]
fn tokios_handle_is_of_one_worker_and_ours_of_all() {
    with_workers(2, |runtime| {
        let id = || async { tokio::runtime::Handle::current().id().to_string() };
        let cpus: Vec<_> = runtime.metrics().workers.iter().map(|worker| worker.cpu).collect();
        if cpus[0] != cpus[1] {
            let on = |cpu| runtime.task_builder().placement(Placement::cpu(cpu)).spawn(id());
            let (one, other) = (runtime.block_on(on(cpus[0])), runtime.block_on(on(cpus[1])));
            assert_ne!(one.unwrap(), other.unwrap());
        }
        let ours = runtime.block_on(runtime.spawn(async { Handle::current() })).unwrap();
        let tasks: Vec<_> = (0..10).map(|i| ours.spawn(async move { i })).collect();
        let sum: i32 = tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).sum();
        assert_eq!(sum, 45);
    });
}

#[test]
fn code_that_asserts_the_multi_thread_flavour_fails() {
    as_task(2, async {
        let flavour = tokio::runtime::Handle::current().runtime_flavor();
        assert_eq!(flavour, RuntimeFlavor::CurrentThread);
    });
}

#[test]
fn tokios_runtime_metrics_know_one_driver_only() {
    as_task(2, async {
        let tokios = tokio::runtime::Handle::current().metrics();
        drop(spawn(pending::<()>()));
        assert_eq!(tokios.num_workers(), 1);
        assert_eq!(tokios.num_alive_tasks(), 0);
        let ours = Handle::current().metrics();
        assert_eq!(ours.workers.len(), 2);
        assert_eq!(ours.num_alive_tasks, 2);
        assert!(ours.total().polls + ours.total().first_polls > 0);
    });
}

#[test]
fn tokios_task_ids_are_for_tokios_tasks() {
    as_task(1, async {
        assert!(tokio::task::try_id().is_none());
        assert!(tokio::spawn(async { tokio::task::try_id() }).await.unwrap().is_some());
        let named = task_builder().name("orders").spawn(async {});
        assert_eq!(named.name(), Some("orders"));
        named.await.unwrap();
    });
}

#[test]
fn select_join_and_try_join_are_unchanged() {
    as_task(2, async {
        let one = tokio::select! {
            biased;
            () = pending() => 0,
            one = async { 1 } => one,
        };
        let (two, three) = tokio::join!(async { 2 }, spawn(async { 3 }));
        let four = tokio::try_join!(async { Ok::<_, ()>(4) }).unwrap().0;
        assert_eq!([one, two, three.unwrap(), four], [1, 2, 3, 4]);
    });
}

/// The placements on the first worker alone and on the last worker alone.
fn ends_of(runtime: &Runtime) -> [Placement; 2] {
    let workers = runtime.metrics().workers;
    [workers[0].cpu, workers[workers.len() - 1].cpu].map(Placement::cpu)
}

#[test]
fn a_timer_stays_on_the_driver_where_it_was_made() {
    with_workers(2, |runtime| {
        let [here, there] = ends_of(runtime);
        let made = runtime.task_builder().placement(here).spawn(async { (Box::pin(time::sleep(SHORT)),) });
        let (sleep,) = runtime.block_on(made).unwrap();
        // The timer of one worker wakes a task of the other.
        runtime.block_on(runtime.task_builder().placement(there).spawn(sleep)).unwrap();
    });
}

#[test]
fn a_socket_stays_on_the_driver_where_it_was_made_until_it_is_taken_over() {
    with_workers(2, |runtime| {
        let [here, there] = ends_of(runtime);
        let made = runtime.task_builder().placement(here).spawn(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            (one, listener.accept().await.unwrap().0)
        });
        let (mut one, mut other) = runtime.block_on(made).unwrap();
        let echo = runtime.task_builder().placement(here).spawn(async move {
            let mut byte = [0];
            while other.read_exact(&mut byte).await.is_ok() {
                other.write_all(&byte).await.unwrap();
            }
        });
        let asked = runtime.task_builder().placement(there).spawn(async move {
            for is_taken_over in [false, true] {
                if is_taken_over {
                    // Registers the socket with this worker's driver, as `http::serve` does with each connection.
                    one = TcpStream::from_std(one.into_std().unwrap()).unwrap();
                }
                for i in 0..10 {
                    one.write_all(&[i]).await.unwrap();
                    assert_eq!(one.read_u8().await.unwrap(), i);
                }
            }
        });
        runtime.block_on(asked).unwrap();
        runtime.block_on(echo).unwrap();
    });
}

#[test]
fn dropping_a_join_handle_leaves_the_task_alone() {
    as_task(1, async {
        let (say, hear) = oneshot::channel();
        drop(spawn(async move {
            yield_now().await;
            say.send(7).unwrap();
        }));
        assert_eq!(hear.await, Ok(7));
    });
}

#[test]
fn abort_drops_the_future_and_the_error_is_cancelled() {
    as_task(2, async {
        struct Dropped(Arc<AtomicBool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let is_dropped = Arc::new(AtomicBool::new(false));
        let guard = Dropped(is_dropped.clone());
        let waits = spawn(async move {
            let _guard = guard;
            time::sleep(LONG).await;
        });
        yield_now().await;
        waits.abort();
        // When the handle is ready the future is dropped.
        assert!(waits.await.unwrap_err().is_cancelled());
        assert!(is_dropped.load(SeqCst));
        // Aborting a task that has ended does nothing.
        let ended = spawn(async { 7 });
        while !ended.is_finished() {
            yield_now().await;
        }
        ended.abort();
        assert_eq!(ended.await.unwrap(), 7);
    });
}

#[test]
fn a_panic_is_returned_by_the_join_handle_alone() {
    with_workers(1, |runtime| {
        let panics = runtime.spawn(async { panic!("cold") });
        let error = runtime.block_on(panics).unwrap_err();
        assert!(error.is_panic() && error.to_string().contains("cold"), "{error}");
        assert_eq!(error.into_panic().downcast_ref(), Some(&"cold"));
        assert_eq!(runtime.block_on(runtime.spawn(async { 7 })).unwrap(), 7);
    });
}

#[test]
fn a_panic_while_an_output_is_dropped_costs_nothing_else() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("cold");
        }
    }
    with_workers(1, |runtime| {
        drop(runtime.spawn(async { Bad }));
        drop(runtime.spawn(async { std::panic::panic_any(Bad) }));
        assert_eq!(runtime.block_on(runtime.spawn(async { 7 })).unwrap(), 7);
    });
}

#[test]
fn no_order_is_promised_and_no_task_starves() {
    as_task(1, async {
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..4)
            .map(|i| {
                let order = order.clone();
                spawn(async move { order.lock().unwrap().push(i) })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let mut order = order.lock().unwrap().clone();
        order.sort();
        assert_eq!(order, [0, 1, 2, 3]);
        // Two tasks that wake each other for ever let a third one run.
        let (ping, pong) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let talk = |hear: Arc<Notify>, say: Arc<Notify>| async move {
            loop {
                hear.notified().await;
                say.notify_one();
            }
        };
        let talkers = [spawn(talk(ping.clone(), pong.clone())), spawn(talk(pong, ping.clone()))];
        ping.notify_one();
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(spawn(async { 7 }).await.unwrap(), 7);
        talkers.iter().for_each(|talker| talker.abort());
    });
}

#[test]
fn a_task_may_be_polled_by_another_thread_each_time_and_is_at_home_on_one() {
    with_workers(2, |runtime| {
        let task = runtime.spawn(async {
            let mut threads: Vec<ThreadId> = Vec::new();
            for _ in 0..100 {
                threads.push(thread::current().id());
                yield_now().await;
            }
            threads
        });
        let threads = runtime.block_on(task).unwrap();
        let moves = threads.windows(2).filter(|pair| pair[0] != pair[1]).count();
        // A task alone on two workers has no reason to move, unless its worker is preempted by other processes.
        assert!(moves < 50, "{moves} moves in 100 polls");
    });
}

#[test]
fn shutdown_ends_tasks_then_workers_then_what_tokio_spawned() {
    ends(|| {
        struct Says(&'static str, Arc<Mutex<Vec<&'static str>>>);
        impl Drop for Says {
            fn drop(&mut self) {
                self.1.lock().unwrap().push(self.0);
            }
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let says = |what| Says(what, order.clone());
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        let (foreign, ours) = (says("tokio's"), says("ours"));
        let begun = runtime.spawn(async move {
            drop(tokio::spawn(async move {
                let _foreign = foreign;
                pending::<()>().await;
            }));
            drop(spawn(async move {
                let _ours = ours;
                pending::<()>().await;
            }));
            time::sleep(SHORT).await;
        });
        runtime.block_on(begun).unwrap();
        let handle = runtime.handle();
        drop(runtime);
        assert_eq!(*order.lock().unwrap(), ["ours", "tokio's"]);
        // After the shutdown a task is cancelled before its first poll.
        let late = handle.spawn(async { 7 });
        let tokios = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(tokios.block_on(late).unwrap_err().is_cancelled());
    });
}

#[test]
fn dropping_a_runtime_waits_for_polls_and_not_for_spawn_blocking() {
    ends(|| {
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let (begin, has_begun) = mpsc::channel();
        drop(runtime.spawn(async move {
            let blocking = tokio::task::spawn_blocking(move || wait.recv());
            yield_now().await;
            begin.send(()).unwrap();
            thread::sleep(SHORT);
            _ = blocking.await;
        }));
        has_begun.recv().unwrap();
        // The drop returns, though the closure still waits for the test.
        drop(runtime);
        let _ = go.send(());
    });
}

#[test]
fn shutdown_timeout_returns_whether_all_ended_in_time() {
    ends(|| {
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        drop(runtime.spawn(pending::<()>()));
        assert!(runtime.shutdown_timeout(LONG), "what waits ends at once");
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        let (begin, has_begun) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        drop(runtime.spawn(async move {
            begin.send(()).unwrap();
            // A poll that does not return can't be ended.
            let _ = wait.recv();
        }));
        has_begun.recv().unwrap();
        assert!(!runtime.shutdown_timeout(SHORT));
        go.send(()).unwrap();
    });
}

#[test]
fn a_runtime_may_be_dropped_in_a_task_even_in_its_own() {
    ends(|| {
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        let inside = Arc::new(Runtime::builder().worker_threads(1).build().unwrap());
        let other = inside.clone();
        runtime.block_on(runtime.spawn(async move { drop(other) })).unwrap();
        let (tell, hear) = mpsc::channel();
        let (own, (go, wait)) = (inside.clone(), mpsc::channel::<()>());
        drop(inside.spawn(async move {
            wait.recv().unwrap();
            drop(own);
            tell.send(()).unwrap();
        }));
        drop(inside);
        go.send(()).unwrap();
        hear.recv().unwrap();
    });
}

#[test]
fn block_on_panics_in_async_code_and_not_inside_block_in_place() {
    async fn panics(act: impl FnOnce() + Send + 'static) {
        let error = spawn(async move { act() }).await.unwrap_err();
        assert!(
            error.to_string().contains("inside block_in_place")
                || error.to_string().contains("warmcore::block_in_place")
        );
    }
    let check = || async {
        panics(|| Handle::current().block_on(async {})).await;
        panics(|| tokio::runtime::Handle::current().block_on(async {})).await;
        panics(|| _ = tokio::sync::mpsc::channel::<()>(1).1.blocking_recv()).await;
        panics(|| drop(tokio::runtime::Builder::new_current_thread().build().unwrap())).await;
        block_in_place(|| {
            assert_eq!(Handle::current().block_on(async { 7 }), 7);
            assert_eq!(tokio::runtime::Handle::current().block_on(async { 7 }), 7);
            let (send, mut receive) = tokio::sync::mpsc::channel::<()>(1);
            drop(send);
            assert_eq!(receive.blocking_recv(), None);
            drop(tokio::runtime::Builder::new_current_thread().build().unwrap());
        });
    };
    as_task(2, check());
    with_workers(1, move |runtime| {
        runtime.block_on(check());
        // Inside `block_on` on a thread that is no worker, too.
        let nested = || runtime.block_on(async { runtime.block_on(async {}) });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(nested)).is_err());
        assert_eq!(runtime.block_on(async { 7 }), 7);
    });
}

#[test]
fn enter_gives_a_guard_and_with_context_takes_a_closure() {
    with_workers(1, |runtime| {
        assert!(Handle::try_current().is_none());
        let task = runtime.with_context(|| {
            assert!(tokio::runtime::Handle::try_current().is_ok());
            spawn(async { 7 })
        });
        assert!(tokio::runtime::Handle::try_current().is_err());
        assert_eq!(runtime.block_on(task).unwrap(), 7);
        let guard = runtime.enter();
        assert!(tokio::runtime::Handle::try_current().is_ok());
        let task = spawn(async { 8 });
        drop(guard);
        assert!(Handle::try_current().is_none() && tokio::runtime::Handle::try_current().is_err());
        assert_eq!(runtime.block_on(task).unwrap(), 8);
    });
}

#[cfg_attr(feature = "counted-clock", ignore = "that clock counts polls, and a long one is none to it")]
#[test]
fn a_long_poll_is_detected_and_counted() {
    with_workers(2, |runtime| {
        let handle = runtime.handle();
        let hog = runtime.spawn(async move {
            let began = Instant::now();
            // Waits until another worker has found this one stuck.
            while !handle.metrics().workers.iter().any(|worker| worker.is_stuck) {
                if began.elapsed() > HANGS_AFTER / 2 {
                    return false;
                }
                // Leaves the CPU to the worker that checks.
                thread::sleep(SHORT);
            }
            true
        });
        assert!(runtime.block_on(hog).unwrap());
        assert!(runtime.metrics().total().long_polls > 0);
    });
}
