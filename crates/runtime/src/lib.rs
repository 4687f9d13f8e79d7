#![doc = include_str!("../README.md")]

mod block;
#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
#[path = "../tests/common/mod.rs"]
mod common;
mod context;
#[cfg(feature = "counted-clock")]
mod counted;
mod error;
#[cfg(feature = "metrics")]
pub mod export;
mod header;
mod inbox;
mod join;
#[cfg(all(test, not(shuttle)))]
mod mock;
pub mod observe;
mod owned_tasks;
mod ring;
mod runtime;
mod runtime_metrics;
mod scope;
mod shared;
mod spare_cpus;
mod spawn;
mod sync;
mod task_cell;
mod task_groups;
mod tenant_stats;
mod thread_config;
mod watchdog;
mod worker;
mod worker_threads;

#[cfg(feature = "counted-clock")]
use counted as clock;
#[cfg(not(feature = "counted-clock"))]
use warmcore_sys::clock;

pub use block::{EnterGuard, block_in_place};
pub use context::{Outside, driver_runs, outside, worker_index};
pub use error::{BuildError, JoinError};
pub use join::{AbortHandle, JoinHandle};
pub use runtime::{Builder, Handle, Runtime, Smt};
pub use runtime_metrics::{RuntimeMetrics, WorkerMetrics};
pub use scope::{Scope, scope};
pub use spawn::{Placement, TaskBuilder, spawn, spawn_in, task_builder, try_task_builder, yield_now};
pub use tenant_stats::TenantMetrics;
#[doc(inline)]
pub use warmcore_driver as driver;
pub use warmcore_sched::{PolicyKind, WorkerStats};

/// Tasks, under the names of `tokio::task`.
pub mod task {
    pub use crate::{AbortHandle, JoinError, JoinHandle, TaskBuilder as Builder};
    pub use crate::{block_in_place, spawn, yield_now};
}
