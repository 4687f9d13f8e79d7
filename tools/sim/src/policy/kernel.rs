//! Kernel: Linux's placement, with the settings that its developers argued about.
//!
//! `wake.rs`: the target of a woken task is its waker's CPU or its previous CPU (`wake_affine`); the task goes there,
//! or to an idle CPU of the same LLC. If the CPUs that are tried first are not idle (the target, the previous CPU, the
//! one before it), a search of the LLC looks for a wholly idle core if cores have several threads and there is such a
//! core; else for an idle CPU in the order of the kernel's CPU numbers, as deep as SIS_UTIL (a limit by the use of the
//! LLC) allows. A new task goes to the part of the machine with the most idle CPUs, unless its own is about as good.
//!
//! `balance.rs`: a CPU that runs out of tasks searches its domains from the innermost to the outermost for a waiting
//! task. With [`Newidle::Gated`] it does not search a domain if it is usually idle for less time than the search up to
//! that domain costs. A CPU that was kicked ([`cpu_to_notify`](KernelPolicy::cpu_to_notify), asked at each tick of a CPU
//! where stealable tasks wait) searches whatever the cost, but each domain at most once per interval (1 ms for each CPU
//! of the domain).
//!
//! `record.rs`: the state that the kernel keeps from one decision to the next. The simulation stores it.
//!
//! The settings are switches in the same code, so that two runs differ in nothing else. Version 1 of the shared wake
//! queue has one queue per LLC; version 3 has one per six CPUs of an LLC, assigned by CPU number.
//!
//! # What a simulation provides
//! [`SharedQueue`](warmcore_sched::SharedQueue) is the part of this placement that a runtime can use. [`KernelView`]
//! has fourteen facts more than `View`, of which five matter most: `sleeps_next`, `usage_in`, `average_idle`,
//! `newidle_cost`, `last_ran`.
//!
//! - `is_idle` is the kernel's `available_idle_cpu`: no task runs there, waits there or is on its way there. A CPU that
//!   searches is not idle either.
//! - The examination of a CPU is one call: `is_idle` in a wake, `runs` in a search. A simulation that counts the calls
//!   has the cost of the search; `newidle_cost` is the highest cost of these calls so far in a domain, faded with time.
//! - [`StealDecision::From`] takes, of the tasks in that CPU's queue that may run on the stealing CPU, the one that has
//!   not run for the longest time. [`StealDecision::Shard`] takes the first task of the shared wake queue, if it may
//!   run there, and removes it from the CPU where it waits ([`KernelPolicy::enters`]).
//! - `usage_in` averages the time that CPUs *run*. With pairs of tasks that wake each other, many CPUs are leaving an
//!   idle state at any time: none of them counts as idle, and `usage_in` does not count them as running. So wakes
//!   continue to search, which keeps the machine in this state.
//! - A hot window opens only for a task that blocks while no task is queued on its CPU.
//!
//! # Source
//! Linux 6.6: `select_task_rq_fair`, `wake_affine`, `select_idle_sibling`, `select_idle_cpu`, `find_idlest_cpu`,
//! `newidle_balance`, `find_busiest_group`, `can_migrate_task`, `nohz_balancer_kick`. Hot windows: SIS_CACHE, v2,
//! November 2023. Wake queue: `swqueue`, v1, 13 June 2023; `shared_runq`, v3, 9 August 2023, 5/7 to 7/7. SIS_NODE:
//! `select_idle_node`, June 2023. Left out: groups, priorities, unequal CPUs, active balancing, misfits, per-CPU
//! kthreads.

mod balance;
mod record;
mod wake;

pub use balance::{CACHE_NICE_TRIES, CACHE_NICE_TRIES_FAR};
pub(crate) use record::Usage;
pub use record::{AverageIdle, Flips, NewidleCost};

use super::{Enqueued, KernelPolicy, KernelView, SYSCTL_MIGRATION_COST};
use warmcore_sched::{
    Allowed, Distance, SHARD_CPUS_MAX, SchedDomains, SleepHistory, StealDecision, Wake, WakeDecision,
};
use warmcore_types::{CpuId, Nanos};

/// Whether a CPU that runs out of tasks searches other CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Newidle {
    /// If it is usually idle for at least as long as the search costs, as in Linux.
    #[default]
    Gated,
    /// Always, whatever the search costs.
    Always,
    /// Never. A kicked CPU still searches.
    Off,
}

