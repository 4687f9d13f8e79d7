//! Policies that only a simulation runs, and the trait through which it runs these and the product's policies.
//!
//! [`Kernel`] is Linux's placement with settings. [`PrevCpu`], [`GlobalFifo`] and [`WorkSteal`] place tasks as other
//! runtimes do. These policies exist for comparison; the product does not offer them.
//!
//! A simulation asks a [`SimPolicy`]. Each [`Policy`] of the product is one, by the implementation below. [`Kernel`]
//! implements it directly, because it asks for facts that a runtime does not have ([`KernelView`]).

mod global_fifo;
pub mod kernel;
mod kind;
mod prev_cpu;
mod work_steal;

pub use global_fifo::GlobalFifo;
pub use kernel::{Kernel, KernelView};
pub use kind::SimPolicyKind;
pub use prev_cpu::PrevCpu;
pub use work_steal::WorkSteal;

use warmcore_sched::{
    Allowed, Policy, QueueOrder, SYSCTL_MIGRATION_COST, SchedDomains, SleepHistory, StealDecision,
    StealOrder, Wake, WakeDecision,
};
use warmcore_types::{CpuId, Nanos};

/// Why a task is put on a CPU's run queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enqueued {
    /// It was woken, and ran on this CPU last.
    WokenOnPrevCpu,
    /// It was woken on another CPU than the one where it last ran.
    WokenElsewhere,
    /// It is new.
    New,
    /// It was stolen from another CPU's run queue.
    Moved,
    /// It ran on the CPU and waits again: it was preempted, or yielded.
    PutBack,
}

/// A policy that a simulation can run. The first methods are those of [`Policy`], with more facts to ask for. The
/// other methods concern state that only a simulated kernel has.
pub trait SimPolicy {
    /// See [`Policy::wake`].
    fn wake(&self, machine: &SchedDomains, view: &impl KernelView, wake: &Wake) -> WakeDecision;

    /// See [`Policy::steal`].
    fn steal(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, now: Nanos) -> StealDecision;

    /// See [`Policy::steal_order`].
    fn steal_order(&self) -> StealOrder {
        StealOrder::Last
    }

    /// See [`Policy::cpu_to_notify`].
    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl KernelView,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId>;

    /// See [`Policy::balance`].
    fn balance(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, other: CpuId) -> u32 {
        let _ = (machine, view, me, other);
        0
    }

    /// See [`Policy::queue_order`].
    fn queue_order(&self, average_poll: Nanos) -> QueueOrder {
        let _ = average_poll;
        QueueOrder::Fifo
    }

    /// See [`Policy::max_lifo_polls`].
    fn max_lifo_polls(&self, average_poll: Nanos) -> u32 {
        let _ = average_poll;
        0
    }

    /// See [`Policy::migration_cost`].
    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        let _ = average_poll;
        Nanos(0)
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

    /// Updates a task's history when it wakes. Called once per sleep.
    fn learn_sleep(&self, sleeps: &mut SleepHistory, now: Nanos) {
        sleeps.wake(now);
    }

    /// The lowest cost of a migration. It limits the average idle time of a CPU
    /// ([`AverageIdle`](kernel::AverageIdle)).
    fn sysctl_migration_cost(&self) -> Nanos {
        SYSCTL_MIGRATION_COST
    }
}

impl<P: Policy> SimPolicy for P {
    #[inline]
    fn wake(&self, machine: &SchedDomains, view: &impl KernelView, wake: &Wake) -> WakeDecision {
        Policy::wake(self, machine, view, wake)
    }

    fn steal(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, now: Nanos) -> StealDecision {
        Policy::steal(self, machine, view, me, now)
    }

    fn steal_order(&self) -> StealOrder {
        Policy::steal_order(self)
    }

    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl KernelView,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        Policy::cpu_to_notify(self, machine, view, at, now)
    }

    fn balance(&self, machine: &SchedDomains, view: &impl KernelView, me: CpuId, other: CpuId) -> u32 {
        Policy::balance(self, machine, view, me, other)
    }

    fn queue_order(&self, average_poll: Nanos) -> QueueOrder {
        Policy::queue_order(self, average_poll)
    }

    fn max_lifo_polls(&self, average_poll: Nanos) -> u32 {
        Policy::max_lifo_polls(self, average_poll)
    }

    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        Policy::migration_cost(self, average_poll)
    }
}
