//! Header: the runtime's data about a task, besides the task's future.
//!
//! The header begins the task's allocation. It has the task's [`State`], what the scheduler knows of the task
//! ([`TaskState`]), and the task's tenant.
//!
//! A task has at most one [`RunnableTask`](crate::task_cell::RunnableTask), which becomes its poll. Only the thread that has either
//! writes the header, so Relaxed orderings are enough; `state` and `join_waker` have protocols of their own (`task_cell/state.rs`, `join_waker.rs`).

use crate::context;
use crate::owned_tasks::OwnedTasks;
use crate::shared::SchedulerRef;
use crate::sync::{AtomicPtr, AtomicU32, Ordering::*};
use crate::task_cell::{JoinWaker, State, VTable};
use crate::tenant_stats::TenantRef;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use warmcore_record::TaskRecord;
use warmcore_sched::{Allowed, Share, TaskState};
use warmcore_types::CpuId;

/// The value of `owned_slot` while the task is not in the list of owned tasks.
const NOT_OWNED: u32 = u32::MAX;

/// The `owner` of a task that was spawned while the runtime closes. It ends without a poll, and the shutdown does not wait for it.
const REFUSED: u32 = u32::MAX;

/// The runtime's data about a task.
pub(crate) struct Header {
    pub(crate) state: State,
    pub(crate) vtable: &'static VTable,
    /// The task's runtime. Any thread that has a waker of the task may use it.
    pub(crate) scheduler: Arc<SchedulerRef>,
    /// The link to the task that was pushed to the same inbox before this one.
    pub(crate) link: AtomicPtr<()>,
    pub(crate) sched: TaskState,
    /// Index in the list of owned tasks of the worker `owner`, or [`NOT_OWNED`].
    owned_slot: AtomicU32,
    owner: AtomicU32,
    /// Wakes the task that waits at the handle.
    pub(crate) join_waker: JoinWaker,
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
    pub(crate) fn new(
        vtable: &'static VTable,
        scheduler: Arc<SchedulerRef>,
        allowed: Allowed,
        attrs: Option<Box<TaskAttrs>>,
    ) -> Self {
        Self {
            state: State::new(),
            vtable,
            scheduler,
            link: AtomicPtr::default(),
            sched: TaskState::new(allowed),
            owned_slot: AtomicU32::new(NOT_OWNED),
            owner: AtomicU32::new(0),
            join_waker: JoinWaker::new(),
            spawned_at: Location::caller(),
            attrs,
        }
    }

    /// Counts a new task as alive, or refuses it if the runtime is closing.
    #[inline]
    pub(crate) fn begin(&self) {
        if self.scheduler.shared.is_closing.load(Relaxed) {
            self.owner.store(REFUSED, Relaxed);
        } else {
            context::count_tasks(&self.scheduler.shared, |counts| &counts.spawned);
        }
        if let Some(tenant) = self.tenant() {
            tenant.begin();
        }
    }

    /// The task has ended: the opposite of [`begin`](Self::begin). Removes it from its list of owned tasks. Returns whether it was in
    /// one: the list's reference is the caller's then.
    #[inline]
    pub(crate) fn end(&self) -> bool {
        if let Some(tenant) = self.tenant() {
            tenant.end();
        }
        let was_owned = self.leave_owned_tasks();
        if !self.is_refused() {
            context::count_tasks(&self.scheduler.shared, |counts| &counts.ended);
        }
        was_owned
    }

    /// Whether the runtime was closing when the task was spawned.
    pub(crate) fn is_refused(&self) -> bool {
        self.owner.load(Relaxed) == REFUSED
    }

    fn owned_tasks(&self, owner: CpuId) -> &OwnedTasks {
        &self.scheduler.shared.remote(owner).owned_tasks
    }

    /// Puts the task into the list of a worker, or cancels it if the runtime is closing: it will be polled once more. The caller
    /// owns the runnable task, or polls. `task` is the same task, as the pointer to its whole allocation.
    #[cold]
    pub(crate) fn enter_owned_tasks(&self, task: NonNull<Self>, owner: CpuId) {
        match self.owned_tasks(owner).insert(task, &self.scheduler.shared.is_closing) {
            Some(slot) => {
                self.owner.store(owner.0, Relaxed);
                self.owned_slot.store(slot, Relaxed);
                self.state.set_owned();
            }
            None => _ = self.state.cancel(),
        }
    }

    fn leave_owned_tasks(&self) -> bool {
        let slot = self.owned_slot.load(Relaxed);
        if slot == NOT_OWNED {
            return false;
        }
        self.owned_tasks(CpuId(self.owner.load(Relaxed))).remove(slot);
        self.owned_slot.store(NOT_OWNED, Relaxed);
        true
    }

    /// What tells the type of the task's future from most other types.
    pub(crate) fn kind(&self) -> usize {
        std::ptr::from_ref(self.vtable).addr()
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.attrs.as_ref().and_then(|attrs| attrs.name.as_ref())
    }

    /// The tenant that is charged for the task's polls, and its weight.
    #[inline]
    pub(crate) fn share(&self) -> Share {
        match self.tenant() {
            None => Share::NO_TENANT,
            Some(TenantRef { tenant, .. }) => Share { tenant: tenant.serial() + 1, weight: tenant.weight() },
        }
    }

    #[inline]
    pub(crate) fn tenant(&self) -> Option<&TenantRef> {
        self.attrs.as_ref().and_then(|attrs| attrs.tenant.as_ref())
    }

    /// Records a wake, if the task is recorded. Of a wake during a poll the waker's thread is not known.
    #[inline]
    pub(crate) fn record_wake(&self, is_in_poll: bool) {
        if self.attrs.is_some() {
            self.record_wake_of(is_in_poll);
        }
    }

    #[inline(never)]
    fn record_wake_of(&self, is_in_poll: bool) {
        match self.record() {
            None => {}
            Some(record) if !is_in_poll => record.woken(),
            Some(record) => record.woken_in_poll(),
        }
    }

    #[inline]
    pub(crate) fn record(&self) -> Option<&TaskRecord> {
        self.attrs.as_ref().and_then(|attrs| attrs.record.as_ref())
    }
}
