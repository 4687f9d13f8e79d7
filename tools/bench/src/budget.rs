//! `bench budget`: the cost of keeping an account within a limit, compared with the ways in which servers do it today.
//!
//! A variant is one way to keep accounts within a limit. Warmcore's accounts have three levels: leaf, group and root.
//! In most cases there is a variant for each kind of stock (units that a CPU holds ready) that this system offers. The
//! other variants are one shared atomic, three shared atomics, two mutexes, and a cache of units in each thread; other
//! threads can't take cached units back. In the cases `hit`, `ring`, `swing` and `accounts` a charge and its uncharge
//! are two operations, and a time is that of one operation.
//!
//! A promise is the bound that a row should meet. Most promises were made before the crate `warmcore-budget` was
//! written (`hit.rs` names one that was lowered later); a row that misses its promise is shown as prominently as one
//! that keeps it.
//!
//! The lower bound of a charge is its two stores, 2 cycles on a core that stores once a cycle. A locked instruction
//! takes 7 cycles on Zen 4 and 18 on Zen 5; where CPUs share the line it also takes a cache miss.
//!
//! Source, for what servers do today: one atomic (DataFusion's pools, restate, the AWS S3 transfer manager), units per
//! thread (ClickHouse before 2026), a mutex (Velox, CockroachDB).

mod accounts;
mod alloc;
mod cycles;
pub mod drain;
mod hit;
mod isolation;
mod limit;
pub mod memory;
mod peers;
mod setup;
mod swing;

use crate::case::Case;

/// The cases, in the order of the report.
pub const CASES: &[Case] = &[
    Case::new("hit", |ctx| hit::run(ctx, hit::Beside::Nothing)),
    Case::new("hit.2threads", |ctx| hit::run(ctx, hit::Beside::SameLeaf)).needs_two_cpus(),
    Case::new("hit.2leaves", |ctx| hit::run(ctx, hit::Beside::OtherLeaf)).needs_two_cpus(),
    Case::new("ring", |ctx| hit::ring(ctx, hit::Beside::Nothing)),
    Case::new("ring.2threads", |ctx| hit::ring(ctx, hit::Beside::SameLeaf)).needs_two_cpus(),
    Case::new("ring.2leaves", |ctx| hit::ring(ctx, hit::Beside::OtherLeaf)).needs_two_cpus(),
    Case::new("swing.below", |ctx| swing::run(ctx, swing::BELOW)),
    Case::new("swing.above", |ctx| swing::run(ctx, swing::ABOVE)),
    Case::new("accounts", accounts::run),
    Case::new(drain::QUIET, |ctx| drain::run(ctx, false)).needs_two_cpus(),
    Case::new(drain::CONTENDED, |ctx| drain::run(ctx, true)).needs_two_cpus(),
    Case::new("isolation", isolation::run).needs_two_cpus(),
    Case::new("limit", limit::run).needs_two_cpus(),
    Case::new("memory", memory::run),
    Case::new("cycles", cycles::local),
    Case::new("cycles.drain", cycles::drain),
    Case::new("alloc", alloc::touched),
    Case::new("alloc.bare", alloc::bare),
];
