//! `bench wake`: what our runtime makes of tasks that wake each other, beside the runtimes that are there.
//!
//! Model.   Each case is written once, over the trait `Executor`, and runs on every runtime in short slices, in turns, in
//!          one process; Go has a process of its own and takes its turns by the same clock. Rates are per
//!          second, times are quantiles within a slice, and ratios are ours over the other's. The promises
//!          were made before the runtime was; a row that misses its promise says so, with the same
//!          prominence.
//! Number.  Of two virtual CPUs that share their host, a ratio spreads by 15 to 40 % over rounds: one below
//!          1.3 means little unless its interval says so.
//! Source.  hackbench for messaging; the warm sets are the shape of servers whose requests keep state.

mod executor;
mod go;
pub mod memory;
mod messaging;
mod noisy;
mod ours;
mod parked;
mod pingpong;
mod quantiles;
mod race;
mod scope;
mod spawn;
mod storm;
pub mod timers;
mod warm;

use super::Case;
use super::runtimes::cpus;
use crate::measure::Effort;
use executor::{Executor, Smol, Tenancy, Tokio, TokioPerCore, me};
use ours::Ours;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use warm::{Between, Touch};
use warmcore_results::Row;

/// The cases, in the order of the report.
pub const CASES: &[Case] = &[
    Case { name: "spawn.task", needs_two: false, run: |ctx| spawn::run(ctx, spawn::From::Task) },
    Case { name: "spawn.one", needs_two: false, run: |ctx| spawn::run(ctx, spawn::From::One) },
    Case { name: "spawn.outside", needs_two: false, run: |ctx| spawn::run(ctx, spawn::From::Outside) },
    Case {
        name: "pingpong.channel.1",
        needs_two: true,
        run: |ctx| pingpong::run(ctx, pingpong::Through::Channel, 1),
    },
    Case {
        name: "pingpong.channel.16",
        needs_two: true,
        run: |ctx| pingpong::run(ctx, pingpong::Through::Channel, 16),
    },
    Case {
        name: "pingpong.oneshot.1",
        needs_two: true,
        run: |ctx| pingpong::run(ctx, pingpong::Through::Oneshot, 1),
    },
    Case {
        name: "pingpong.oneshot.16",
        needs_two: true,
        run: |ctx| pingpong::run(ctx, pingpong::Through::Oneshot, 16),
    },
    Case { name: "parked", needs_two: true, run: parked::run },
    Case { name: "messaging.1", needs_two: true, run: |ctx| messaging::run(ctx, 1) },
    Case { name: "messaging.4", needs_two: true, run: |ctx| messaging::run(ctx, 4) },
    Case { name: "messaging.16", needs_two: true, run: |ctx| messaging::run(ctx, 16) },
    Case {
        name: "warm.yield.chase",
        needs_two: true,
        run: |ctx| warm::run(ctx, Between::Yield, Touch::Chase),
    },
    Case {
        name: "warm.yield.sequential",
        needs_two: true,
        run: |ctx| warm::run(ctx, Between::Yield, Touch::Sequential),
    },
    Case {
        name: "warm.message.chase",
        needs_two: true,
        run: |ctx| warm::run(ctx, Between::Message, Touch::Chase),
    },
    Case {
        name: "warm.message.sequential",
        needs_two: true,
        run: |ctx| warm::run(ctx, Between::Message, Touch::Sequential),
    },
    Case {
        name: "warm.sleep.chase",
        needs_two: true,
        run: |ctx| warm::run(ctx, Between::Sleep, Touch::Chase),
    },
    Case {
        name: "warm.sleep.sequential",
        needs_two: true,
        run: |ctx| warm::run(ctx, Between::Sleep, Touch::Sequential),
    },
    Case { name: "storm", needs_two: false, run: storm::run },
    Case { name: "noisy.20us", needs_two: true, run: |ctx| noisy::run(ctx, Duration::from_micros(20)) },
    Case { name: "noisy.200us", needs_two: true, run: |ctx| noisy::run(ctx, Duration::from_micros(200)) },
    Case { name: "timers", needs_two: false, run: timers::run },
    Case { name: "idle", needs_two: false, run: timers::idle },
    Case { name: "memory", needs_two: false, run: memory::run },
    Case { name: "scope", needs_two: false, run: scope::run },
];

