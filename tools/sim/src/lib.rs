//! Sim: simulates what the decisions of `cid`, `budget` and `sched` lead to on a machine that is not at hand.
//!
//! A simulation handles discrete events on a virtual clock. Costs have three layers: constants (a switch, an
//! interrupt, leaving an idle state), extents (a working set and the caches that have it), lines (a lock, a counter).
//! Decisions are made by the code that the runtime runs; this crate carries them out. [`policy`] has policies that
//! exist for comparison only. The same seed gives the same output, byte for byte, on every machine and with any
//! number of threads.
//!
//! # Source
//!
//! `crates/topo/machines.toml` has the source of each cost. A simulation never reads published results: `papers`
//! compares with them.

#![forbid(unsafe_code)]

pub mod cids;
pub mod costs;
mod error;
pub mod event;
pub mod machine;
pub mod memory;
pub mod policy;
pub mod program;
pub mod random;
pub mod simulation;
pub mod trace;

pub use error::{Error, similar_names};
