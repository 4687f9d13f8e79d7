//! Schedule: where a task goes that is woken on the worker's own thread.
//!
//! A task that this worker polled last goes into the worker's run queue. The policy places any other task
//! ([`Shared::place_task`](crate::shared::Shared::place_task)). While the worker is parked in its driver, a task goes into
//! the inbox, because a task in the run queue would not end the park.

use super::*;
use warmcore_sched::{TargetQueue, WakeSource};

/// After this many polls of a task that yields while no other task is queued here, the driver is polled: the task may wait
/// for one of its events.
const LONE_YIELDS_MAX: u32 = 4;

impl Worker {
    /// Schedules a task that was woken on this thread, or that yields.
    #[inline]
    pub(crate) fn schedule(&self, runnable: RunnableTask, is_yield: bool) {
        let header = runnable.metadata();
        if self.clock_is_stale.get() {
            // A task that the driver wakes is queued since now, and not since the worker parked. The worker stays parked
            // if the tasks that the driver wakes belong to other workers.
            self.read_clock();
            self.clock_is_stale.set(self.remote().inbox.is_parked());
        }
        if is_yield {
            header.stay_awake();
        } else {
            // Not the clock as it was last read: that may be late by the length of a sleep.
            header.wake(|| self.read_clock());
        }
        if !header.is_prev_worker(self.me) {
            return self.schedule_remote(runnable, is_yield);
        }
        if !is_yield {
            header.clear_accrued_cost();
        }
        if self.in_driver.get() && self.remote().inbox.is_parked() {
            return self.push_own_inbox(runnable);
        }
        self.schedule_local(runnable, is_yield);
    }

    fn push_own_inbox(&self, runnable: RunnableTask) {
        match self.remote().inbox.push(runnable) {
            Ok(false) => {}
            Ok(true) => self.remote().driver.unpark(),
            Err(runnable) => cancel(runnable),
        }
    }

    fn schedule_remote(&self, runnable: RunnableTask, is_yield: bool) {
        let placed = self.shared.place_task(runnable.metadata(), self.now(), WakeSource::Cpu(self.me));
        match placed.to {
            TargetQueue::Cpu(cpu) if cpu == self.me && !self.in_driver.get() => {
                self.schedule_local(runnable, is_yield)
            }
            _ => {
                Stats::add(&self.remote().stats.remote_wakes, 1);
                self.shared.enqueue(runnable, placed);
            }
        }
    }

    /// Puts a task into this worker's run queue.
    #[inline]
    fn schedule_local(&self, runnable: RunnableTask, is_yield: bool) {
        let remote = self.remote();
        let waiting = QueuedTask { runnable, since: self.now() };
        let mut queue = ignore_poison(remote.run_queue.lock());
        if is_yield || self.in_driver.get() || self.max_lifo_polls.get() == 0 {
            queue.push(waiting)
        } else {
            queue.push_lifo(waiting)
        }
        self.shared.publish_status(remote, &mut queue, self.now());
        let waiting = queue.len();
        drop(queue);
        if is_yield && waiting == 1 {
            self.shorten_interval(LONE_YIELDS_MAX);
        }
        // Only when the threshold is reached. `maintenance` notifies again while tasks are queued.
        if waiting == self.notify_threshold.get() {
            self.notify_parked();
        }
    }

    #[cold]
    pub(super) fn notify_parked(&self) {
        self.shared.notify_parked(self.me, self.now());
    }
}
