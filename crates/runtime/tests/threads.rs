//! The threads of a runtime: names, stacks, and the functions that they call when they start, stop, park and unpark.

mod limit;

use limit::ends;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use warmcore_runtime::{Builder, Handle, Runtime, block_in_place, spawn, worker_index, yield_now};

fn one_worker() -> Builder {
    Runtime::builder().worker_threads(1)
}

fn thread_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

/// Counts up, for a function that a builder takes.
fn count(calls: &Arc<AtomicU32>) -> impl Fn() + Send + Sync + 'static {
    let calls = calls.clone();
    move || _ = calls.fetch_add(1, SeqCst)
}

#[test]
fn a_function_names_each_thread_that_runs_workers() {
    ends(|| {
        let started = AtomicU32::new(0);
        let name = move || format!("number {}", started.fetch_add(1, SeqCst));
        let runtime = one_worker().thread_name_fn(name).build().unwrap();
        let (before, meanwhile) = runtime
            .block_on(runtime.spawn(async {
                let next = spawn(async { thread_name() });
                (thread_name(), block_in_place(|| Handle::current().block_on(next).unwrap()))
            }))
            .unwrap();
        assert_eq!((before.as_str(), meanwhile.as_str()), ("number 0", "number 1"));
    });
}

#[test]
fn a_name_with_a_nul_is_an_error_of_build_and_not_of_a_task() {
    let error = one_worker().thread_name_fn(|| "a\0b".to_owned()).build().unwrap_err();
    assert!(error.to_string().contains("NUL"), "{error}");
    ends(|| {
        let is_first = AtomicBool::new(true);
        let name = move || if is_first.swap(false, SeqCst) { "a".to_owned() } else { "a\0b".to_owned() };
        let runtime = one_worker().thread_name_fn(name).build().unwrap();
        // No thread can be started, so the worker itself blocks.
        let index = runtime.spawn(async { block_in_place(worker_index) });
        assert_eq!(runtime.block_on(index).unwrap(), Some(0));
    });
}

/// Uses this many KiB of the stack.
fn deep(kib: usize) -> usize {
    let page = black_box([kib as u8; 1024]);
    if kib == 0 { 0 } else { deep(kib - 1) + usize::from(page[kib % 1024] == kib as u8) }
}

#[test]
fn a_larger_stack_holds_what_the_default_one_does_not() {
    ends(|| {
        let runtime = one_worker().thread_stack_size(64 << 20).build().unwrap();
        assert_eq!(runtime.block_on(runtime.spawn(async { deep(8 << 10) })).unwrap(), 8 << 10);
    });
}

#[test]
fn each_thread_calls_start_and_stop_once_inside_the_runtime() {
    ends(|| {
        let (starts, stops) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let note = |calls: &Arc<Mutex<Vec<_>>>| {
            let calls = calls.clone();
            move || {
                let here = Handle::try_current().map(|handle| handle.num_workers());
                calls.lock().unwrap().push((thread::current().id(), here, worker_index()));
            }
        };
        let runtime = Runtime::builder()
            .worker_threads(2)
            .on_thread_start(note(&starts))
            .on_thread_stop(note(&stops))
            .build()
            .unwrap();
        // A thread more, that takes over the worker; and it once more, without a new thread.
        for _ in 0..2 {
            runtime.block_on(runtime.spawn(async { block_in_place(|| ()) })).unwrap();
        }
        drop(runtime);
        let threads = |calls: &Mutex<Vec<_>>| {
            let calls = calls.lock().unwrap();
            assert!(calls.iter().all(|(_, here, index)| (*here, *index) == (Some(2), None)), "{calls:?}");
            let threads: BTreeSet<_> = calls.iter().map(|(thread, ..)| format!("{thread:?}")).collect();
            assert_eq!(threads.len(), calls.len(), "a thread calls it once");
            threads
        };
        let starts = threads(&starts);
        assert_eq!(starts, threads(&stops));
        assert!(starts.len() >= 3, "{starts:?}");
    });
}

