//! `bench cid`: the gain from giving a CPU the concurrency id that it used last.
//!
//! The cases `cid.intermittent` and `cid.handover` run the same program with each method to find a data area: by the
//! CPU's number, by the ids of a tenant under each policy, and by the kernel's own ids, if it has them. They measure
//! the time of a burst. Several cases count instead, for example which CPU used a burst's data last; counts do not
//! depend on the speed of the machine.
//!
//! A burst is one pass over 16 KiB: 0.3 µs in a loop. The published times for a burst after a pause are 1.3 µs if its
//! data is still in the core's cache, 19 µs if not.
//!
//! Source: the published tables and the program behind them, linux-kernel, "Improve cache locality of RSEQ concurrency
//! IDs for intermittent workloads", 2024; librseq's basic per-CPU benchmark.

mod area;
mod elsewhere;
mod enter;
mod handover;
mod held;
pub mod intermittent;
pub mod memory;
pub mod shares;
pub mod timeline;

use crate::case::Case;
pub use warmcore_results::names::cid::OURS;

/// The cases, in the order of the report.
pub const CASES: &[Case] = &[
    Case::new(timeline::CASE, timeline::run),
    Case::new("cid.held", held::run),
    Case::new(intermittent::CASE, intermittent::run).needs_two_cpus().with_steps(intermittent::steps),
    Case::new("cid.handover", handover::run).needs_two_cpus(),
    Case::new("cid.enter", |ctx| enter::run(ctx, false)),
    Case::new("cid.enter.2threads", |ctx| enter::run(ctx, true)).needs_two_cpus(),
    Case::new("cid.elsewhere", elsewhere::run),
    Case::new("cid.memory", memory::run),
];
