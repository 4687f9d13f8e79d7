//! Schedule: where a task goes that is woken on the worker's own thread.
//!
//! A light task that this worker polled last goes into the worker's ring; one comparison finds that out. Other tasks that it
//! polled last go into its run queue. The policy places any other task. While the worker sleeps in its driver, a task that comes
//! here also ends the park.
//!
//! A task that yields lets those pass that are woken or spawned: twelve for each yield, and at maintenance no more than twelve for each
//! task that waits. They go into the run queue, before its other tasks, and run before those of the ring. A task for the LIFO slot
//! runs early anyway.

use super::*;
use crate::policy::LIFO_POLLS;
use crate::{TargetQueue, WakeSource};

/// Polling the driver takes as long as this many of the shortest polls. After so many polls of a task that yields while no other task
/// is queued here, the driver is polled: the task may wait for one of its events.
pub(super) const DRIVER_POLL: u32 = 4;

/// The worker's run queue, once a task needed its lock.
pub(super) type LockedQueue<'a, H> = Option<Locked<'a, RunQueue<Queued<<H as Host>::Task>>>>;

impl<H: Host> Core<H> {
    /// Schedules a task that was woken on this worker's thread. `is_in_poll`: it was woken during its own poll, by itself
    /// ([`note_yield`](Self::note_yield)) or by another thread.
    #[inline]
    pub fn schedule(&self, host: &H, task: H::Task, is_in_poll: bool) {
        if (self.pushes_ring.get() || (is_in_poll && self.yields.get() && self.uses_ring.get()))
            && task.state().is_for_ring_of(self.me)
        {
            self.record_wake(host, &task, is_in_poll);
            if !is_in_poll {
                task.state().clear_accrued_cost();
            }
            return match self.remote.ring.push(task) {
                Ok(waiting) => self.pushed_to_ring(host, waiting, is_in_poll),
                Err(task) => self.schedule_local(host, task, is_in_poll),
            };
        }
        if self.in_driver.get() {
            return self.schedule_in_driver(host, task, is_in_poll);
        }
        self.record_wake(host, &task, is_in_poll);
        self.schedule_other(host, task, is_in_poll);
    }

    /// Ends the measurement of the task's sleep, if there is one.
    #[inline]
    fn record_wake(&self, host: &H, task: &H::Task, is_in_poll: bool) {
        if is_in_poll {
            task.state().stay_awake();
        } else {
            // Not the clock as it was last read: that may be late by the length of a sleep.
            task.state().wake(|| self.read_clock(host));
        }
    }

    /// What follows when a task was pushed to the ring. `waiting`: tasks in the ring; those in the run queue are counted at
    /// maintenance.
    #[inline]
    fn pushed_to_ring(&self, host: &H, waiting: u32, is_in_poll: bool) {
        if is_in_poll {
            self.count_yield();
        }
        if waiting == 1 {
            let status = &self.remote.status;
            if status.stealable.load(Relaxed) == 0 {
                status.backlog_since.store(self.now().0, Relaxed);
            }
            if is_in_poll && status.queued.load(Relaxed) == 0 {
                self.shorten_interval(DRIVER_POLL);
            }
        }
        if host.workers().policy().notifies(waiting, self.notify_threshold.get(), false) {
            self.notify_parked(host);
        }
    }

    /// Schedules a task that the driver wakes.
    #[inline(never)]
    fn schedule_in_driver(&self, host: &H, task: H::Task, is_in_poll: bool) {
        self.maintenance_began.set(None);
        if self.clock_is_stale.get() {
            // A task that the driver wakes is queued since now, and not since the worker parked. The worker stays parked
            // if the tasks that the driver wakes belong to other workers.
            self.read_clock(host);
            self.clock_is_stale.set(self.remote.inbox.is_parked());
        }
        self.record_wake(host, &task, is_in_poll);
        self.schedule_other(host, task, is_in_poll);
    }

