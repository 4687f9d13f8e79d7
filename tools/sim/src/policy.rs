//! Policies that only a simulation runs, and the trait of those of a simulated kernel.
//!
//! A simulated kernel ([`KernelScheduler`](crate::simulation::KernelScheduler)) asks a [`KernelPolicy`], which may ask for
//! facts that a runtime does not have ([`KernelView`]). [`Kernel`] is Linux's placement with settings.
//!
//! The simulated workers of a runtime ([`RuntimeScheduler`](crate::simulation::RuntimeScheduler)) ask a
//! [`Policy`](warmcore_sched::Policy) of the scheduler core. [`SimPolicyKind`] has the product's policies, and some that
//! place tasks as other runtimes do. Those and [`Kernel`] exist for comparison; the product does not offer them.

pub mod kernel;
mod kind;

pub use kernel::Kernel;
pub use kind::SimPolicyKind;

use warmcore_sched::{
    Allowed, Distance, SchedDomains, SleepHistory, StealDecision, View, Wake, WakeDecision,
};
use warmcore_types::{CpuId, Nanos};

/// A task that sleeps for longer counts as one whose data are in no cache any more: Linux's default of `sysctl_sched_migration_cost`.
pub(crate) const SYSCTL_MIGRATION_COST: Nanos = Nanos(500_000);

/// Why a task is put on a CPU's run queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enqueued {
    /// It was woken, and ran on this CPU last.
    WokenOnPrevCpu,
    /// It was woken on another CPU than the one where it last ran.
    WokenElsewhere,
    /// It is new.
    New,
    /// It was taken from another CPU's run queue or from a shared queue.
    Moved,
    /// It ran on the CPU and waits again: it was preempted, or yielded.
    PutBack,
}

/// The state of the scheduler, as the Linux kernel knows it: the facts that [`Kernel`] asks for and the other policies
/// do not.
///
/// A runtime does not have these facts, so they are not part of [`View`]. A simulation answers them from its own state,
/// except `load`, of which it uses the default. Each has a default, so that a test implements only those that it tests.
pub trait KernelView: View {
    /// Whether the first task of a shared queue may run on `me`. A steal takes only the first task. By default yes,
    /// for shared queues whose tasks may run anywhere.
    fn can_steal_in(&self, _me: CpuId, _queue: usize) -> bool {
        true
    }
    /// Whether the task that runs on the CPU announces that it sleeps right after this wake (a synchronous wake).
    fn sleeps_next(&self, _cpu: CpuId) -> bool {
        false
    }
    /// How many tasks the CPU has: the running one, the waiting ones, and those on their way to it. By default the
    /// backlog, and one more if the CPU is not idle.
    fn runs(&self, cpu: CpuId) -> u32 {
        self.backlog(cpu).saturating_add(u32::from(!self.is_idle(cpu)))
    }
    /// The average load of a CPU, including tasks that ran there and sleep: 1024 is a task that always runs or waits.
    /// By default 1024 for each task that is there now.
    fn load(&self, cpu: CpuId) -> u64 {
        1024 * u64::from(self.runs(cpu))
    }
    /// The wakee's previous CPU at its last wake, which may also be its previous CPU now.
    fn wakee_was_on(&self) -> Option<CpuId> {
        None
    }
    /// Whether waker and wakee both wake different tasks in turn, one of them more than fit in an LLC
    /// ([`Flips::is_wide`](kernel::Flips::is_wide)). Such tasks are not placed together.
    fn wakes_wide(&self) -> bool {
        false
    }
    /// Whether the shard (a group of CPUs that share a queue) has a core all of whose CPUs are idle. By default yes.
    fn has_idle_core_in(&self, _shard: usize) -> bool {
        true
    }
    /// The sum over the CPUs of a shard of their average use: 1024 is a CPU that is always busy. `None`: there is no
    /// average, and the CPUs that are busy now count.
    fn usage_in(&self, _shard: usize) -> Option<u64> {
        None
    }
    /// How long the CPU is usually idle ([`AverageIdle`](kernel::AverageIdle)).
    fn average_idle(&self, _cpu: CpuId) -> Nanos {
        Nanos(u64::MAX)
    }
    /// The highest cost for `cpu` of searching the CPUs at this distance for a task, without the CPUs of nearer
    /// domains. It fades with time ([`NewidleCost`](kernel::NewidleCost)). [`Distance::Same`]: of looking into the
    /// shared queues and taking a task from one.
    fn newidle_cost(&self, _cpu: CpuId, _within: Distance) -> Nanos {
        Nanos(0)
    }
    /// Whether the CPU has just run out of tasks. If not, it was kicked by [`cpu_to_notify`](KernelPolicy::cpu_to_notify),
    /// or searches at the time that its last search set.
    fn is_newly_idle(&self, _cpu: CpuId) -> bool {
        true
    }
    /// When the task that a steal would take (the one that has not run for the longest time) last ran on this CPU. 0:
    /// it has not run there since it came, or there is no such task.
    fn last_ran(&self, _cpu: CpuId) -> Nanos {
        Nanos(0)
    }
    /// When `cpu` last searched the domain without having just run out of tasks.
    fn balanced_at(&self, _cpu: CpuId, _within: Distance) -> Nanos {
        Nanos(0)
    }
    /// How often in a row a search that examined the domain found no task in any domain though tasks waited. Searches
    /// of a CPU that has just run out of tasks do not count.
    fn balances_failed(&self, _cpu: CpuId, _within: Distance) -> u32 {
        0
    }
}

