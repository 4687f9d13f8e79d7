//! Kind: the policies by name, for hosts that are told at run time which one to use.
//!
//! Model.   A kind is itself a policy: it passes each question on by a `match`. No table of functions: the
//!          compiler sees through, and a wake at home stays inline.
//! Number.  One comparison more per question.

use super::{Home, Policy, SharedQueue};
use crate::{QueueOrder, SchedDomains, StealDecision, StealOrder, View, Wake, WakeDecision};
use std::{fmt, str::FromStr};
use warmcore_types::{CpuId, Nanos};

/// The policies by name.
///
/// ```
/// use warmcore_sched::PolicyKind;
///
/// assert_eq!("shared-queue".parse(), Ok(PolicyKind::SharedQueue));
/// assert_eq!(PolicyKind::all().map(|kind| kind.name())[0], "home");
/// let error = "homely".parse::<PolicyKind>().unwrap_err().to_string();
/// assert!(error.starts_with("no policy `homely`; choose one of home, shared-queue"), "{error}");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum PolicyKind {
    /// Ours: home, and late pulling.
    #[default]
    Home,
    /// Linux with a queue per LLC.
    SharedQueue,
}

impl PolicyKind {
    /// All of them, ours first.
    pub const fn all() -> [Self; 2] {
        [Self::Home, Self::SharedQueue]
    }

    /// What it is called on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::SharedQueue => "shared-queue",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::all().into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}

/// A name that is no policy's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPolicy {
    name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = PolicyKind::all().map(PolicyKind::name).join(", ");
        write!(f, "no policy `{}`; choose one of {names}", self.name)
    }
}

impl std::error::Error for UnknownPolicy {}

/// Asks the policy that is named.
macro_rules! ask {
    ($kind:expr, $policy:ident => $question:expr) => {
        match $kind {
            PolicyKind::Home => {
                let $policy = Home;
                $question
            }
            PolicyKind::SharedQueue => {
                let $policy = SharedQueue;
                $question
            }
        }
    };
}

impl Policy for PolicyKind {
    #[inline]
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        match self {
            Self::Home => Home.wake(machine, view, wake),
            other => other.wake_otherwise(machine, view, wake),
        }
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

impl PolicyKind {
    /// The rarer arms, out of the way of the first.
    #[inline(never)]
    fn wake_otherwise(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        ask!(self, policy => policy.wake(machine, view, wake))
    }
}
