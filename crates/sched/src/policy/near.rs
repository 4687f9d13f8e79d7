//! Near: the nearest CPU that is allowed, online, idle, or has the least to do.
//!
//! Model.   Every answer of every policy passes through here if the plain one won't do, so that what is named
//!          is allowed and online, whatever the facts. A task that may run only where all is offline runs at
//!          the nearest CPU that is online, as Linux does it: better out of place than never.
//!          Who looks for an idle CPU goes through the shards that have one: a shard is at most 16 CPUs, and a
//!          count of idle CPUs says which to enter. Nothing idle is missed for want of depth: a CPU that was
//!          overlooked would sleep beside a task that waits, since nobody looks again. What shrinks as an
//!          LLC fills is how many idle CPUs are passed over because their hot windows are open.
//! Number.  384 CPUs in 24 shards, nobody idle: 24 loads.
//! Source.  SIS_CACHE, 2023; SIS_UTIL: Linux `update_idle_cpu_scan`, `select_idle_cpu`; `select_fallback_rq`.
//!          Unlike version 2 of SIS_CACHE: the search goes on where the published one uses up its depth and gives up;
//!          the first of those that are all kept is taken, where version 2's code takes the one behind those that it
//!          passed over; and beyond the LLC if nothing in it is idle.

use crate::{Allowed, SchedDomains, TargetQueue, View, WakeDecision, WakeSource, Wakee};
use warmcore_types::{CpuId, Nanos};

/// An LLC is full when it is used to 100/117: Linux's `imbalance_pct` within an LLC.
const IMBALANCE_PCT: u64 = 117;

/// Whether a task may run on a CPU.
pub fn may(machine: &SchedDomains, allowed: Allowed, cpu: CpuId) -> bool {
    match allowed {
        Allowed::Anywhere => true,
        Allowed::Cpu(only) => only == cpu,
        Allowed::Llc(llc) => machine.llc_of(cpu) == llc,
        Allowed::Node(node) => machine.node_of(cpu) == node,
    }
}

/// Whether a task may run there, and somebody runs tasks there.
pub fn takes(machine: &SchedDomains, view: &impl View, allowed: Allowed, cpu: CpuId) -> bool {
    may(machine, allowed, cpu) && !view.is_offline(cpu)
}

/// The nearest CPU that takes the task, beginning with `near` itself.
pub fn nearest_allowed(machine: &SchedDomains, view: &impl View, near: CpuId, allowed: Allowed) -> CpuId {
    let all = || std::iter::once(near).chain(machine.others(near));
    let allowed = all().find(|cpu| takes(machine, view, allowed, *cpu));
    allowed.or_else(|| all().find(|cpu| !view.is_offline(*cpu))).unwrap_or(near)
}

/// The CPU with the least to do of those that take the task; the nearest of these.
pub fn least_loaded(machine: &SchedDomains, view: &impl View, near: CpuId, allowed: Allowed) -> CpuId {
    let load = |cpu: &CpuId| u64::from(view.backlog(*cpu)) + u64::from(!view.is_idle(*cpu));
    let all = std::iter::once(near).chain(machine.others(near));
    let found = all.filter(|cpu| takes(machine, view, allowed, *cpu)).min_by_key(load);
    found.unwrap_or_else(|| nearest_allowed(machine, view, near, allowed))
}

/// Where to begin to look, for a task that has been nowhere: where its waker is; if that is unknown, the
/// shard with the most idle CPUs, and of equals the one in whose queue the fewest wait.
pub fn origin(machine: &SchedDomains, view: &impl View, waker: WakeSource) -> CpuId {
    match waker {
        WakeSource::Cpu(near) | WakeSource::Outside(Some(near)) => near,
        WakeSource::Outside(None) => {
            let emptiness = |shard: &usize| (u32::MAX - view.idle_in(*shard), view.shared_queue_len(*shard));
            let shard = (0..machine.shards()).min_by_key(emptiness).unwrap_or(0);
            machine.cpus_of(shard)[0]
        }
    }
}

/// The queue that nobody owns, if the task may go there; else the CPU of its own with the least to do.
/// `shard`: of the nearest CPU, or the one for all.
pub fn shared(
    machine: &SchedDomains,
    view: &impl View,
    near: CpuId,
    allowed: Allowed,
    shard: Option<usize>,
) -> WakeDecision {
    if allowed == Allowed::Anywhere {
        let at = || machine.shard_of(nearest_allowed(machine, view, near, allowed));
        return WakeDecision {
            to: TargetQueue::Shard(shard.unwrap_or_else(at)),
            ..WakeDecision::on(near, false)
        };
    }
    let cpu = least_loaded(machine, view, near, allowed);
    WakeDecision::on(cpu, view.is_idle(cpu))
}

