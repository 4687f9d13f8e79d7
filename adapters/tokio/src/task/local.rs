//! Local: tasks that stay on one thread, scheduled by tokio's `LocalSet`.

use super::id::Id;
use super::identified::Identified;
use super::join_handle::JoinHandle;
use super::recorded::recorded;
use crate::runtime::{self, Runtime};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Spawns a task that need not be `Send` on the current `LocalSet` or `LocalRuntime`.
///
/// # Panics
/// If this thread is inside neither.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let id = Id::next();
    JoinHandle::tokio(id, real::task::spawn_local(recorded(None, Identified::new(id, future))))
}

/// Tasks that need not be `Send`. They run on the thread that polls the set, by tokio's scheduler, inside any runtime.
///
/// The set is a future, which is ready when all of its tasks have ended. [`run_until`](Self::run_until) runs them
/// beside another future. Dropping the set cancels them.
///
/// ```
/// use std::rc::Rc;
/// use tokio::task::{self, LocalSet};
///
/// # #[tokio::main]
/// # async fn main() {
/// let local = LocalSet::new();
/// let shared = Rc::new(7);
/// let length = local.run_until(async move { task::spawn_local(async move { *shared }).await }).await;
/// assert_eq!(length.unwrap(), 7);
/// # }
/// ```
#[derive(Default)]
pub struct LocalSet {
    inner: real::task::LocalSet,
}

impl LocalSet {
    /// A set without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes this the set of [`spawn_local`] on this thread until the guard is dropped.
    pub fn enter(&self) -> super::LocalEnterGuard {
        self.inner.enter()
    }

    /// Spawns a task on the set. It runs while the set, or a future of [`run_until`](Self::run_until), is polled.
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let id = Id::next();
        JoinHandle::tokio(id, self.inner.spawn_local(recorded(None, Identified::new(id, future))))
    }

    /// Runs a future and the set's tasks on this thread, inside `runtime`, until the future is ready.
    ///
    /// # Panics
    /// As [`Runtime::block_on`].
    #[track_caller]
    pub fn block_on<F>(&self, runtime: &Runtime, future: F) -> F::Output
    where
        F: Future,
    {
        runtime.block_on(self.run_until(future))
    }

    /// Runs a future with the set as the one of [`spawn_local`], and the set's tasks beside it, until the future is
    /// ready. Tasks that have not ended by then go on when the set is polled again.
    pub async fn run_until<F>(&self, future: F) -> F::Output
    where
        F: Future,
    {
        self.inner.run_until(future).await
    }

    /// Returns the id of the set, which differs from the ids of runtimes.
    pub fn id(&self) -> runtime::Id {
        self.inner.id()
    }

    /// Sets what a panic of one of the set's tasks does.
    ///
    /// # Panics
    /// If the set has been used.
    #[cfg(tokio_unstable)]
    pub fn unhandled_panic(&mut self, behavior: runtime::UnhandledPanic) -> &mut Self {
        self.inner.unhandled_panic(behavior);
        self
    }

    /// As [`spawn_local`](Self::spawn_local), with a name for the task's span.
    #[cfg(all(tokio_unstable, feature = "tracing"))]
    #[track_caller]
    pub(super) fn spawn_named<F>(&self, future: F, name: Option<&str>) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let Some(name) = name else { return self.spawn_local(future) };
        let id = Id::next();
        let builder = real::task::Builder::new().name(name);
        let handle = builder.spawn_local_on(recorded(Some(name), Identified::new(id, future)), &self.inner);
        JoinHandle::tokio(id, handle.expect("a task needs no thread of its own"))
    }
}

impl Future for LocalSet {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

impl fmt::Debug for LocalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