/// What a search does with an idle CPU that is kept for another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum HotRule {
    /// Passes over it, however many such CPUs the search has passed over. A search that has used up its depth (the CPUs
    /// that it may examine) and found no other idle CPU ends at its target, the waker's CPU or the previous one, and
    /// the task waits there. A search that reaches the end of the LLC before takes the first such CPU. v1, September
    /// 2023.
    V1,
    /// Passes over as many such CPUs as half of the depth, rounded up, then takes the next one; otherwise as `V1`. v2,
    /// November 2023.
    #[default]
    V2,
    /// Passes over as many such CPUs as half of the depth, rounded up; then, or if the search has found no other idle
    /// CPU, it takes the first of them. The text of v2 describes this; the code of v2 takes the first one only at the
    /// end of the LLC.
    V2Text,
}

/// An LLC has one shared queue of v3 for each this many of its CPUs (`SHARED_RUNQ_SHARD_SZ`), rounded up.
const QUEUE_CPUS: usize = 6;

/// The number of v3's queues for a shard of [`SHARD_CPUS_MAX`] CPUs, the largest one.
const QUEUES_PER_SHARD: usize = SHARD_CPUS_MAX.div_ceil(QUEUE_CPUS);

/// The version of the shared wake queue: which tasks enter it, and when a CPU takes from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum QueueRule {
    /// One queue per LLC. A task that is not pinned enters when it is woken on its previous CPU. A CPU takes from the
    /// queue before it searches. v1, June 2023.
    #[default]
    V1,
    /// One queue per six CPUs of an LLC; a CPU looks into all of them, its own first. A task that is not pinned enters
    /// whenever it is put on a run queue: woken, new, moved, or put back.
    ///
    /// With [`Newidle::Gated`], a CPU that has just run out of tasks and found none there searches only if it is
    /// usually idle for at least as long as searching the first domain beyond the LLC costs, if there is such a domain.
    /// The search then begins with the innermost domain: the patch means to skip the domains within the LLC, but its
    /// loop begins anew.
    ///
    /// v3, August 2023. The time of the look into the queues is part of the search's cost, as in the measurement of
    /// September.
    V3,
    /// As v3, but with another check, which [`Newidle::Always`] omits: a CPU that has just run out of tasks neither
    /// looks into the queues nor searches if it is usually idle for less time than a search of its LLC costs, or a look
    /// into the queues. A kicked CPU for which this holds only searches. The experiment of September 2023 that was
    /// measured beside v3. Which domain's cost it compared was not posted; the LLC is the domain in the diff of 30
    /// August.
    V3Checked,
}

/// Linux's placement. [`Default`] is Linux 6.6 as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Whether searches pass over idle CPUs that are kept for a task that sleeps briefly (SIS_CACHE).
    pub hot_windows: bool,
    /// What a search does with an idle CPU that is kept, if `hot_windows`.
    pub hot_rule: HotRule,
    /// Whether tasks are also put into a shared queue (which ones: `queue_rule`), from which CPUs take tasks before
    /// they search.
    pub wake_queue: bool,
    /// The version of the shared queue, if `wake_queue`.
    pub queue_rule: QueueRule,
    /// Whether a search that chose no CPU in the target's LLC goes on in the other LLCs of that node (SIS_NODE).
    pub sis_node: bool,
    /// Whether a CPU that runs out of tasks searches other CPUs.
    pub newidle: Newidle,
    /// A task that ran on a CPU less than this ago counts as having its data in that CPU's cache, and a search beyond
    /// the core leaves it there at first (`sched_migration_cost`). 0: no task counts so. Hot windows count a sleep of
    /// this or more as a long one. A CPU's average idle time is at most twice this, or twice what a search costs if
    /// that is more.
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

