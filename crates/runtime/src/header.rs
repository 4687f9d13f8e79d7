//! Task: a future with its history, in one allocation.
//!
//! Model.   `async-task` keeps the states; the header beside them has what placement must know: where the task
//!          ran last, what it runs for at a time, how it sleeps, whose it is. The future is polled inside
//!          `TaskFuture`, which catches its panic, sees whether it was cancelled, and takes it off the list of owned
//!          tasks when it is gone, however it goes.
//! Number.  A header is 64 bytes, beside async-task's own 40. An idle task is that, its future and 24 bytes in the list of owned tasks.
//! Writers. The header: whoever holds the `Runnable`, and there is only one, so Relaxed does; `state` also by who
//!          aborts.

use crate::context;
use crate::error::JoinError;
use crate::inbox::Linked;
use crate::run_queue::{Entry, Share};
use crate::shared::SchedulerRef;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use crate::tenant_stats::TenantRef;
use async_task::{Runnable, Task};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use warmcore_sched::{Allowed, Sleeps, Wakee};
use warmcore_types::{CpuId, Nanos};

/// Not run yet.
const NOWHERE: u32 = u32::MAX;

const CANCELLED: u32 = 1;

/// A debt is below 4 ms: no refill is more.
const ACCRUED_COST_BITS: u32 = 22;

/// The rest of that word tells so many workers.
const ENCODED_WORKERS_MAX: u32 = (1 << (u32::BITS - ACCRUED_COST_BITS)) - 1;

/// What is known of a task beside its future.
pub(crate) struct Header {
    /// To find the runtime again, from any thread, for as long as anybody may wake the task.
    pub(crate) scheduler: Arc<SchedulerRef>,
    /// In an inbox: who came before.
    link: AtomicPtr<()>,
    /// The worker that ran it last.
    prev_worker: AtomicU32,
    /// What it runs for at a time, in ns: an average of samples. 0: not known.
    poll_ns: AtomicU32,
    /// `place::Wakee::debt`, and above its bits one more than the worker of `woken_from`; 0 there: none.
    accrued_cost: AtomicU32,
    /// How long it sleeps, on average.
    sleep_ns: AtomicU32,
    /// When it went to sleep, if that sleep is measured. 0: it is not.
    slept_at: AtomicU64,
    state: AtomicU32,
    /// Index in the list of owned tasks.
    pub(crate) owned_slot: AtomicU32,
    pub(crate) allowed: Allowed,
    pub(crate) attrs: Option<Box<TaskAttrs>>,
}

/// What few tasks have.
#[derive(Default)]
pub(crate) struct TaskAttrs {
    pub(crate) name: Option<Arc<str>>,
    /// Whose it is. It counts only while the scheduler keeps the runtime.
    pub(crate) tenant: Option<TenantRef>,
    pub(crate) span: Option<tracing::Span>,
}

impl Header {
    pub(crate) fn new(scheduler: Arc<SchedulerRef>, allowed: Allowed, attrs: Option<Box<TaskAttrs>>) -> Self {
        Self {
            scheduler,
            link: AtomicPtr::default(),
            prev_worker: AtomicU32::new(NOWHERE),
            poll_ns: AtomicU32::new(0),
            accrued_cost: AtomicU32::new(0),
            sleep_ns: AtomicU32::new(0),
            slept_at: AtomicU64::new(0),
            state: AtomicU32::new(0),
            owned_slot: AtomicU32::new(u32::MAX),
            allowed,
            attrs,
        }
    }

    #[inline]
    pub(crate) fn prev_worker(&self) -> Option<CpuId> {
        let worker = self.prev_worker.load(Relaxed);
        (worker != NOWHERE).then_some(CpuId(worker))
    }

    /// Whether this worker ran it last.
    #[inline]
    pub(crate) fn is_prev_worker(&self, cpu: CpuId) -> bool {
        self.prev_worker.load(Relaxed) == cpu.0
    }

    #[inline]
    pub(crate) fn set_prev_worker(&self, cpu: CpuId) {
        self.prev_worker.store(cpu.0, Relaxed);
        self.accrued_cost.store(0, Relaxed);
    }

    /// Woken at home.
    #[inline]
    pub(crate) fn clear_accrued_cost(&self) {
        if self.accrued_cost.load(Relaxed) != 0 {
            self.accrued_cost.store(0, Relaxed);
        }
    }

    /// A worker beyond those that the bits can tell is not remembered.
    pub(crate) fn set_accrued_cost(&self, cost: Nanos, woken_from: Option<CpuId>) {
        let from = woken_from.filter(|cpu| cpu.0 < ENCODED_WORKERS_MAX).map_or(0, |cpu| cpu.0 + 1);
        let cost = cost.0.min((1 << ACCRUED_COST_BITS) - 1) as u32;
        self.accrued_cost.store(from << ACCRUED_COST_BITS | cost, Relaxed);
    }

    /// What it runs for at a time, if that was ever measured.
    pub(crate) fn poll_ns(&self) -> Option<u32> {
        Some(self.poll_ns.load(Relaxed)).filter(|ns| *ns > 0)
    }