/// A policy of a simulated kernel. It places each task on a CPU's run queue; tasks may be in a shared queue as well. The
/// first three methods are methods of [`Policy`](warmcore_sched::Policy), with more facts to ask for; the others concern
/// what only a simulated kernel does.
pub trait KernelPolicy {
    /// See [`Policy::wake`](warmcore_sched::Policy::wake).
    fn wake(&self, machine: &SchedDomains, view: &impl KernelView, wake: &Wake) -> WakeDecision;

    /// See [`Policy::steal`](warmcore_sched::Policy::steal).
    fn steal(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, now: Nanos) -> StealDecision;

    /// See [`Policy::cpu_to_notify`](warmcore_sched::Policy::cpu_to_notify).
    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl KernelView,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId>;

    /// The periodic balance of a busy CPU: how many tasks of the backlog of `other` are to move to `me`, which has tasks
    /// itself.
    fn balance(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, other: CpuId) -> u32 {
        let _ = (machine, view, me, other);
        0
    }

    /// The number of shared queues in the simulation: one per shard, unless the policy has its own numbering.
    fn queues(&self, machine: &SchedDomains) -> usize {
        machine.shards()
    }

    /// The shared queue that a task enters when it is put on the run queue of `cpu`, on which it *also* waits.
    /// `None`: it enters no shared queue.
    ///
    /// The task leaves the shared queue when it runs or moves. `shared_queue_len` counts the tasks of a shared queue.
    /// [`StealDecision::Shard`] takes the first of them, and removes it from the CPU where it waits.
    fn enters(&self, machine: &SchedDomains, cpu: CpuId, allowed: Allowed, why: Enqueued) -> Option<usize> {
        let _ = (machine, cpu, allowed, why);
        None
    }

    /// Updates a task's history when it is woken. Called at each wake, also at the first one.
    fn learn_sleep(&self, sleeps: &mut SleepHistory, now: Nanos) {
        sleeps.wake(now);
    }

    /// The kernel's setting `sched_migration_cost`. It limits the average idle time of a CPU
    /// ([`AverageIdle`](kernel::AverageIdle)).
    fn sysctl_migration_cost(&self) -> Nanos {
        SYSCTL_MIGRATION_COST
    }
}
