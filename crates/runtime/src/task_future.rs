//! TaskFuture: a task's future as the worker polls it.
//!
//! `TaskFuture` catches a panic of the future, drops the future if the task was cancelled, enters the task's tenant and
//! span around each poll, and when dropped removes the task from the list of owned tasks. An idle task takes the memory
//! of async-task's state, its header and its future, 24 bytes in that list, and its `TaskAttrs` if it has a name, a
//! tenant or a span.

use crate::context;
use crate::error::{JoinError, drop_caught};
use crate::header::{Header, RunnableTask};
use crate::join::{JoinHandle, Outcome, TaskOutput};
use crate::sync::Ordering::*;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// A task's future, with a pointer to the task's header.
struct TaskFuture<F: Future> {
    /// `None`: it was dropped.
    future: Option<F>,
    header: NonNull<Header>,
}

// SAFETY: the header is `Sync` and lives as long as the task that contains this future.
unsafe impl<F: Future + Send> Send for TaskFuture<F> {}

impl<F: Future> TaskFuture<F> {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: async-task frees the header after the future.
        unsafe { self.header.as_ref() }
    }

    /// Polls a task that was cancelled: drops the future.
    #[cold]
    fn poll_cancelled(self: Pin<&mut Self>) -> Poll<TaskOutput<F::Output>> {
        // SAFETY: the header outlives the future.
        let header = unsafe { self.header.as_ref() };
        let cancelled = Err(JoinError::cancelled(header.name().cloned()));
        let drop_future = || Poll::Ready(TaskOutput(Some(self.end(cancelled))));
        match header.record() {
            None => drop_future(),
            Some(record) => record.poll(drop_future),
        }
    }

    /// Drops the future and returns `outcome`, or the panic if the drop panics.
    fn end(self: Pin<&mut Self>, outcome: Outcome<F::Output>) -> Outcome<F::Output> {
        // SAFETY: the future is dropped in place and not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let dropped = catch_unwind(AssertUnwindSafe(|| this.future = None));
        match dropped {
            Ok(()) => outcome,
            Err(panic) => {
                // `future` is `None` by now, so it is not dropped twice.
                Err(JoinError::panicked(this.header().name().cloned(), panic))
            }
        }
    }
}

impl<F: Future> Future for TaskFuture<F> {
    type Output = TaskOutput<F::Output>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.header().is_cancelled() {
            return self.poll_cancelled();
        }
        // SAFETY: structural pinning: `future` is never moved.
        let this = unsafe { self.as_mut().get_unchecked_mut() };
        let header = this.header;
        let future = &mut this.future;
        // SAFETY: the header outlives the future.
        let header = unsafe { header.as_ref() };
        let polled = context::measured(header, || {
            catch_unwind(AssertUnwindSafe(|| match header.attrs.as_deref() {
                None => poll_or_drop(future, cx),
                Some(attrs) => {
                    let _span = attrs.span.as_ref().map(|span| span.enter());
                    let _here = attrs.tenant.as_ref().map(|tenant| tenant.tenant.enter());
                    match &attrs.record {
                        None => poll_or_drop(future, cx),
                        Some(record) => record.poll(|| poll_or_drop(future, cx)),
                    }
                }
            }))
        });
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(TaskOutput(Some(self.end(Ok(output))))),
            Err(panic) => {
                let panicked = Err(JoinError::panicked(header.name().cloned(), panic));
                Poll::Ready(TaskOutput(Some(self.end(panicked))))
            }
        }
    }
}

/// Polls a future that is never moved. If the poll panics, the future is dropped while the panic unwinds, as the locals
/// of the poll are: what it owns sees `std::thread::panicking`, so that a lock that it holds is poisoned. A panic of
/// that drop is caught.
#[inline]
fn poll_or_drop<F: Future>(future: &mut Option<F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    /// Dropped only by a panic.
    struct Unwinds<'a, F>(&'a mut Option<F>);
    impl<F> Drop for Unwinds<'_, F> {
        fn drop(&mut self) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| *self.0 = None)) {
                drop_caught(panic);
            }
        }
    }
    let unwinds = Unwinds(future);
    let future = unwinds.0.as_mut().expect("polled after its end");
    // SAFETY: the caller never moves the future.
    let polled = unsafe { Pin::new_unchecked(future) }.poll(cx);
    std::mem::forget(unwinds);
    polled
}

impl<F: Future> Drop for TaskFuture<F> {
    fn drop(&mut self) {
        let header = self.header();
        if let Some(tenant) = header.tenant() {
            tenant.end();
        }
        header.leave_owned_tasks();
    }
}

/// Makes a task, and puts it into the list of owned tasks, or cancels it if that list is closed. The caller schedules
/// it in both cases.
///
/// # Safety
/// If `F` or its output borrows, the caller ensures that the task ends before the borrow does. If `F` is not `Send`,
/// the caller ensures that one thread polls and drops it.
pub(crate) unsafe fn make<F: Future>(header: Header, future: F) -> (RunnableTask, JoinHandle<F::Output>) {
    let track = |header: &Header| TaskFuture { future: Some(future), header: NonNull::from(header) };
    let schedule = async_task::WithInfo(context::schedule);
    // SAFETY: as the caller guarantees; `schedule` is `Send`, `Sync` and borrows nothing.
    let (runnable, task) =
        unsafe { async_task::Builder::new().metadata(header).spawn_unchecked(track, schedule) };
    let woken = RunnableTask::new(runnable);
    let header = woken.header();
    if let Some(tenant) = header.tenant() {
        tenant.begin();
    }
    match header.owned_tasks().insert(woken.waker(), NonNull::from(header)) {
        Some(slot) => header.owned_slot.store(slot, Relaxed),
        // The runtime is shutting down: the task ends before its first poll.
        None => header.cancel(),
    }
    (woken, JoinHandle { task: Some(task) })
}
