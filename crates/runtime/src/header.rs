//! Header: what the runtime knows of a task beside its future.
//!
//! `async-task` keeps a task's state, its header and its future in one allocation. The header has what placement must
//! know: where the task ran last, how long its polls take, how it sleeps, and its tenant. It is 64 bytes; async-task's
//! own part is 40.
//!
//! A task has one `Runnable` at most, and its holder alone writes the header, so Relaxed orderings do. `state` is also
//! written by the thread that cancels the task.

use crate::inbox::Linked;
use crate::run_queue::{Entry, Share};
use crate::shared::SchedulerRef;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use crate::tenant_stats::TenantRef;
use async_task::Runnable;
use std::ptr::NonNull;
use std::sync::Arc;
use warmcore_sched::{Allowed, SleepHistory, Wakee};
use warmcore_types::{CpuId, Nanos};

/// Not run yet.
const NOWHERE: u32 = u32::MAX;

const CANCELLED: u32 = 1;

/// An accrued cost is below 4 ms: no migration cost is more.
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
    /// `sched::Wakee::accrued_cost`, and above its bits one more than the worker of `woken_from`; 0 there: none.
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
        let mut sleeps = SleepHistory { since, average: Nanos(self.sleep_ns.load(Relaxed).into()) };
        sleeps.wake(now);
        self.sleep_ns.store(sleeps.average.0 as u32, Relaxed);
    }

    /// As placement sees it. `migration_cost` says what a move costs a task that runs for so long at a time, or for as
    /// long as the worker's tasks do on average.
    pub(crate) fn wakee(&self, migration_cost: impl Fn(Option<u32>) -> Nanos) -> Wakee {
        let both = self.accrued_cost.load(Relaxed);
        let accrued_cost = Nanos((both & ((1 << ACCRUED_COST_BITS) - 1)).into());
        let woken_from = (both >> ACCRUED_COST_BITS).checked_sub(1).map(CpuId);
        Wakee {
            prev_cpu: self.prev_worker(),
            migration_cost: migration_cost(self.poll_ns()),
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

/// Cancels a task that no worker will run: drops its future here, and makes its handle ready.
pub(crate) fn cancel(runnable: RunnableTask) {
    runnable.metadata().cancel();
    runnable.run();
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
