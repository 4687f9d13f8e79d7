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

/// Defines methods of [`Policy`] that call the same method of the policy that a kind names.
macro_rules! forward {
    ($($method:ident($($fact:ident: $of:ty),*) -> $answer:ty;)*) => {
        $(#[inline] fn $method(&self, $($fact: $of),*) -> $answer { ask!(self, $method($($fact),*)) })*
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

    forward! {
        steal(machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision;
        cpu_to_notify(machine: &SchedDomains, view: &impl View, at: CpuId, now: Nanos) -> Option<CpuId>;
        takes_over(machine: &SchedDomains, view: &impl View, me: CpuId, cpu: CpuId, now: Nanos) -> bool;
        steal_order() -> StealOrder;
        shares() -> bool;
        notify_threshold(average_poll: Nanos, migration_cost: Nanos, spare: Option<Nanos>) -> u32;
        serves_alone(poll: Nanos, waiting: u32, wakeup_cost: Nanos) -> bool;
        queue_order(migration_cost: Nanos) -> QueueOrder;
        max_lifo_polls(average_poll: Nanos, migration_cost: Nanos) -> u32;
        max_searching(workers: u32) -> u32;
        migration_cost(average_poll: Nanos) -> Nanos;
    }
}

impl PolicyKind {
    /// The other policies' answers, not inlined, so that the default policy's path stays short.
    #[inline(never)]
    fn wake_otherwise(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        ask!(self, wake(machine, view, wake))
    }
}
