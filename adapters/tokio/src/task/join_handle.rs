//! JoinHandle: waits for the end of a task.

use super::abort_handle::AbortHandle;
use super::id::Id;
use super::identified::Identified;
use super::join_error::JoinError;
use real::task::coop::poll_proceed;
use std::fmt;
use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Waits for the end of a task. Dropping the handle detaches the task, which goes on.
///
/// The handle is a future. Its output is the task's output, or a [`JoinError`] if the task panicked or was cancelled.
/// A poll that finds the task's end takes one operation of the budget of tokio's [`coop`](crate::task::coop).
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), tokio::task::JoinError> {
/// let sum = tokio::spawn(async { 2 + 3 });
/// assert_eq!(sum.await?, 5);
///
/// let endless = tokio::spawn(std::future::pending::<()>());
/// endless.abort();
/// assert!(endless.await.unwrap_err().is_cancelled());
/// # Ok(())
/// # }
/// ```
pub struct JoinHandle<T> {
    id: Id,
    inner: Inner<T>,
}

enum Inner<T> {
    Warm(warmcore_runtime::JoinHandle<Identified<T>>),
    Tokio(real::task::JoinHandle<Identified<T>>),
}

impl<T> UnwindSafe for JoinHandle<T> {}
impl<T> RefUnwindSafe for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// The handle of a task on Warmcore's scheduler.
    #[inline]
    pub(crate) fn warm(id: Id, handle: warmcore_runtime::JoinHandle<Identified<T>>) -> Self {
        Self { id, inner: Inner::Warm(handle) }
    }

    /// The handle of a task on tokio's scheduler, or of a closure of `spawn_blocking`.
    pub(crate) fn tokio(id: Id, handle: real::task::JoinHandle<Identified<T>>) -> Self {
        Self { id, inner: Inner::Tokio(handle) }
    }

    /// Cancels the task. Its future is dropped when it is next to be polled, which this call causes, or after the poll
    /// under way. A task that has ended is not affected, nor is a closure of `spawn_blocking` that has started.
    pub fn abort(&self) {
        match &self.inner {
            Inner::Warm(handle) => handle.abort(),
            Inner::Tokio(handle) => handle.abort(),
        }
    }

    /// Whether the task has ended. After [`abort`](Self::abort) the task may take some time to end.
    pub fn is_finished(&self) -> bool {
        match &self.inner {
            Inner::Warm(handle) => handle.is_finished(),
            Inner::Tokio(handle) => handle.is_finished(),
        }
    }

    /// Returns a handle that can abort the task but not wait for it.
    #[must_use = "abort handles do nothing unless `.abort` is called"]
    pub fn abort_handle(&self) -> AbortHandle {
        match &self.inner {
            Inner::Warm(handle) => AbortHandle::warm(self.id, handle.abort_handle()),
            Inner::Tokio(handle) => AbortHandle::tokio(self.id, handle.abort_handle()),
        }
    }

    /// Returns the task's id.
    pub fn id(&self) -> Id {
        self.id
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id;
        let result = match &mut self.inner {
            Inner::Warm(handle) => {
                let operation = ready!(poll_proceed(cx));
                let result = ready!(Pin::new(handle).poll(cx));
                operation.made_progress();
                result.map_err(|error| JoinError::warm(id, error))
            }
            // Tokio takes the operation itself.
            Inner::Tokio(handle) => {
                ready!(Pin::new(handle).poll(cx)).map_err(|error| JoinError::tokio(id, error))
            }
        };
        Poll::Ready(result.map(Identified::into_inner))
    }
}

impl<T: fmt::Debug> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("id", &self.id).finish()
    }
}
