//! Observe: what somebody who watches a simulation is told.
//!
//! Model.   A simulation is generic over its observer; `()` watches nothing and costs nothing. What is told is what a
//!          kernel's trace has: `sched_waking` and `sched_switch`.
//! Number.  Off: no instruction.
//! Writers. The simulation calls; an observer changes nothing in it.

use crate::program::TaskId;
use warmcore_sched::WakeSource;
use warmcore_types::{CpuId, Nanos};

/// Why a task left its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchReason {
    /// It sleeps, or waits for somebody.
    Blocked,
    /// It waits for a CPU: interrupted, or it let others first.
    Runnable,
    /// It has ended.
    Exited,
}

/// Somebody who watches. CPUs are the host's: those of the topology, in its order.
pub trait Observer {
    /// A task is woken, for the first time if it is new.
    fn waking(&mut self, now: Nanos, waker: WakeSource, wakee: TaskId) {
        let _ = (now, waker, wakee);
    }

    /// A task waits for a CPU from now on: on that one, or on any of the shard.
    fn queued(&mut self, now: Nanos, task: TaskId, at: warmcore_sched::TargetQueue) {
        let _ = (now, task, at);
    }

    /// A CPU goes from one task to another. `None`: it had, or has, nothing to do.
    fn switch(&mut self, now: Nanos, cpu: CpuId, prev: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        let _ = (now, cpu, prev, next);
    }

    /// A task came to be, with this name.
    fn task_created(&mut self, now: Nanos, task: TaskId, name: &str) {
        let _ = (now, task, name);
    }
}

impl Observer for () {}
