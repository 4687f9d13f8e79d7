//! WorkSteal: a woken task runs on its waker's CPU, and idle CPUs steal at once.
//!
//! A task that is woken by another task goes to the waker's CPU, and may run next there, at most 3 times in a row. A
//! task that is woken from outside goes to one injection queue for all CPUs, here that of shard 0. An idle CPU takes
//! from that queue, or else steals half of the backlog of another CPU; it tries the CPUs in order from a random one.
//! When a task must wait and no CPU is searching, one parked CPU is kicked.
//!
//! # Source
//! tokio 1.54, multi-thread scheduler: `next_task`, `steal_work`, the LIFO slot and its limit.

use warmcore_sched::policy::near::{first_idle, may, origin, shared};
use warmcore_sched::{
    Allowed, Policy, SchedDomains, StealDecision, StealOrder, View, Wake, WakeDecision, WakeSource,
};
use warmcore_types::{CpuId, Nanos};

/// The shard whose queue is the injection queue.
const INJECT: usize = 0;

/// Woken tasks run on the waker's CPU, and idle CPUs steal at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkSteal;

impl Policy for WorkSteal {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        let allowed = wake.wakee.allowed;
        match wake.waker {
            WakeSource::Cpu(waker) if may(machine, allowed, waker) => WakeDecision::on(waker, false),
            waker => {
                let near = origin(machine, view, waker);
                let placed = shared(machine, view, near, allowed, Some(INJECT));
                if allowed != Allowed::Anywhere {
                    return placed;
                }
                WakeDecision { kick: first_idle(machine, view, near), ..placed }
            }
        }
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        if view.shared_queue_len(INJECT) > 0 {
            return StealDecision::Shard(INJECT);
        }
        let all = machine.cpus() as u64;
        let begin = scatter(now.0 ^ u64::from(me.0) << 32) % all;
        let victims = (0..all).map(|i| CpuId(((begin + i) % all) as u32)).filter(|cpu| *cpu != me);
        let mut waiting = victims.map(|cpu| (cpu, view.backlog(cpu)));
        match waiting.find(|(cpu, waiting)| *waiting > 0 && view.can_steal(me, *cpu)) {
            Some((cpu, waiting)) => StealDecision::From { cpu, at_most: waiting.div_ceil(2) },
            None => StealDecision::Nothing,
        }
    }

    /// A thief takes from the head of the victim's queue.
    fn steal_order(&self) -> StealOrder {
        StealOrder::Oldest
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

    fn max_lifo_polls(&self, _average_poll: Nanos) -> u32 {
        3
    }
}

/// A number that looks random: the finaliser of splitmix64.
fn scatter(seed: u64) -> u64 {
    let x = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
