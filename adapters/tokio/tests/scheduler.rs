//! Which scheduler runs a program's tasks, as the environment says.

mod process;

use process::{is_rerun, rerun};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use tokio::runtime::{Builder, Handle, RuntimeFlavor};

/// A path for one test's output.
fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("warmcore-face-{name}-{}", std::process::id()))
}

/// The line that a process with `variables` writes when it ends: polls by Warmcore's workers, and runtimes.
fn counted(test: &str, variables: &[(&str, &str)]) -> Vec<u64> {
    let path = path(test);
    let count = ("WARMCORE_FACE_COUNT", path.to_str().expect("the path is UTF-8"));
    rerun(test, &[variables, &[count]].concat());
    let text = fs::read_to_string(&path).expect("the process wrote its count");
    fs::remove_file(&path).expect("the file is there");
    text.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

/// Spawns ten tasks that yield once.
fn spawn_ten() {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert_eq!(Handle::current().runtime_flavor(), RuntimeFlavor::MultiThread);
        let tasks: Vec<_> =
            (0..10).map(|n| tokio::spawn(async move { (tokio::task::yield_now().await, n).1 })).collect();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), n);
        }
    });
}

#[test]
fn tasks_are_polled_by_warmcores_workers() {
    if is_rerun() {
        return spawn_ten();
    }
    let counted = counted("tasks_are_polled_by_warmcores_workers", &[]);
    assert!(counted[0] >= 20, "ten tasks with two polls each: {counted:?}");
    assert_eq!(counted[1], 1);
}

#[test]
fn warmcore_0_runs_them_on_tokios_workers() {
    if is_rerun() {
        return spawn_ten();
    }
    assert_eq!(counted("warmcore_0_runs_them_on_tokios_workers", &[("WARMCORE", "0")]), [0, 1]);
}

/// The threads that the system shows under the name of workers.
fn worker_threads() -> BTreeSet<PathBuf> {
    let threads =
        fs::read_dir("/proc/self/task").expect("/proc is mounted").map(|entry| entry.unwrap().path());
    // A thread that ended since has no name.
    let name = |thread: &Path| fs::read_to_string(thread.join("comm")).unwrap_or_default();
    threads.filter(|thread| name(thread) == "tokio-rt-worker\n").collect()
}

#[test]
fn the_process_has_no_worker_threads_but_those_of_the_chosen_scheduler() {
    const WORKERS: usize = 3;
    if is_rerun() {
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).build().unwrap();
        // Three tasks that wait for each other without a return to their workers need three workers.
        let barrier = Arc::new(Barrier::new(WORKERS));
        let polled_on = |barrier: Arc<Barrier>| async move {
            barrier.wait();
            let thread = fs::read_link("/proc/thread-self").expect("/proc is mounted");
            Path::new("/proc/self/task").join(thread.file_name().expect("the thread's number"))
        };
        let tasks: Vec<_> = (0..WORKERS).map(|_| runtime.spawn(polled_on(barrier.clone()))).collect();
        let polled_on: BTreeSet<_> = tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
        assert_eq!(polled_on.len(), WORKERS);
        assert_eq!(polled_on, worker_threads());
        return;
    }
    let name = "the_process_has_no_worker_threads_but_those_of_the_chosen_scheduler";
    assert_eq!(counted(name, &[("WARMCORE", "0")]), [0, 1]);
    let polls = counted(name, &[])[0];
    assert!(polls >= 3, "three tasks, polled {polls} times");
}

#[test]
fn a_current_thread_runtime_is_tokios() {
    if is_rerun() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let id = std::thread::current().id();
        runtime.block_on(async {
            assert_eq!(Handle::current().runtime_flavor(), RuntimeFlavor::CurrentThread);
            assert_eq!(tokio::spawn(async { std::thread::current().id() }).await.unwrap(), id);
        });
        spawn_ten();
        return;
    }
    assert_eq!(counted("a_current_thread_runtime_is_tokios", &[("WARMCORE", "0")]), [0, 1]);
}

#[test]
fn the_environment_sets_the_number_of_workers() {
    if is_rerun() {
        let workers = |builder: &mut Builder| builder.build().unwrap().metrics().num_workers();
        assert_eq!(workers(&mut Builder::new_multi_thread()), 3);
        assert_eq!(workers(Builder::new_multi_thread().worker_threads(2)), 2);
        return;
    }
    for scheduler in ["0", "1"] {
        let variables = [("TOKIO_WORKER_THREADS", "3"), ("WARMCORE", scheduler)];
        rerun("the_environment_sets_the_number_of_workers", &variables);
    }
}

#[test]
fn the_environment_must_have_a_number() {
    if is_rerun() {
        let built = std::panic::catch_unwind(|| Builder::new_multi_thread().build());
        let panic = built.expect_err("0 workers");
        let text = panic.downcast_ref::<String>().expect("a text");
        assert!(text.contains("TOKIO_WORKER_THREADS"), "{text}");
        return;
    }
    for value in ["0", "many", ""] {
        rerun("the_environment_must_have_a_number", &[("TOKIO_WORKER_THREADS", value)]);
    }
}