#[test]
fn a_worker_calls_park_before_it_parks_and_unpark_after_it() {
    ends(|| {
        let (parks, unparks) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let runtime =
            one_worker().on_thread_park(count(&parks)).on_thread_unpark(count(&unparks)).build().unwrap();
        let counts = || (parks.load(SeqCst), unparks.load(SeqCst));
        let is_parked = |runtime: &Runtime| runtime.metrics().workers[0].park_unpark_count % 2 == 1;
        for _ in 0..10 {
            // Parked now: it has called the first function once more.
            while !is_parked(&runtime) || counts().0 == counts().1 {
                thread::yield_now();
            }
            let (_, after) = counts();
            let polled = runtime.spawn(async {});
            runtime.block_on(polled).unwrap();
            assert!(counts().1 > after, "unparked for the task");
        }
        let handle = runtime.handle();
        drop(runtime);
        let (parks, unparks) = counts();
        assert_eq!(parks, unparks);
        let worker = &handle.metrics().workers[0];
        assert_eq!((worker.stats.parks, worker.park_unpark_count % 2), (parks.into(), 0));
        // A park that ended without a poll is not counted a second time.
        assert!((2 * 10..=2 * u64::from(parks)).contains(&worker.park_unpark_count), "{worker:?}");
    });
}

#[test]
fn a_task_that_the_park_function_spawns_ends_the_park() {
    ends(|| {
        let (runs, ran) = mpsc::channel();
        let left = AtomicU32::new(10);
        let park = move || {
            if left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                let runs = runs.clone();
                drop(spawn(async move {
                    yield_now().await;
                    runs.send(()).unwrap();
                }));
            }
        };
        let _runtime = one_worker().on_thread_park(park).build().unwrap();
        assert_eq!(ran.iter().take(10).count(), 10);
    });
}

#[test]
fn a_task_that_the_unpark_function_spawns_runs() {
    ends(|| {
        let (runs, ran) = mpsc::channel();
        let unpark = move || {
            let runs = runs.clone();
            drop(spawn(async move { runs.send(()).unwrap() }));
        };
        let runtime = one_worker().on_thread_unpark(unpark).build().unwrap();
        while runtime.metrics().workers[0].park_unpark_count == 0 {
            thread::yield_now();
        }
        runtime.block_on(runtime.spawn(async {})).unwrap();
        ran.recv().unwrap();
    });
}

#[test]
fn a_panic_of_such_a_function_ends_no_worker() {
    /// A payload whose drop panics too.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("of a payload's drop");
        }
    }
    ends(|| {
        let [starts, stops, parks, unparks]: [Arc<AtomicU32>; 4] = Default::default();
        let panics = |calls: &Arc<AtomicU32>| {
            let calls = calls.clone();
            move || {
                calls.fetch_add(1, SeqCst);
                std::panic::panic_any(Bomb)
            }
        };
        let runtime = one_worker()
            .on_thread_start(panics(&starts))
            .on_thread_stop(panics(&stops))
            .on_thread_park(panics(&parks))
            .on_thread_unpark(panics(&unparks))
            .build()
            .unwrap();
        // A worker that finds a task before it parks calls neither of the two in the middle.
        for n in 0.. {
            assert_eq!(runtime.block_on(runtime.spawn(async move { n })).unwrap(), n);
            if parks.load(SeqCst) > 0 && unparks.load(SeqCst) > 0 {
                break;
            }
        }
        drop(runtime);
        assert_eq!((starts.load(SeqCst), stops.load(SeqCst)), (1, 1));
    });
}

#[test]
fn a_thread_may_leave_its_workers_cpu_when_it_starts() {
    ends(|| {
        let everywhere = thread::available_parallelism().unwrap();
        let leave = || {
            let all = warmcore_sys::affinity::allowed_to_main().unwrap();
            warmcore_sys::affinity::set_allowed(&all).unwrap();
        };
        let runtime = one_worker().pin(true).on_thread_start(leave).build().unwrap();
        let here = runtime.spawn(async { thread::available_parallelism().unwrap() });
        assert_eq!(runtime.block_on(here).unwrap(), everywhere);
    });
}