impl KernelPolicy for Kernel {
    fn wake(&self, machine: &SchedDomains, view: &impl KernelView, wake: &Wake) -> WakeDecision {
        Decision { kernel: self, machine, view }.wake(wake)
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

    /// With v1, only a task that was woken on its previous CPU enters: any other CPU was chosen on purpose. A pinned
    /// task does not enter, and without `wake_queue` no task does.
    fn enters(&self, machine: &SchedDomains, cpu: CpuId, allowed: Allowed, why: Enqueued) -> Option<usize> {
        let is_pinned = matches!(allowed, Allowed::Cpu(_));
        let is_meant = self.queue_rule != QueueRule::V1 || why == Enqueued::WokenOnPrevCpu;
        let enters = self.wake_queue && is_meant && !is_pinned;
        enters.then(|| self.queues_of(machine, cpu).next()).flatten()
    }

    fn steal(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, now: Nanos) -> StealDecision {
        let decision = Decision { kernel: self, machine, view };
        if self.wake_queue {
            let is_open = decision.queues_are_worth_a_look(me);
            if !is_open && view.is_newly_idle(me) {
                return StealDecision::Nothing;
            }
            let holds_one =
                |queue: &usize| view.shared_queue_len(*queue) > 0 && view.can_steal_in(me, *queue);
            if is_open && let Some(queue) = self.queues_of(machine, me).find(holds_one) {
                return StealDecision::Shard(queue);
            }
        }
        decision.search(me, now)
    }

    /// `nohz_balancer_kick`, `find_new_ilb`: if `at` has two tasks or more, the idle CPU with the lowest kernel number
    /// is to search.
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

    /// The periodic balance of a busy CPU: moves at most half of the difference in tasks, and in backlog, if `other`
    /// has at least two tasks more and the difference in tasks is more than the domain tolerates.
    fn balance(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, other: CpuId) -> u32 {
        let (here, there) = (view.runs(me), view.runs(other));
        let imbalance = balance::imbalance_pct(machine.distance(me, other));
        let differs = u64::from(there) * 100 > u64::from(here) * imbalance;
        if !differs || there < here.saturating_add(2) || !view.can_steal(me, other) {
            return 0;
        }
        // Running tasks stay.
        ((there - here) / 2).min(view.backlog(other).saturating_sub(view.backlog(me)) / 2)
    }
}

impl Kernel {
    /// The shared queues of a CPU's LLC, the CPU's own first. Their numbers begin at that of the LLC's first shard, in
    /// v3 times `QUEUES_PER_SHARD`.
    fn queues_of(&self, machine: &SchedDomains, cpu: CpuId) -> impl Iterator<Item = usize> {
        let llc = machine.within(cpu, Distance::Llc);
        let first = machine.shard_of(llc[0]);
        let (first, all) = match self.queue_rule {
            QueueRule::V1 => (first, 1),
            QueueRule::V3 | QueueRule::V3Checked => {
                (first * QUEUES_PER_SHARD, llc.len().div_ceil(QUEUE_CPUS))
            }
        };
        // `shared_runq_shard_idx`: by kernel number, so that CPUs 2n and 2n + 1 share a queue; on some machines these
        // are the threads of a core.
        let own = (machine.kernel_cpu(cpu).0 >> 1) as usize % all;
        (0..all).map(move |step| first + (own + step) % all)
    }
}

/// A decision that is being made: the settings, the machine and the facts.
struct Decision<'a, V> {
    kernel: &'a Kernel,
    machine: &'a SchedDomains,
    view: &'a V,
}

impl<'a, V> Decision<'a, V> {
    /// The domains of a CPU from the innermost to the outermost, each with the next domain within it. The groups of a
    /// domain have the size of that inner domain. A level that has no more CPUs than the level within it is left out.
    fn domains(&self, cpu: CpuId) -> impl Iterator<Item = (Distance, Distance)> {
        use Distance::{Llc, Node, Other, Same, Smt, Socket};
        let mut inner = Same;
        [Smt, Llc, Node, Socket, Other].into_iter().filter_map(move |level| {
            let adds = self.machine.within(cpu, level).len() > self.machine.within(cpu, inner).len();
            adds.then(|| (level, std::mem::replace(&mut inner, level)))
        })
    }

    /// The groups of a domain: its CPUs that are within `inner` of each other.
    fn groups(&self, all: &'a [CpuId], inner: Distance) -> impl Iterator<Item = &'a [CpuId]> {
        all.chunk_by(move |a, b| self.machine.distance(*a, *b) <= inner)
    }
}

/// Updates a task's history when it wakes, by the rule of SIS_CACHE's code, which is the same in versions 1 and 2. A
/// sleep of `migration_cost` or more is a long one, which halves the average.
fn wake_as_posted(sleeps: &mut SleepHistory, now: Nanos, migration_cost: Nanos) {
    if sleeps.since.0 == 0 || now <= sleeps.since {
        return;
    }
    let (slept, average) = (now.0 - sleeps.since.0, sleeps.average.0);
    sleeps.average = Nanos(match slept < migration_cost.0 {
        // Rounded towards 0, as C divides signed numbers.
        true if slept >= average => average + (slept - average) / 8,
        true => average - (average - slept) / 8,
        false => average / 2,
    });
}
