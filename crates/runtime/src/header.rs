//! Header: the runtime's data about a task, besides the task's future.
//!
//! `async-task` keeps a task's state, its header and its future in one allocation. The header has the data that
//! placement needs: where the task ran last, how long its polls and its sleeps take, and its tenant. It takes 72 bytes;
//! async-task's state takes 40.
//!
//! A task has at most one `Runnable`. Only the thread that holds it writes the header, so Relaxed orderings are enough.
//! `state` is also written by the thread that cancels the task.

use crate::inbox::Linked;
use crate::owned_tasks::OwnedTasks;
use crate::run_queue::{Entry, Share};
use crate::shared::SchedulerRef;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use crate::tenant_stats::TenantRef;
use async_task::Runnable;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use warmcore_record::TaskRecord;
use warmcore_sched::{Allowed, SleepHistory, Wakee};
use warmcore_types::{CpuId, Nanos};

/// The value of `prev_worker` before the first poll.
const NOWHERE: u32 = u32::MAX;

/// The value of `owned_slot` while the task is not in the list of owned tasks.
const NOT_OWNED: u32 = u32::MAX;

const CANCELLED: u32 = 1;

/// Bits of `Header::accrued_cost` that hold the cost in ns. They hold up to 4 ms, which no migration cost exceeds.
const ACCRUED_COST_BITS: u32 = 22;

/// The other bits of `Header::accrued_cost` hold a worker's number plus 1; this is the number of workers that fit.
const ENCODED_WORKERS_MAX: u32 = (1 << (u32::BITS - ACCRUED_COST_BITS)) - 1;

/// The runtime's data about a task.
pub(crate) struct Header {
    /// The task's runtime. Any thread that has a waker of the task may use it.
    pub(crate) scheduler: Arc<SchedulerRef>,
    /// The link to the task that was pushed to the same inbox before this one.
    link: AtomicPtr<()>,
    /// The worker that polled the task last.
    prev_worker: AtomicU32,
    /// Average duration of a poll, in ns, from sampled polls. 0: not known.
    poll_ns: AtomicU32,
    /// The low bits are `sched::Wakee::accrued_cost`. The bits above are `woken_from` plus 1; 0: none.
    accrued_cost: AtomicU32,
    /// Average time between a sampled poll that returned pending and the next wake, in ns. 0: not known.
    sleep_ns: AtomicU32,
    /// When the task last returned pending, if the time to its next wake is measured. 0: it is not measured.
    slept_at: AtomicU64,
    state: AtomicU32,
    /// Index in the list of owned tasks, or [`NOT_OWNED`]. Written by the thread that creates the task and by the thread
    /// that drops its future, read by threads that abort the task or ask whether it has ended.
    pub(crate) owned_slot: AtomicU32,
    pub(crate) allowed: Allowed,
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
            prev_worker: AtomicU32::new(NOWHERE),
            poll_ns: AtomicU32::new(0),
            accrued_cost: AtomicU32::new(0),
            sleep_ns: AtomicU32::new(0),
            slept_at: AtomicU64::new(0),
            state: AtomicU32::new(0),
            owned_slot: AtomicU32::new(NOT_OWNED),
            allowed,
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

    #[inline]
    pub(crate) fn prev_worker(&self) -> Option<CpuId> {
        let worker = self.prev_worker.load(Relaxed);
        (worker != NOWHERE).then_some(CpuId(worker))
    }

    /// Whether this worker polled the task last.
    #[inline]
    pub(crate) fn is_prev_worker(&self, cpu: CpuId) -> bool {
        self.prev_worker.load(Relaxed) == cpu.0
    }

    #[inline]
    pub(crate) fn set_prev_worker(&self, cpu: CpuId) {
        self.prev_worker.store(cpu.0, Relaxed);
        self.accrued_cost.store(0, Relaxed);
    }

    /// Resets the cost: the task was woken on the worker that polled it last.
    #[inline]
    pub(crate) fn clear_accrued_cost(&self) {
        if self.accrued_cost.load(Relaxed) != 0 {
            self.accrued_cost.store(0, Relaxed);
        }
    }

