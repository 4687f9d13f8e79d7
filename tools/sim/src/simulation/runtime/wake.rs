//! Wake: a task becomes runnable; the core chooses its queue, and whether to unpark a worker.
//!
//! A wake costs its waker a read of one line of each worker that the policy asks about (several such reads overlap), a
//! write of one line of the worker that gets the task, and what `Settings::calls` says. A timer belongs to the reactor of the
//! worker that polled its task: a worker wakes the task when it serves that (`driver.rs`), at the end of an event interval or of
//! its sleep.

use super::RuntimeScheduler;
use super::host::SimTask;
use crate::program::TaskId;
use crate::simulation::Simulation;
use crate::simulation::state::CpuState;
use crate::trace::Observer;
use warmcore_sched::{Distance, Host, Policy, Share, TargetQueue, Task, WakeSource};
use warmcore_types::{CpuId, Nanos};

/// Tasks are of one kind if their names differ in their number alone: in a runtime they would have one type of future.
fn kind_of(name: &str) -> usize {
    let kind = name.split(' ').next().unwrap_or_default();
    let hash =
        kind.bytes().fold(0xcbf2_9ce4_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.max(1) as usize
}

impl<P: Policy, O: Observer> Simulation<RuntimeScheduler<P>, O> {
    /// What the core knows of a task. A task that may run elsewhere than before is a new one for the core.
    fn task_of(&mut self, id: u32) -> SimTask {
        let task = &mut self.state.tasks[id as usize];
        match &task.sched.task {
            Some(known) if known.state().allowed() == task.allowed => known.clone(),
            _ => {
                let share = match task.tenant {
                    0 => Share::NO_TENANT,
                    tenant => Share { tenant, weight: 100 },
                };
                let kind = kind_of(&self.codes[task.code as usize].program.name);
                task.sched.task.insert(SimTask::new(id, kind, task.allowed, share)).clone()
            }
        }
    }

    /// Counts a wake, and returns the task. The caller passes it to the core, and calls
    /// [`end_wake`](Self::end_wake).
    fn begin_wake(&mut self, id: u32, waker: WakeSource) -> SimTask {
        self.mark_woken(id, waker);
        self.state.sched.host.policy().reads.begin_wake();
        self.task_of(id)
    }

    /// Tells the observer where the task went, and returns what the wake costs a waker on `cpu`.
    fn end_wake(&mut self, id: u32, cpu: Option<u32>) -> u64 {
        let (asked, placed) = self.state.sched.host.policy().reads.end_wake();
        // A task that the worker polled last goes into its own run queue, and the policy is not asked.
        let here = CpuId(cpu.unwrap_or(0));
        let to = placed.unwrap_or(TargetQueue::Cpu(here));
        self.observer.queued(Nanos(self.state.now), TaskId(id), to);
        if let TargetQueue::Cpu(to) = to
            && let Some(prev_cpu) = self.state.tasks[id as usize].prev_cpu()
        {
            let distance = self.state.machine.distance(prev_cpu, to);
            self.state.task(id).counts.wakes_by_distance[distance as usize] += 1;
        }
        let Some(from) = cpu else {
            return self.settings.calls.push + self.deliver_unparks(u32::MAX);
        };
        let looks = u64::from(asked) * self.times.look[Distance::Llc as usize] / 1000;
        self.settings.calls.wake + looks + self.push_ns(from, to) + self.deliver_unparks(from)
    }

    /// The time that it takes `from` to put a task into a queue.
    fn push_ns(&mut self, from: u32, to: TargetQueue) -> u64 {
        let line = match to {
            TargetQueue::Cpu(to) if to.0 == from => return 0,
            TargetQueue::Cpu(to) => {
                self.times.push[self.state.machine.distance(CpuId(from), to) as usize] / 1000
            }
            TargetQueue::Shard(queue) => self.lock_queue(from, queue),
        };
        line + self.settings.calls.push
    }

    /// A task that runs on `cpu`, or the driver of its worker, wakes a task. Returns the time that this takes.
    pub(super) fn wake_on_worker(&mut self, id: u32, cpu: u32) -> u64 {
        let is_new = self.state.tasks[id as usize].sched.task.is_none();
        let task = self.begin_wake(id, WakeSource::Cpu(CpuId(cpu)));
        let (core, host) = self.core(cpu);
        core.schedule(host, task, false);
        self.end_wake(id, Some(cpu)) + if is_new { self.settings.calls.spawn } else { 0 }
    }

    /// The task that was polled until now has yielded: it is queued again. Returns the time that this takes.
    pub(super) fn yield_task(&mut self, cpu: u32, id: u32) -> u64 {
        self.state.sched.host.policy().reads.begin_wake();
        let task = self.task_of(id);
        let (core, host) = self.core(cpu);
        core.note_yield();
        core.schedule(host, task, true);
        let (_, placed) = self.state.sched.host.policy().reads.end_wake();
        let push = placed.map_or(0, |to| self.push_ns(cpu, to));
        self.settings.calls.wake + push + self.deliver_unparks(cpu)
    }

    /// A thread that is no worker wakes a task, or spawns it.
    pub(super) fn wake_from_outside(&mut self, id: u32) -> u64 {
        let task = self.begin_wake(id, WakeSource::Outside(None));
        let (_, host) = self.core(0);
        host.workers().schedule_external(host, task, None);
        self.end_wake(id, None)
    }

    /// A task's timer has expired, or its socket has a message. The worker that polls the driver wakes the task.
    pub(super) fn is_due(&mut self, id: u32) {
        self.observer.due(Nanos(self.state.now), TaskId(id));
        let index = self.reactor_of_task(id);
        let reactor = &mut self.state.sched.reactors[index];
        reactor.due.push(id);
        if let Some(inside) = reactor.inside {
            if self.state.cpus[inside as usize].state == CpuState::Idle {
                self.leave_park(inside, false);
            }
        } else {
            self.serve_unattended(index);
        }
    }

    /// The poll of the task `id` has reached the limit, if it still goes on: the worker counts as stuck, a parked worker
    /// may take what waits there, and the tasks whose timers have expired there are woken from outside. Returns whether
    /// the event was stale.
    pub(super) fn check_long_poll(&mut self, cpu: u32, id: u32) -> bool {
        let at = &self.state.cpus[cpu as usize];
        let is_long = self.state.now - at.on_since >= self.state.sched.long_poll.0;
        let (core, host) = self.core(cpu);
        let is_over = at.state != CpuState::Running || at.current != id || !is_long;
        if is_over || host.workers().set_stuck(core.me(), true) {
            return true;
        }
        host.workers().notify_parked(host, CpuId(cpu), Nanos(self.state.now));
        self.deliver_unparks(u32::MAX);
        // Another worker looks after its reactor.
        self.serve_unattended(self.reactor_of(cpu));
        false
    }
}
