//! SimPolicyKind: the policies of a simulated runtime by name: those of the product, and those of other runtimes.

use super::{GlobalFifo, PrevCpu, WorkSteal};
use std::fmt;
use warmcore_sched::{
    Policy, PolicyKind, QueueOrder, SchedDomains, StealDecision, StealOrder, View, Wake, WakeDecision,
};
use warmcore_types::{CpuId, Nanos};

/// The policies by name. [`Kernel`](super::Kernel) is not among them: it has settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SimPolicyKind {
    /// A policy of the product.
    Product(PolicyKind),
    /// [`PrevCpu`]: a task always runs on its first CPU, as in a runtime per core.
    PrevCpu,
    /// [`GlobalFifo`]: one queue for all CPUs, as in smol.
    GlobalFifo,
    /// [`WorkSteal`]: a task wakes on its waker's CPU, and idle CPUs steal at once, as in tokio.
    WorkSteal,
}

impl SimPolicyKind {
    /// All of them, the product's first.
    pub const fn all() -> [Self; 5] {
        let [home, shared_queue] = PolicyKind::all();
        [Self::Product(home), Self::Product(shared_queue), Self::PrevCpu, Self::GlobalFifo, Self::WorkSteal]
    }

    /// The name that a command line takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Product(kind) => kind.name(),
            Self::PrevCpu => "prev-cpu",
            Self::GlobalFifo => "global-fifo",
            Self::WorkSteal => "work-steal",
        }
    }

    /// The policy of that name, if there is one.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for SimPolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Calls a method of the policy that a kind names.
macro_rules! ask {
    ($kind:expr, $policy:ident => $question:expr) => {
        match $kind {
            SimPolicyKind::Product($policy) => $question,
            SimPolicyKind::PrevCpu => {
                let $policy = PrevCpu;
                $question
            }
            SimPolicyKind::GlobalFifo => {
                let $policy = GlobalFifo;
                $question
            }
            SimPolicyKind::WorkSteal => {
                let $policy = WorkSteal;
                $question
            }
        }
    };
}

impl Policy for SimPolicyKind {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        ask!(self, policy => policy.wake(machine, view, wake))
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        ask!(self, policy => policy.steal(machine, view, me, now))
    }

    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        ask!(self, policy => policy.cpu_to_notify(machine, view, at, now))
    }

    fn balance(&self, machine: &SchedDomains, view: &impl View, me: CpuId, other: CpuId) -> u32 {
        ask!(self, policy => policy.balance(machine, view, me, other))
    }

    fn steal_order(&self) -> StealOrder {
        ask!(self, policy => policy.steal_order())
    }

    fn shares(&self) -> bool {
        ask!(self, policy => policy.shares())
    }

    fn notify_threshold(&self, average_poll: Nanos) -> u32 {
        ask!(self, policy => policy.notify_threshold(average_poll))
    }

    fn queue_order(&self, average_poll: Nanos) -> QueueOrder {
        ask!(self, policy => policy.queue_order(average_poll))
    }

    fn max_lifo_polls(&self, average_poll: Nanos) -> u32 {
        ask!(self, policy => policy.max_lifo_polls(average_poll))
    }

    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        ask!(self, policy => policy.migration_cost(average_poll))
    }
}
