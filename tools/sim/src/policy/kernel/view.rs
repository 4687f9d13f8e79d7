//! KernelView: the facts that [`Kernel`](super::Kernel) asks for beyond those of the other policies.
//!
//! A runtime does not have them, so they are no part of [`View`]. A simulation answers them from its own state. Each
//! has a default, so that a test answers only those that it is about.

use warmcore_sched::{Distance, View};
use warmcore_types::{CpuId, Nanos};

/// The state of the scheduler, as the Linux kernel knows it.
pub trait KernelView: View {
    /// Whether the first task of a shared queue may run on `me`: a steal takes no other one. By default yes, for shared
    /// queues whose tasks may run anywhere.
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
    /// By default, without averages, the tasks that are there now.
    fn load(&self, cpu: CpuId) -> u64 {
        1024 * u64::from(self.runs(cpu))
    }
    /// The part of its previous CPU's load that the wakee makes up. 0 where loads are no averages.
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
    /// The average use of the CPUs of a shard, in sum: 1024 is a CPU that is always busy. `None`: the CPUs that are
    /// busy now count.
    fn usage_in(&self, _shard: usize) -> Option<u64> {
        None
    }
    /// How long the CPU is usually idle ([`AverageIdle`](super::AverageIdle)).
    fn average_idle(&self, _cpu: CpuId) -> Nanos {
        Nanos(u64::MAX)
    }
    /// The most that it has cost `cpu` to search the CPUs at this distance for a task, without those of nearer domains.
    /// [`Distance::Same`]: what it has cost to look into the shared queues and to take a task from one.
    fn newidle_cost(&self, _cpu: CpuId, _within: Distance) -> Nanos {
        Nanos(0)
    }
    /// Whether the CPU has just run out of tasks. If not, it was kicked by
    /// [`cpu_to_notify`](crate::policy::SimPolicy::cpu_to_notify), or searches again.
    fn is_newly_idle(&self, _cpu: CpuId) -> bool {
        true
    }
    /// When the task that a steal would take, the one that has not run for the longest time, last ran on this CPU. 0:
    /// not since it came there.
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
