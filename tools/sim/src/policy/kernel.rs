//! Kernel: Linux's own placement, with the settings that its developers argued about.
//!
//! Model.   A wakee goes to its waker's CPU or to its previous one (`wake_affine`), or to an idle CPU of that LLC: a
//!          whole idle core first where cores have threads, else by the kernel's numbers from there on, as deep as
//!          SIS_UTIL says (`wake.rs`). A new task goes where the most CPUs are idle (`wake.rs`). A CPU that runs
//!          out of work searches its domains from the inside to the outside for somebody who waits, unless it
//!          usually idles for less than that costs (`balance.rs`). A CPU that is called by [`cpu_to_notify`](SimPolicy::cpu_to_notify),
//!          which a host asks at each tick of a CPU where somebody waits, searches whatever it costs, but each
//!          domain only now and then. The settings are switches of one and the same code, so that two runs differ
//!          in nothing else. The shared queues: one per LLC in v1; in v3 one per six CPUs of it, by their numbers.
//! Number.  Facts that the host answers beyond those of the other policies: fourteen, of which five matter:
//!          `sleeps_next`, `usage_in`, `average_idle`, `newidle_cost`, `last_ran`.
//! Writers. None. What must be remembered between two questions the host keeps (`record.rs` has the rules).
//! Source.  Linux 6.6: `select_task_rq_fair`, `wake_affine`, `select_idle_sibling`, `select_idle_cpu`,
//!          `find_idlest_cpu`, `newidle_balance`, `find_busiest_group`, `can_migrate_task`,
//!          `nohz_balancer_kick`. Hot windows: SIS_CACHE, v2, November 2023. Wake queue: `swqueue`, v1, 13 June 2023;
//!          `shared_runq`, v3, 9 August 2023, 5/7 to 7/7. SIS_NODE: `select_idle_node`, June 2023. Left out: groups,
//!          priorities, unequal CPUs, active balancing, misfits, per-CPU kthreads.
//!
//! **For hosts.** [`SharedQueue`](warmcore_sched::SharedQueue) is what a runtime can have of this. A simulator answers more:
//!
//! - `is_idle` is the kernel's `available_idle_cpu`: nothing runs there, waits there or is on its way.
//! - Each look at a CPU is one question: `is_idle` in a wake, `runs` in a pull. Who counts them knows what the
//!   search costs, and `newidle_cost` is the same count for a domain times the price of a look.
//! - [`StealDecision::From`] takes the one that has not run for the longest time. [`StealDecision::Shard`] takes the first of the
//!   shared wake queue, off the CPU where it waits ([`SimPolicy::enters`]).
//! - `usage_in` averages the time that CPUs *run*. Where a pair of tasks per CPU talks, half of them on their way out
//!   of an idle state, no CPU is idle and yet they are used to two thirds: searches go on, and keep it so.
//! - Hot windows are opened only by a task that leaves its CPU idle.

mod balance;
mod record;
mod view;
mod wake;

pub use balance::{CACHE_NICE_TRIES, CACHE_NICE_TRIES_FAR};
pub use record::{AverageIdle, Flips, NewidleCost};
pub use view::KernelView;

use super::{Enqueued, SimPolicy};
use warmcore_sched::{
    Allowed, Distance, SHARD_CPUS_MAX, SYSCTL_MIGRATION_COST, SchedDomains, SleepHistory, StealDecision,
    Wake, WakeDecision,
};
use warmcore_types::{CpuId, Nanos};

/// Whether a CPU that runs out of work searches others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Newidle {
    /// If it usually idles for longer than that costs, as Linux does.
    #[default]
    Gated,
    /// Always, whatever that costs.
    Always,
    /// Never. Called CPUs still do.
    Off,
}

/// Which hot windows: what is done with an idle CPU that is kept for somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum HotRule {
    /// Passed over, however often. Who has looked as deep as he may and found only such goes to his target, mostly the
    /// waker's CPU, behind it. September 2023, v1.
    V1,
    /// Passed over for half of the depth, then taken; else as v1. November 2023, v2.
    #[default]
    V2,
    /// Passed over for half of the depth, and who has found only such takes the first of them: as v2's text tells, which
    /// its code does only at the end of the LLC.
    Told,
}

