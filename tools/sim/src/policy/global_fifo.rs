//! GlobalFifo: one queue for all CPUs.
//!
//! A woken task goes to the end of one queue, here that of shard 0, and one parked CPU is kicked. A free CPU takes
//! the first task. No CPU is idle while a task waits, but a task returns to its previous CPU only by chance: on n
//! CPUs (n − 1)/n of all polls run on another CPU than the task's poll before. A task that may not run everywhere
//! goes to the least loaded CPU of those that it may run on.
//!
//! # Source
//! smol's executor, without the local queues of its runners.

use warmcore_sched::policy::near::{first_idle, origin, shared};
use warmcore_sched::{Allowed, Policy, SchedDomains, StealDecision, View, Wake, WakeDecision};
use warmcore_types::{CpuId, Nanos};

/// The shard whose queue all CPUs share.
const THE_QUEUE: usize = 0;

/// One queue for all CPUs.
#[derive(Debug, Clone, Copy, Default)]
pub struct GlobalFifo;

impl Policy for GlobalFifo {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        let allowed = wake.wakee.allowed;
        let near = origin(machine, view, wake.waker);
        let placed = shared(machine, view, near, allowed, Some(THE_QUEUE));
        if allowed != Allowed::Anywhere {
            return placed;
        }
        WakeDecision { kick: first_idle(machine, view, near), ..placed }
    }

    fn steal(&self, _machine: &SchedDomains, view: &impl View, _me: CpuId, _now: Nanos) -> StealDecision {
        if view.shared_queue_len(THE_QUEUE) > 0 {
            StealDecision::Shard(THE_QUEUE)
        } else {
            StealDecision::Nothing
        }
    }

    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        _now: Nanos,
    ) -> Option<CpuId> {
        first_idle(machine, view, at)
    }
}
