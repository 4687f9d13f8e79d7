//! Limit: fails a test that hangs.
//!
//! The test runs on a separate thread, and the thread that waits for it fails after 60 s. Most tests take milliseconds;
//! the rest is for machines that other processes use too.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use warmcore_runtime::Runtime;

/// Time after which a test has failed.
pub const HANGS_AFTER: Duration = Duration::from_secs(60);

/// Calls `test` with a runtime that has this many workers.
#[track_caller]
pub fn with_workers<R: Send + 'static>(
    workers: usize,
    test: impl FnOnce(&Runtime) -> R + Send + 'static,
) -> R {
    ends(move || {
        let runtime = Runtime::builder().worker_threads(workers).build().expect("a runtime");
        test(&runtime)
    })
}

/// Runs a future as a task of a runtime that has this many workers.
#[track_caller]
pub fn as_task<F>(workers: usize, future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    with_workers(workers, |runtime| runtime.block_on(runtime.spawn(future)).expect("a task that ends"))
}

/// Calls `test` on a new thread and returns its result. Panics if `test` does not return within [`HANGS_AFTER`].
#[track_caller]
pub fn ends<R: Send + 'static>(test: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = channel();
    let thread = thread::spawn(move || {
        let result = test();
        let _ = done.send(());
        result
    });
    if is_done.recv_timeout(HANGS_AFTER) == Err(RecvTimeoutError::Timeout) {
        panic!("it hangs: no end after {HANGS_AFTER:?}");
    }
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