    /// It ran for so long: an average over about eight.
    pub(crate) fn record_poll(&self, ns: u64) {
        let ns = ns.clamp(1, 1 << 30) as u32;
        let old = self.poll_ns.load(Relaxed);
        self.poll_ns.store(if old == 0 { ns } else { (old - old / 8 + ns / 8).max(1) }, Relaxed);
    }

    /// It goes to sleep, and is to be measured.
    pub(crate) fn sleep(&self, now: Nanos) {
        self.slept_at.store(now.0, Relaxed);
    }

    /// It was woken during its poll: what began as a sleep is none.
    #[inline]
    pub(crate) fn stay_awake(&self) {
        if self.slept_at.load(Relaxed) > 0 {
            self.slept_at.store(0, Relaxed);
        }
    }

    /// For how long it sleeps, on average, in ns. 0: not known.
    #[inline]
    pub(crate) fn usual_sleep(&self) -> u32 {
        self.sleep_ns.load(Relaxed)
    }

    /// It wakes. `now` is asked only if the sleep is measured.
    #[inline]
    pub(crate) fn wake(&self, now: impl FnOnce() -> Nanos) {
        if self.slept_at.load(Relaxed) > 0 {
            self.record_sleep(now());
        }
    }

    #[cold]
    fn record_sleep(&self, now: Nanos) {
        let since = Nanos(self.slept_at.swap(0, Relaxed));
        let mut sleeps = Sleeps { since, average: Nanos(self.sleep_ns.load(Relaxed).into()) };
        sleeps.wake(now);
        self.sleep_ns.store(sleeps.average.0 as u32, Relaxed);
    }

    /// As placement sees it. `refill` says what a move costs a task that runs for so long at a time, or for as
    /// long as the worker's tasks do on average.
    pub(crate) fn wakee(&self, refill: impl Fn(Option<u32>) -> Nanos) -> Wakee {
        let both = self.accrued_cost.load(Relaxed);
        let debt = Nanos((both & ((1 << ACCRUED_COST_BITS) - 1)).into());
        let woken_from = (both >> ACCRUED_COST_BITS).checked_sub(1).map(CpuId);
        Wakee {
            home: self.prev_worker(),
            refill: refill(self.poll_ns()),
            debt,
            woken_from,
            allowed: self.allowed,
        }
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.attrs.as_ref().and_then(|attrs| attrs.name.as_ref())
    }

    #[inline]
    pub(crate) fn tenant(&self) -> Option<&TenantRef> {
        self.attrs.as_ref().and_then(|attrs| attrs.tenant.as_ref())
    }

    pub(crate) fn cancel(&self) {
        self.state.fetch_or(CANCELLED, Relaxed);
    }

    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.state.load(Relaxed) & CANCELLED != 0
    }
}

/// A task that is to be run.
pub(crate) type RunnableTask = Runnable<Header>;

/// A task in a worker's queue.
pub(crate) struct QueuedTask {
    pub(crate) runnable: RunnableTask,
    /// Since when it is in a queue, by the clock of the worker that put it there.
    pub(crate) since: Nanos,
}

impl Entry for QueuedTask {
    #[inline]
    fn share(&self) -> Share {
        match self.runnable.metadata().tenant() {
            None => Share { tenant: 0, weight: 100 },
            Some(TenantRef { tenant, .. }) => Share { tenant: tenant.serial() + 1, weight: tenant.weight() },
        }
    }

    #[inline]
    fn is_pinned(&self) -> bool {
        matches!(self.runnable.metadata().allowed, Allowed::Cpu(_))
    }

    #[inline]
    fn waits_since(&self) -> Nanos {
        self.since
    }
}

// SAFETY: async-task's own pair; the header stays where it is.
unsafe impl Linked for RunnableTask {
    fn into_raw(self) -> *mut () {
        Runnable::into_raw(self).as_ptr()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: as the caller says; what `into_raw` gives is never null.
        unsafe { Runnable::from_raw(NonNull::new_unchecked(raw)) }
    }

    fn link(&self) -> &AtomicPtr<()> {
        &self.metadata().link
    }
}

/// What a task ends with.
pub(crate) type Outcome<T> = Result<T, JoinError>;

/// An outcome that nobody may ever ask for: if its drop panics, that is the end of the panic.
pub(crate) struct TaskOutput<T>(Option<Outcome<T>>);

impl<T> Drop for TaskOutput<T> {
    fn drop(&mut self) {
        if let Some(outcome) = self.0.take()
            && std::mem::needs_drop::<T>() | outcome.is_err()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(outcome)))
        {
            // Who panics in a panic's drop would again.
            std::mem::forget(panic);
        }
    }
}

/// A future as it is polled.
struct TaskFuture<F: Future> {
    /// `None`: gone.
    future: Option<F>,
    header: NonNull<Header>,
}

// SAFETY: the header is `Sync` and lives as long as the task does that this is part of.
unsafe impl<F: Future + Send> Send for TaskFuture<F> {}

