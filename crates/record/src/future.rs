//! Recorded: a future whose polls are recorded, on any runtime.
//!
//! The future gets a waker of its own, which notes the wake and passes it on to the runtime's. The waker stays the same from
//! poll to poll, so that `Waker::will_wake` still saves clones.
//!
//! # Cost
//! While the recorder is off: 8 bytes and one branch per poll. On: about 210 instructions per poll with its wake, and at most
//! one locked instruction more, where a waker is used up by its wake.

use crate::recorder;
use crate::task::{TaskRecord, Wake, set_worker_of};
use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Context, Poll, Waker};

#[cfg(test)]
mod tests;

/// Returns the index of the worker that the current thread runs, if it runs one.
pub type WorkerIndex = fn() -> Option<usize>;

thread_local! {
    /// Whether the task that this thread polls has called [`yields`].
    static YIELDS: Cell<bool> = const { Cell::new(false) };
}

/// The task that this thread polls, if its future is a [`Recorded`], yields: it counts as woken in this poll. For runtimes that
/// wake such a task later, between polls, as tokio does; the recording would say that something outside of tasks woke it.
#[inline]
pub fn yields() {
    YIELDS.set(true);
}

/// Records the polls of a future: [`Recorded::new`]. For programs that spawn through one function of theirs.
///
/// ```
/// use std::future::Future;
///
/// fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) {
///     let future = warmcore_record::record(future);
///     # let _ = future;
///     // tokio::spawn(future);
/// }
/// # spawn(async {});
/// ```
#[track_caller]
pub fn record<F: Future>(future: F) -> Recorded<F> {
    Recorded::new(future)
}

/// A future whose polls are recorded: [`record`].
///
/// It owns a waker of the task that polls it, until it has ended. A runtime that frees a task as soon as no waker of it is
/// left does not free one that waits for nothing.
#[must_use = "futures do nothing unless polled"]
pub struct Recorded<F> {
    /// `None`: the recorder was off when the future was made.
    task: Option<Box<Task>>,
    future: F,
}

struct Task {
    record: TaskRecord,
    /// Made at the first poll.
    waker: Option<(Arc<OwnWaker>, Waker)>,
    worker_index: Option<WorkerIndex>,
}

/// What the task's waker points to.
struct OwnWaker {
    wake: Wake,
    inner: Waker,
}

impl task::Wake for OwnWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if recorder::is_on() {
            self.wake.set();
        }
        self.inner.wake_by_ref();
    }
}

impl<F: Future> Recorded<F> {
    /// Records the polls of a future, as of a task that was spawned where this is called. Starts the recorder if
    /// `WARMCORE_RECORD` names a file and nothing has started it yet.
    #[track_caller]
    pub fn new(future: F) -> Self {
        recorder::start();
        Self::of_task(future, Location::caller(), None, None)
    }

    /// Records the polls of a task's future. The call of `spawn` is at `location`. With `worker_index` the recording says
    /// which worker a thread runs.
    #[inline]
    pub fn of_task(
        future: F,
        location: &'static Location<'static>,
        name: Option<&str>,
        worker_index: Option<WorkerIndex>,
    ) -> Self {
        let record = TaskRecord::spawned(location, name);
        let task = record.map(|record| Box::new(Task { record, waker: None, worker_index }));
        Self { task, future }
    }
}

impl<F: Future> Future for Recorded<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: structural pinning: `future` is never moved, and there is no `Drop` that could move it.
        let Self { task, future } = unsafe { self.get_unchecked_mut() };
        // SAFETY: as above.
        let future = unsafe { Pin::new_unchecked(future) };
        match task {
            None => future.poll(cx),
            Some(task) => task.poll(future, cx),
        }
    }
}

impl Task {
    fn poll<F: Future>(&mut self, future: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if !self.record.is_recorded() {
            return future.poll(cx);
        }
        if let Some(worker_index) = self.worker_index {
            set_worker_of(worker_index(), 0);
        }
        if !matches!(&self.waker, Some((own, _)) if own.inner.will_wake(cx.waker())) {
            self.make_waker(cx.waker());
        }
        let Some((own, waker)) = &self.waker else { unreachable!("it was made") };
        let polled = self.record.poll_woken(&own.wake, || {
            let outer = YIELDS.replace(false);
            let polled = future.poll(&mut Context::from_waker(waker));
            if YIELDS.replace(outer) {
                own.wake.set();
            }
            polled
        });
        if polled.is_ready() {
            // The waker has one of the runtime's task, which may own this future.
            self.waker = None;
        }
        polled
    }

    /// For the first poll, or because the future was moved to another task.
    #[cold]
    fn make_waker(&mut self, inner: &Waker) {
        let word = match &self.waker {
            None => self.record.take_wake(),
            Some((own, _)) => own.wake.take(),
        };
        let own = Arc::new(OwnWaker { wake: Wake::new(word), inner: inner.clone() });
        self.waker = Some((own.clone(), Waker::from(own)));
    }
}

impl<F> fmt::Debug for Recorded<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").field("is_recorded", &self.task.is_some()).finish_non_exhaustive()
    }
}
