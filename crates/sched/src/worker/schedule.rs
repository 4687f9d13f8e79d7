//! Schedule: where a task goes that is woken on the worker's own thread.
//!
//! A task that this worker polled last goes into the worker's run queue. The policy places any other task. While the worker
//! sleeps in its driver, a task goes into the inbox, because a task in the run queue would not end the park.

use super::*;
use crate::{TargetQueue, WakeSource};

/// After this many polls of a task that yields while no other task is queued here, the driver is polled: the task may wait
/// for one of its events.
const LONE_YIELDS_MAX: u32 = 4;

impl<H: Host> Core<H> {
    /// Schedules a task that was woken on this worker's thread. `is_yield`: it was woken during its own poll.
    #[inline]
    pub fn schedule(&self, host: &H, task: H::Task, is_yield: bool) {
        if self.clock_is_stale.get() {
            // A task that the driver wakes is queued since now, and not since the worker parked. The worker stays parked
            // if the tasks that the driver wakes belong to other workers.
            self.read_clock(host);
            self.clock_is_stale.set(self.remote.inbox.is_parked());
        }
        let state = task.state();
        if is_yield {
            state.stay_awake();
        } else {
            // Not the clock as it was last read: that may be late by the length of a sleep.
            state.wake(|| self.read_clock(host));
        }
        let task = if !state.is_prev_worker(self.me) {
            let Some(task) = self.schedule_remote(host, task) else { return };
            task
        } else {
            if !is_yield {
                state.clear_accrued_cost();
            }
            if self.in_driver.get() && self.remote.inbox.is_parked() {
                return self.push_own_inbox(host, task);
            }
            task
        };
        self.schedule_local(host, task, is_yield);
    }

    fn push_own_inbox(&self, host: &H, task: H::Task) {
        match self.remote.inbox.push(task) {
            Ok(false) => {}
            Ok(true) => host.interrupt_park(self.me),
            Err(task) => host.cancel(task),
        }
    }

    /// Places a task that another worker polled last, or none. Returns it if it belongs into this worker's run queue.
    /// Not inlined, so that a wake on the task's previous worker does not save the registers that this needs.
    #[inline(never)]
    fn schedule_remote(&self, host: &H, task: H::Task) -> Option<H::Task> {
        let workers = host.workers();
        let placed = workers.place_task(host, task.state(), self.now(), WakeSource::Cpu(self.me));
        if placed.to == TargetQueue::Cpu(self.me) && !self.in_driver.get() {
            return Some(task);
        }
        Counters::add(&self.remote.counters.remote_wakes, 1);
        workers.enqueue(host, task, placed);
        None
    }

    /// Puts a task into this worker's run queue.
    #[inline]
    fn schedule_local(&self, host: &H, task: H::Task, is_yield: bool) {
        let policy = host.workers().policy();
        let queued = Queued { task, since: self.now() };
        if is_yield && policy.defers_yields() {
            return self.deferred.borrow_mut().push_back(queued);
        }
        let is_lifo = !is_yield && !self.in_driver.get() && self.max_lifo_polls.get() > 0;
        let (waiting, in_slot) = self.push(host, queued, is_lifo);
        if is_yield && waiting == 1 {
            self.shorten_interval(LONE_YIELDS_MAX);
        }
        // By default only when the threshold is reached. `maintained` notifies again while tasks are queued.
        if policy.notifies(waiting, self.notify_threshold.get(), in_slot) {
            self.notify_parked(host);
        }
    }

    /// Puts a task into the run queue, or into its LIFO slot. Returns how many tasks wait there now, and whether the task
    /// took an empty slot. Inlined always: as a call it took 25 instructions more.
    #[inline(always)]
    fn push(&self, host: &H, queued: Queued<H::Task>, is_lifo: bool) -> (u32, bool) {
        let mut queue = ignore_poison(self.remote.run_queue.lock());
        let closes_slot = host.workers().policy().closes_lifo_slot();
        let in_slot = if is_lifo && !(closes_slot && queue.ends_lifo_polls(self.max_lifo_polls.get())) {
            queue.push_lifo(queued)
        } else {
            queue.push(queued);
            false
        };
        host.workers().publish_status(&self.remote, &mut queue, self.now());
        (queue.len(), in_slot)
    }

    /// Queues the tasks that yielded, under a policy that defers them until the driver was polled.
    #[cold]
    pub(super) fn queue_deferred(&self, host: &H) {
        let is_lifo = self.max_lifo_polls.get() > 0;
        loop {
            let Some(queued) = self.deferred.borrow_mut().pop_front() else { break };
            let (waiting, in_slot) = self.push(host, queued, is_lifo);
            if host.workers().policy().notifies(waiting, self.notify_threshold.get(), in_slot) {
                self.notify_parked(host);
            }
        }
    }

    #[cold]
    fn notify_parked(&self, host: &H) {
        host.workers().notify_parked(host, self.me, self.now());
    }
}