/// A shared queue of v3 serves so many CPUs of an LLC (`SHARED_RUNQ_SHARD_SZ`), or some fewer.
const QUEUE_CPUS: usize = 6;

/// Queues of v3 for each shard of at most [`SHARD_CPUS_MAX`] CPUs, at most.
const QUEUES_PER_SHARD: usize = SHARD_CPUS_MAX.div_ceil(QUEUE_CPUS);

/// Which shared wake queue: what enters it, and when a CPU pulls from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum QueueRule {
    /// One queue per LLC. A task that is woken on its previous CPU enters. A CPU that runs out of work pulls before it
    /// searches. June 2023, v1.
    #[default]
    V1,
    /// One queue per six CPUs of an LLC; a CPU looks into all of them, its own first. A task enters whenever it is put on
    /// a run queue, unless it is pinned: woken, new, moved, or put back. A CPU that has found nothing there searches only
    /// if it usually idles for longer than searching the first domain beyond the LLC costs; the search begins with the
    /// innermost domain all the same. The patch means to skip the domains within the LLC, and its loop begins anew.
    /// August 2023, v3, with the time of the look into the queues counted as the start of the search, as it was
    /// measured in September.
    V3,
    /// As v3, and a CPU that usually idles for less than searching its LLC costs, or looking into the queues, does
    /// neither. September 2023: the experiment that was measured beside v3. Which domain it asked about was not posted;
    /// the LLC is that of the diff of 30 August.
    V3Checked,
}

/// Linux's placement. [`Default`] is Linux 6.6 as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Idle CPUs that are kept for a short sleeper are passed over (SIS_CACHE).
    pub hot_windows: bool,
    /// How.
    pub hot_rule: HotRule,
    /// Wakees wait in a queue per LLC besides, from which its CPUs pull before they search.
    pub wake_queue: bool,
    /// Which of them.
    pub queue_rule: QueueRule,
    /// A waker that finds nobody idle in the LLC searches the other LLCs of its node (SIS_NODE).
    pub sis_node: bool,
    /// Whether a CPU that runs out of work searches others.
    pub newidle: Newidle,
    /// A task that ran so lately has its data in that CPU's cache, and a search leaves it there
    /// (`sched_migration_cost`). 0: a search takes every task. It also bounds the sleeps that hot windows record, and half
    /// of the time for which a CPU is taken to idle.
    pub migration_cost: Nanos,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            hot_windows: false,
            hot_rule: HotRule::default(),
            wake_queue: false,
            queue_rule: QueueRule::default(),
            sis_node: false,
            newidle: Newidle::default(),
            migration_cost: SYSCTL_MIGRATION_COST,
        }
    }
}

impl SimPolicy for Kernel {
    fn wake(&self, machine: &SchedDomains, view: &impl KernelView, wake: &Wake) -> WakeDecision {
        self.select(machine, view, wake)
    }

    fn learn_sleep(&self, sleeps: &mut SleepHistory, now: Nanos) {
        wake_as_posted(sleeps, now, self.migration_cost);
    }

    fn sysctl_migration_cost(&self) -> Nanos {
        self.migration_cost
    }

    fn queues(&self, machine: &SchedDomains) -> usize {
        machine.shards() * if self.queue_rule == QueueRule::V1 { 1 } else { QUEUES_PER_SHARD }
    }

    /// In v1 only a wake in the narrow sense: not a task that was sent elsewhere on purpose. Never a pinned one.
    fn enters(&self, machine: &SchedDomains, cpu: CpuId, allowed: Allowed, why: Enqueued) -> Option<usize> {
        let is_pinned = matches!(allowed, Allowed::Cpu(_));
        let is_meant = self.queue_rule != QueueRule::V1 || why == Enqueued::WokenAtHome;
        let enters = self.wake_queue && is_meant && !is_pinned;
        enters.then(|| self.queues_of(machine, cpu).next()).flatten()
    }

