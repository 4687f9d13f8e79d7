//! Join: the handle that waits for a task, and the handle that aborts it.

use crate::error::Outcome;
#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
use crate::header::Header;
use crate::shared::SchedulerRef;
use crate::task_cell::TaskRef;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for a task's end. Dropping the handle detaches the task.
///
/// The handle is a future. Its output is the task's output, or [`JoinError`](crate::JoinError) if the task panicked or was
/// cancelled.
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
    task: TaskRef,
    of: PhantomData<T>,
}

// SAFETY: a handle gives its thread the output, which is `Send`.
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: a shared reference to a handle gives no access to the output.
unsafe impl<T: Send> Sync for JoinHandle<T> {}
impl<T> Unpin for JoinHandle<T> {}
impl<T> UnwindSafe for JoinHandle<T> {}
impl<T> RefUnwindSafe for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// The handle of a task.
    ///
    /// # Safety
    /// The task's output is a `T`, and the task has no other handle.
    pub(crate) unsafe fn new(task: TaskRef) -> Self {
        Self { task, of: PhantomData }
    }

    /// The task's runtime.
    #[inline]
    pub(crate) fn scheduler(&self) -> &SchedulerRef {
        &self.task.scheduler
    }

    #[cfg(all(test, not(any(shuttle, warmcore_loom))))]
    pub(crate) fn header(&self) -> &Header {
        &self.task
    }

    /// Cancels the task: its future is dropped at the next poll, which this call causes, or after the poll that is
    /// under way, unless that poll ends the task. Does nothing if the task has ended.
    pub fn abort(&self) {
        self.task.cancel();
    }

    /// A handle that can only abort the task. It keeps the memory of the task, and the waker that waited at its handle last; the
    /// future is dropped at the end all the same.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { task: self.task.clone() }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.state.load().is_complete()
    }

    /// The task's name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.task.name().map(|name| &**name)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Outcome<T>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome<T>> {
        if self.task.join_waker.register(&self.task.state, cx.waker()) {
            return Poll::Pending;
        }
        let mut output: Option<Outcome<T>> = None;
        // SAFETY: the task is complete, so its output is the handle's; `new` was told that it is a `T`.
        unsafe { (self.task.vtable.take_output)(self.task.as_ptr(), (&raw mut output).cast()) };
        Poll::Ready(output.expect("an outcome is taken once"))
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        match self.task.state.drop_join_interest() {
            Ok(before) => self.task.join_waker.take_back(before.has_join_waker()),
            // SAFETY: the task is complete, so its output is the handle's.
            Err(_) => unsafe { (self.task.vtable.drop_output)(self.task.as_ptr()) },
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
    task: TaskRef,
}

impl UnwindSafe for AbortHandle {}
impl RefUnwindSafe for AbortHandle {}

impl AbortHandle {
    /// As [`JoinHandle::abort`].
    pub fn abort(&self) {
        self.task.cancel();
    }

    /// Whether the task has ended, with an output or without. Its future is dropped then.
    pub fn is_finished(&self) -> bool {
        self.task.state.load().is_complete()
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").finish_non_exhaustive()
    }
}
