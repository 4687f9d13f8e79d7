//! PrevCpu: a task stays where it began.
//!
//! Model.   A new task goes where the least is to do, of equals to the nearest. From then on it is woken there,
//!          whoever waits, and never pulled. What pinned runtimes, one per core, do.
//! Number.  No move, ever; a CPU may idle for as long as its neighbour has a queue.
//! Source.  seastar, glommio, a current-thread runtime per core.

use warmcore_sched::policy::near::{least_loaded, origin, settle};
use warmcore_sched::{Machine, Placed, Policy, Pull, View, Wake};
use warmcore_types::{CpuId, Nanos};

/// Always home, and never pulled.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrevCpu;

impl Policy for PrevCpu {
    fn wake(&self, machine: &Machine, view: &impl View, wake: &Wake) -> Placed {
        let allowed = wake.wakee.allowed;
        let cpu = match wake.wakee.home {
            Some(home) => settle(machine, view, home, allowed),
            None => least_loaded(machine, view, origin(machine, view, wake.waker), allowed),
        };
        Placed::on(cpu, view.is_idle(cpu))
    }

    fn pull(&self, machine: &Machine, view: &impl View, me: CpuId, _now: Nanos) -> Pull {
        // It puts nobody there, but its host may have.
        let shard = machine.shard_of(me);
        if view.waiting_in(shard) > 0 { Pull::Shard(shard) } else { Pull::Nothing }
    }

    fn help(&self, _machine: &Machine, _view: &impl View, _at: CpuId, _now: Nanos) -> Option<CpuId> {
        None
    }
}
