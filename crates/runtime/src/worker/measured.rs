//! Measured: which polls are measured, and what becomes of their durations.
//!
//! The scheduler core chooses polls at random, one of sixteen on average, and estimates with them what its tasks cost. Each poll
//! of a tenant's task whose polls are long is measured for the tenant's run time.

use super::*;
use crate::header::Header;
use crate::tenant_stats::{self, TenantRef};
use warmcore_sched::SHORT_POLL_NS;

/// How a poll is measured.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    /// When the poll began.
    since: Nanos,
    /// For how many halves of a poll this poll's duration is counted in its tenant's run time. A poll that is measured
    /// because it was chosen at random also counts for the polls before it that were not measured. 2: for itself alone.
    /// 0: it is not measured. [`AFTER_MOVE`]: it is measured for its own sake.
    stands_for: u32,
    /// It was chosen at random.
    is_sampled: bool,
}

/// The poll is measured because its task has moved.
const AFTER_MOVE: u32 = u32::MAX;

const NOT_MEASURED: Measured = Measured { since: Nanos(0), stands_for: 0, is_sampled: false };

impl Worker {
    /// Begins a poll, which is mostly not measured.
    #[inline]
    pub(super) fn begin_measured(&self, header: &Header) -> Measured {
        let is_sampled = self.core.is_sampled();
        let is_long = header.tenant().is_some_and(|tenant| self.begin_of(tenant, header));
        match is_sampled | is_long {
            true => self.measure(is_sampled, is_long),
            false => NOT_MEASURED,
        }
    }

    /// Counts the poll of a tenant's task. Returns whether it must be measured because polls of this task take
    /// [`SHORT_POLL_NS`] or more on average.
    ///
    /// Not inlined, so that tasks without a tenant don't carry the code.
    #[inline(never)]
    fn begin_of(&self, tenant: &TenantRef, header: &Header) -> bool {
        tenant.count_poll();
        // If no poll of the task was recorded yet, this worker's average is taken.
        let usual = || self.core.remote().status.mean_poll_ns.load(Relaxed);
        header.sched.poll_ns().unwrap_or_else(usual) >= SHORT_POLL_NS
    }

    #[cold]
    fn measure(&self, is_sampled: bool, is_long: bool) -> Measured {
        let is_after_move = is_sampled && self.core.is_after_move();
        let is_sampled = is_sampled && !is_after_move;
        if is_after_move && !is_long {
            return Measured { since: self.remote().driver.now(), stands_for: AFTER_MOVE, is_sampled: false };
        }
        // Decided before the poll, so that the poll's duration does not change for how many polls it is counted.
        let stands_for = if is_sampled { self.core.draw_sample() } else { 0 };
        let stands_for = if is_long { 2 } else { stands_for };
        Measured { since: self.remote().driver.now(), stands_for, is_sampled }
    }

    /// Ends a poll of a task that this thread still has.
    #[inline]
    pub(super) fn end_measured(&self, header: &Header, measured: Measured, is_ready: bool) {
        if !is_ready {
            self.core.fell_asleep(header.sched.usual_sleep());
        }
        if measured.stands_for > 0 || self.core.is_stuck() {
            self.record_measured(header, measured, is_ready);
        }
    }

    /// Ends a poll that was measured, or that the watchdog found to be long. A poll that was sampled at random and returned
    /// pending updates the averages of its task.
    #[cold]
    fn record_measured(&self, header: &Header, measured: Measured, is_ready: bool) {
        let mut is_long = self.core.is_stuck();
        if is_long && self.core.was_preempted(&self.shared) {
            self.shared.workers.set_stuck(self.me(), false);
            is_long = false;
        }
        let Measured { since, stands_for, is_sampled } = measured;
        if stands_for == AFTER_MOVE {
            let ran = self.core.end_sample(&self.shared, since);
            self.core.learn_refill(&self.shared, &header.sched, ran);
            is_long |= self.core.is_long(&self.shared, ran);
        } else if stands_for > 0 {
            let ran = self.core.end_sample(&self.shared, since);
            self.shared.task_groups.record_poll(self.me(), header, ran, stands_for);
            if let Some(tenant) = header.tenant() {
                tenant.count_run(tenant_stats::scale_sample(ran, stands_for));
            }
            if is_sampled && header.sched.poll_ns().is_none() {
                self.core.learn_first_poll(&self.shared, header.kind(), ran);
            }
            if is_sampled && !is_ready {
                header.sched.record_poll(ran);
                header.sched.sleep(self.core.now());
            }
            is_long |= self.core.is_long(&self.shared, ran);
        }
        if is_long {
            self.found_long_poll(header);
        }
    }
}
