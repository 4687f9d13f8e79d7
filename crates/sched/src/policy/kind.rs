//! PolicyKind: the policies by name, for schedulers that choose one at run time.
//!
//! A kind is itself a policy: each method calls the named policy's method by a `match`, one comparison a call. There is
//! no table of functions, so the compiler inlines the common case, a wake on the task's previous CPU.

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
    /// [`Home`]: a task wakes on its previous CPU, and idle CPUs steal late.
    #[default]
    Home,
    /// [`SharedQueue`]: Linux's placement; idle CPUs steal at once, as if each LLC had one queue.
    SharedQueue,
    /// [`Home`] with other rules, for tests and simulations of single rules.
    #[doc(hidden)]
    Changed(Home),
}

impl PolicyKind {
    /// All policies that have a name, the default first.
    pub const fn all() -> [Self; 2] {
        [Self::Home, Self::SharedQueue]
    }

    /// The name that a command line takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::SharedQueue => "shared-queue",
            Self::Changed(_) => "home with changed rules",
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

/// The error of parsing a name that no policy has.
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

/// Calls a method of the policy that a kind names.
macro_rules! ask {
    ($kind:expr, $method:ident($($fact:expr),*)) => {
        match $kind {
            PolicyKind::Home => Home::DEFAULT.$method($($fact),*),
            PolicyKind::SharedQueue => SharedQueue.$method($($fact),*),
            PolicyKind::Changed(home) => home.$method($($fact),*),
        }
    };
}

impl Policy for PolicyKind {
    #[inline]
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        match self {
            Self::Home => Home::DEFAULT.wake(machine, view, wake),
            other => other.wake_otherwise(machine, view, wake),
        }
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        ask!(self, steal(machine, view, me, now))
    }

    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        ask!(self, cpu_to_notify(machine, view, at, now))
    }

    fn takes_over(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        me: CpuId,
        cpu: CpuId,
        now: Nanos,
    ) -> bool {
        ask!(self, takes_over(machine, view, me, cpu, now))
    }

    fn steal_order(&self) -> StealOrder {
        ask!(self, steal_order())
    }

    fn shares(&self) -> bool {
        ask!(self, shares())
    }

    #[inline]
    fn notify_threshold(&self, average_poll: Nanos, migration_cost: Nanos, spare: Option<Nanos>) -> u32 {
        ask!(self, notify_threshold(average_poll, migration_cost, spare))
    }

    fn serves_alone(&self, poll: Nanos, waiting: u32, wakeup_cost: Nanos) -> bool {
        ask!(self, serves_alone(poll, waiting, wakeup_cost))
    }

    fn queue_order(&self, migration_cost: Nanos) -> QueueOrder {
        ask!(self, queue_order(migration_cost))
    }

    #[inline]
    fn max_lifo_polls(&self, average_poll: Nanos, migration_cost: Nanos) -> u32 {
        ask!(self, max_lifo_polls(average_poll, migration_cost))
    }

    fn max_searching(&self, workers: u32) -> u32 {
        ask!(self, max_searching(workers))
    }

    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        ask!(self, migration_cost(average_poll))
    }
}

impl PolicyKind {
    /// The other policies' answers, not inlined, so that the default policy's path stays short.
    #[inline(never)]
    fn wake_otherwise(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        ask!(self, wake(machine, view, wake))
    }
}
