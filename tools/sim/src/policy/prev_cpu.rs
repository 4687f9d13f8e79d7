//! PrevCpu: a task stays on its first CPU.
//!
//! A new task goes to the least loaded CPU; of several, to the nearest to its waker. From then on it is woken there,
//! however many tasks wait, and is never stolen. So no task ever moves, and a CPU may be idle while its neighbour has
//! a queue. Runtimes that pin one scheduler to each core work in this way.
//!
//! # Source
//! seastar, glommio, a current-thread runtime per core.

use warmcore_sched::policy::near::{least_loaded, nearest_allowed, origin};
use warmcore_sched::{Policy, SchedDomains, StealDecision, View, Wake, WakeDecision};
use warmcore_types::{CpuId, Nanos};

/// A task always runs on its first CPU, and is never stolen.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrevCpu;

impl Policy for PrevCpu {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        let allowed = wake.wakee.allowed;
        let cpu = match wake.wakee.prev_cpu {
            Some(prev_cpu) => nearest_allowed(machine, view, prev_cpu, allowed),
            None => least_loaded(machine, view, origin(machine, view, wake.waker), allowed),
        };
        WakeDecision::on(cpu, view.is_idle(cpu))
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, _now: Nanos) -> StealDecision {
        // This policy puts no task into the shared queue, but the scheduler may have.
        let shard = machine.shard_of(me);
        if view.shared_queue_len(shard) > 0 { StealDecision::Shard(shard) } else { StealDecision::Nothing }
    }

    fn cpu_to_notify(
        &self,
        _machine: &SchedDomains,
        _view: &impl View,
        _at: CpuId,
        _now: Nanos,
    ) -> Option<CpuId> {
        None
    }
}
