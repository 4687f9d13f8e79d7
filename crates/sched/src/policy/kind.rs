//! Kind: the policies by name, for hosts that are told at run time which one to use.
//!
//! Model.   A kind is itself a policy: it passes each question on by a `match`. No table of functions: the
//!          compiler sees through, and a wake at home stays inline.
//! Number.  One comparison more per question.

use super::{Home, Policy, SharedQueue};
use crate::{Machine, Placed, Pull, Turn, View, Wake, Whom};
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
    fn wake(&self, machine: &Machine, view: &impl View, wake: &Wake) -> Placed {
        match self {
            Self::Home => Home.wake(machine, view, wake),
            other => other.wake_otherwise(machine, view, wake),
        }
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

impl PolicyKind {
    /// The rarer arms, out of the way of the first.
    #[inline(never)]
    fn wake_otherwise(&self, machine: &Machine, view: &impl View, wake: &Wake) -> Placed {
        ask!(self, policy => policy.wake(machine, view, wake))
    }
}
