//! Searches that policies share: the nearest CPU that is allowed, online, idle, or least loaded.
//!
//! If the CPU that a policy would choose is not allowed or is offline, the policy uses a search of this module instead.
//! So each answer names a CPU that is allowed and online, if there is one. If all CPUs on which a task may run are
//! offline, the task runs on the nearest online CPU, as in Linux.
//!
//! A search for an idle CPU reads a word per shard, the set of its idle CPUs, and looks at these alone: 24 loads on
//! 384 CPUs in 24 shards if no CPU is idle. It misses an idle CPU only if the word of its shard is late, so that no
//! CPU stays parked while a task waits. [`find_idle`] passes over idle CPUs whose hot windows are open (CPUs that are
//! kept for another task); the fuller the LLC, the fewer of them.
//!
//! # Source
//! SIS_CACHE, 2023; SIS_UTIL: Linux `update_idle_cpu_scan`, `select_idle_cpu`; `select_fallback_rq`. Differences to
//! version 2 of SIS_CACHE: that code ends a search at its depth, this search goes on; if all idle CPUs are kept, that
//! code takes the CPU after those that it passed over, this search the first of them; and this search goes on beyond
//! the LLC if no CPU of the LLC is idle.

use crate::{Allowed, SchedDomains, TargetQueue, View, WakeDecision, WakeSource, Wakee};
use warmcore_types::{CpuId, Nanos};

/// An LLC counts as full when 100/117 of it is in use: Linux's `imbalance_pct` of a domain within an LLC.
const IMBALANCE_PCT: u64 = 117;

/// Whether a task with this affinity may run on the CPU.
pub fn may(machine: &SchedDomains, allowed: Allowed, cpu: CpuId) -> bool {
    match allowed {
        Allowed::Anywhere => true,
        Allowed::Cpu(only) => only == cpu,
        Allowed::Llc(llc) => machine.llc_of(cpu) == llc,
        Allowed::Node(node) => machine.node_of(cpu) == node,
    }
}

/// Whether a task with this affinity may run on the CPU, and the CPU is online.
pub fn takes(machine: &SchedDomains, view: &impl View, allowed: Allowed, cpu: CpuId) -> bool {
    may(machine, allowed, cpu) && !view.is_offline(cpu)
}

/// The nearest online CPU on which the task may run, beginning with `near` itself. If there is none, the nearest online
/// CPU; if all are offline, `near`.
pub fn nearest_allowed(machine: &SchedDomains, view: &impl View, near: CpuId, allowed: Allowed) -> CpuId {
    let all = || std::iter::once(near).chain(machine.others(near));
    let allowed = all().find(|cpu| takes(machine, view, allowed, *cpu));
    allowed.or_else(|| all().find(|cpu| !view.is_offline(*cpu))).unwrap_or(near)
}

/// The least loaded of the online CPUs on which the task may run; of several, the nearest. If there is none, the CPU of
/// [`nearest_allowed`].
pub fn least_loaded(machine: &SchedDomains, view: &impl View, near: CpuId, allowed: Allowed) -> CpuId {
    let load = |cpu: &CpuId| u64::from(view.backlog(*cpu)) + u64::from(!view.is_idle(*cpu));
    let all = std::iter::once(near).chain(machine.others(near));
    let found = all.filter(|cpu| takes(machine, view, allowed, *cpu)).min_by_key(load);
    found.unwrap_or_else(|| nearest_allowed(machine, view, near, allowed))
}

/// The CPU at which to begin a search for a task that has no previous CPU: the waker's CPU. If that is not known, a CPU
/// of the shard with the most idle CPUs; of several such shards, the one with the shortest shared queue.
pub fn origin(machine: &SchedDomains, view: &impl View, waker: WakeSource) -> CpuId {
    match waker {
        WakeSource::Cpu(near) | WakeSource::Outside(Some(near)) => near,
        WakeSource::Outside(None) if machine.shards() == 1 => machine.cpus_of(0)[0],
        WakeSource::Outside(None) => {
            let emptiness =
                |shard: &usize| (view.idle_in(*shard).count_zeros(), view.shared_queue_len(*shard));
            let shard = (0..machine.shards()).min_by_key(emptiness).unwrap_or(0);
            machine.cpus_of(shard)[0]
        }
    }
}

