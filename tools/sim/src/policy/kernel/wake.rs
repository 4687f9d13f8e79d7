//! Wake: which CPU a woken or new task goes to.
//!
//! First a target is chosen: the waker's CPU or the task's previous CPU. The task goes to the first of these that is
//! idle: the target; the previous CPU, if it is of the target's LLC; the CPU before that, likewise; an idle core, or an
//! idle thread beside the previous CPU, or an idle CPU among the first `nr_idle_scan` after the target (10 of an LLC of
//! 16 CPUs that is half used; none from 86 % on). If none of them is idle, the task waits on the target. With
//! `sis_node` the search goes on in the other LLCs of the node before that. A task without a previous CPU (it is new,
//! or may no longer run there) begins near its waker: at each level from the whole machine down to the core it goes to
//! the group with the most idle CPUs, or if none is idle to the one with the fewest tasks per CPU, unless its present
//! group is about as good (`stays`).
//!
//! Hot windows: a search passes over an idle CPU that is kept for another task, as [`HotRule`] defines. The target, the
//! previous CPU, the one before it and the thread beside the previous CPU are taken whether kept or not, as published.
//! Under v1 and v2 a search that used up its depth and found only kept CPUs ends at the target, mostly the waker's CPU,
//! so that two tasks that wake each other meet there and stay. If a task takes the first kept CPU instead, the task for
//! which that CPU was kept must go elsewhere, and then does the same. A search that reaches the end of the LLC takes,
//! under all rules, the first idle CPU that it saw, if there is one: a kept one, or in a search for an idle core
//! perhaps an idle thread of a core that is not idle.
//!
//! # Source
//! `wake_affine_idle`, `wake_affine_weight`, `select_idle_sibling`, `select_idle_core`, `select_idle_smt`,
//! `select_idle_cpu`, `update_idle_cpu_scan`, `select_idle_node`, `find_idlest_group`, `find_idlest_group_cpu`,
//! `adjust_numa_imbalance`.

use super::balance::imbalance_pct;
use super::{Decision, HotRule, KernelView};
use std::cmp::Reverse;
use warmcore_sched::policy::near::{
    Found, SCALE, hot_max, llc_shards, may, nearest_allowed, origin, scan_depth, takes,
};
use warmcore_sched::{Allowed, Distance, Wake, WakeDecision, WakeSource};
use warmcore_types::CpuId;

/// `imbalance_pct` of every domain beyond a core, used for all domains here.
const IMBALANCE_PCT: u64 = 117;

