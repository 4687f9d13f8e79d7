//! WorkSteal: a wakee runs where its waker does, and idle CPUs steal at once.
//!
//! Model.   A task that is woken by a task goes to the waker's CPU, and may run next there; one that is woken
//!          from outside goes to one queue for all, here that of shard 0. An idle CPU takes from that queue,
//!          else half of what waits on another CPU, beginning at a random one. When somebody must wait and
//!          nobody is looking, one sleeper is kicked.
//! Number.  At most 3 in a row run next.
//! Source.  tokio 1.54, multi-thread scheduler: `next_task`, `steal_work`, the LIFO slot and its limit.

use warmcore_sched::policy::near::{first_idle, may, origin, shared};
use warmcore_sched::{Allowed, Machine, Placed, Policy, Pull, View, Wake, Waker, Whom};
use warmcore_types::{CpuId, Nanos};

/// The shard whose queue takes what comes from outside.
const INJECT: usize = 0;

/// The waker's CPU, and early stealing.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkSteal;

impl Policy for WorkSteal {
    fn wake(&self, machine: &Machine, view: &impl View, wake: &Wake) -> Placed {
        let allowed = wake.wakee.allowed;
        match wake.waker {
            Waker::Cpu(waker) if may(machine, allowed, waker) => Placed::on(waker, false),
            waker => {
                let near = origin(machine, view, waker);
                let placed = shared(machine, view, near, allowed, Some(INJECT));
                if allowed != Allowed::Anywhere {
                    return placed;
                }
                Placed { kick: first_idle(machine, view, near), ..placed }
            }
        }
    }

    fn pull(&self, machine: &Machine, view: &impl View, me: CpuId, now: Nanos) -> Pull {
        if view.waiting_in(INJECT) > 0 {
            return Pull::Shard(INJECT);
        }
        let all = machine.cpus() as u64;
        let begin = scatter(now.0 ^ u64::from(me.0) << 32) % all;
        let victims = (0..all).map(|i| CpuId(((begin + i) % all) as u32)).filter(|cpu| *cpu != me);
        let mut waiting = victims.map(|cpu| (cpu, view.backlog(cpu)));
        match waiting.find(|(cpu, waiting)| *waiting > 0 && view.may_take(me, *cpu)) {
            Some((cpu, waiting)) => Pull::From { cpu, at_most: waiting.div_ceil(2) },
            None => Pull::Nothing,
        }
    }

    /// A thief takes from the head of the victim's queue.
    fn whom(&self) -> Whom {
        Whom::Oldest
    }

    fn help(&self, machine: &Machine, view: &impl View, at: CpuId, _now: Nanos) -> Option<CpuId> {
        first_idle(machine, view, at)
    }

    fn chain_max(&self, _average_poll: Nanos) -> u32 {
        3
    }
}

/// A number that looks random: the finaliser of splitmix64.
fn scatter(seed: u64) -> u64 {
    let x = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
