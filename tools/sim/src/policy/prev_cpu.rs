//! PrevCpu: a task stays where it began.
//!
//! Model.   A new task goes where the least is to do, of equals to the nearest. From then on it is woken there,
//!          whoever waits, and never pulled. What pinned runtimes, one per core, do.
//! Number.  No move, ever; a CPU may idle for as long as its neighbour has a queue.
//! Source.  seastar, glommio, a current-thread runtime per core.

use warmcore_sched::policy::near::{least_loaded, nearest_allowed, origin};
use warmcore_sched::{Policy, SchedDomains, StealDecision, View, Wake, WakeDecision};
use warmcore_types::{CpuId, Nanos};

/// Always home, and never pulled.
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
        // It puts nobody there, but its host may have.
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
