//! Driver: where workers wait for sockets and timers, and how the tasks of these are woken.
//!
//! Workers have a reactor each, or share one. Which worker is inside a reactor is `warmcore_driver`'s decision ([`Attendance`]), as
//! in the runtime; tokio's workers enter any reactor that they find free when they park, as a worker does that must attend.

use super::RuntimeScheduler;
use crate::simulation::task::TaskState;
use crate::simulation::{Drivers, Simulation};
use crate::trace::Observer;
use warmcore_driver::Attendance;
use warmcore_sched::{Host, Policy, View};
use warmcore_types::{CpuId, Nanos};

/// Sockets and timers of one or several workers. Its number of a worker is one more than the CPU's.
#[derive(Default)]
pub(super) struct Reactor {
    attendance: Attendance<u32>,
    /// The worker that is parked inside.
    pub(super) inside: Option<u32>,
    /// Tasks whose timers have expired or whose sockets have data, and which are not woken yet.
    pub(super) due: Vec<u32>,
    /// How often a worker served it.
    served: u64,
}

impl<P: Policy, O: Observer> Simulation<RuntimeScheduler<P>, O> {
    /// The index of a worker's reactor.
    pub(super) fn reactor_of(&self, cpu: u32) -> usize {
        match self.settings.outside.drivers {
            Drivers::Own | Drivers::PerCore => cpu as usize,
            Drivers::Attendant => self.state.machine.shard_of(CpuId(cpu)),
            Drivers::FirstParked => 0,
        }
    }

    /// The reactor that wakes a task: that of the worker that polled it. If each worker has one, sockets belong to that of the first
    /// worker, where the accepting task runs.
    pub(super) fn reactor_of_task(&self, id: u32) -> usize {
        let task = &self.state.tasks[id as usize];
        let is_socket = task.state != TaskState::Sleeping;
        match task.prev_cpu() {
            Some(cpu) if !is_socket || self.settings.outside.drivers != Drivers::Own => {
                self.reactor_of(cpu.0)
            }
            _ => 0,
        }
    }

    /// A worker that is going to park enters its reactor, or parks beside it. Returns whether it is inside.
    pub(super) fn enter_driver(&mut self, cpu: u32) -> bool {
        let (core, host) = self.core(cpu);
        let attends = core.attends(host);
        let is_first = self.settings.outside.drivers == Drivers::FirstParked;
        let reactor = self.reactor_of(cpu);
        let reactor = &mut self.state.sched.reactors[reactor];
        let at = &mut self.state.cpus[cpu as usize].sched;
        (at.parked_until, at.served_at_park) = (None, reactor.served);
        let must_attend = std::mem::take(&mut at.must_attend) || attends || is_first;
        let enters = reactor.attendance.enter(cpu + 1, must_attend, || cpu);
        if enters {
            reactor.inside = Some(cpu);
        }
        enters
    }

    /// A worker parks no more. If it was inside its reactor, it serves that. Returns the time that this takes.
    pub(super) fn leave_driver(&mut self, cpu: u32) -> u64 {
        let now = Nanos(self.state.now);
        let index = self.reactor_of(cpu);
        let reactor = &mut self.state.sched.reactors[index];
        if reactor.inside.take_if(|inside| *inside == cpu).is_some() {
            reactor.attendance.leave();
            return self.serve(index, cpu);
        }
        let at = &mut self.state.cpus[cpu as usize].sched;
        let is_over = at.parked_until.is_some_and(|until| until <= now);
        at.must_attend = is_over && at.served_at_park == reactor.served;
        0
    }

    /// A worker that is awake serves its reactor, if nobody is inside. Returns the time that this takes.
    pub(super) fn visit_driver(&mut self, cpu: u32) -> u64 {
        let index = self.reactor_of(cpu);
        if !self.state.sched.reactors[index].attendance.visit(cpu + 1) {
            return 0;
        }
        let cost = self.serve(index, cpu);
        let attendance = &self.state.sched.reactors[index].attendance;
        attendance.leave_visit(|_| unreachable!("nobody parks during a visit"));
        cost
    }

    /// Tasks that are due in a reactor whose attendant is in a long poll are woken by another thread, except in tokio.
    pub(super) fn serve_unattended(&mut self, index: usize) {
        if self.settings.outside.drivers == Drivers::FirstParked {
            return;
        }
        let (_, host) = self.core(0);
        let (reactor, workers) = (&self.state.sched.reactors[index], host.workers());
        let is_stuck = |cpu: u32| reactor.attendance.is_attendant(cpu + 1) && workers.is_stuck(CpuId(cpu));
        if reactor.inside.is_none() && (0..self.state.cpus.len() as u32).any(is_stuck) {
            let due = std::mem::take(&mut self.state.sched.reactors[index].due);
            due.into_iter().for_each(|id| _ = self.wake_from_outside(id));
        }
    }

    /// Wakes the tasks whose timers have expired or whose sockets have messages. Returns the time that this takes.
    fn serve(&mut self, index: usize, cpu: u32) -> u64 {
        self.state.sched.reactors[index].served += 1;
        let mut due = std::mem::take(&mut self.state.sched.reactors[index].due);
        let event = self.settings.calls.event;
        let cost = due.drain(..).map(|id| event + self.wake_on_worker(id, cpu)).sum();
        self.state.sched.reactors[index].due = due;
        cost
    }
}
