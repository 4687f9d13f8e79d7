//! Tasks on a multi-thread runtime: their ids, outputs and errors.

use std::collections::HashSet;
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::task::{self, Id, JoinError, JoinSet, LocalSet};

/// Ends a wait that would last for ever.
const HANG: Duration = Duration::from_secs(60);

/// Sends the current task's id when it is dropped.
struct SendId(mpsc::Sender<Option<Id>>);

impl Drop for SendId {
    fn drop(&mut self) {
        self.0.send(task::try_id()).expect("the test waits for it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_knows_its_id_until_its_output_is_taken() {
    assert_eq!(task::try_id(), None, "the future of block_on is not a task");
    let task = tokio::spawn(async {
        let first = task::id();
        task::yield_now().await;
        assert_eq!(task::id(), first);
        first
    });
    let id = task.id();
    assert_eq!(task.abort_handle().id(), id);
    assert_eq!(task.await.unwrap(), id);
    let closure = task::spawn_blocking(task::id);
    let id = closure.id();
    assert_eq!(closure.await.unwrap(), id);

    let (sender, receiver) = mpsc::channel();
    let guard = SendId(sender.clone());
    let aborted = tokio::spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    let id = aborted.id();
    aborted.abort();
    assert_eq!(aborted.await.unwrap_err().id(), id);
    assert_eq!(receiver.recv_timeout(HANG).unwrap(), Some(id), "the future is dropped as the task");

    // Without a handle the task drops its output.
    let detached = tokio::spawn(async move { SendId(sender) });
    let id = detached.id();
    drop(detached);
    assert_eq!(receiver.recv_timeout(HANG).unwrap(), Some(id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_tasks_have_one_id() {
    let mut ids = HashSet::new();
    let local = LocalSet::new();
    local
        .run_until(async {
            for _ in 0..100 {
                let warm = tokio::spawn(async {});
                let blocking = task::spawn_blocking(|| {});
                let local = task::spawn_local(async {});
                ids.extend([warm.id(), blocking.id(), local.id()]);
                tokio::try_join!(warm, blocking, local).unwrap();
            }
        })
        .await;
    assert_eq!(ids.len(), 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_panic_is_in_the_error() {
    let reason = String::from("reason");
    let task = tokio::spawn(async move { panic!("a {reason}") });
    let id = task.id();
    let error: JoinError = task.await.unwrap_err();
    assert!(error.is_panic() && !error.is_cancelled());
    assert_eq!(error.id(), id);
    assert_eq!(error.to_string(), format!("task {id} panicked with message \"a reason\""));
    assert!(format!("{error:?}").starts_with("JoinError::Panic("));
    assert_eq!(*error.into_panic().downcast::<String>().unwrap(), "a reason");

    let error = tokio::spawn(async { std::panic::panic_any(7_u8) }).await.unwrap_err();
    assert!(error.to_string().ends_with(" panicked"));
    assert_eq!(error.try_into_panic().ok().unwrap().downcast_ref::<u8>(), Some(&7));

    let error = task::spawn_blocking(|| panic!("in a closure")).await.unwrap_err();
    assert!(io::Error::from(error).to_string().contains("panicked"));
    assert_eq!(tokio::spawn(async { 1 }).await.unwrap(), 1, "the worker lives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_aborted_task_is_cancelled() {
    let task = tokio::spawn(std::future::pending::<()>());
    let (id, abort) = (task.id(), task.abort_handle());
    assert!(!task.is_finished() && !abort.is_finished());
    abort.abort();
    let error = task.await.unwrap_err();
    assert!(error.is_cancelled() && !error.is_panic());
    assert_eq!(error.to_string(), format!("task {id} was cancelled"));
    assert!(abort.is_finished());
    assert!(error.try_into_panic().unwrap_err().is_cancelled());

    let task = tokio::spawn(async { 3 });
    let began = Instant::now();
    while !task.is_finished() {
        assert!(began.elapsed() < HANG);
        task::yield_now().await;
    }
    task.abort();
    assert_eq!(task.await.unwrap(), 3, "a task that has ended is not affected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn while_a_task_blocks_in_place_other_tasks_run_on_its_worker() {
    let (sender, receiver) = mpsc::channel();
    let waits = tokio::spawn(async move {
        let sends = tokio::spawn(async move { sender.send(5).unwrap() });
        let received = task::block_in_place(|| receiver.recv_timeout(HANG).unwrap());
        sends.await.unwrap();
        received
    });
    assert_eq!(waits.await.unwrap(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_joins_tasks_of_both_schedulers() {
    let mut set = JoinSet::new();
    set.spawn(async { 1 });
    set.spawn_blocking(|| 2);
    let local = LocalSet::new();
    set.spawn_local_on(async { 3 }, &local);
    let current = thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let task = runtime.spawn(async { 4 });
        runtime.block_on(task).unwrap()
    });
    local.await;
    set.spawn_blocking(move || current.join().unwrap());
    let mut outputs = set.join_all().await;
    outputs.sort_unstable();
    assert_eq!(outputs, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_test_without_a_flavor_has_a_current_thread_runtime() {
    use tokio::runtime::{Handle, RuntimeFlavor};

    let expected = match cfg!(feature = "warmcore_test_multi_thread") {
        true => RuntimeFlavor::MultiThread,
        false => RuntimeFlavor::CurrentThread,
    };
    assert_eq!(Handle::current().runtime_flavor(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_skips_a_wait() {
    let began = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(began.elapsed() >= Duration::from_hours(1));
}