/// A policy of our runtime, as it can be asked for from another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// The one that makes promises.
    Home,
    /// A queue per last-level cache, as published.
    SharedQueue,
}

/// A variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contender {
    /// Our runtime, by one of its policies.
    Ours(Policy),
    /// Our runtime where nobody told it of tenants.
    OursWithoutTenants,
    /// Tokio with several threads, as its users have it.
    Tokio,
    /// The same, with a CPU for each thread.
    TokioPinned,
    /// One of tokio's single-threaded runtimes on each CPU.
    TokioPerCore,
    /// Smol's executor on a thread for each CPU.
    Smol,
    /// Rayon's pool.
    Rayon,
    /// One thread, in a loop.
    Alone,
    /// Go's runtime, in a process of its own.
    Go,
}

/// Ours, and those that others know.
const EACH: &[Contender] = &[
    Contender::OURS,
    Contender::Tokio,
    Contender::TokioPinned,
    Contender::TokioPerCore,
    Contender::Smol,
    Contender::Go,
];

/// Ours by our other policy: what of it is the policy's, and what the rest's.
const OTHER_POLICIES: [Contender; 1] = [Contender::Ours(Policy::SharedQueue)];

/// Ours by every policy, then the others.
fn all() -> Vec<Contender> {
    [&EACH[..1], &OTHER_POLICIES, &EACH[1..]].concat()
}

/// Without Go, where it can't be asked.
fn there(who: &[Contender]) -> Vec<Contender> {
    who.iter().copied().filter(|who| *who != Contender::Go || go::is_there()).collect()
}

/// What is done with a host of any type.
trait Visit {
    type Out;
    fn visit<H: Executor>(self, executor: H) -> Self::Out;
}

impl Contender {
    /// The one that makes promises.
    const OURS: Self = Self::Ours(Policy::Home);

    /// As it stands in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours(Policy::Home) => "warmcore",
            Self::Ours(Policy::SharedQueue) => "warmcore shared queue",
            Self::OursWithoutTenants => "warmcore, no tenants",
            Self::Tokio => "tokio",
            Self::TokioPinned => "tokio pinned",
            Self::TokioPerCore => "tokio per core",
            Self::Smol => "smol",
            Self::Rayon => "rayon",
            Self::Alone => "one thread",
            Self::Go => "go",
        }
    }

    /// Whether it is one of our policies.
    fn is_ours(self) -> bool {
        matches!(self, Self::Ours(_) | Self::OursWithoutTenants)
    }

    /// Whether it is a [`Executor`].
    fn is_executor(self) -> bool {
        !matches!(self, Self::Rayon | Self::Alone | Self::Go)
    }

    fn visit<V: Visit>(self, visit: V) -> V::Out {
        match self {
            Self::Ours(policy) => visit.visit(Ours::get(policy)),
            Self::OursWithoutTenants => visit.visit(Ours::without_tenants()),
            Self::Tokio => visit.visit(Tokio::get()),
            Self::TokioPinned => visit.visit(Tokio::pinned()),
            Self::TokioPerCore => visit.visit(TokioPerCore::get()),
            Self::Smol => visit.visit(Smol::get()),
            Self::Rayon | Self::Alone | Self::Go => unreachable!("{self:?} is no host"),
        }
    }
}

/// Whether this is the short run.
fn is_quick(effort: Effort) -> bool {
    effort.rounds == Effort::QUICK.rounds
}

#[cfg(test)]
mod tests;
