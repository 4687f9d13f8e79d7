//! Recorded: tasks of tokio's scheduler, and futures of `block_on`, in the process's recording (`WARMCORE_RECORD`). The tasks
//! of Warmcore's scheduler are recorded by its runtime.

use std::future::Future;
use std::panic::Location;
use warmcore_record::{Recorded, WorkerIndex};

/// How a thread finds the worker that it runs. Tokio tells it from 1.54 on. A worker of Warmcore's may poll such a future
/// within a task of its own.
#[cfg(any(tokio_unstable, tokio_1_54))]
const WORKER_INDEX: Option<WorkerIndex> =
    Some(|| warmcore_runtime::worker_index().or_else(real::runtime::worker_index));
#[cfg(not(any(tokio_unstable, tokio_1_54)))]
const WORKER_INDEX: Option<WorkerIndex> = None;

/// A future that no worker of Warmcore's polls. The task's location is that of the caller.
#[inline]
#[track_caller]
pub(crate) fn recorded<F: Future>(name: Option<&str>, future: F) -> Recorded<F> {
    Recorded::of_task(future, Location::caller(), name, WORKER_INDEX)
}

/// As tokio's. Tokio wakes a task that yields later, from outside of its poll; a recording says that the task woke itself.
pub async fn yield_now() {
    warmcore_record::yields();
    real::task::yield_now().await;
}
