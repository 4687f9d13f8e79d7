//! The runtimes and policies that the cases compare.

use super::executor::{Executor, Smol, Tokio};
use super::go;
use super::ours::Ours;
pub use crate::runtimes::Contender;
use crate::runtimes::{smol_threads, tokio_per_core, tokio_threads};
use warmcore_runtime::PolicyKind;

/// Warmcore with its default policy, and the other runtimes.
pub const EACH: &[Contender] = &[
    Contender::Ours,
    Contender::Tokio,
    Contender::TokioPinned,
    Contender::TokioPerCore,
    Contender::Smol,
    Contender::Go,
];

/// Returns [`EACH`], and `other` after its first element.
pub fn each_and(other: Contender) -> Vec<Contender> {
    [&EACH[..1], &[other], &EACH[1..]].concat()
}

/// Returns Warmcore with every policy, which shows how much of a result depends on the policy, then the other runtimes.
pub fn all() -> Vec<Contender> {
    each_and(Contender::OursSharedQueue)
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

/// Calls the function with the executor of this contender.
pub fn visit<V: Visit>(who: Contender, function: V) -> V::Out {
    match who {
        Contender::Ours => function.visit(Ours::get(PolicyKind::Home)),
        Contender::OursSharedQueue => function.visit(Ours::get(PolicyKind::SharedQueue)),
        Contender::OursWithoutTenants => function.visit(Ours::without_tenants()),
        Contender::Tokio => function.visit(Tokio(tokio_threads(false))),
        Contender::TokioPinned => function.visit(Tokio(tokio_threads(true))),
        Contender::TokioPerCore => function.visit(Tokio(tokio_per_core())),
        Contender::Smol => function.visit(Smol(smol_threads())),
        Contender::OursSpread | Contender::Rayon | Contender::Alone | Contender::Go => {
            unreachable!("{who:?} is no executor")
        }
    }
}
