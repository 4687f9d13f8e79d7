//! Sim: a machine that isn't here, and what the decisions of `cid`, `budget` and `place` lead to on it.
//!
//! Model.   Discrete events on a virtual clock. Three layers of cost: constants (a switch, an IPI, leaving idle),
//!          extents (a working set: which caches hold it), named lines (a lock, a counter). What decides is the
//!          very code that the runtime runs; here is only what acts.
//! Number.  The same seed gives the same bytes, on every machine and any number of threads.
//! Source.  `crates/topo/machines.toml`, where each number says where it comes from. Published results are compared
//!          with, and never read by a simulation.

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