impl<V: KernelView> Decision<'_, V> {
    pub(super) fn wake(&self, wake: &Wake) -> WakeDecision {
        let (machine, view, allowed) = (self.machine, self.view, wake.wakee.allowed);
        let Some(prev_cpu) = wake.wakee.prev_cpu else {
            let near = nearest_allowed(machine, view, origin(machine, view, wake.waker), allowed);
            let cpu = self.idlest(near, allowed);
            return WakeDecision::on(cpu, view.is_idle(cpu));
        };
        let prev = nearest_allowed(machine, view, prev_cpu, allowed);
        if matches!(allowed, Allowed::Cpu(_)) {
            return WakeDecision::on(prev, view.is_idle(prev));
        }
        let target = match wake.waker {
            WakeSource::Cpu(this) | WakeSource::Outside(Some(this)) => self.affine(this, prev, allowed),
            WakeSource::Outside(None) => prev,
        };
        self.idle_sibling(wake, prev, target)
    }

    fn takes(&self, allowed: Allowed, cpu: CpuId) -> bool {
        takes(self.machine, self.view, allowed, cpu)
    }

    /// `select_idle_sibling`.
    fn idle_sibling(&self, wake: &Wake, prev: CpuId, target: CpuId) -> WakeDecision {
        let (machine, view) = (self.machine, self.view);
        let is_idle = |cpu: CpuId| self.takes(wake.wakee.allowed, cpu) && view.is_idle(cpu);
        let shares = |cpu: CpuId| machine.distance(target, cpu) <= Distance::Llc;
        if is_idle(target) {
            return WakeDecision::on(target, true);
        }
        if prev != target && shares(prev) && is_idle(prev) {
            return WakeDecision::on(prev, true);
        }
        let other = |cpu: &CpuId| *cpu != prev && *cpu != target;
        if let Some(recent) = view.wakee_was_on().filter(other)
            && shares(recent)
            && is_idle(recent)
        {
            return WakeDecision::on(recent, true);
        }
        let has_core = self.has_idle_core(target);
        if !has_core && shares(prev) {
            let threads = machine.within(prev, Distance::Smt);
            if let Some(beside) = threads.iter().find(|cpu| **cpu != prev && is_idle(**cpu)) {
                return WakeDecision::on(*beside, true);
            }
        }
        let mut found = self.scan(wake, target, has_core);
        if self.kernel.sis_node && found.is_none() {
            let mut others = machine.other_llcs(target);
            found = others.find_map(|cpu| self.scan(wake, cpu, self.has_idle_core(cpu)));
        }
        match found {
            Some(Found { cpu, hot_kept, hot_broken }) => {
                WakeDecision { hot_kept, hot_broken, ..WakeDecision::on(cpu, true) }
            }
            // The target is not idle, unless all CPUs that the task may run on are offline.
            None => WakeDecision::on(target, view.is_idle(target)),
        }
    }

    /// `select_idle_cpu`: in one LLC, from the CPU after the target on.
    fn scan(&self, wake: &Wake, target: CpuId, has_core: bool) -> Option<Found> {
        let (machine, view, allowed) = (self.machine, self.view, wake.wakee.allowed);
        let depth = self.depth(target);
        if depth == 0 {
            // An LLC that is used this much hardly has an idle CPU.
            return None;
        }
        let hot_rule = self.kernel.hot_rule;
        let is_hot = |cpu: CpuId| self.kernel.hot_windows && view.hot_until(cpu) > wake.now;
        let may_pass = if hot_rule == HotRule::V1 { u32::MAX } else { hot_max(depth) };
        let (mut first, mut passed) = (None, 0);
        let mut all = machine.behind(target).filter(|cpu| self.takes(allowed, *cpu));
        let mut looked = 0;
        // The chosen CPU, and whether the search had seen it before, so that it may be one of those that were passed
        // over.
        let (chosen, was_passed) = loop {
            let Some(cpu) = all.next() else { break (first, true) };
            let is_free = if has_core {
                let core = machine.within(cpu, Distance::Smt);
                let rank = machine.steps_behind(target, cpu);
                if core
                    .iter()
                    .any(|other| machine.steps_behind(target, *other) < rank && self.takes(allowed, *other))
                {
                    continue; // Examined with a sibling before.
                }
                let mut all_idle = true;
                // Threads on which the task may not run are examined too: the core's caches should be unused.
                for thread in core.iter().filter(|thread| !view.is_offline(**thread)) {
                    match view.is_idle(*thread) {
                        true if may(machine, allowed, *thread) => first = first.or(Some(*thread)),
                        true => {}
                        false => {
                            all_idle = false;
                            if first.is_some() {
                                break;
                            }
                        }
                    }
                }
                all_idle
            } else {
                if looked == depth {
                    break (first.filter(|_| hot_rule == HotRule::V2Text), true);
                }
                looked += 1;
                let idle = view.is_idle(cpu);
                first = first.or(idle.then_some(cpu));
                idle
            };
            if !is_free {
                continue;
            }
            if !is_hot(cpu) {
                break (Some(cpu), false);
            }
            if passed == may_pass {
                break if hot_rule == HotRule::V2Text { (first, true) } else { (Some(cpu), false) };
            }
            passed += 1;
        };
        let cpu = chosen?;
        let hot_broken = is_hot(cpu);
        let kept = passed.saturating_sub(u32::from(hot_broken && was_passed));
        Some(Found { cpu, hot_kept: kept.min(255) as u8, hot_broken })
    }

    /// `test_idle_cores`: whether the core of `near` has several threads, and a core of its LLC is idle with all its
    /// threads.
    fn has_idle_core(&self, near: CpuId) -> bool {
        self.machine.within(near, Distance::Smt).len() > 1
            && llc_shards(self.machine, near).any(|shard| self.view.has_idle_core_in(shard))
    }

    /// How many CPUs of an LLC a search for an idle CPU examines, by the average use of the LLC, or if there is none by
    /// its CPUs that are not idle. A search for an idle core has no limit, but does not begin if this is 0.
    fn depth(&self, near: CpuId) -> u32 {
        let used = llc_shards(self.machine, near).map(|shard| {
            self.view.usage_in(shard).unwrap_or_else(|| {
                let all = self.machine.cpus_of(shard).len() as u64;
                (all - u64::from(self.view.idle_in(shard).count_ones())) * SCALE
            })
        });
        scan_depth(self.machine.within(near, Distance::Llc).len() as u64, used.sum())
    }

    /// `wake_affine`: the waker's CPU or the previous one.
    fn affine(&self, this: CpuId, prev: CpuId, allowed: Allowed) -> CpuId {
        let view = self.view;
        if this == prev || view.wakes_wide() || !self.takes(allowed, this) {
            return prev;
        }
        let distance = self.machine.distance(this, prev);
        // If the waker's CPU is idle, the wake comes from an interrupt there.
        if distance <= Distance::Llc && view.is_idle(this) {
            return if view.is_idle(prev) { prev } else { this };
        }
        let is_sync = view.sleeps_next(this);
        if is_sync && view.runs(this) == 1 {
            return this;
        }
        if view.is_idle(prev) {
            return prev;
        }
        // By load, with a small bonus for the waker's CPU. The waker's own load does not count if the waker sleeps
        // next.
        let own = if is_sync { SCALE } else { 0 };
        let here = view.load(this);
        if is_sync && own > here {
            return this;
        }
        let here = (here - own).saturating_mul(100);
        // By the innermost domain that has both CPUs: the bonus is smaller among threads of a core.
        let bonus = (imbalance_pct(distance) - 100) / 2;
        let there = view.load(prev).saturating_mul(100 + bonus);
        if here < there.saturating_add(u64::from(is_sync)) { this } else { prev }
    }

    /// `find_idlest_cpu`, for a task without a previous CPU: from the machine down to the core.
    fn idlest(&self, near: CpuId, allowed: Allowed) -> CpuId {
        let mut at = near;
        for level in [Distance::Other, Distance::Socket, Distance::Node, Distance::Llc, Distance::Smt] {
            let Some((_, inner)) = self.domains(at).find(|(domain, _)| *domain == level) else { continue };
            let local = self.machine.within(at, inner);
            let Some(here) = self.spare_capacity(local, allowed) else { continue };
            let groups = self.groups(self.machine.within(at, level), inner);
            let others = groups.filter(|group| group[0] != local[0]);
            let others = others.filter_map(|group| Some((self.spare_capacity(group, allowed)?, group)));
            // The first of equal groups.
            if let Some((there, group)) = others.min_by_key(|(spare, _)| Reverse(spare.rank()))
                && !self.stays(at, level, here, there)
            {
                at = self.idlest_of(group, allowed).unwrap_or(at);
            }
        }
        let core = self.machine.within(at, Distance::Same);
        self.idlest_of(core, allowed).unwrap_or(at)
    }

    /// What a group has on the CPUs that the task may run on. `None`: it may run on none of them.
    fn spare_capacity(&self, cpus: &[CpuId], allowed: Allowed) -> Option<SpareCapacity> {
        let mut all = SpareCapacity { cpus: 0, idle: 0, runs: 0 };
        for cpu in cpus.iter().filter(|cpu| self.takes(allowed, **cpu)) {
            let idle = self.view.is_idle(*cpu);
            all.cpus += 1;
            all.idle += u64::from(idle);
            all.runs += if idle { 0 } else { u64::from(self.view.runs(*cpu)) };
        }
        (all.cpus > 0).then_some(all)
    }

    /// Whether the task stays in the local group: it is as good as the other, or the other is not enough better.
    fn stays(&self, at: CpuId, level: Distance, here: SpareCapacity, there: SpareCapacity) -> bool {
        match (here.idle > 0, there.idle > 0) {
            (true, false) => true,
            (false, true) => false,
            (true, true) => {
                let differ = here.idle.abs_diff(there.idle);
                self.is_small_across_nodes(at, level, here.runs, differ) || here.idle >= there.idle
            }
            // Loads per CPU.
            (false, false) => {
                let (here, there) = (here.runs * SCALE / here.cpus, there.runs * SCALE / there.cpus);
                let least = SCALE * (IMBALANCE_PCT - 100) / 100;
                there + least >= here || 100 * here <= IMBALANCE_PCT * there
            }
        }
    }

    /// `find_idlest_group_cpu`: the first idle CPU in the order of the kernel's numbers, or else the least loaded one.
    fn idlest_of(&self, group: &[CpuId], allowed: Allowed) -> Option<CpuId> {
        let all = group.iter().copied().filter(|cpu| self.takes(allowed, *cpu));
        let load = |cpu: CpuId| if self.view.is_idle(cpu) { 0 } else { self.view.runs(cpu).max(1) };
        all.min_by_key(|cpu| (load(*cpu), self.machine.kernel_cpu(*cpu)))
    }
}

/// A group of CPUs, with what the placement of a new task compares.
#[derive(Debug, Clone, Copy)]
struct SpareCapacity {
    cpus: u64,
    idle: u64,
    runs: u64,
}

impl SpareCapacity {
    /// A larger value is better. A group with idle CPUs is better than one without; then more idle CPUs are better, and
    /// if they are as many, fewer tasks per CPU.
    fn rank(&self) -> (bool, u64, u64) {
        (self.idle > 0, self.idle, u64::MAX - self.runs * SCALE / self.cpus)
    }
}
