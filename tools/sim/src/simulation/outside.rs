//! Outside threads: threads that are no workers of the simulated runtime, and run beside them.
//!
//! An outside thread runs a program, wakes and forks tasks, and waits, but no scheduler of the simulation places it. A
//! task that it wakes is woken from outside ([`Scheduler::wake_from_outside`]). Its own wake takes the waker a system
//! call and the thread a latency ([`OutsideCosts`]).
//!
//! While it runs, it needs one of the machine's CPUs: an idle one if there is one, else it interrupts the workers in
//! turn, which then run later by the time that it ran. So it always comes first, as the kernel lets a thread that sleeps
//! often preempt one that computes. Not simulated: a worker that is unparked onto the CPU on which the thread runs.

use super::scheduler::Scheduler;
use super::state::CpuState;
use super::step::StepOutcome;
use super::task::{NONE, TaskState};
use super::{Simulation, event_class};
use crate::trace::{Observer, SwitchReason};

/// What the wake of an outside thread costs, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutsideCosts {
    /// For the waker: a system call.
    pub wake: u64,
    /// From the wake to the thread's first instruction.
    pub latency: u64,
}

impl<S: Scheduler, O: Observer> Simulation<S, O> {
    /// Makes a blocked, sleeping or new task runnable, by the task that runs on `cpu` or, if that is `NONE`, by an
    /// outside thread. Returns the cost for the waker.
    pub(super) fn wake_from(&mut self, id: u32, cpu: u32, is_sync: bool) -> u64 {
        if self.state.tasks[id as usize].is_outside {
            let costs = self.settings.outside;
            self.state.task(id).state = TaskState::Queued;
            self.push_event(self.state.now + costs.latency, event_class::OUTSIDE, id, 0);
            return costs.wake;
        }
        match cpu {
            NONE => S::wake_from_outside(self, id),
            _ => S::wake_by(self, id, cpu, is_sync),
        }
    }

    /// Continues an outside thread until a step takes time, or it waits or ends.
    pub(super) fn run_outside(&mut self, id: u32) {
        self.state.task(id).state = TaskState::Running;
        match self.advance_task(NONE, id, 0) {
            StepOutcome::Run(ns) => {
                self.interrupt(id, ns);
                self.push_event(self.state.now + ns, event_class::OUTSIDE, id, 0);
            }
            StepOutcome::Switch(SwitchReason::Runnable) => {
                self.push_event(self.state.now, event_class::OUTSIDE, id, 0);
            }
            StepOutcome::Switch(SwitchReason::Exited) => self.reap_task(id),
            StepOutcome::Switch(SwitchReason::Blocked) => {}
        }
    }

    /// Delays a worker by `ns` if all CPUs are busy. Each thread interrupts the workers in turn.
    fn interrupt(&mut self, id: u32, ns: u64) {
        let cpus = &self.state.cpus;
        if cpus.iter().any(|cpu| cpu.state == CpuState::Idle) {
            return;
        }
        let turn = self.state.tasks[id as usize].interrupts;
        let first = (id + turn) as usize % cpus.len();
        let busy = (first..cpus.len()).chain(0..first).find(|cpu| cpus[*cpu].state == CpuState::Running);
        self.state.task(id).interrupts = turn.wrapping_add(1);
        if let Some(cpu) = busy {
            self.delay(cpu as u32, ns);
        }
    }
}