#[test]
fn a_handle_counts_workers_tasks_and_injected_tasks() {
    ends(|| {
        let runtime = Runtime::builder().worker_threads(2).build().unwrap();
        let handle = runtime.handle();
        let begin = Arc::new(Barrier::new(3));
        let ends = Arc::new(Barrier::new(3));
        // Both workers are in a poll, so nothing takes what is spawned.
        for _ in 0..2 {
            let (begin, ends) = (begin.clone(), ends.clone());
            drop(runtime.spawn(async move {
                begin.wait();
                ends.wait();
            }));
        }
        begin.wait();
        assert_eq!(
            (handle.num_workers(), handle.num_alive_tasks(), handle.injection_queue_depth()),
            (2, 2, 0)
        );
        let tasks: Vec<_> = (0..10).map(|_| runtime.spawn(async {})).collect();
        assert_eq!((handle.num_alive_tasks(), handle.injection_queue_depth()), (12, 10));
        ends.wait();
        for task in tasks {
            runtime.block_on(task).unwrap();
        }
        assert_eq!(handle.injection_queue_depth(), 0);
    });
}

#[test]
fn a_worker_without_tasks_parks_once_and_stays_parked() {
    ends(|| {
        for _ in 0..50 {
            let runtime = Runtime::builder().worker_threads(2).build().unwrap();
            let counts =
                || runtime.metrics().workers.iter().map(|it| it.park_unpark_count).collect::<Vec<_>>();
            while counts().contains(&0) {
                thread::yield_now();
            }
            assert_eq!(counts(), [1, 1]);
            thread::sleep(Duration::from_millis(2));
            assert_eq!(counts(), [1, 1]);
        }
    });
}

#[test]
fn a_runtime_that_ends_at_once_leaves_each_worker_unparked_after_a_park() {
    ends(|| {
        for workers in [1, 2].repeat(50) {
            let runtime = Runtime::builder().worker_threads(workers).build().unwrap();
            let handle = runtime.handle();
            drop(runtime);
            for worker in handle.metrics().workers {
                assert!(worker.stats.parks >= 1 && worker.park_unpark_count >= 2, "{worker:?}");
                assert_eq!(worker.park_unpark_count % 2, 0);
            }
        }
    });
}

#[test]
fn threads_of_spawn_blocking_have_their_name_and_stack_too_and_end_when_they_are_idle_for_long() {
    ends(|| {
        let builder = one_worker().thread_name_fn(|| "crawler".to_owned()).thread_stack_size(64 << 20);
        let runtime = builder.thread_keep_alive(Duration::from_millis(1)).build().unwrap();
        let blocking = || {
            let there = || (thread::current().id(), thread_name(), deep(8 << 10));
            let there = runtime.spawn(async move { tokio::task::spawn_blocking(there).await });
            runtime.block_on(there).unwrap().unwrap()
        };
        let (first, name, depth) = blocking();
        assert_eq!((name.as_str(), depth), ("crawler", 8 << 10));
        // Another thread than the first one, once that one has ended.
        while blocking().0 == first {
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn without_timers_a_sleep_panics_and_sockets_work() {
    ends(|| {
        let runtime = one_worker().enable_time(false).build().unwrap();
        let sleeps = runtime.spawn(async { tokio::time::sleep(Duration::from_millis(1)).await });
        let error = runtime.block_on(sleeps).unwrap_err().to_string();
        assert!(error.contains("timers are disabled"), "{error}");
        let binds = runtime.spawn(async { tokio::net::TcpListener::bind("127.0.0.1:0").await.is_ok() });
        assert!(runtime.block_on(binds).unwrap());
    });
}
