//! Driver: where a worker waits for sockets and timers, and how their tasks are woken.
//!
//! Workers have a driver each, or share one. Of a shared one `warmcore_driver`'s [`Attendance`] says who is inside, as it does
//! in the runtime; tokio's workers take any driver that they find free when they park, as a worker does that must attend.
//!
//! [`Attendance`]: warmcore_driver::Attendance

use super::RuntimeScheduler;
use crate::simulation::{Drivers, Simulation};
use crate::trace::Observer;
use warmcore_sched::{Host, Policy, View};
use warmcore_types::{CpuId, Nanos};

impl<P: Policy, O: Observer> Simulation<RuntimeScheduler<P>, O> {
    /// A worker that is going to park enters the shared driver, or parks beside it. Returns whether it is inside.
    pub(super) fn enter_driver(&mut self, cpu: u32) -> bool {
        let drivers = self.settings.outside.drivers;
        let has_spare = self.core(cpu).1.workers().has_idle(CpuId(cpu), 1);
        let shared = &mut self.state.sched.shared;
        let at = &mut self.state.cpus[cpu as usize].sched;
        at.served_at_park = shared.served;
        let must_attend = std::mem::take(&mut at.must_attend) || has_spare || drivers == Drivers::FirstParked;
        let enters = drivers != Drivers::Own && shared.attendance.enter(cpu + 1, must_attend, || cpu);
        if enters {
            shared.inside = Some(cpu);
        }
        enters
    }

    /// A worker parks no more. Returns whether it has a driver to serve.
    pub(super) fn leave_driver(&mut self, cpu: u32) -> bool {
        let now = Nanos(self.state.now);
        let shared = &mut self.state.sched.shared;
        if shared.inside.take_if(|inside| *inside == cpu).is_some() {
            shared.attendance.leave();
            return true;
        }
        let at = &mut self.state.cpus[cpu as usize].sched;
        let is_over = at.parked_until.is_some_and(|until| until <= now);
        at.must_attend = is_over && at.served_at_park == shared.served;
        self.settings.outside.drivers == Drivers::Own
    }

    /// A worker that is awake serves its driver, or the shared one if nobody is inside. Returns the time that this takes.
    pub(super) fn visit_driver(&mut self, cpu: u32) -> u64 {
        if self.settings.outside.drivers == Drivers::Own {
            return self.serve_driver(cpu);
        }
        if !self.state.sched.shared.attendance.visit(cpu + 1) {
            return 0;
        }
        let cost = self.serve_driver(cpu);
        self.state.sched.shared.attendance.leave_visit(|_| unreachable!("nobody parks during a visit"));
        cost
    }

    /// What is due in the shared driver, if nobody serves it because the attendant is in a long poll.
    pub(super) fn take_unattended(&mut self) -> Vec<u32> {
        let (_, host) = self.core(0);
        let workers = host.workers();
        let is_stuck = |cpu: u32| {
            self.state.sched.shared.attendance.is_attendant(cpu + 1) && workers.is_stuck(CpuId(cpu))
        };
        let is_unattended =
            self.state.sched.shared.inside.is_none() && (0..self.state.cpus.len() as u32).any(is_stuck);
        if is_unattended { std::mem::take(&mut self.state.sched.shared.due) } else { Vec::new() }
    }

    /// Wakes the tasks whose timers have expired or whose sockets have messages. Returns the time that this takes.
    pub(super) fn serve_driver(&mut self, cpu: u32) -> u64 {
        self.state.sched.shared.served += 1;
        let mut due = std::mem::take(&mut self.state.cpus[cpu as usize].sched.due);
        let mut shared = std::mem::take(&mut self.state.sched.shared.due);
        let cost = due.drain(..).chain(shared.drain(..)).map(|id| self.wake_on_worker(id, cpu)).sum();
        self.state.cpus[cpu as usize].sched.due = due;
        self.state.sched.shared.due = shared;
        cost
    }
}
