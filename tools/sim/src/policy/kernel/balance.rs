//! Balance: which task a CPU takes when it has run out of tasks, or was kicked.
//!
//! The CPU searches domain by domain from the innermost to the outermost: threads of the core, the LLC, the node, the
//! socket, the machine. In each it chooses the busiest group, if that is enough busier than the CPU's own group; of its
//! CPUs from which it may take a task, the one with the most tasks; of these tasks the one that has not run for the
//! longest time, unless that task counts as cache-hot (`is_hot`).
//!
//! With [`Newidle::Gated`], a CPU that has just run out of tasks does not search a domain if it is usually idle for
//! less time than searching that domain and those before it costs: a CPU that is idle for 30 µs at a time does not
//! search 16 CPUs at 2 µs each. So it may stay idle while tasks wait, which is why the shared wake queue was proposed.
//!
//! # Source
//! `newidle_balance`, `update_sd_pick_busiest`, `group_is_overloaded`, `find_busiest_group`, `find_busiest_queue`,
//! `task_hot`, `can_migrate_task`, `rebalance_domains`.

use super::{Decision, KernelView, Newidle, QueueRule};
use std::cmp::Reverse;
use warmcore_sched::{Distance, StealDecision};
use warmcore_types::{CpuId, Nanos};

/// A CPU takes a cache-hot task from a domain up to the node after more than this many searches in vain in a row,
/// counted when it was kicked.
pub const CACHE_NICE_TRIES: u32 = 1;
/// The same number for domains beyond the node.
pub const CACHE_NICE_TRIES_FAR: u32 = 2;

/// A kicked CPU searches a domain at most once in this many nanoseconds per CPU of the domain.
const INTERVAL_PER_CPU: u64 = 1_000_000;

/// Between nodes a difference of up to this many tasks is tolerated while few tasks run, so that a pair of tasks that
/// wake each other stays together.
const NUMA_IMBALANCE_MIN: u64 = 2;

/// How busy a group must be for a task to move, in percent of how busy the other group is: more than this.
pub(super) fn imbalance_pct(domain: Distance) -> u64 {
    match domain {
        Distance::Same | Distance::Smt => 110,
        _ => 117,
    }
}

/// How busy a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GroupType {
    HasSpare,
    FullyBusy,
    Overloaded,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    group_type: GroupType,
    cpus: u64,
    runs: u64,
    idle: u64,
}

impl Group {
    fn of(view: &impl KernelView, cpus: &[CpuId], pct: u64) -> Self {
        let (mut runs, mut idle, mut online) = (0, 0, 0);
        for cpu in cpus.iter().filter(|cpu| !view.is_offline(**cpu)) {
            let here = u64::from(view.runs(*cpu));
            (runs, idle, online) = (runs + here, idle + u64::from(here == 0), online + 1);
        }
        let group_type = match () {
            () if runs > online && runs * 100 > online * pct => GroupType::Overloaded,
            () if runs < online => GroupType::HasSpare,
            () => GroupType::FullyBusy,
        };
        Self { group_type, cpus: online.max(1), runs, idle }
    }

    fn load(&self) -> u64 {
        self.runs * 1024 / self.cpus
    }

    /// `update_sd_pick_busiest`.
    fn is_busier(&self, than: &Self) -> bool {
        let by_type = self.group_type.cmp(&than.group_type);
        by_type
            .then_with(|| match self.group_type {
                GroupType::HasSpare => than.idle.cmp(&self.idle).then(self.runs.cmp(&than.runs)),
                _ => self.load().cmp(&than.load()),
            })
            .is_gt()
    }
}