/// Sends a task to a shared queue if it may run anywhere, else to the least loaded CPU on which it may run. `shard` is
/// the shard of the shared queue; `None` is the shard of the nearest CPU.
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

/// The nearest CPU that is idle and online, whether it is kept for another task or not.
pub fn first_idle(machine: &SchedDomains, view: &impl View, near: CpuId) -> Option<CpuId> {
    idle_from(machine, view, near).next()
}

/// The idle CPUs that are online, nearest first.
fn idle_from(machine: &SchedDomains, view: &impl View, near: CpuId) -> impl Iterator<Item = CpuId> {
    let idle = machine.shards_from(near).map(|shard| (shard, view.idle_in(shard)));
    idle.filter(|(_, idle)| *idle != 0).flat_map(move |(shard, idle)| {
        let itself = (shard == machine.shard_of(near) && idle & machine.bit(near) != 0).then_some(near);
        let all = itself.into_iter().chain(machine.cpus_among(near, shard, idle));
        all.filter(|cpu| view.is_idle(*cpu) && !view.is_offline(*cpu))
    })
}

/// The result of a search for an idle CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The CPU.
    pub cpu: CpuId,
    /// How many idle CPUs the search passed over because they are kept for another task.
    pub hot_kept: u8,
    /// Whether `cpu` itself is kept for another task.
    pub hot_broken: bool,
}

/// The nearest idle CPU on which `wakee` may run and that is not kept for another task. If the search finds a kept CPU,
/// it goes on in that CPU's LLC only, and passes over at most [`hot_max`] kept CPUs. If all CPUs found are kept,
/// returns the first of them. A CPU that is kept for `wakee` itself does not count as kept.
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

/// How many CPUs of an LLC a search looks at: all if the LLC is idle, fewer as it fills, none if it is full. Computed
/// by [`scan_depth`] from the number of CPUs that are busy now; Linux uses an average.
pub fn depth(machine: &SchedDomains, view: &impl View, near: CpuId) -> u32 {
    let (mut all, mut busy) = (0, 0);
    for shard in llc_shards(machine, near) {
        let cpus = machine.cpus_of(shard).len() as u64;
        (all, busy) = (all + cpus, busy + cpus.saturating_sub(view.idle_in(shard).count_ones().into()));
    }
    scan_depth(all, busy * SCALE)
}

/// The use of a CPU that is always busy.
pub const SCALE: u64 = 1024;

/// Linux's `nr_idle_scan`: how many CPUs a search looks at in an LLC of `cpus` CPUs, whose use adds up to `used`. It is
/// CPUs × (1 − (117 % × use)²), each step rounded down as in Linux.
pub fn scan_depth(cpus: u64, used: u64) -> u32 {
    let each = (used / cpus).min(SCALE);
    let full = (each * each * IMBALANCE_PCT * IMBALANCE_PCT / (10_000 * SCALE)).min(SCALE);
    ((SCALE - full) * cpus / SCALE) as u32
}

/// How many idle CPUs that are kept for another task a search of this depth passes over: half of `depth` + 1, rounded
/// down, the number from which the kernel counts down.
pub const fn hot_max(depth: u32) -> u32 {
    depth.div_ceil(2)
}

/// The shards of a CPU's LLC, the CPU's own shard first.
pub fn llc_shards(machine: &SchedDomains, cpu: CpuId) -> impl Iterator<Item = usize> {
    let llc = machine.llc_of(cpu);
    machine.shards_from(cpu).take_while(move |shard| machine.llc_of(machine.cpus_of(*shard)[0]) == llc)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand from `update_idle_cpu_scan`: (CPUs, CPUs that are always busy, depth).
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
