//! Kind: the policies that a simulation of a runtime knows by name: the product's, and those of other runtimes.

use super::{GlobalFifo, PrevCpu, WorkSteal};
use std::fmt;
use warmcore_sched::{Machine, Placed, Policy, PolicyKind, Pull, Turn, View, Wake, Whom};
use warmcore_types::{CpuId, Nanos};

/// The policies by name. [`Kernel`](super::Kernel) is not among them: it has settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SimPolicyKind {
    /// A policy of the product.
    Product(PolicyKind),
    /// Always home, and never pulled: a runtime per core.
    PrevCpu,
    /// One queue for all, as smol has it.
    GlobalFifo,
    /// The waker's CPU, and early stealing, as tokio has it.
    WorkSteal,
}

impl SimPolicyKind {
    /// All of them, the product's first.
    pub const fn all() -> [Self; 5] {
        let [home, shared_queue] = PolicyKind::all();
        [Self::Product(home), Self::Product(shared_queue), Self::PrevCpu, Self::GlobalFifo, Self::WorkSteal]
    }

    /// What it is called on a command line.
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

/// Asks the policy that is named.
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
    fn wake(&self, machine: &Machine, view: &impl View, wake: &Wake) -> Placed {
        ask!(self, policy => policy.wake(machine, view, wake))
    }

    fn pull(&self, machine: &Machine, view: &impl View, me: CpuId, now: Nanos) -> Pull {
        ask!(self, policy => policy.pull(machine, view, me, now))
    }

    fn help(&self, machine: &Machine, view: &impl View, at: CpuId, now: Nanos) -> Option<CpuId> {
        ask!(self, policy => policy.help(machine, view, at, now))
    }

    fn balance(&self, machine: &Machine, view: &impl View, me: CpuId, other: CpuId) -> u32 {
        ask!(self, policy => policy.balance(machine, view, me, other))
    }

    fn whom(&self) -> Whom {
        ask!(self, policy => policy.whom())
    }

    fn shares(&self) -> bool {
        ask!(self, policy => policy.shares())
    }

    fn crowded(&self, average_poll: Nanos) -> u32 {
        ask!(self, policy => policy.crowded(average_poll))
    }

    fn turn(&self, average_poll: Nanos) -> Turn {
        ask!(self, policy => policy.turn(average_poll))
    }

    fn chain_max(&self, average_poll: Nanos) -> u32 {
        ask!(self, policy => policy.chain_max(average_poll))
    }

    fn refill(&self, average_poll: Nanos) -> Nanos {
        ask!(self, policy => policy.refill(average_poll))
    }
}