/// The nearest idle CPU, hot or not.
pub fn first_idle(machine: &SchedDomains, view: &impl View, near: CpuId) -> Option<CpuId> {
    idle_from(machine, view, near).next()
}

/// The idle CPUs that are online, nearest first.
fn idle_from(machine: &SchedDomains, view: &impl View, near: CpuId) -> impl Iterator<Item = CpuId> {
    let shards = machine.shards_from(near).filter(|shard| view.idle_in(*shard) > 0);
    shards.flat_map(move |shard| {
        let itself = (shard == machine.shard_of(near)).then_some(near);
        let all = itself.into_iter().chain(machine.cpus_from(near, shard));
        all.filter(|cpu| view.is_idle(*cpu) && !view.is_offline(*cpu))
    })
}

/// An idle CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// That CPU.
    pub cpu: CpuId,
    /// How many idle CPUs were passed over before it because they are kept for another task.
    pub hot_kept: u8,
    /// It is kept for another task itself.
    pub hot_broken: bool,
}

/// The nearest idle CPU that is not kept for somebody else. As many kept ones are passed over as half of the LLC's
/// depth; if all that were found are kept, the first of them. A CPU is not kept from the task that ran there last.
pub fn find_idle(
    machine: &SchedDomains,
    view: &impl View,
    near: CpuId,
    now: Nanos,
    wakee: &Wakee,
) -> Option<Found> {
    let (mut first_hot, mut found_hot) = (None, 0u8);
    for cpu in idle_from(machine, view, near) {
        if first_hot.is_some_and(|first| machine.llc_of(first) != machine.llc_of(cpu)) {
            break;
        }
        if !may(machine, wakee.allowed, cpu) {
            continue;
        }
        if view.hot_until(cpu) <= now || wakee.prev_cpu == Some(cpu) {
            return Some(Found { cpu, hot_kept: found_hot, hot_broken: false });
        }
        first_hot.get_or_insert(cpu);
        found_hot = found_hot.saturating_add(1);
        if u32::from(found_hot) > hot_max(depth(machine, view, cpu)) {
            break;
        }
    }
    first_hot.map(|cpu| Found { cpu, hot_kept: found_hot - 1, hot_broken: true })
}

/// How many CPUs of an LLC are looked at by who searches it: all if it is idle, fewer as it fills, none when it is
/// full. Ours is the part that is busy at this moment; Linux's is an average ([`scan_depth`]).
pub fn depth(machine: &SchedDomains, view: &impl View, near: CpuId) -> u32 {
    let (mut all, mut busy) = (0, 0);
    for shard in llc_shards(machine, near) {
        let cpus = machine.cpus_of(shard).len() as u64;
        (all, busy) = (all + cpus, busy + cpus.saturating_sub(view.idle_in(shard).into()));
    }
    scan_depth(all, busy * SCALE)
}

/// A CPU that is always busy, as use is counted.
pub const SCALE: u64 = 1024;

/// `nr_idle_scan`: of `cpus`, whose use adds up to `used`, so many are looked at. CPUs × (1 − (117 % × use)²), and each
/// step rounded down, as there.
pub fn scan_depth(cpus: u64, used: u64) -> u32 {
    let each = (used / cpus).min(SCALE);
    let full = (each * each * IMBALANCE_PCT * IMBALANCE_PCT / (10_000 * SCALE)).min(SCALE);
    ((SCALE - full) * cpus / SCALE) as u32
}

/// So many idle CPUs are passed over because they are kept for somebody else, where `depth` are looked at: half of
/// what the kernel counts down from, which is one more.
pub const fn hot_max(depth: u32) -> u32 {
    depth.div_ceil(2)
}

/// The shards of a CPU's LLC, its own first.
pub fn llc_shards(machine: &SchedDomains, cpu: CpuId) -> impl Iterator<Item = usize> {
    let llc = machine.llc_of(cpu);
    machine.shards_from(cpu).take_while(move |shard| machine.llc_of(machine.cpus_of(*shard)[0]) == llc)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand from `update_idle_cpu_scan`, for so many CPUs of which so many are always busy.
    #[test]
    fn an_llc_is_searched_as_deep_as_linux_does() {
        let cases = [(16, 0, 16), (16, 8, 10), (16, 11, 5), (16, 13, 1), (16, 14, 0), (16, 16, 0)];
        for (cpus, busy, depth) in cases.into_iter().chain([(112, 56, 73), (4, 3, 0), (2, 1, 1)]) {
            assert_eq!(scan_depth(cpus, busy * SCALE), depth, "{busy} of {cpus}");
        }
    }

    #[test]
    fn as_many_kept_cpus_are_passed_over_as_half_of_what_the_kernel_counts_down_from() {
        for nr_idle_scan in 0..200 {
            assert_eq!(hot_max(nr_idle_scan), (nr_idle_scan + 1) >> 1);
        }
    }
}