impl<V: KernelView> Decision<'_, V> {
    /// `adjust_numa_imbalance`, since 6.0: beyond the node a small difference is ignored while at most `imb_numa_nr`
    /// tasks would run here with the one that moves: one per LLC of the node, or if it has only one LLC an eighth of
    /// its CPUs, at least one.
    pub(super) fn is_small_across_nodes(&self, at: CpuId, domain: Distance, runs: u64, differ: u64) -> bool {
        if domain <= Distance::Node || differ > NUMA_IMBALANCE_MIN {
            return false;
        }
        let node = self.machine.within(at, Distance::Node);
        let llcs = self.groups(node, Distance::Llc).count();
        runs < (if llcs == 1 { node.len() / 8 } else { llcs }).max(1) as u64
    }

    /// Whether a free CPU looks into the shared queues before it searches. With [`QueueRule::V3Checked`], unless
    /// [`Newidle::Always`] is set, it does so if it is usually idle for at least as long as searching its LLC costs,
    /// and as a look into the queues costs. Whether any CPU has more than one task is asked only afterwards.
    pub(super) fn queues_are_worth_a_look(&self, me: CpuId) -> bool {
        if self.kernel.queue_rule != QueueRule::V3Checked || self.kernel.newidle == Newidle::Always {
            return true;
        }
        let within = self.domains(me).map(|(domain, _)| domain).take_while(|domain| *domain <= Distance::Llc);
        let llc = within.last().map_or(Nanos(0), |domain| self.view.newidle_cost(me, domain));
        self.view.average_idle(me) >= llc.max(self.view.newidle_cost(me, Distance::Same))
    }

    /// `newidle_balance`; for a kicked CPU `rebalance_domains`.
    pub(super) fn search(&self, me: CpuId, now: Nanos) -> StealDecision {
        let (machine, view, kernel) = (self.machine, self.view, self.kernel);
        let newly = view.is_newly_idle(me);
        if newly && kernel.newidle == Newidle::Off {
            return StealDecision::Nothing;
        }
        // `rd->overload` is not set: no CPU has a waiting task. All CPUs share this flag.
        if !machine.shards_from(me).any(|shard| view.backlogs_in(shard) != 0) {
            return StealDecision::Nothing;
        }
        let is_gated = newly && kernel.newidle == Newidle::Gated;
        let mut cost = 0u64;
        if kernel.wake_queue && kernel.queue_rule != QueueRule::V1 {
            let mut beyond =
                self.domains(me).map(|(domain, _)| domain).filter(|domain| *domain > Distance::Llc);
            if is_gated
                && kernel.queue_rule == QueueRule::V3
                && let Some(domain) = beyond.next()
                && view.average_idle(me) < view.newidle_cost(me, domain)
            {
                return StealDecision::Nothing;
            }
            // The cost of the look into the queues is part of the search's cost.
            cost = view.newidle_cost(me, Distance::Same).0;
        }
        for (domain, inner) in self.domains(me) {
            cost = cost.saturating_add(view.newidle_cost(me, domain).0);
            if is_gated && view.average_idle(me).0 < cost {
                break;
            }
            let interval = machine.within(me, domain).len() as u64 * INTERVAL_PER_CPU;
            if !newly && now.0 < view.balanced_at(me, domain).0.saturating_add(interval) {
                continue;
            }
            if let Some(cpu) = self.busiest(me, (domain, inner), now) {
                return StealDecision::From { cpu, at_most: 1 };
            }
        }
        StealDecision::Nothing
    }

    /// The CPU of the domain to take a task from, if its group is busy enough and the task is not cache-hot.
    fn busiest(&self, me: CpuId, (domain, inner): (Distance, Distance), now: Nanos) -> Option<CpuId> {
        let (machine, view) = (self.machine, self.view);
        let pct = imbalance_pct(domain);
        let own = machine.within(me, inner);
        let local = Group::of(view, own, pct);
        let others = self.groups(machine.within(me, domain), inner).filter(|cpus| cpus[0] != own[0]);
        let others =
            others.map(|cpus| (Group::of(view, cpus, pct), cpus)).filter(|(group, _)| group.runs > 0);
        let (group, cpus) =
            others.reduce(|best, next| if next.0.is_busier(&best.0) { next } else { best })?;
        if !is_imbalanced(&local, &group, pct) {
            return None;
        }
        if local.group_type == GroupType::HasSpare && group.group_type != GroupType::Overloaded {
            let differ = group.runs.saturating_sub(local.runs);
            if self.is_small_across_nodes(me, domain, local.runs, differ) {
                return None;
            }
        }
        // Asks each queue once; takes the first of several longest ones.
        let queues = cpus.iter().map(|cpu| (view.runs(*cpu), *cpu));
        let queues =
            queues.filter(|(runs, cpu)| *runs > 1 && view.backlog(*cpu) > 0 && view.can_steal(me, *cpu));
        let (_, cpu) = queues.min_by_key(|(runs, _)| Reverse(*runs))?;
        (!self.is_hot(me, cpu, domain, now)).then_some(cpu)
    }

    /// `task_hot`: the task ran there less than a migration cost ago. Not if both CPUs are threads of a core, which
    /// share their caches. A CPU whose searches after a kick were in vain too often takes the task even if it is hot.
    fn is_hot(&self, me: CpuId, cpu: CpuId, domain: Distance, now: Nanos) -> bool {
        let tries = if domain > Distance::Node { CACHE_NICE_TRIES_FAR } else { CACHE_NICE_TRIES };
        let ran = self.view.last_ran(cpu).0;
        domain > Distance::Smt
            && ran > 0
            && now.0.saturating_sub(ran) < self.kernel.migration_cost.0
            && self.view.balances_failed(me, domain) <= tries
    }
}

/// `find_busiest_group`, for a CPU that is idle.
fn is_imbalanced(local: &Group, busiest: &Group, pct: u64) -> bool {
    if local.group_type > busiest.group_type {
        return false;
    }
    if local.group_type == GroupType::Overloaded {
        return 100 * busiest.load() > pct * local.load();
    }
    // SD_PREFER_SIBLING: if the local group has spare CPUs, a group with at least two tasks more gives one to it,
    // though it may have spare CPUs itself.
    if local.group_type == GroupType::HasSpare && busiest.runs > local.runs + 1 {
        return true;
    }
    busiest.group_type == GroupType::Overloaded
        || (busiest.runs > 1 && (busiest.cpus == 1 || local.idle > busiest.idle + 1))
}
