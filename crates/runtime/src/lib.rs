#![doc = include_str!("../README.md")]

mod block;
mod context;
mod driver;
mod error;
mod host;
mod inbox;
mod living;
mod metrics;
mod queue;
mod runtime;
mod shared;
mod spare;
mod spawn;
mod sync;
mod task;
mod watch;
mod worker;

pub use block::block_in_place;
pub use error::{BuildError, JoinError};
pub use metrics::{Metrics, WorkerMetrics, WorkerStats};
pub use runtime::{Builder, Handle, Runtime, Smt};
pub use spawn::{Placement, Spawner, spawn, spawn_in, task, yield_now};
pub use task::{AbortHandle, JoinHandle};
pub use warmcore_place::PolicyKind;
