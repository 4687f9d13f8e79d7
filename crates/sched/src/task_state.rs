//! TaskState: what the scheduler knows of a task: where it ran last, how long its polls and its sleeps take, where it
//! may run.
//!
//! 32 bytes, which the host stores in its task. Only the owner of the runnable task writes it, and a task is handed over
//! by a lock or by a Release and an Acquire, so Relaxed orderings are enough.

use crate::estimate::WEIGHT;
use crate::sync::{AtomicU32, AtomicU64, Ordering::*};
use crate::{Allowed, SleepHistory, Wakee};
use warmcore_types::{CpuId, Nanos};

/// The bit of `TaskState::prev_worker` of a task that never enters a [`Ring`](crate::Ring): it may not run on every worker.
const RESTRICTED: u32 = 1 << 31;

/// The worker of `prev_worker` before the first poll.
const NOWHERE: u32 = RESTRICTED - 1;

/// Bits of `TaskState::accrued_cost` that hold the cost in ns. They hold up to 4 ms, which no migration cost exceeds.
const ACCRUED_COST_BITS: u32 = 22;

/// The other bits of `TaskState::accrued_cost` hold a worker's number plus 1; this is the number of workers that fit.
const ENCODED_WORKERS_MAX: u32 = (1 << (u32::BITS - ACCRUED_COST_BITS)) - 1;

/// What the scheduler knows of a task.
#[derive(Debug)]
pub struct TaskState {
    /// The worker that polled the task last, and [`RESTRICTED`]. So one comparison says whether the task goes into a worker's
    /// own ring.
    prev_worker: AtomicU32,
    /// Average duration of a poll, in ns, from sampled polls. 0: not known.
    poll_ns: AtomicU32,
    /// The low bits are [`Wakee::accrued_cost`]. The bits above are `woken_from` plus 1; 0: none.
    accrued_cost: AtomicU32,
    /// Average time between a sampled poll that returned pending and the next wake, in ns. 0: not known.
    sleep_ns: AtomicU32,
    /// When the task last returned pending, if the time to its next wake is measured. 0: it is not measured.
    slept_at: AtomicU64,
    allowed: Allowed,
}

impl TaskState {
    /// A task that has not run.
    pub fn new(allowed: Allowed) -> Self {
        let flag = if allowed == Allowed::Anywhere { 0 } else { RESTRICTED };
        Self {
            prev_worker: AtomicU32::new(NOWHERE | flag),
            poll_ns: AtomicU32::new(0),
            accrued_cost: AtomicU32::new(0),
            sleep_ns: AtomicU32::new(0),
            slept_at: AtomicU64::new(0),
            allowed,
        }
    }

    /// Where the task may run.
    #[inline]
    pub fn allowed(&self) -> Allowed {
        self.allowed
    }

    /// The worker that polled the task last. `None`: it was never polled.
    #[inline]
    pub fn prev_worker(&self) -> Option<CpuId> {
        let worker = self.prev_worker.load(Relaxed) & !RESTRICTED;
        (worker != NOWHERE).then_some(CpuId(worker))
    }

    /// Whether this worker polled the task last.
    #[inline]
    pub fn is_prev_worker(&self, worker: CpuId) -> bool {
        self.prev_worker.load(Relaxed) & !RESTRICTED == worker.0
    }

    /// Whether the task never enters a ring.
    #[inline]
    pub(crate) fn is_restricted(&self) -> bool {
        self.prev_worker.load(Relaxed) & RESTRICTED != 0
    }

    /// Whether this worker polled the task last, and the task may enter its ring.
    #[inline]
    pub(crate) fn is_for_ring_of(&self, worker: CpuId) -> bool {
        self.prev_worker.load(Relaxed) == worker.0
    }

    #[inline]
    pub(crate) fn set_prev_worker(&self, worker: CpuId) {
        let flag = self.prev_worker.load(Relaxed) & RESTRICTED;
        self.prev_worker.store(worker.0 | flag, Relaxed);
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
    #[inline]
    pub fn poll_ns(&self) -> Option<u32> {
        Some(self.poll_ns.load(Relaxed)).filter(|ns| *ns > 0)
    }

    /// Adds the duration of a poll to the average over about eight polls.
    pub fn record_poll(&self, ns: u64) {
        let ns = ns.clamp(1, 1 << 30) as u32;
        let old = self.poll_ns.load(Relaxed);
        self.poll_ns.store(if old == 0 { ns } else { (old - old / WEIGHT + ns / WEIGHT).max(1) }, Relaxed);
    }

    /// Starts to measure the time until the next wake.
    pub fn sleep(&self, now: Nanos) {
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
    pub fn usual_sleep(&self) -> u32 {
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

    /// The task as [`Policy::wake`](crate::Policy::wake) takes it.
    pub(crate) fn wakee(&self, migration_cost: Nanos, far_cost: Nanos) -> Wakee {
        let both = self.accrued_cost.load(Relaxed);
        let accrued_cost = Nanos((both & ((1 << ACCRUED_COST_BITS) - 1)).into());
        let woken_from = (both >> ACCRUED_COST_BITS).checked_sub(1).map(CpuId);
        Wakee {
            first_poll: Nanos(0),
            prev_cpu: self.prev_worker(),
            migration_cost,
            far_cost,
            accrued_cost,
            woken_from,
            allowed: self.allowed,
        }
    }
}