    /// Schedules a task that the ring does not take at once.
    #[inline(never)]
    fn schedule_other(&self, host: &H, task: H::Task, is_in_poll: bool) {
        let task = if !task.state().is_prev_worker(self.me) {
            let Some(task) = self.schedule_remote(host, task) else { return };
            task
        } else {
            if !is_in_poll {
                task.state().clear_accrued_cost();
            }
            task
        };
        if self.mode.get() != Mode::Awake {
            self.leave_idle();
            if self.remote.inbox.try_unpark() {
                return self.end_own_park(host, task);
            }
        }
        self.schedule_local(host, task, is_in_poll);
    }

    /// Queues the first task that the driver of the parked worker woke, and ends the park, as a task in a queue does not. Others are
    /// notified of a backlog when more come, or when the driver returns.
    fn end_own_park(&self, host: &H, task: H::Task) {
        host.interrupt_park(self.me);
        let (mut run_queue, now) = (None, self.now());
        self.queue_here(&mut run_queue, Queued { task, since: now }, now, true);
        self.publish_queued(host, run_queue, now);
    }

    /// Places a task that another worker polled last, or none. Returns it if it belongs into this worker's queues.
    fn schedule_remote(&self, host: &H, task: H::Task) -> Option<H::Task> {
        let workers = host.workers();
        let placed = workers.place_task(host, &task, self.now(), WakeSource::Cpu(self.me));
        if placed.to == TargetQueue::Cpu(self.me) {
            return Some(task);
        }
        Counters::add(&self.remote.counters.remote_wakes, 1);
        workers.enqueue(host, placed, task);
        None
    }

    /// Puts a task into this worker's ring or run queue.
    fn schedule_local(&self, host: &H, task: H::Task, is_in_poll: bool) {
        let policy = host.workers().policy();
        let is_lifo = !is_in_poll && !self.in_driver.get() && self.max_lifo_polls.get() > 0;
        let passes = !(is_lifo || is_in_poll && self.yields.get()) && self.passes_yielded();
        let task = match self.push_ring_unless(passes, task) {
            Ok(waiting) => return self.pushed_to_ring(host, waiting, is_in_poll),
            Err(task) => task,
        };
        let queued = Queued { task, since: self.now() };
        if is_in_poll && policy.defers_yields() {
            return self.deferred.borrow_mut().push_back(queued);
        }
        let (waiting, in_slot) = self.push(host, queued, is_lifo, passes);
        if is_in_poll {
            self.count_yield();
        }
        if is_in_poll && waiting == 1 {
            self.shorten_interval(DRIVER_POLL);
        }
        // By default only when the threshold is reached. `maintained` notifies again while tasks are queued.
        if policy.notifies(waiting, self.notify_threshold.get(), in_slot) {
            self.notify_parked(host);
        }
    }

    /// Puts a task into the ring, unless it `passes`, may not be there, or the ring is full. Returns how many wait there.
    #[inline]
    fn push_ring_unless(&self, passes: bool, task: H::Task) -> Result<u32, H::Task> {
        if passes || !self.uses_ring.get() || task.state().is_restricted() {
            return Err(task);
        }
        self.remote.ring.push(task)
    }

    /// Whether a task that is woken now runs before those of the ring. If so, one fewer may.
    #[inline]
    fn passes_yielded(&self) -> bool {
        self.may_pass.get() > 0 && self.pass_yielded()
    }

    #[inline(never)]
    fn pass_yielded(&self) -> bool {
        let left = self.may_pass.get();
        let passes = self.num_queued() > 0;
        self.set_may_pass(if passes { left - 1 } else { 0 });
        if passes {
            let round = self.round.get();
            self.round.set(Round { passing: round.passing + 1, ..round });
        }
        passes
    }

    #[inline]
    fn push_queue(&self, queue: &mut RunQueue<Queued<H::Task>>, queued: Queued<H::Task>, passes: bool) {
        match passes {
            true => queue.push_passing(queued, self.order.get(), self.may_pass.get()),
            false => queue.push(queued),
        }
    }

    fn set_may_pass(&self, left: u32) {
        self.may_pass.set(left);
        self.update_pushes_ring();
    }

    /// If the task that was polled last has yielded, lets twelve pass.
    #[inline]
    fn count_yield(&self) {
        if self.yields.take() {
            self.has_yielded.set(true);
            self.may_pass.set(self.may_pass.get().saturating_add(LIFO_POLLS));
            self.pushes_ring.set(false);
        }
    }

