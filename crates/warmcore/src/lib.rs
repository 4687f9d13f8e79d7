//! Warmcore keeps work and its data on the cores where they are warm.
//!
//! This is the crate to add; each module is a room of its own crate, re-exported.
//!
//! | module | what it is |
//! |---|---|
//! | [`runtime`](mod@runtime) | a task runtime whose tasks come home to the core that holds their data; tokio's sockets and timers work on it |
//! | [`percpu`] | counters, gauges, free lists and your own data per CPU, without locked instructions |
//! | [`tenant`] | ids and data for groups of tasks: as many as run, on the cores where they ran |
//! | [`budget`] | limits in a tree, spent per CPU and drained from afar; an allocator that charges tenants |
//! | [`cid`] | the decisions behind it, for hosts of one's own: simulators, runtimes |
//! | [`mod@line`] | fields that must not share a cache line, checked by the compiler |
//! | [`topo`] | what the machine is: cores, last-level caches, nodes, sockets |
//! | [`terms`] | the ids and units that all of them speak in |
//!
//! ```
//! use warmcore::prelude::*;
//!
//! let requests = Counter::new();
//! requests.add(1);
//! assert_eq!(requests.sum(), 1);
//!
//! #[derive(Line)]
//! #[line(crate = ::warmcore::line)]
//! #[repr(C, align(64))]
//! struct Pool {
//!     #[line(read_mostly)]
//!     limit: u64,
//!     #[line(contended)]
//!     used: Padded<std::sync::atomic::AtomicU64>,
//! }
//! ```
//!
//! Tasks; what a program awaits of tokio, hyper or axum, it awaits here:
//!
//! ```
//! #[warmcore::main(workers = 2)]
//! async fn main() {
//!     let answer = warmcore::spawn(async { 42 }).await;
//!     assert_eq!(answer.expect("it does not panic"), 42);
//! }
//! ```
//!
//! Feature `runtime`, on by default; `http` and `metrics` add [`runtime`](mod@runtime)'s modules of these names.
//!
//! The command `warmcore` (crate `warmcore-lab`) measures what it is worth on a machine.

pub use warmcore_budget as budget;
pub use warmcore_cid as cid;
pub use warmcore_line as line;
pub use warmcore_percpu as percpu;
#[cfg(feature = "runtime")]
pub use warmcore_runtime as runtime;
pub use warmcore_tenant as tenant;
pub use warmcore_terms as terms;
pub use warmcore_topo as topo;

#[cfg(feature = "runtime")]
pub use warmcore_runtime::{
    Handle, PolicyKind, Runtime, block_in_place, scope, spawn, spawn_in, task, yield_now,
};
#[cfg(feature = "runtime")]
pub use warmcore_runtime_derive::{main, test};

/// What most programs use.
pub mod prelude {
    pub use warmcore_budget::{Account, Charge, OverBudget};
    pub use warmcore_line::{Line, Padded};
    pub use warmcore_percpu::{Counter, FreeList, Gauge, Local, PerCid, PerCpu, field};
    #[cfg(feature = "runtime")]
    pub use warmcore_runtime::{Handle, JoinHandle, Placement, Runtime};
    pub use warmcore_tenant::Tenant;
    pub use warmcore_terms::{Cid, CpuId, CpuSet, LlcId, NodeId};
    pub use warmcore_topo::Topology;
}

/// The README's code compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
