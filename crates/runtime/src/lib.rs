#![doc = include_str!("../README.md")]

mod block;
mod claims;
#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
#[path = "../tests/common/mod.rs"]
mod common;
mod context;
#[cfg(feature = "counted-clock")]
mod counted;
mod driver;
mod error;
#[cfg(feature = "metrics")]
pub mod export;
mod foreign;
mod host;
#[cfg(feature = "http")]
pub mod http;
mod inbox;
mod living;
mod metrics;
pub mod observe;
mod op_budget;
mod queue;
mod runtime;
mod scope;
mod shared;
mod spare;
mod spawn;
mod sync;
mod tally;
mod task;
mod watch;
mod worker;

#[cfg(feature = "counted-clock")]
use counted as clock;
#[cfg(not(feature = "counted-clock"))]
use warmcore_sys::clock;

pub use self::metrics::{Metrics, WorkerMetrics, WorkerStats};
pub use block::block_in_place;
pub use error::{BuildError, JoinError};
pub use runtime::{Builder, Handle, Runtime, Smt};
pub use scope::{Scope, scope};
pub use spawn::{Placement, Spawner, spawn, spawn_in, task, yield_now};
pub use tally::TenantMetrics;
pub use task::{AbortHandle, JoinHandle};
pub use warmcore_sched::PolicyKind;
