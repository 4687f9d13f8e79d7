//! SharedQueue: Linux's placement of woken tasks, and a queue per LLC that idle CPUs take from at once.
//!
//! A woken task goes to its previous CPU if that is idle, else to an idle CPU of its LLC, else to the queue of its
//! previous CPU; if it may no longer run there, the nearest CPU that it may use counts as its previous CPU. A new task
//! goes to the nearest idle CPU, else to the least loaded. The search in the LLC looks at the previous CPU and at as
//! many others as Linux's SIS_UTIL (10 of 16 CPUs if 8 are busy). A CPU that runs out of tasks takes the task of its
//! LLC that has waited longest and may run there, before it searches other LLCs.
//!
//! The published queue is a second list of the waiting tasks. Here it is the union of all backlogs of the LLC, oldest
//! task first (`View::waits_since`). In a runtime the times are as exact as the workers' clocks: two tasks that were
//! queued within one event interval may change places.
//!
//! # Source
//! shared_runq, v1 to v4, linux-kernel, 2023; Linux `select_idle_sibling`, `update_idle_cpu_scan`. Left out:
//! `wake_affine` (the task stays in its LLC), groups, and the cost of a search beyond the LLC.

use super::Policy;
use super::near::{depth, find_idle, least_loaded, llc_shards, nearest_allowed, origin, takes};
use crate::{Allowed, Distance, SchedDomains, StealDecision, StealOrder, View, Wake, WakeDecision};
use std::cmp::Reverse;
use warmcore_types::{CpuId, Nanos};

/// Linux's placement, with a queue per LLC.
#[derive(Debug, Clone, Copy, Default)]
pub struct SharedQueue;

impl Policy for SharedQueue {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        let allowed = wake.wakee.allowed;
        let Some(prev) = wake.wakee.prev_cpu else {
            // A new task may go anywhere, as Linux balances a task over the machine when it is forked.
            let near = origin(machine, view, wake.waker);
            let found = find_idle(machine, view, near, Nanos(u64::MAX), &wake.wakee).map(|found| found.cpu);
            let cpu = found.unwrap_or_else(|| least_loaded(machine, view, near, allowed));
            return WakeDecision::on(cpu, view.is_idle(cpu));
        };
        let prev = nearest_allowed(machine, view, prev, allowed);
        let cpu = idle_sibling(machine, view, prev, allowed).unwrap_or(prev);
        WakeDecision::on(cpu, view.is_idle(cpu))
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, _now: Nanos) -> StealDecision {
        let own = machine.shard_of(me);
        if view.shared_queue_len(own) > 0 {
            return StealDecision::Shard(own);
        }
        let waits = |cpu: &CpuId| view.backlog(*cpu) > 0 && view.can_steal(me, *cpu);
        let in_shard = |shard| machine.cpus_among(me, shard, view.backlogs_in(shard));
        let victims = || machine.shards_from(me).flat_map(in_shard).filter(waits);
        let in_llc = victims().take_while(|cpu| machine.distance(me, *cpu) <= Distance::Llc);
        let oldest = in_llc.min_by_key(|cpu| view.waits_since(me, *cpu));
        let longest =
            || victims().max_by_key(|cpu| (Reverse(machine.distance(me, *cpu)), view.backlog(*cpu)));
        match oldest.or_else(longest) {
            Some(cpu) => StealDecision::From { cpu, at_most: 1 },
            None => machine
                .shards_from(me)
                .find(|shard| view.shared_queue_len(*shard) > 0)
                .map_or(StealDecision::Nothing, StealDecision::Shard),
        }
    }

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
        // Unlike the search of a wake this is not limited in depth, because an idle CPU that is not kicked would stay
        // parked while tasks wait.
        llc_cpus(machine, at).find(|cpu| is_idle(machine, view, *cpu, Allowed::Anywhere))
    }

    /// True, because Linux also balances busy CPUs by load.
    fn shares(&self) -> bool {
        true
    }
}

/// `target` if it is idle, else an idle CPU of its LLC, if one is among as many CPUs as SIS_UTIL searches.
fn idle_sibling(machine: &SchedDomains, view: &impl View, target: CpuId, allowed: Allowed) -> Option<CpuId> {
    // The depth is 0 if the LLC is overloaded; then the search looks only at `target`.
    let deep = depth(machine, view, target) as usize;
    llc_cpus(machine, target).take(1 + deep).find(|cpu| is_idle(machine, view, *cpu, allowed))
}

fn is_idle(machine: &SchedDomains, view: &impl View, cpu: CpuId, allowed: Allowed) -> bool {
    view.is_idle(cpu) && takes(machine, view, allowed, cpu)
}

/// The CPUs of an LLC, beginning with `target`.
fn llc_cpus(machine: &SchedDomains, target: CpuId) -> impl Iterator<Item = CpuId> {
    let others = llc_shards(machine, target).flat_map(move |shard| machine.cpus_from(target, shard));
    std::iter::once(target).chain(others)
}
