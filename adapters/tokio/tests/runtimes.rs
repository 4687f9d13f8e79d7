//! Runtimes: several of them, inside each other, and their ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task;

/// Ends a wait that would last for ever.
const HANG: Duration = Duration::from_secs(60);

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

/// The text of the panic of `act`.
fn panic_of<R>(act: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(act)).err().expect("it panics");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a text")
}

/// Sets the flag when it is dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A future that never ends, and whether it was dropped.
fn endless() -> (impl Future<Output = ()> + Send, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = SetOnDrop(dropped.clone());
    let future = async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    };
    (future, dropped)
}

#[test]
fn runtimes_beside_each_other_keep_their_tasks() {
    let (one, two) = (runtime(1), runtime(2));
    assert_ne!(one.handle().id(), two.handle().id());
    let id = |handle: &Handle| handle.spawn(async { Handle::current().id() });
    for runtime in [&one, &two] {
        let of_one = id(one.handle());
        let of_two = id(two.handle());
        assert_eq!(runtime.block_on(of_one).unwrap(), one.handle().id());
        assert_eq!(runtime.block_on(of_two).unwrap(), two.handle().id());
    }
    let (in_one, in_two) = two.block_on(async {
        let here = tokio::spawn(async { Handle::current().id() });
        let _entered = one.enter();
        (tokio::spawn(async { Handle::current().id() }).await.unwrap(), here.await.unwrap())
    });
    assert_eq!(in_one, one.handle().id());
    assert_eq!(in_two, two.handle().id());
}

#[test]
fn a_thread_that_a_task_starts_may_have_a_runtime() {
    let outer = runtime(1);
    let sum = outer.block_on(async {
        let thread = thread::spawn(|| {
            assert!(Handle::try_current().is_err(), "a new thread is inside no runtime");
            runtime(1).block_on(async { tokio::spawn(async { 1 }).await.unwrap() })
        });
        let blocking =
            task::spawn_blocking(|| runtime(1).block_on(async { tokio::spawn(async { 2 }).await.unwrap() }));
        let sum = blocking.await.unwrap();
        sum + task::block_in_place(|| thread.join().unwrap())
    });
    assert_eq!(sum, 3);
}

#[test]
fn a_current_thread_runtime_inside_a_task_hides_the_outer_one_while_it_is_entered() {
    let outer = runtime(2);
    let inner = Builder::new_current_thread().build().unwrap();
    outer.block_on(async {
        let flavor = || Handle::current().runtime_flavor();
        let _outer = Handle::current();
        {
            let _entered = inner.enter();
            assert_eq!(flavor(), RuntimeFlavor::CurrentThread);
        }
        assert_eq!(flavor(), RuntimeFlavor::MultiThread);
        let blocked = task::block_in_place(|| inner.block_on(async { Handle::current().runtime_flavor() }));
        assert_eq!(blocked, RuntimeFlavor::CurrentThread);
        assert_eq!(flavor(), RuntimeFlavor::MultiThread);
    });
}

#[test]
fn block_on_in_a_task_panics_and_in_block_in_place_does_not() {
    let runtime = runtime(2);
    let handle = runtime.handle().clone();
    runtime.block_on(async {
        let inner = handle.clone();
        let text = tokio::spawn(async move { panic_of(|| inner.block_on(async {})) }).await.unwrap();
        assert!(text.starts_with("Cannot start a runtime from within a runtime"), "{text}");
        let inner = handle.clone();
        let in_place = async move { task::block_in_place(|| inner.block_on(async { 7 })) };
        assert_eq!(tokio::spawn(in_place).await.unwrap(), 7);
        let text = panic_of(|| handle.block_on(async {}));
        assert!(text.starts_with("Cannot start a runtime from within a runtime"), "{text}");
    });
}

#[test]
fn a_drop_in_async_context_panics_and_shutdown_background_does_not() {
    let outer = runtime(1);
    let inner = runtime(1);
    let (future, dropped) = endless();
    inner.spawn(future);
    let text = outer.block_on(async { panic_of(|| drop(inner)) });
    assert!(text.contains("Cannot drop a runtime in a context where blocking is not allowed"), "{text}");
    // The tasks of the runtime end all the same.
    let began = Instant::now();
    while !dropped.load(SeqCst) {
        assert!(began.elapsed() < HANG);
        thread::yield_now();
    }
    let inner = runtime(1);
    outer.block_on(async { inner.shutdown_background() });
    let inner = runtime(1);
    outer.block_on(async { task::block_in_place(|| drop(inner)) });
}

#[test]
fn a_drop_cancels_the_tasks_and_waits_for_closures() {
    let runtime = runtime(2);
    let (future, dropped) = endless();
    let cancelled = runtime.spawn(future);
    let (started, wait_for_start) = mpsc::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let guard = SetOnDrop(ended.clone());
    let closure = runtime.spawn_blocking(move || {
        started.send(()).unwrap();
        thread::sleep(Duration::from_millis(20));
        drop(guard);
        5
    });
    wait_for_start.recv().unwrap();
    drop(runtime);
    assert!(dropped.load(SeqCst));
    assert!(ended.load(SeqCst));
    let other = self::runtime(1);
    assert!(other.block_on(cancelled).unwrap_err().is_cancelled());
    assert_eq!(other.block_on(closure).unwrap(), 5);
}

