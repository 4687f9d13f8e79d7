//! Blocking: `spawn_blocking` and `block_in_place`.

use super::id::Id;
use super::identified::Identified;
use super::join_handle::JoinHandle;
use crate::runtime::{Handle, Scheduler};

/// Calls a closure that blocks or computes for long on a thread of the current runtime's blocking pool.
///
/// The pool has the limits that the runtime's `Builder` sets: by default at most 512 threads, each of which ends after
/// ten seconds without a closure. The closure runs inside the runtime, as a task with an id. Once it has started it
/// can't be aborted, and the shutdown of the runtime waits for it.
///
/// # Panics
/// If this thread is inside no runtime, or if the system refuses the pool's first thread.
#[track_caller]
pub fn spawn_blocking<F, R>(act: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    spawn_blocking_on(&Handle::current(), act)
}

/// As [`spawn_blocking`], in the pool of the runtime of `handle`.
#[track_caller]
pub(crate) fn spawn_blocking_on<F, R>(handle: &Handle, act: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let id = Id::next();
    JoinHandle::tokio(
        id,
        match handle.scheduler() {
            Scheduler::Warm(warm) => warm.blocking().spawn_blocking(inside(handle, id, act)),
            Scheduler::Tokio(handle) => handle.spawn_blocking(identified(id, act)),
        },
    )
}

/// `act` as the task `id`.
pub(super) fn identified<R>(id: Id, act: impl FnOnce() -> R) -> impl FnOnce() -> Identified<R> {
    let act = Identified::new(id, act);
    move || act.call()
}

/// `act` as the task `id`, inside the runtime of `handle`. The pool's own threads are inside none of Warmcore's.
pub(super) fn inside<F, R>(handle: &Handle, id: Id, act: F) -> impl FnOnce() -> Identified<R> + use<F, R>
where
    F: FnOnce() -> R,
{
    let handle = handle.clone();
    identified(id, move || {
        let _entered = handle.enter();
        act()
    })
}

/// Calls a closure that blocks or computes for long, on this thread.
///
/// On a worker's thread another thread first takes over the worker with its other tasks and its sockets, so that only
/// the calling task waits. In the future of `block_on`, and on threads outside of any runtime, this just calls the
/// closure.
///
/// # Panics
/// On a current-thread runtime and in a `LocalSet`, where other tasks can run on no other thread.
#[track_caller]
pub fn block_in_place<F, R>(act: F) -> R
where
    F: FnOnce() -> R,
{
    match warmcore_runtime::worker_index() {
        Some(_) => warmcore_runtime::block_in_place(act),
        None => real::task::block_in_place(act),
    }
}
