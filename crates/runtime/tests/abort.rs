//! Abort handles: whether their task has ended.

mod limit;

use limit::ends;
use std::future::pending;
use std::sync::mpsc;
use std::thread;
use warmcore_runtime::{AbortHandle, Runtime};

fn until_finished(handle: &AbortHandle) {
    while !handle.is_finished() {
        thread::yield_now();
    }
}

#[test]
fn an_abort_handle_says_whether_its_task_has_ended() {
    ends(|| {
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        let (go, wait) = mpsc::channel();
        let task = runtime.spawn(async move { wait.recv().unwrap() });
        let handle = task.abort_handle();
        assert!(!handle.is_finished());
        go.send(7).unwrap();
        until_finished(&handle);
        assert_eq!(runtime.block_on(task).unwrap(), 7);
        assert!(handle.is_finished(), "also when the output is taken");

        let aborted = runtime.spawn(pending::<()>());
        let handle = aborted.abort_handle();
        assert!(!handle.is_finished());
        handle.abort();
        until_finished(&handle.clone());
        assert!(runtime.block_on(aborted).unwrap_err().is_cancelled());

        let panics = runtime.spawn(async { panic!("of a task") });
        let handle = panics.abort_handle();
        until_finished(&handle);
        let late = panics.abort_handle();
        assert!(late.is_finished(), "made after the end");
        late.abort();
        assert!(runtime.block_on(panics).unwrap_err().is_panic());

        let handle = runtime.handle();
        drop(runtime);
        assert!(handle.spawn(async {}).abort_handle().is_finished(), "spawned after the end");
    });
}