    /// No more may pass than twelve for each task that waits here, and none where polls are short.
    pub(super) fn limit_may_pass(&self) {
        let most = if self.lets_pass.get() { LIFO_POLLS * self.num_queued() } else { 0 };
        self.set_may_pass(self.may_pass.get().min(most));
    }

    /// The number of tasks in the ring and the run queue.
    pub(super) fn num_queued(&self) -> u32 {
        self.remote.ring.len() + self.remote.status.queued.load(Relaxed)
    }

    /// Puts a task into the ring, else into the run queue, whose lock is taken when the first task needs it.
    /// [`publish_queued`](Self::publish_queued) ends a number of these. A backlog that begins with it counts from `now` on.
    pub(super) fn queue_here<'a>(
        &'a self,
        run_queue: &mut LockedQueue<'a, H>,
        queued: Queued<H::Task>,
        now: Nanos,
        is_woken: bool,
    ) {
        let Queued { task, since } = queued;
        let passes = is_woken && self.passes_yielded();
        match self.push_ring_unless(passes, task) {
            Ok(1) if self.remote.status.stealable.load(Relaxed) == 0 => {
                self.remote.status.backlog_since.store(now.0, Relaxed);
            }
            Ok(_) => {}
            Err(task) => {
                let queue = run_queue.get_or_insert_with(|| self.remote.lock_queue());
                let queued = Queued { task, since };
                self.push_queue(queue, queued, passes);
            }
        }
    }

    /// Publishes the status of the run queue, if [`queue_here`](Self::queue_here) pushed tasks there.
    pub(super) fn publish_queued(&self, host: &H, run_queue: LockedQueue<'_, H>, now: Nanos) {
        if let Some(mut queue) = run_queue {
            host.workers().publish_status(&self.remote, &mut queue, now);
        }
    }

    /// Moves the tasks of the ring to the run queue, because their order counts from now on.
    #[cold]
    pub(super) fn leave_ring(&self, host: &H) {
        let mut queue = self.remote.lock_queue();
        while let Some(task) = self.remote.ring.pop() {
            queue.push(Queued { task, since: self.now() });
        }
        // The backlog goes on: what was in the ring waits since then.
        let since = Nanos(self.remote.status.backlog_since.load(Relaxed));
        host.workers().publish_status(&self.remote, &mut queue, since);
    }

    /// Puts a task into the run queue, or into its LIFO slot. Returns how many tasks wait here now, and whether the task
    /// took an empty slot.
    fn push(&self, host: &H, queued: Queued<H::Task>, is_lifo: bool, passes: bool) -> (u32, bool) {
        let mut queue = self.remote.lock_queue();
        let closes_slot = host.workers().policy().closes_lifo_slot();
        let in_slot = if is_lifo && !(closes_slot && queue.ends_lifo_polls(self.max_lifo_polls.get())) {
            queue.push_lifo(queued)
        } else {
            self.push_queue(&mut queue, queued, passes);
            false
        };
        host.workers().publish_status(&self.remote, &mut queue, self.now());
        (queue.len() + self.remote.ring.len(), in_slot)
    }

    /// Queues the tasks that yielded, under a policy that defers them until the driver was polled.
    #[cold]
    pub(super) fn queue_deferred(&self, host: &H) {
        let is_lifo = self.max_lifo_polls.get() > 0;
        loop {
            let Some(queued) = self.deferred.borrow_mut().pop_front() else { break };
            let (waiting, in_slot) = self.push(host, queued, is_lifo, false);
            if host.workers().policy().notifies(waiting, self.notify_threshold.get(), in_slot) {
                self.notify_parked(host);
            }
        }
    }

    #[cold]
    fn notify_parked(&self, host: &H) {
        if !host.workers().notify_parked(host, self.me, self.now()) {
            // More tasks may be worth it. Until the next maintenance the question comes up once each time that they double.
            self.notify_threshold.set(self.notify_threshold.get().saturating_mul(2));
        }
    }
}
