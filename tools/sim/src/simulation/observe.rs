//! Observe: what a simulation reports to an observer while it runs.
//!
//! A simulation is generic over its observer; `()` observes nothing and costs no instruction. Observers get what a
//! kernel trace has, `sched_waking` and `sched_switch`, and cannot change the simulation.

use crate::program::TaskId;
use warmcore_sched::WakeSource;
use warmcore_types::{CpuId, Nanos};

/// Why a task lost its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchReason {
    /// It sleeps, or is blocked on another task.
    Blocked,
    /// It is still runnable: it was preempted, or it yielded.
    Runnable,
    /// It has ended.
    Exited,
}

/// An observer of a simulation. CPUs are numbered by their index in the topology.
pub trait Observer {
    /// A task is woken. For a new task this is its first wake.
    fn waking(&mut self, now: Nanos, waker: WakeSource, wakee: TaskId) {
        let _ = (now, waker, wakee);
    }

    /// A runnable task is queued on a CPU, or in a shared queue.
    fn queued(&mut self, now: Nanos, task: TaskId, at: warmcore_sched::TargetQueue) {
        let _ = (now, task, at);
    }

    /// A CPU switches from one task to another. `None`: the CPU was idle, or becomes idle.
    fn switch(&mut self, now: Nanos, cpu: CpuId, prev: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        let _ = (now, cpu, prev, next);
    }

    /// A task was created, with this name.
    fn task_created(&mut self, now: Nanos, task: TaskId, name: &str) {
        let _ = (now, task, name);
    }
}

impl Observer for () {}