#[test]
fn shutdown_timeout_leaves_a_closure_that_takes_longer() {
    let runtime = runtime(1);
    let (future, dropped) = endless();
    runtime.spawn(future);
    let (started, wait_for_start) = mpsc::channel();
    let (end, wait_for_end) = mpsc::channel::<()>();
    let closure = runtime.spawn_blocking(move || {
        started.send(()).unwrap();
        wait_for_end.recv().unwrap();
        5
    });
    wait_for_start.recv().unwrap();
    let began = Instant::now();
    runtime.shutdown_timeout(Duration::from_millis(50));
    assert!(began.elapsed() >= Duration::from_millis(50));
    // A worker that gets no CPU for 50 ms drops its task after the call.
    while !dropped.load(SeqCst) {
        assert!(began.elapsed() < HANG);
        std::thread::sleep(Duration::from_millis(1));
    }
    end.send(()).unwrap();
    assert_eq!(self::runtime(1).block_on(closure).unwrap(), 5);
}

#[test]
fn what_is_spawned_after_the_end_is_cancelled() {
    let runtime = runtime(1);
    let handle = runtime.handle().clone();
    drop(runtime);
    let task = handle.spawn(async {});
    let closure = handle.spawn_blocking(|| {});
    let other = self::runtime(1);
    assert!(other.block_on(task).unwrap_err().is_cancelled());
    assert!(other.block_on(closure).unwrap_err().is_cancelled());
}

#[test]
fn a_write_of_fs_is_there_after_the_end() {
    use tokio::io::AsyncWriteExt;

    let path = std::env::temp_dir().join(format!("warmcore-face-write-{}", std::process::id()));
    let runtime = runtime(1);
    let to = path.clone();
    runtime.block_on(async move {
        tokio::spawn(async move {
            let mut file = tokio::fs::File::create(to).await.unwrap();
            // Not flushed: the write may be under way when the file is dropped.
            file.write_all(b"all of it").await.unwrap();
        })
        .await
        .unwrap();
    });
    drop(runtime);
    assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn every_thread_calls_the_functions_that_were_set() {
    let (running, names) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (starts, stops, started) = (running.clone(), running.clone(), names.clone());
    let (parks, parked) = mpsc::channel();
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("face")
        .on_thread_start(move || {
            starts.fetch_add(1, SeqCst);
            started.lock().unwrap().push(thread::current().name().map(str::to_owned));
        })
        .on_thread_stop(move || _ = stops.fetch_sub(1, SeqCst))
        .on_thread_park(move || _ = parks.send(()))
        .build()
        .unwrap();
    parked.recv_timeout(HANG).expect("an idle worker parks");
    runtime.block_on(async {
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(tokio::spawn(async move { name() }).await.unwrap().as_deref(), Some("face"));
        assert_eq!(task::spawn_blocking(name).await.unwrap().as_deref(), Some("face"));
    });
    drop(runtime);
    assert_eq!(running.load(SeqCst), 0, "each thread that started has stopped");
    let names = names.lock().unwrap();
    assert!(names.len() >= 3, "two workers and a thread of spawn_blocking: {names:?}");
    assert!(names.iter().all(|name| name.as_deref() == Some("face")), "{names:?}");
}

#[test]
fn a_name_function_names_each_thread() {
    let count = AtomicUsize::new(0);
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name_fn(move || format!("face-{}", count.fetch_add(1, SeqCst)))
        .build()
        .unwrap();
    let worker = runtime.block_on(runtime.spawn(async { thread::current().name().map(str::to_owned) }));
    assert!(worker.unwrap().is_some_and(|name| name.starts_with("face-")));
}

#[test]
fn the_number_of_alive_tasks_goes_up_and_down() {
    let runtime = runtime(2);
    let metrics = runtime.metrics();
    assert_eq!((metrics.num_workers(), metrics.num_alive_tasks()), (2, 0));
    let tasks: Vec<_> = (0..5).map(|_| runtime.spawn(std::future::pending::<()>())).collect();
    assert_eq!(metrics.num_alive_tasks(), 5);
    tasks.iter().for_each(|task| task.abort());
    for task in tasks {
        assert!(runtime.block_on(task).unwrap_err().is_cancelled());
    }
    let began = Instant::now();
    while metrics.num_alive_tasks() > 0 {
        assert!(began.elapsed() < HANG);
        thread::yield_now();
    }
}

#[test]
fn a_task_sees_all_cpus_of_the_process() {
    let here = thread::available_parallelism().unwrap();
    // As many workers as CPUs: each of another runtime of Warmcore's would have one CPU.
    let runtime = Builder::new_multi_thread().build().unwrap();
    let there = runtime.block_on(runtime.spawn(async { thread::available_parallelism() })).unwrap();
    assert_eq!(there.unwrap(), here);
}

#[test]
fn workers_have_indices_and_other_threads_have_none() {
    let runtime = runtime(3);
    runtime.block_on(async {
        assert_eq!(tokio::runtime::worker_index(), None);
        let index = tokio::spawn(async { tokio::runtime::worker_index() }).await.unwrap();
        assert!(index.is_some_and(|index| index < 3), "{index:?}");
        assert_eq!(task::spawn_blocking(tokio::runtime::worker_index).await.unwrap(), None);
    });
}

#[test]
fn at_most_max_blocking_threads_run_closures() {
    let runtime = Builder::new_multi_thread().worker_threads(2).max_blocking_threads(2).build().unwrap();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let closures: Vec<_> = (0..20)
        .map(|_| {
            let (running, most) = (running.clone(), most.clone());
            runtime.spawn_blocking(move || {
                most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                thread::sleep(Duration::from_millis(1));
                running.fetch_sub(1, SeqCst);
            })
        })
        .collect();
    runtime.block_on(async {
        for closure in closures {
            closure.await.unwrap();
        }
    });
    assert!((1..=2).contains(&most.load(SeqCst)), "{most:?}");
}