    /// Stores the accrued cost and the waker's worker. A worker whose number does not fit into the bits is not
    /// recorded.
    pub(crate) fn set_accrued_cost(&self, cost: Nanos, woken_from: Option<CpuId>) {
        let from = woken_from.filter(|cpu| cpu.0 < ENCODED_WORKERS_MAX).map_or(0, |cpu| cpu.0 + 1);
        let cost = cost.0.min((1 << ACCRUED_COST_BITS) - 1) as u32;
        self.accrued_cost.store(from << ACCRUED_COST_BITS | cost, Relaxed);
    }

    /// Average duration of a poll in ns, if one was measured.
    pub(crate) fn poll_ns(&self) -> Option<u32> {
        Some(self.poll_ns.load(Relaxed)).filter(|ns| *ns > 0)
    }

    /// Adds the duration of a poll to the average over about eight polls.
    pub(crate) fn record_poll(&self, ns: u64) {
        let ns = ns.clamp(1, 1 << 30) as u32;
        let old = self.poll_ns.load(Relaxed);
        self.poll_ns.store(if old == 0 { ns } else { (old - old / 8 + ns / 8).max(1) }, Relaxed);
    }

    /// Starts to measure the time until the next wake.
    pub(crate) fn sleep(&self, now: Nanos) {
        self.slept_at.store(now.0, Relaxed);
    }

    /// Drops the measurement that [`sleep`](Self::sleep) started: the task was woken during its poll, so it does not
    /// sleep.
    #[inline]
    pub(crate) fn stay_awake(&self) {
        if self.slept_at.load(Relaxed) > 0 {
            self.slept_at.store(0, Relaxed);
        }
    }

    /// Average time that the task sleeps, in ns. 0: not known.
    #[inline]
    pub(crate) fn usual_sleep(&self) -> u32 {
        self.sleep_ns.load(Relaxed)
    }

    /// Ends the measurement that [`sleep`](Self::sleep) started. Calls `now` only if there is one.
    #[inline]
    pub(crate) fn wake(&self, now: impl FnOnce() -> Nanos) {
        if self.slept_at.load(Relaxed) > 0 {
            self.record_sleep(now());
        }
    }

    #[cold]
    fn record_sleep(&self, now: Nanos) {
        let since = Nanos(self.slept_at.swap(0, Relaxed));
        let mut sleeps = SleepHistory { since, average: Nanos(self.sleep_ns.load(Relaxed).into()) };
        sleeps.wake(now);
        self.sleep_ns.store(sleeps.average.0 as u32, Relaxed);
    }

    /// The task's data as the policy's `wake` takes them.
    pub(crate) fn wakee(&self, migration_cost: Nanos) -> Wakee {
        let both = self.accrued_cost.load(Relaxed);
        let accrued_cost = Nanos((both & ((1 << ACCRUED_COST_BITS) - 1)).into());
        let woken_from = (both >> ACCRUED_COST_BITS).checked_sub(1).map(CpuId);
        Wakee {
            prev_cpu: self.prev_worker(),
            migration_cost,
            accrued_cost,
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

/// A task that was woken, or spawned, and must be polled.
pub(crate) type RunnableTask = Runnable<Header>;

/// A task in a worker's run queue.
pub(crate) struct QueuedTask {
    pub(crate) runnable: RunnableTask,
    /// When the task entered a run queue, as the worker that queued it had last read the clock. A steal keeps it.
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

/// Cancels a task that no worker will run: drops its future here, and makes its handle ready.
pub(crate) fn cancel(runnable: RunnableTask) {
    runnable.metadata().cancel();
    runnable.run();
}

// SAFETY: async-task's own conversions to a pointer and back; the header does not move.
unsafe impl Linked for RunnableTask {
    fn into_raw(self) -> *mut () {
        Runnable::into_raw(self).as_ptr()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: `raw` came from `into_raw`, as the caller guarantees, and `into_raw` never returns null.
        unsafe { Runnable::from_raw(NonNull::new_unchecked(raw)) }
    }

    fn link(&self) -> &AtomicPtr<()> {
        &self.metadata().link
    }
}
