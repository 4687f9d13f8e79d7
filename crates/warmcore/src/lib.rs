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
//! static REQUESTS: Counter = Counter::new();
//! REQUESTS.add(1);
//! assert_eq!(REQUESTS.sum(), 1);
//!
//! #[derive(Line)]
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
//! #[warmcore::main(worker_threads = 2)]
//! async fn main() {
//!     let answer = warmcore::spawn(async { 42 }).await;
//!     assert_eq!(answer.expect("it does not panic"), 42);
//! }
//! ```
//!
//! Features: `runtime`, on by default; `http` adds [`runtime`](mod@runtime)'s module of this name, and `metrics` its
//! module `export`. `hwloc`, `machine-files` and `serde` add readers of machines to [`topo`].
//!
//! The command `warmcore` (crate `warmcore-cli`) measures what it is worth on a machine.

pub use warmcore_budget as budget;
pub use warmcore_cid as cid;
pub use warmcore_percpu as percpu;
#[cfg(feature = "runtime")]
pub use warmcore_runtime as runtime;
pub use warmcore_tenant as tenant;
pub use warmcore_topo as topo;
pub use warmcore_types as types;

#[cfg(feature = "runtime")]
pub use warmcore_runtime::{
    Handle, PolicyKind, Runtime, block_in_place, scope, spawn, spawn_in, task, task_builder, yield_now,
};
#[cfg(feature = "runtime")]
pub use warmcore_runtime_derive::{main, test};

/// Fields that must not share a cache line, checked by the compiler: the crate `warmcore-line`, with a derive that
/// works in a crate that depends on `warmcore` alone.
pub mod line {
    // The derive of this name hides the one that comes with the rest, which names `::warmcore_line`.
    #[doc(inline)]
    pub use warmcore_line::*;
    pub use warmcore_line_derive::FacadeLine as Line;
}

mod zeroable {
    // As in `line`: the trait is bytemuck's, the derive names it through this crate.
    pub use bytemuck::*;
    pub use warmcore_line_derive::FacadeZeroable as Zeroable;
}

/// What most programs use.
///
/// `Zeroable` is bytemuck's trait: which types may start as zeroed pages, as what a [`PerCid`](crate::percpu::PerCid),
/// a [`PerCpu`](crate::percpu::PerCpu) and a tenant's data do. Its derive here needs no dependency on bytemuck.
///
/// ```
/// use warmcore::prelude::*;
///
/// #[derive(Zeroable)]
/// struct Stats { hits: LocalU64, misses: LocalU64 }
///
/// let stats = PerCid::<Stats>::new();
/// stats.add(field!(Stats, hits), 1);
/// assert_eq!(stats.sum(field!(Stats, hits)), 1);
/// ```
///
/// A field whose type has no zeros is named:
///
/// ```compile_fail,E0277
/// use warmcore::prelude::*;
///
/// #[derive(Zeroable)]
/// struct Names { first: &'static str }
/// ```
pub mod prelude {
    pub use crate::line::{Line, Padded};
    pub use crate::zeroable::Zeroable;
    pub use warmcore_budget::{Account, Charge, OverBudget};
    pub use warmcore_percpu::{Counter, FreeList, Gauge, LocalU64, PerCid, PerCpu, field};
    #[cfg(feature = "runtime")]
    pub use warmcore_runtime::{Handle, JoinHandle, Placement, Runtime};
    pub use warmcore_tenant::Tenant;
    pub use warmcore_topo::Topology;
    pub use warmcore_types::{Cid, CpuId, CpuSet, LlcId, NodeId};
}

/// The README's code compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
