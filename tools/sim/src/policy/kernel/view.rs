//! View: the facts that [`Kernel`](super::Kernel) asks for beyond those of the other policies.
//!
//! A runtime does not have them, so they are no part of [`View`]. A simulation answers them from its own state; a test
//! answers those that it is about, and each other one has an answer to begin with.

use warmcore_sched::{Distance, View};
use warmcore_types::{CpuId, Nanos};

/// What is so at this moment, as the Linux kernel knows it.
pub trait KernelView: View {
    /// Whether the first task of a shared queue may run on `me`: a pull takes no other one. A host whose shared queues
    /// hold only tasks that may run anywhere says yes.
    fn can_steal_in(&self, _me: CpuId, _queue: usize) -> bool {
        true
    }
    /// The task that runs there says that it sleeps right after this wake (a synchronous one).
    fn sleeps_next(&self, _cpu: CpuId) -> bool {
        false
    }
    /// How many tasks are there: the one that runs, all that wait, all that are on their way.
    fn runs(&self, cpu: CpuId) -> u32 {
        self.backlog(cpu).saturating_add(u32::from(!self.is_idle(cpu)))
    }
    /// The average load of a CPU, those included that sleep and ran there: 1024 is a task that always runs or
    /// waits. Without averages: what is there now.
    fn load(&self, cpu: CpuId) -> u64 {
        1024 * u64::from(self.runs(cpu))
    }
    /// The part of its home's load that is the wakee. Nothing where loads are no averages.
    fn wakee_load(&self) -> u64 {
        0
    }
    /// Where the wakee was before it came to its home: its home when it was woken the last time.
    fn wakee_was_on(&self) -> Option<CpuId> {
        None
    }
    /// The waker wakes many and the wakee is woken by many, more than fit in an LLC
    /// ([`Flips`](super::Flips) says so): they don't come together.
    fn wakes_wide(&self) -> bool {
        false
    }
    /// Whether there is a core in the shard all of whose CPUs are idle. A host that doesn't know says yes; all of
    /// the LLC is searched for one then.
    fn has_idle_core_in(&self, _shard: usize) -> bool {
        true
    }
    /// How much the CPUs of a shard are used, on average, in sum: 1024 is a CPU that is always busy. `None`:
    /// those that are busy now count.
    fn usage_in(&self, _shard: usize) -> Option<u64> {
        None
    }
    /// For how long the CPU stays idle, usually
    /// ([`AverageIdle`](super::AverageIdle) keeps it).
    fn average_idle(&self, _cpu: CpuId) -> Nanos {
        Nanos(u64::MAX)
    }
    /// What it costs `cpu` at most to search all that are at most `within` from it for a task, as was seen until
    /// now: the one domain, without those inside it. [`Distance::Same`]: what it costs to look into the shared queues, and
    /// to take a task from one.
    fn newidle_cost(&self, _cpu: CpuId, _within: Distance) -> Nanos {
        Nanos(0)
    }
    /// It has just run out of work. If not, it was called by [`cpu_to_notify`](crate::policy::SimPolicy::cpu_to_notify), or it looks again.
    fn is_newly_idle(&self, _cpu: CpuId) -> bool {
        true
    }
    /// When the one that a pull from there would take, who has not run for the longest time, ran there last. 0: not
    /// since it came there.
    fn last_ran(&self, _cpu: CpuId) -> Nanos {
        Nanos(0)
    }
    /// When `cpu` last searched those `within` without having just run out of work.
    fn balanced_at(&self, _cpu: CpuId, _within: Distance) -> Nanos {
        Nanos(0)
    }
    /// How often in a row that search came back with nothing though tasks waited there.
    fn balances_failed(&self, _cpu: CpuId, _within: Distance) -> u32 {
        0
    }
}
