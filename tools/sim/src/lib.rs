//! Sim: simulates what the decisions of `cid`, `budget` and `sched` lead to on a machine, which need not be at hand.
//!
//! A simulation handles discrete events on a virtual clock. Costs have three layers: constants (a switch, an interrupt,
//! leaving an idle state), extents (a working set and the caches that have it), lines (a lock, a counter). The
//! product's decisions are made by the code that the runtime runs; this crate carries them out. [`policy`] has
//! policies, and [`cids`] a set of rules, that exist for comparison only. The same inputs and seed give the same
//! output, byte for byte, on every machine and with any number of threads that run simulations.
//!
//! # Source
//!
//! `crates/topo/machines.toml` has the source of each cost that it gives; `costs/known.rs` has the defaults. A
//! simulation never reads published results: the crate `papers` compares with them.

#![forbid(unsafe_code)]

pub mod cases;
pub mod cids;
pub mod costs;
mod error;
pub mod event;
pub mod machine;
pub mod memory;
pub mod policy;
pub mod probe;
pub mod program;
pub mod random;
pub mod replay;
pub mod simulation;
pub mod trace;

pub use error::{Error, similar_names};