    fn steal(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, now: Nanos) -> StealDecision {
        if self.wake_queue {
            let is_open = self.queues_are_worth_a_look(machine, view, me);
            if !is_open && view.is_newly_idle(me) {
                return StealDecision::Nothing;
            }
            let holds_one =
                |queue: &usize| view.shared_queue_len(*queue) > 0 && view.can_steal_in(me, *queue);
            if is_open && let Some(queue) = self.queues_of(machine, me).find(holds_one) {
                return StealDecision::Shard(queue);
            }
        }
        self.search(machine, view, me, now)
    }

    /// `nohz_balancer_kick`, `find_new_ilb`: two are there, so the idle CPU with the lowest number is to look.
    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl KernelView,
        at: CpuId,
        _now: Nanos,
    ) -> Option<CpuId> {
        if view.runs(at) < 2 || (0..machine.shards()).all(|shard| view.idle_in(shard) == 0) {
            return None;
        }
        let all = (0..machine.cpus() as u32).map(CpuId);
        all.filter(|cpu| view.is_idle(*cpu) && !view.is_offline(*cpu))
            .min_by_key(|cpu| machine.kernel_cpu(*cpu))
    }

    /// Periodic balance between two that are busy: half of the difference, if that is more than the domain lets pass
    /// and the difference is of whole tasks.
    fn balance(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, other: CpuId) -> u32 {
        let (here, there) = (view.runs(me), view.runs(other));
        let imbalance = balance::imbalance_pct(machine.distance(me, other));
        let differs = u64::from(there) * 100 > u64::from(here) * imbalance;
        if !differs || there < here.saturating_add(2) || !view.can_steal(me, other) {
            return 0;
        }
        // Those that run stay.
        ((there - here) / 2).min(view.backlog(other).saturating_sub(view.backlog(me)) / 2)
    }
}

impl Kernel {
    /// The shared queues of a CPU's LLC, that of the CPU first: those that begin with its first shard.
    fn queues_of(&self, machine: &SchedDomains, cpu: CpuId) -> impl Iterator<Item = usize> {
        let llc = machine.within(cpu, Distance::Llc);
        let first = machine.shard_of(llc[0]);
        let (first, all) = match self.queue_rule {
            QueueRule::V1 => (first, 1),
            QueueRule::V3 | QueueRule::V3Checked => {
                (first * QUEUES_PER_SHARD, llc.len().div_ceil(QUEUE_CPUS))
            }
        };
        // `shared_runq_shard_idx`: neighbours by number, which are threads of a core on some machines.
        let own = (machine.kernel_cpu(cpu).0 >> 1) as usize % all;
        (0..all).map(move |step| first + (own + step) % all)
    }
}

/// The domains of a CPU from the inside to the outside, each with the one within it, whose size is that of the
/// groups it consists of. A level that adds nobody is none.
fn domains(machine: &SchedDomains, cpu: CpuId) -> impl Iterator<Item = (Distance, Distance)> + '_ {
    use Distance::{Llc, Node, Other, Same, Smt, Socket};
    let mut inner = Same;
    [Smt, Llc, Node, Socket, Other].into_iter().filter_map(move |level| {
        let adds = machine.within(cpu, level).len() > machine.within(cpu, inner).len();
        adds.then(|| (level, std::mem::replace(&mut inner, level)))
    })
}

/// The groups of a domain, each of those that are within `inner` of each other.
fn groups<'m>(
    machine: &'m SchedDomains,
    all: &'m [CpuId],
    inner: Distance,
) -> impl DoubleEndedIterator<Item = &'m [CpuId]> {
    all.chunk_by(move |a, b| machine.distance(*a, *b) <= inner)
}

/// A task wakes: what its sleep adds to its history, by the rule of SIS_CACHE's code, versions 1 and 2 alike. A sleep of
/// `migration_cost` is a long one.
fn wake_as_posted(sleeps: &mut SleepHistory, now: Nanos, migration_cost: Nanos) {
    if sleeps.since.0 == 0 || now <= sleeps.since {
        return;
    }
    let (slept, average) = (now.0 - sleeps.since.0, sleeps.average.0);
    sleeps.average = Nanos(match slept < migration_cost.0 {
        // Towards 0, as a division of a difference with a sign.
        true if slept >= average => average + (slept - average) / 8,
        true => average - (average - slept) / 8,
        false => average / 2,
    });
}