impl<F: Future> TaskFuture<F> {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: async-task frees the header after the future.
        unsafe { self.header.as_ref() }
    }

    /// Drops the future; a panic meanwhile is the outcome.
    fn end(self: Pin<&mut Self>, outcome: Outcome<F::Output>) -> Outcome<F::Output> {
        // SAFETY: the future is dropped where it stands; nothing is moved out.
        let this = unsafe { self.get_unchecked_mut() };
        let dropped = catch_unwind(AssertUnwindSafe(|| this.future = None));
        match dropped {
            Ok(()) => outcome,
            Err(panic) => {
                // The place is empty; what was in it will not be dropped twice.
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
            let cancelled = Err(JoinError::cancelled(self.header().name().cloned()));
            return Poll::Ready(TaskOutput(Some(self.end(cancelled))));
        }
        // SAFETY: structural pinning: `future` is never moved.
        let this = unsafe { self.as_mut().get_unchecked_mut() };
        let header = this.header;
        let future = this.future.as_mut().expect("polled after its end");
        // SAFETY: as above.
        let future = unsafe { Pin::new_unchecked(future) };
        // SAFETY: the header outlives the future.
        let header = unsafe { header.as_ref() };
        let polled = context::measured(header, || {
            catch_unwind(AssertUnwindSafe(|| match header.attrs.as_deref() {
                None => future.poll(cx),
                Some(attrs) => {
                    let _span = attrs.span.as_ref().map(|span| span.enter());
                    let _here = attrs.tenant.as_ref().map(|tenant| tenant.tenant.enter());
                    future.poll(cx)
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

impl<F: Future> Drop for TaskFuture<F> {
    fn drop(&mut self) {
        let header = self.header();
        if let Some(tenant) = header.tenant() {
            tenant.end();
        }
        header.scheduler.shared.owned_tasks(&header.scheduler).remove(header.owned_slot.load(Relaxed));
    }
}

/// Makes a task, and puts it into the list of owned tasks. Not scheduled yet.
///
/// # Safety
/// If `F` or its output borrows, the caller sees to it that the task is gone before what it borrows; if `F` is
/// not `Send`, that it is polled and dropped by one thread.
pub(crate) unsafe fn make<F: Future>(header: Header, future: F) -> (RunnableTask, JoinHandle<F::Output>) {
    let scheduler = header.scheduler.clone();
    let track = |header: &Header| TaskFuture { future: Some(future), header: NonNull::from(header) };
    let schedule = async_task::WithInfo(context::schedule);
    // SAFETY: as the caller says; `schedule` is `Send`, `Sync` and borrows nothing.
    let (runnable, task) =
        unsafe { async_task::Builder::new().metadata(header).spawn_unchecked(track, schedule) };
    if let Some(tenant) = runnable.metadata().tenant() {
        tenant.begin();
    }
    let waker = runnable.waker();
    let owned_slot =
        scheduler.shared.owned_tasks(&scheduler).insert(waker, NonNull::from(runnable.metadata()));
    runnable.metadata().owned_slot.store(owned_slot.unwrap_or(u32::MAX), Relaxed);
    if owned_slot.is_none() {
        // The runtime shuts down: it ends before it begins.
        runnable.metadata().cancel();
    }
    (runnable, JoinHandle { task: Some(task) })
}

/// Waits for a task's end. Dropping it leaves the task alone.
///
/// Ready with what the task returned, or [`JoinError`] if it panicked or was cancelled.
pub struct JoinHandle<T> {
    task: Option<Task<TaskOutput<T>, Header>>,
}

impl<T> JoinHandle<T> {
    #[cfg(test)]
    pub(crate) fn header(&self) -> &Header {
        self.task().metadata()
    }

    fn task(&self) -> &Task<TaskOutput<T>, Header> {
        self.task.as_ref().expect("taken only when dropped")
    }

    /// Ends the task where it waits next; if it runs, when it comes back. One that ended already stays ended.
    pub fn abort(&self) {
        if let Some(handle) = self.abort_handle_if_alive() {
            handle.abort();
        }
    }

    /// What can abort the task without the handle.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort_handle_if_alive().unwrap_or(AbortHandle { task: None })
    }

    fn abort_handle_if_alive(&self) -> Option<AbortHandle> {
        let header = self.task().metadata();
        let waker = header
            .scheduler
            .shared
            .owned_tasks(&header.scheduler)
            .waker(header.owned_slot.load(Relaxed), header)?;
        Some(AbortHandle { task: Some((waker, NonNull::from(header))) })
    }

    /// Whether it ended.
    pub fn is_finished(&self) -> bool {
        self.task().is_finished()
    }

    /// As it was named.
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
    /// The waker keeps the header alive. `None`: it had ended.
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
            // SAFETY: the waker is a reference to the task; its header lives with it.
            unsafe { header.as_ref() }.cancel();
            waker.wake_by_ref();
        }
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").finish_non_exhaustive()
    }
}

/// What a panic said, if it said something.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}
