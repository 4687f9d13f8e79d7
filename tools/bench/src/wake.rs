//! `bench wake`: tasks that wake each other, on Warmcore's runtime and on others.
//!
//! Each case is written once, over the trait `Executor`, and runs on the runtimes that it compares in short slices, one
//! after the other, in one process (`idle` and `memory`: a process for each). Go runs in a separate process, with a
//! copy of the cases in Go. Rates are in thousands per second, most times are quantiles within a slice, and most ratios
//! are Warmcore's number over that of another runtime. A promise is the bound that a row should meet. The promises were
//! made before the runtime was written; a row that misses its promise is shown as prominently as one that keeps it.
//!
//! On two virtual CPUs that share their host, a ratio varies by 15 to 40 % between rounds, so a ratio below 1.3 is
//! significant only if its interval does not contain 1.
//!
//! Source: hackbench for messaging; the warm sets imitate servers that keep state between requests.

mod executor;
mod go;
pub mod late;
pub mod memory;
mod messaging;
mod noisy;
mod ours;
mod parked;
mod pingpong;
mod quantiles;
mod scope;
mod slice;
mod spawn;
mod storm;
pub mod timers;
mod warm;

pub use executor::{Executor, Tokio};
pub use ours::Ours;

use crate::case::{Case, CaseCtx};
use std::time::Duration;
use warm::{Between, Touch};
use warmcore_results::Row;

/// The cases, in the order of the report.
pub const CASES: &[Case] = &[
    Case::new("spawn.task", |ctx| spawn::run(ctx, spawn::From::Task)),
    Case::new("spawn.one", |ctx| spawn::run(ctx, spawn::From::One)),
    Case::new("spawn.outside", |ctx| spawn::run(ctx, spawn::From::Outside)),
    Case::new("pingpong.channel.1", |ctx| pingpong::run(ctx, pingpong::Through::Channel, 1)).needs_two_cpus(),
    Case::new("pingpong.channel.4", |ctx| pingpong::run(ctx, pingpong::Through::Channel, 4)).needs_two_cpus(),
    Case::new("pingpong.channel.16", |ctx| pingpong::run(ctx, pingpong::Through::Channel, 16))
        .needs_two_cpus(),
    Case::new("pingpong.oneshot.1", |ctx| pingpong::run(ctx, pingpong::Through::Oneshot, 1)).needs_two_cpus(),
    Case::new("pingpong.oneshot.16", |ctx| pingpong::run(ctx, pingpong::Through::Oneshot, 16))
        .needs_two_cpus(),
    Case::new("parked", parked::run).needs_two_cpus(),
    Case::new("messaging.1", |ctx| messaging::run(ctx, 1)).needs_two_cpus(),
    Case::new("messaging.2", |ctx| messaging::run(ctx, 2)).needs_two_cpus(),
    Case::new("messaging.4", |ctx| messaging::run(ctx, 4)).needs_two_cpus(),
    Case::new("messaging.16", |ctx| messaging::run(ctx, 16)).needs_two_cpus(),
    warm("warm.yield.chase", |ctx| warm::run(ctx, Between::Yield, Touch::Chase)),
    warm("warm.yield.sequential", |ctx| warm::run(ctx, Between::Yield, Touch::Sequential)),
    warm("warm.message.chase", |ctx| warm::run(ctx, Between::Message, Touch::Chase)),
    warm("warm.message.sequential", |ctx| warm::run(ctx, Between::Message, Touch::Sequential)),
    warm("warm.sleep.chase", |ctx| warm::run(ctx, Between::Sleep, Touch::Chase)),
    warm("warm.sleep.sequential", |ctx| warm::run(ctx, Between::Sleep, Touch::Sequential)),
    Case::new("storm", storm::run),
    Case::new("noisy.20us", |ctx| noisy::run(ctx, Duration::from_micros(20))).needs_two_cpus(),
    Case::new("noisy.50us", |ctx| noisy::run(ctx, Duration::from_micros(50))).needs_two_cpus(),
    Case::new("noisy.200us", |ctx| noisy::run(ctx, Duration::from_micros(200))).needs_two_cpus(),
    Case::new("late", late::run_case).without_slices(),
    Case::new("timers", timers::run),
    Case::new("timers.beside.2", |ctx| timers::run_beside(ctx, 2)),
    Case::new("timers.beside.16", |ctx| timers::run_beside(ctx, 16)),
    Case::new("idle", timers::idle).without_slices(),
    Case::new("memory", memory::run).without_slices(),
    Case::new("scope", scope::run),
];

/// A case of [`mod@warm`].
const fn warm(name: &'static str, run: fn(&CaseCtx) -> anyhow::Result<Vec<Row>>) -> Case {
    Case::new(name, run).needs_two_cpus().with_parts(&warm::PARTS)
}

#[cfg(test)]
mod tests;
