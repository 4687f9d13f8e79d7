//! Spawn: starts a task on the current runtime.
//!
//! On a worker of Warmcore's, `spawn` reaches the scheduler through the worker, and touches no line that all workers
//! share except the counter of task ids.

use super::id::Id;
use super::identified::Identified;
use super::join_handle::JoinHandle;
use super::recorded::recorded;
use crate::runtime::{Handle, Scheduler};
use std::future::Future;

/// Spawns a task on the current runtime. It may be polled on any worker, at once, whether or not its handle is awaited.
///
/// # Panics
/// If this thread is inside no runtime.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), tokio::task::JoinError> {
/// let words = tokio::spawn(async { "a task of its own".split(' ').count() });
/// assert_eq!(words.await?, 5);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    // Hooks and spans need the runtime's handle.
    #[cfg(not(tokio_unstable))]
    if let Some(builder) = warmcore_runtime::try_task_builder() {
        let id = Id::next();
        return JoinHandle::warm(id, builder.spawn(Identified::new(id, future)));
    }
    spawn_on(&Handle::current(), future)
}

/// Spawns a task on the runtime of `handle`.
#[cfg(not(tokio_unstable))]
#[track_caller]
pub(crate) fn spawn_on<F>(handle: &Handle, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let id = Id::next();
    let future = Identified::new(id, future);
    match handle.scheduler() {
        Scheduler::Warm(warm) => JoinHandle::warm(id, warm.handle.task_builder().spawn(future)),
        Scheduler::Tokio(handle) => JoinHandle::tokio(id, handle.spawn(recorded(None, future))),
    }
}

/// Spawns a task on the runtime of `handle`.
#[cfg(tokio_unstable)]
#[track_caller]
pub(crate) fn spawn_on<F>(handle: &Handle, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_named(handle, future, None)
}

/// Spawns a task with a name, which `warmcore top` and the task's span show.
#[cfg(tokio_unstable)]
#[track_caller]
pub(super) fn spawn_named<F>(handle: &Handle, future: F, name: Option<&str>) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    use super::hooked::Hooked;

    let id = Id::next();
    match handle.scheduler() {
        Scheduler::Warm(warm) => {
            let mut builder = warm.handle.task_builder();
            if let Some(name) = name {
                builder = builder.name(name);
            }
            #[cfg(feature = "tracing")]
            let (builder, future) =
                (builder.span(tracing::Span::none()), super::Traced::new("task", id, name, future));
            let future = Hooked::new(handle, id, Identified::new(id, future));
            JoinHandle::warm(id, builder.spawn(future))
        }
        Scheduler::Tokio(real) => {
            let future = recorded(name, Hooked::new(handle, id, Identified::new(id, future)));
            // With the feature `tracing`, only the builder passes a name on. Its `spawn_on` always returns `Ok`.
            #[cfg(feature = "tracing")]
            if let Some(name) = name {
                let handle = real::task::Builder::new().name(name).spawn_on(future, real);
                return JoinHandle::tokio(id, handle.expect("a task needs no thread of its own"));
            }
            JoinHandle::tokio(id, real.spawn(future))
        }
    }
}
