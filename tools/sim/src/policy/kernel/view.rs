//! KernelView: the facts that [`Kernel`](super::Kernel) asks for and the other policies do not.
//!
//! A runtime does not have these facts, so they are not part of [`View`]. A simulation answers them from its own
//! state. Each has a default, so that a test implements only those that it tests.

use warmcore_sched::{Distance, View};
use warmcore_types::{CpuId, Nanos};

/// The state of the scheduler, as the Linux kernel knows it.
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
    /// How many tasks the CPU has: the running one, the waiting ones, and those on their way to it.
    fn runs(&self, cpu: CpuId) -> u32 {
        self.backlog(cpu).saturating_add(u32::from(!self.is_idle(cpu)))
    }
    /// The average load of a CPU, including tasks that ran there and sleep: 1024 is a task that always runs or waits.
    /// By default 1024 for each task that is there now.
    fn load(&self, cpu: CpuId) -> u64 {
        1024 * u64::from(self.runs(cpu))
    }
    /// The part of its previous CPU's load that the wakee makes up. 0 if loads are not averages.
    fn wakee_load(&self) -> u64 {
        0
    }
    /// The CPU on which the wakee ran before its previous CPU: its previous CPU at its last wake.
    fn wakee_was_on(&self) -> Option<CpuId> {
        None
    }
    /// Whether the waker wakes many tasks and the wakee is woken by many, more than fit in an LLC
    /// ([`Flips`](super::Flips)). Such tasks are not drawn together.
    fn wakes_wide(&self) -> bool {
        false
    }
    /// Whether the shard has a core all of whose CPUs are idle. By default yes: all of the LLC is then searched for
    /// one.
    fn has_idle_core_in(&self, _shard: usize) -> bool {
        true
    }
    /// The sum over the CPUs of a shard of their average use: 1024 is a CPU that is always busy. `None`: there is no
    /// average, and the CPUs that are busy now count.
    fn usage_in(&self, _shard: usize) -> Option<u64> {
        None
    }
    /// How long the CPU is usually idle ([`AverageIdle`](super::AverageIdle)).
    fn average_idle(&self, _cpu: CpuId) -> Nanos {
        Nanos(u64::MAX)
    }
    /// The highest cost for `cpu` of searching the CPUs at this distance for a task, without the CPUs of nearer
    /// domains. [`Distance::Same`]: of looking into the shared queues and taking a task from one.
    fn newidle_cost(&self, _cpu: CpuId, _within: Distance) -> Nanos {
        Nanos(0)
    }
    /// Whether the CPU has just run out of tasks. If not, it was kicked by
    /// [`cpu_to_notify`](crate::policy::SimPolicy::cpu_to_notify), or searches again.
    fn is_newly_idle(&self, _cpu: CpuId) -> bool {
        true
    }
    /// When the task that a steal would take (the one that has not run for the longest time) last ran on this CPU. 0:
    /// it has not run there since it came.
    fn last_ran(&self, _cpu: CpuId) -> Nanos {
        Nanos(0)
    }
    /// When `cpu` last searched the domain without having just run out of tasks.
    fn balanced_at(&self, _cpu: CpuId, _within: Distance) -> Nanos {
        Nanos(0)
    }
    /// How often in a row that search found no task though tasks waited there.
    fn balances_failed(&self, _cpu: CpuId, _within: Distance) -> u32 {
        0
    }
}
