//! Worker: the loop of a worker: what it does between two polls.

use super::RuntimeScheduler;
use super::host::{SimHost, SimTask};
use crate::program::TaskId;
use crate::simulation::state::CpuState;
use crate::simulation::task::NONE;
use crate::simulation::{Simulation, event_class};
use crate::trace::{Observer, SwitchReason};
use warmcore_sched::{Core, Host, Inbox, Next, Policy, Queued, Task, View};
use warmcore_types::{CpuId, Nanos};

/// A core, and its host.
type Both<'a, P> = (&'a Core<SimHost<P>>, &'a SimHost<P>);

impl<P: Policy, O: Observer> Simulation<RuntimeScheduler<P>, O> {
    /// The core of a worker, and its host with the present time.
    #[inline]
    pub(super) fn core(&self, cpu: u32) -> Both<'_, P> {
        let sched = &self.state.sched;
        sched.host.set_now(self.state.now);
        (&sched.cores[cpu as usize], &sched.host)
    }

    /// Ends the poll of the current task. Returns what [`work`](Self::work) returns.
    pub(super) fn end_poll(&mut self, cpu: u32, reason: SwitchReason) -> Option<u64> {
        let id = self.take_cpu(cpu, reason);
        let at = &mut self.state.cpus[cpu as usize];
        at.current = NONE;
        let sampled_since = at.sched.sampled_since.take();
        let task = self.state.tasks[id as usize].sched.task.clone().expect("it was woken");
        let (core, host) = self.core(cpu);
        if reason != SwitchReason::Exited {
            core.fell_asleep(task.state().usual_sleep());
        }
        let mut is_long = host.workers().is_stuck(CpuId(cpu));
        if let Some((since, is_after_move)) = sampled_since {
            let ran = core.end_sample(host, since);
            if is_after_move {
                core.learn_refill(host, task.state(), ran);
            } else if task.state().poll_ns().is_none() {
                core.learn_first_poll(host, task.kind(), ran);
            }
            if !is_after_move && reason != SwitchReason::Exited {
                task.state().record_poll(ran);
                task.state().sleep(core.now());
            }
            is_long |= core.is_long(host, ran);
        }
        if is_long {
            core.count_long_poll(host);
        }
        let mut cost = 0;
        let is_awake = reason == SwitchReason::Runnable;
        if is_awake {
            cost = self.yield_task(cpu, id);
        }
        self.core(cpu).0.end_poll(is_awake);
        if reason == SwitchReason::Exited {
            self.reap_task(id);
        }
        self.work(cpu, Some((id, reason)), cost)
    }

    /// Does what the core says until a task runs or time has to pass. `prev`: the task that was polled until now. `cost`:
    /// the time that was spent before. Returns the time until the first step of the next task, if there is one.
    pub(super) fn work(&mut self, cpu: u32, prev: Option<(u32, SwitchReason)>, mut cost: u64) -> Option<u64> {
        loop {
            match self.next(cpu, &mut cost) {
                Next::Run(Queued { task, .. }) => {
                    self.begin_poll(cpu, &task, prev);
                    return Some(cost + self.settings.calls.poll);
                }
                Next::Maintain => cost += self.maintain(cpu),
                Next::Search => {
                    cost += self.search(cpu, prev.is_some());
                    // A task that was found runs next, after that time: while it waited here, another worker could
                    // steal it in turn.
                    if cost > 0 && self.core(cpu).0.remote().inbox.is_parked() {
                        self.lose_task(cpu, prev);
                        self.state.cpus[cpu as usize].set_state(CpuState::Coming);
                        self.begin_search_time(cpu, cost);
                        return None;
                    }
                }
                Next::Park(until) => {
                    if self.parks(cpu) {
                        self.sleep(cpu, until);
                        self.lose_task(cpu, prev);
                        return None;
                    }
                    cost += self.unpark(cpu);
                }
                Next::Shutdown => unreachable!("a simulated runtime does not end"),
            }
        }
    }

    /// Asks the core what to do. Adds the time of taking tasks from the injection queue to `cost`.
    #[inline]
    fn next(&mut self, cpu: u32, cost: &mut u64) -> Next<SimTask> {
        let (core, host) = self.core(cpu);
        let workers = host.workers();
        let queue = host.policy().queue_of(workers.machine(), CpuId(cpu));
        let injected = workers.shared_queue_len(queue);
        let next = core.next(host);
        let taken = injected.saturating_sub(workers.shared_queue_len(queue));
        if taken > 0 {
            *cost += self.lock_queue(cpu, queue);
            self.state.cpus[cpu as usize].counts.pulled += u64::from(taken);
        }
        *cost += self.deliver_unparks(cpu);
        next
    }

    /// Tells the observer that no task has the CPU any more.
    fn lose_task(&mut self, cpu: u32, prev: Option<(u32, SwitchReason)>) {
        if let Some((id, reason)) = prev {
            let now = Nanos(self.state.now);
            self.observer.switch(now, CpuId(cpu), Some((TaskId(id), reason)), None);
        }
    }

    fn begin_poll(&mut self, cpu: u32, task: &SimTask, prev: Option<(u32, SwitchReason)>) {
        let id = task.index();
        let now = Nanos(self.state.now);
        let observed = prev.map(|(id, reason)| (TaskId(id), reason));
        self.observer.switch(now, CpuId(cpu), observed, Some(TaskId(id)));
        let (core, host) = self.core(cpu);
        core.begin_poll(host, task);
        let is_sampled = core.is_sampled();
        let is_after_move = is_sampled && core.is_after_move();
        if is_sampled && !is_after_move {
            core.draw_sample();
        }
        let is_measured = if is_after_move { self.settings.learns_moves } else { is_sampled };
        let at = &mut self.state.cpus[cpu as usize];
        at.sched.sampled_since = is_measured.then_some((now, is_after_move));
        at.set_state(CpuState::Running);
        at.current = id;
        self.give_cpu(cpu, id, prev.is_some_and(|(before, _)| before == id));
    }

    /// Polls the driver: wakes the tasks whose timers have expired. Returns the time that this takes.
    fn maintain(&mut self, cpu: u32) -> u64 {
        let mut cost = self.settings.calls.maintain + self.visit_driver(cpu);
        let (core, host) = self.core(cpu);
        let balanced = || core.remote().counters.read().balanced;
        let before = balanced();
        core.maintained(host);
        let came = balanced() - before;
        if came > 0 {
            // Of the nearest workers; which one is not known.
            cost += came * self.times.take[warmcore_sched::Distance::Llc as usize] / 1000;
            self.state.cpus[cpu as usize].counts.pulled += came;
        }
        cost + self.deliver_unparks(cpu)
    }

    /// Searches for tasks. `is_first`: the worker has just run out of tasks. Returns the time that this takes.
    fn search(&mut self, cpu: u32, is_first: bool) -> u64 {
        let (core, host) = self.core(cpu);
        let (workers, reads) = (host.workers(), &host.policy().reads);
        reads.begin_search(CpuId(cpu));
        core.search(host);
        let (read, victim) = reads.end_search();
        let stolen = victim.map(|(from, waited)| (from, waited.saturating_sub(workers.backlog(from))));
        let mut picoseconds: u64 =
            read.iter().zip(&self.times.search).map(|(read, line)| u64::from(*read) * line).sum();
        let mut pulled = 0;
        if let Some((from, tasks)) = stolen {
            let distance = workers.machine().distance(CpuId(cpu), from);
            picoseconds += u64::from(tasks) * self.times.take[distance as usize];
            pulled = u64::from(tasks);
        }
        let parks = core.remote().inbox.is_parked();
        let calls = self.settings.calls;
        let mut cost =
            calls.search + picoseconds / 1000 + if parks { self.varied(cpu, calls.park) } else { 0 };
        let kernel = self.state.cpus[cpu as usize].kernel;
        // A shared queue's length is on the line of its lock.
        while let Some(queue) = self.state.sched.host.policy().reads.pop_queue() {
            let line = self.state.sched.queue_lines[queue as usize];
            cost += self.memory.read_line(kernel, line, Nanos(self.state.now)).0;
        }
        let counts = &mut self.state.cpus[cpu as usize].counts;
        counts.searches += u64::from(is_first);
        counts.pulled += pulled;
        cost + self.deliver_unparks(cpu)
    }

    /// Whether a worker that is about to sleep does so: it was not unparked meanwhile, and the driver where it waits has
    /// nothing to do.
    fn parks(&mut self, cpu: u32) -> bool {
        let is_inside = self.enter_driver(cpu);
        let (core, _) = self.core(cpu);
        let is_quiet = !is_inside || self.state.sched.reactors[self.reactor_of(cpu)].due.is_empty();
        core.remote().inbox.is_parked() && is_quiet
    }

    /// Begins the sleep of a worker.
    fn sleep(&mut self, cpu: u32, until: Option<Nanos>) {
        self.set_busy(cpu, false);
        let now = self.state.now;
        let at = &mut self.state.cpus[cpu as usize];
        at.state_since = now;
        at.set_state(CpuState::Idle);
        at.sched.is_parked = true;
        at.sched.parked_until = until;
        if let Some(until) = until {
            let generation = at.generation;
            self.push_event(until.0.max(now + 1), event_class::SEARCH, cpu, generation);
        }
        self.fill_cpu(cpu);
    }

    /// The worker sleeps no more: its driver wakes the tasks whose timers have expired, and it goes on.
    fn unpark(&mut self, cpu: u32) -> u64 {
        let cost = self.leave_driver(cpu);
        let (core, host) = self.core(cpu);
        core.unparked(host);
        core.resume(host);
        cost
    }

    /// Handles the event that a worker's CPU has left its idle state, or that the time of its search is over.
    pub(super) fn come_back(&mut self, cpu: u32) {
        let mut cost = 0;
        let is_parked = &mut self.state.cpus[cpu as usize].sched.is_parked;
        if *is_parked {
            if self.has_to_wait(cpu) {
                return;
            }
            self.state.cpus[cpu as usize].sched.is_parked = false;
            cost = self.unpark(cpu);
        } else {
            self.end_search_time(cpu);
        }
        if let Some(cost) = self.work(cpu, None, cost) {
            self.run_current(cpu, cost);
        }
    }

    /// Makes the CPU of a parked worker leave its idle state. `is_ipi`: another CPU wakes it, and not its own timer.
    pub(super) fn leave_park(&mut self, cpu: u32, is_ipi: bool) {
        let at = &mut self.state.cpus[cpu as usize];
        debug_assert_eq!(at.state, CpuState::Idle, "only a parked worker is unparked");
        at.set_state(CpuState::Coming);
        self.leave_idle(cpu, 0, is_ipi);
    }

    /// Turns the unparks that the core asked for into events. Returns the time that they take the calling worker.
    #[inline]
    pub(super) fn deliver_unparks(&mut self, cpu: u32) -> u64 {
        let mut cost = 0;
        while let Some(worker) = self.state.sched.host.pop_unparked() {
            // A worker that still searches sees before it sleeps that it was unparked.
            let is_idle = self.state.cpu(worker).state == CpuState::Idle;
            if worker.0 != cpu {
                let calls = &self.settings.calls;
                let ns = match is_idle {
                    true if self.threads.is_on(worker.0) => calls.unpark.after(0),
                    true => calls.unpark.after(self.idle_ns(worker.0)),
                    false => calls.unpark_awake,
                };
                cost += self.varied(worker.0, ns);
            }
            if is_idle {
                self.leave_park(worker.0, true);
            }
        }
        cost
    }

    /// Takes the lock of an injection queue. Returns how long the transfer of the lock's line takes.
    pub(super) fn lock_queue(&mut self, cpu: u32, queue: usize) -> u64 {
        let kernel = self.state.cpus[cpu as usize].kernel;
        self.memory.write_line(kernel, self.state.sched.queue_lines[queue], Nanos(self.state.now)).0
    }
}
