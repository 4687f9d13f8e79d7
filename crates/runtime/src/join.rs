//! Join: the handle that waits for a task, and the handle that aborts it.

use crate::error::{JoinError, drop_caught};
use crate::header::Header;
use crate::sync::Ordering::*;
use async_task::Task;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

/// How a task ended.
pub(crate) type Outcome<T> = Result<T, JoinError>;

/// The outcome of a task that may never be joined. A panic while it is dropped is caught.
pub(crate) struct TaskOutput<T>(pub(crate) Option<Outcome<T>>);

impl<T> Drop for TaskOutput<T> {
    fn drop(&mut self) {
        if let Some(outcome) = self.0.take()
            && std::mem::needs_drop::<T>() | outcome.is_err()
        {
            drop_caught(outcome);
        }
    }
}

/// Waits for a task's end. Dropping the handle detaches the task.
///
/// The handle is a future. Its output is the task's output, or [`JoinError`] if the task panicked or was cancelled.
///
/// ```
/// use warmcore_runtime::{Runtime, spawn};
///
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let sum = spawn(async { 2 + 3 });
///     assert_eq!(sum.await?, 5);
///
///     let endless = spawn(std::future::pending::<()>());
///     endless.abort();
///     assert!(endless.await.unwrap_err().is_cancelled());
///     Ok::<_, warmcore_runtime::JoinError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct JoinHandle<T> {
    pub(crate) task: Option<Task<TaskOutput<T>, Header>>,
}

impl<T> JoinHandle<T> {
    #[cfg(all(test, not(any(shuttle, warmcore_loom))))]
    pub(crate) fn header(&self) -> &Header {
        self.task().metadata()
    }

    fn task(&self) -> &Task<TaskOutput<T>, Header> {
        self.task.as_ref().expect("taken only when dropped")
    }

    /// Cancels the task: its future is dropped at the next poll, which this call causes, or after the poll that is
    /// under way, unless that poll ends the task. Does nothing if the task has ended.
    pub fn abort(&self) {
        if let Some(handle) = self.abort_handle_if_alive() {
            handle.abort();
        }
    }

    /// A handle that can only abort the task.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort_handle_if_alive().unwrap_or(AbortHandle { task: None })
    }

    fn abort_handle_if_alive(&self) -> Option<AbortHandle> {
        let header = self.task().metadata();
        let waker = header.owned_tasks().waker(header.owned_slot.load(Relaxed), header)?;
        Some(AbortHandle { task: Some((waker, NonNull::from(header))) })
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task().is_finished()
    }

    /// The task's name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.task().metadata().name().map(|name| &**name)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Outcome<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome<T>> {
        let task = self.task.as_mut().expect("taken only when dropped");
        let mut output = std::task::ready!(Pin::new(task).poll(cx));
        Poll::Ready(output.0.take().expect("an outcome is taken once"))
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("name", &self.name())
            .field("is_finished", &self.is_finished())
            .finish()
    }
}

/// Aborts a task; see [`JoinHandle::abort_handle`].
#[derive(Clone)]
pub struct AbortHandle {
    /// The waker keeps the header alive. `None`: the task had ended when the handle was created.
    task: Option<(Waker, NonNull<Header>)>,
}

// SAFETY: the header is `Sync`.
unsafe impl Send for AbortHandle {}
// SAFETY: as above.
unsafe impl Sync for AbortHandle {}

impl AbortHandle {
    /// As [`JoinHandle::abort`].
    pub fn abort(&self) {
        if let Some((waker, header)) = &self.task {
            // SAFETY: the waker is a reference to the task, which keeps the header.
            unsafe { header.as_ref() }.cancel();
            waker.wake_by_ref();
        }
    }

    /// Whether the task has ended, with an output or without. Its future is dropped then. Immediately after that,
    /// [`JoinHandle::is_finished`] returns true too.
    pub fn is_finished(&self) -> bool {
        // SAFETY: as in `abort`.
        self.task.as_ref().is_none_or(|(_, header)| unsafe { header.as_ref() }.has_ended())
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").finish_non_exhaustive()
    }
}
