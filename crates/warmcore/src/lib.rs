//! Warmcore keeps work and its data on the cores where they are warm.
//!
//! Depend on this crate. Each of its modules but [`prelude`] re-exports another crate, such as `warmcore-runtime`.
//!
//! | module | what it is |
//! |---|---|
//! | [`runtime`](mod@runtime) | a task runtime that polls each task where its data is cached; tokio's sockets and timers work on it |
//! | `http` | a server whose connections are tasks, for axum and hyper, with the feature `http` |
//! | [`percpu`] | counters, gauges, free lists and your own data per CPU, without locked instructions |
//! | [`tenant`] | ids and data for groups of tasks; an id is reused on the core where it was used |
//! | [`budget`] | limits in a tree, spent per CPU and drained from any CPU; an allocator that charges tenants |
//! | [`cid`] | the policies that choose ids, for other runtimes and simulators |
//! | [`mod@line`] | fields that must not share a cache line, checked by the compiler |
//! | [`topo`] | the machine: cores, last-level caches, nodes, sockets |
//! | [`types`] | the ids and units that the other modules use |
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
//! Tasks await tokio, hyper and axum as they do on tokio's own runtime:
//!
//! ```
//! #[warmcore::main(worker_threads = 2)]
//! async fn main() {
//!     let answer = warmcore::spawn(async { 42 }).await;
//!     assert_eq!(answer.expect("it does not panic"), 42);
//! }
//! ```
//!
//! A tenant is a group of tasks with data, a weight and a budget of its own:
//!
//! ```
//! use warmcore::prelude::*;
//!
//! let account = Account::root("orders").limit(1 << 20).build();
//! let orders = Tenant::builder().name("orders").weight(3).account(&account).build();
//!
//! let buffer: Charge = account.try_hold(64 << 10)?; // units that are uncharged when it is dropped
//! assert_eq!(orders.account().unwrap().exact_usage(), 64 << 10);
//! drop(buffer);
//! assert!(account.try_hold(2 << 20).is_err());
//! # Ok::<(), OverBudget>(())
//! ```
//!
//! Features: `runtime`, on by default; `http` adds the module `http`, and `metrics` the module
//! `runtime::export`. `hwloc`, `machine-files` and `serde` add readers of machines to [`topo`].
//!
//! The command `warmcore` (crate `warmcore-cli`) measures on a machine how much these modules gain there.

pub use warmcore_budget as budget;
pub use warmcore_cid as cid;
#[cfg(feature = "http")]
pub use warmcore_http as http;
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
    // This derive hides the one of the same name in `warmcore_line`, which refers to `::warmcore_line`.
    #[doc(inline)]
    pub use warmcore_line::*;
    pub use warmcore_line_derive::FacadeLine as Line;
}

mod zeroable {
    // As in `line`: the trait is bytemuck's. The derive here refers to it through this crate and hides bytemuck's
    // derive.
    pub use bytemuck::*;
    pub use warmcore_line_derive::FacadeZeroable as Zeroable;
}

/// The items that most programs use.
///
/// `Zeroable` is bytemuck's trait for types that may start as zeroed pages, as the contents of a
/// [`PerCid`](crate::percpu::PerCid), a [`PerCpu`](crate::percpu::PerCpu) and a tenant's data do. The derive of this
/// crate needs no dependency on bytemuck.
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
/// The error names a field whose type can't be zeroed:
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

/// Compiles and runs the README's code.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles and runs the code of the documentation's pages.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/per-cpu-data.md")]
    struct PerCpuData;
    #[doc = include_str!("../../../docs/budgets.md")]
    struct Budgets;
}
