//! The runtimes and policies that the cases compare.

use super::executor::{Executor, Smol, Tokio, TokioPerCore};
use super::go;
use super::ours::{Ours, Policy};
use serde::{Deserialize, Serialize};

/// A variant of the cases: a runtime that is made in a certain way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contender {
    /// Warmcore's runtime, with one of its policies.
    Ours(Policy),
    /// Warmcore's runtime, whose tasks have no tenant.
    OursWithoutTenants,
    /// Tokio with several threads and default settings.
    Tokio,
    /// Tokio with each worker pinned to a CPU.
    TokioPinned,
    /// One of tokio's single-threaded runtimes on each CPU.
    TokioPerCore,
    /// Smol's executor on a thread for each CPU.
    Smol,
    /// Rayon's thread pool.
    Rayon,
    /// No runtime: one thread, in a loop.
    Alone,
    /// Go's runtime, in a separate process.
    Go,
}

/// Warmcore with its default policy, and the other runtimes.
pub const EACH: &[Contender] = &[
    Contender::OURS,
    Contender::Tokio,
    Contender::TokioPinned,
    Contender::TokioPerCore,
    Contender::Smol,
    Contender::Go,
];

/// Warmcore with its other policy, which shows how much of a result depends on the policy.
pub const OTHER_POLICIES: [Contender; 1] = [Contender::Ours(Policy::SharedQueue)];

/// Returns Warmcore with every policy, then the other runtimes.
pub fn all() -> Vec<Contender> {
    [&EACH[..1], &OTHER_POLICIES, &EACH[1..]].concat()
}

/// Returns the contenders that can run here: without Go if it is not installed.
pub fn there(who: &[Contender]) -> Vec<Contender> {
    who.iter().copied().filter(|who| *who != Contender::Go || go::is_there()).collect()
}

/// A function over an [`Executor`] of any type.
pub trait Visit {
    type Out;
    fn visit<H: Executor>(self, executor: H) -> Self::Out;
}

impl Contender {
    /// The contender about which the promises are.
    pub const OURS: Self = Self::Ours(Policy::Home);

    /// The name, as in the rows.
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

    /// Whether it is Warmcore's runtime.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ours(_) | Self::OursWithoutTenants)
    }

    /// Whether it is an [`Executor`].
    pub fn is_executor(self) -> bool {
        !matches!(self, Self::Rayon | Self::Alone | Self::Go)
    }

    pub fn visit<V: Visit>(self, visit: V) -> V::Out {
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
