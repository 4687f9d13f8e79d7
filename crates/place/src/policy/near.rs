//! Near: the nearest CPU that is allowed, online, idle, or has the least to do.
//!
//! Model.   Every answer of every policy passes through here if the plain one won't do, so that what is named
//!          is allowed and online, whatever the facts. A task that may run only where all is offline runs at
//!          the nearest CPU that is online, as Linux does it: better out of place than never.
//!          Who looks for an idle CPU goes through the shards that have one: a shard is at most 16 CPUs, and a
//!          count of idle CPUs says which to enter. Nothing idle is missed for want of depth: a CPU that was
//!          overlooked would sleep beside a task that waits, since nobody looks again. What shrinks as a
//!          shard fills is how many idle CPUs are passed over because their hot windows are open.
//! Number.  384 CPUs in 24 shards, nobody idle: 24 loads.
//! Source.  SIS_CACHE, 2023; SIS_UTIL: Linux `update_idle_cpu_scan`, `select_idle_cpu`; `select_fallback_rq`.

use crate::{Allowed, Machine, Placed, To, View, Wakee, Waker};
use warmcore_terms::{CpuId, Nanos};

/// An LLC is full when it is used to 100/117: Linux's `imbalance_pct` within an LLC.
const IMBALANCE_PCT: u64 = 117;

/// Whether a task may run on a CPU.
pub fn may(machine: &Machine, allowed: Allowed, cpu: CpuId) -> bool {
    match allowed {
        Allowed::Anywhere => true,
        Allowed::Cpu(only) => only == cpu,
        Allowed::Llc(llc) => machine.llc_of(cpu) == llc,
        Allowed::Node(node) => machine.node_of(cpu) == node,
    }
}

/// Whether a task may run there, and somebody runs tasks there.
pub(super) fn takes(machine: &Machine, view: &impl View, allowed: Allowed, cpu: CpuId) -> bool {
    may(machine, allowed, cpu) && !view.is_offline(cpu)
}

/// The nearest CPU that takes the task, beginning with `near` itself.
pub(super) fn settle(machine: &Machine, view: &impl View, near: CpuId, allowed: Allowed) -> CpuId {
    let all = || std::iter::once(near).chain(machine.others(near));
    let allowed = all().find(|cpu| takes(machine, view, allowed, *cpu));
    allowed.or_else(|| all().find(|cpu| !view.is_offline(*cpu))).unwrap_or(near)
}

/// The CPU with the least to do of those that take the task; the nearest of these.
pub(super) fn least_loaded(machine: &Machine, view: &impl View, near: CpuId, allowed: Allowed) -> CpuId {
    let load = |cpu: &CpuId| u64::from(view.backlog(*cpu)) + u64::from(!view.is_idle(*cpu));
    let all = std::iter::once(near).chain(machine.others(near));
    let found = all.filter(|cpu| takes(machine, view, allowed, *cpu)).min_by_key(load);
    found.unwrap_or_else(|| settle(machine, view, near, allowed))
}

/// Where to begin to look, for a task that has been nowhere: where its waker is; if that is unknown, the
/// shard with the most idle CPUs, and of equals the one in whose queue the fewest wait.
pub(super) fn origin(machine: &Machine, view: &impl View, waker: Waker) -> CpuId {
    match waker {
        Waker::Cpu(near) | Waker::Outside(Some(near)) => near,
        Waker::Outside(None) => {
            let emptiness = |shard: &usize| (u32::MAX - view.idle_in(*shard), view.waiting_in(*shard));
            let shard = (0..machine.shards()).min_by_key(emptiness).unwrap_or(0);
            machine.cpus_of(shard)[0]
        }
    }
}

/// The queue that nobody owns, if the task may go there; else the CPU of its own with the least to do.
/// `shard`: of the nearest CPU, or the one for all.
pub(super) fn shared(
    machine: &Machine,
    view: &impl View,
    near: CpuId,
    allowed: Allowed,
    shard: Option<usize>,
) -> Placed {
    if allowed == Allowed::Anywhere {
        let at = || machine.shard_of(settle(machine, view, near, allowed));
        return Placed { to: To::Shard(shard.unwrap_or_else(at)), ..Placed::on(near, false) };
    }
    let cpu = least_loaded(machine, view, near, allowed);
    Placed::on(cpu, view.is_idle(cpu))
}

/// The nearest idle CPU, hot or not.
pub(super) fn first_idle(machine: &Machine, view: &impl View, near: CpuId) -> Option<CpuId> {
    idle_from(machine, view, near).map(|(_, _, cpu)| cpu).next()
}

/// The idle CPUs that are online, nearest first, with their shard and how many of it have been looked at.
fn idle_from(machine: &Machine, view: &impl View, near: CpuId) -> impl Iterator<Item = (usize, u32, CpuId)> {
    let shards = machine.shards_from(near).filter(|shard| view.idle_in(*shard) > 0);
    shards.flat_map(move |shard| {
        let itself = (shard == machine.shard_of(near)).then_some(near);
        let all = itself.into_iter().chain(machine.cpus_from(near, shard)).zip(1..);
        let idle = all.filter(|(cpu, _)| view.is_idle(*cpu) && !view.is_offline(*cpu));
        idle.map(move |(cpu, looked)| (shard, looked, cpu))
    })
}

/// An idle CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) cpu: CpuId,
    pub(super) hot_kept: u8,
    pub(super) hot_broken: bool,
}

/// The nearest idle CPU that is not kept for somebody else. Kept ones are passed over in the first half of a
/// shard's depth; if all of an LLC are kept, the first of them. A CPU is not kept from the task that ran there
/// last.
pub(super) fn find_idle(
    machine: &Machine,
    view: &impl View,
    near: CpuId,
    now: Nanos,
    wakee: &Wakee,
) -> Option<Found> {
    let (mut first_hot, mut hot_kept) = (None, 0u8);
    for (shard, looked, cpu) in idle_from(machine, view, near) {
        if first_hot.is_some_and(|first| machine.llc_of(first) != machine.llc_of(cpu)) {
            break;
        }
        if !may(machine, wakee.allowed, cpu) {
            continue;
        }
        let is_hot = view.hot_until(cpu) > now && wakee.home != Some(cpu);
        if !is_hot || looked > depth(machine, view, shard) / 2 {
            return Some(Found { cpu, hot_kept, hot_broken: is_hot });
        }
        hot_kept = hot_kept.saturating_add(1);
        first_hot.get_or_insert(cpu);
    }
    first_hot.map(|cpu| Found { cpu, hot_kept: hot_kept - 1, hot_broken: true })
}

/// How many CPUs of a shard are looked at: all if it is idle, fewer as it fills, one when it is full.
///
/// Linux: `nr = llc_weight × (1 − (pct/100 × util)²) + 1`, with util the average use of the LLC. Ours is the
/// part that is busy at this moment.
pub(super) fn depth(machine: &Machine, view: &impl View, shard: usize) -> u32 {
    let all = machine.cpus_of(shard).len() as u64;
    let busy = all - u64::from(view.idle_in(shard)).min(all);
    let full = (busy * IMBALANCE_PCT).pow(2) / (all * 10_000);
    all.saturating_sub(full) as u32 + 1
}
