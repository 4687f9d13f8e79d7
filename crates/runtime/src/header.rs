//! Header: the runtime's data about a task, besides the task's future.
//!
//! `async-task` keeps a task's state, its header and its future in one allocation. The header has what the scheduler
//! knows of the task ([`TaskState`]), and the task's tenant. It takes 72 bytes; async-task's state takes 40.
//!
//! A task has at most one [`RunnableTask`]. Only the thread that owns it writes the header, so Relaxed orderings are
//! enough. `state` is also written by the thread that cancels the task.

use crate::inbox::Linked;
use crate::owned_tasks::OwnedTasks;
use crate::shared::SchedulerRef;
use crate::sync::{AtomicPtr, AtomicU32, Ordering::*};
use crate::tenant_stats::TenantRef;
use async_task::Runnable;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use warmcore_budget::process::unaccounted;
use warmcore_record::TaskRecord;
use warmcore_sched::{Allowed, Share, Task, TaskState};

/// The value of `owned_slot` while the task is not in the list of owned tasks.
const NOT_OWNED: u32 = u32::MAX;

const CANCELLED: u32 = 1;

/// The runtime's data about a task.
pub(crate) struct Header {
    /// The task's runtime. Any thread that has a waker of the task may use it.
    pub(crate) scheduler: Arc<SchedulerRef>,
    /// The link to the task that was pushed to the same inbox before this one.
    link: AtomicPtr<()>,
    pub(crate) sched: TaskState,
    state: AtomicU32,
    /// Index in the list of owned tasks, or [`NOT_OWNED`]. Written by the thread that creates the task and by the thread
    /// that drops its future, read by threads that abort the task or ask whether it has ended.
    pub(crate) owned_slot: AtomicU32,
    pub(crate) spawned_at: &'static Location<'static>,
    pub(crate) attrs: Option<Box<TaskAttrs>>,
}

/// Attributes that few tasks have; they are in a separate allocation.
#[derive(Default)]
pub(crate) struct TaskAttrs {
    pub(crate) name: Option<Arc<str>>,
    /// The task's tenant. Its counters are valid while `scheduler` keeps the runtime.
    pub(crate) tenant: Option<TenantRef>,
    pub(crate) span: Option<tracing::Span>,
    /// Where the task's polls are recorded. `None`: the recorder was off when the task was spawned.
    pub(crate) record: Option<TaskRecord>,
}

impl Header {
    /// The task was spawned where this is called.
    #[track_caller]
    pub(crate) fn new(scheduler: Arc<SchedulerRef>, allowed: Allowed, attrs: Option<Box<TaskAttrs>>) -> Self {
        Self {
            scheduler,
            link: AtomicPtr::default(),
            sched: TaskState::new(allowed),
            state: AtomicU32::new(0),
            owned_slot: AtomicU32::new(NOT_OWNED),
            spawned_at: Location::caller(),
            attrs,
        }
    }

    /// The list of owned tasks that the task is in: that of the worker in `scheduler`.
    pub(crate) fn owned_tasks(&self) -> &OwnedTasks {
        &self.scheduler.shared.remote(self.scheduler.worker).owned_tasks
    }

    /// Removes the task from that list, because its future is dropped.
    pub(crate) fn leave_owned_tasks(&self) {
        self.owned_tasks().remove(self.owned_slot.load(Relaxed));
        // ORDERING: Release; pairs with the Acquire of `has_ended`.
        self.owned_slot.store(NOT_OWNED, Release);
    }

    /// Whether the future of a task that was in the list of owned tasks is dropped.
    pub(crate) fn has_ended(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release of `leave_owned_tasks`: the caller sees what the task did.
        self.owned_slot.load(Acquire) == NOT_OWNED
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.attrs.as_ref().and_then(|attrs| attrs.name.as_ref())
    }

    #[inline]
    pub(crate) fn tenant(&self) -> Option<&TenantRef> {
        self.attrs.as_ref().and_then(|attrs| attrs.tenant.as_ref())
    }

    #[inline]
    pub(crate) fn record(&self) -> Option<&TaskRecord> {
        self.attrs.as_ref().and_then(|attrs| attrs.record.as_ref())
    }

    pub(crate) fn cancel(&self) {
        self.state.fetch_or(CANCELLED, Relaxed);
    }

    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.state.load(Relaxed) & CANCELLED != 0
    }
}

/// A task that was woken or spawned, and must be polled.
///
/// A type of its own because a trait of another crate can't be implemented for `Runnable`.
#[repr(transparent)]
pub(crate) struct RunnableTask(Runnable<Header>);

impl RunnableTask {
    #[inline]
    pub(crate) fn new(runnable: Runnable<Header>) -> Self {
        Self(runnable)
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        self.0.metadata()
    }

    /// Polls the task. Returns whether it was woken during the poll.
    #[inline]
    pub(crate) fn run(self) -> bool {
        self.0.run()
    }

    /// Schedules the task, as a wake does.
    pub(crate) fn schedule(self) {
        self.0.schedule();
    }

    pub(crate) fn waker(&self) -> Waker {
        self.0.waker()
    }

    /// Cancels a task that no worker will run: drops its future here, and makes its handle ready.
    pub(crate) fn cancel(self) {
        self.header().cancel();
        self.run();
    }
}

impl Task for RunnableTask {
    #[inline]
    fn state(&self) -> &TaskState {
        &self.header().sched
    }

    #[inline]
    fn share(&self) -> Share {
        match self.header().tenant() {
            None => Share::NO_TENANT,
            Some(TenantRef { tenant, .. }) => Share { tenant: tenant.serial() + 1, weight: tenant.weight() },
        }
    }

    fn unaccounted<R>(grow: impl FnOnce() -> R) -> R {
        unaccounted(grow)
    }
}

// SAFETY: async-task's own conversions to a pointer and back; the header does not move.
unsafe impl Linked for RunnableTask {
    fn into_raw(self) -> *mut () {
        self.0.into_raw().as_ptr()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: `raw` came from `into_raw`, as the caller guarantees, and `into_raw` never returns null.
        Self(unsafe { Runnable::from_raw(NonNull::new_unchecked(raw)) })
    }

    fn link(&self) -> &AtomicPtr<()> {
        &self.header().link
    }
}
