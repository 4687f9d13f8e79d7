//! Tasks, under the names of tokio's module `task`.
//!
//! A task that is spawned on a multi-thread runtime runs on Warmcore's workers. A task on a current-thread runtime, a
//! `LocalSet` or a `LocalRuntime` runs where tokio runs it, and so does the closure of `spawn_blocking`. A program uses
//! the same types for both: [`JoinHandle`], [`AbortHandle`], [`JoinError`], [`Id`].
//!
//! Every future is wrapped in `Identified`, which makes [`id`] known while the future is polled or dropped. What is not
//! defined here, such as `LocalKey` and `coop`, is tokio's own.

pub use real::task::*;

mod abort_handle;
pub(crate) mod blocking;
#[cfg(all(tokio_unstable, feature = "tracing"))]
mod builder;
#[cfg(tokio_unstable)]
mod hooked;
pub(crate) mod id;
mod identified;
mod join_error;
mod join_handle;
#[cfg(not(tokio_unstable))]
mod join_set;
#[cfg(tokio_unstable)]
pub mod join_set;
mod local;
mod recorded;
pub(crate) mod spawn;
#[cfg(all(tokio_unstable, feature = "tracing"))]
mod traced;

pub use abort_handle::AbortHandle;
pub use blocking::{block_in_place, spawn_blocking};
#[cfg(all(tokio_unstable, feature = "tracing"))]
pub use builder::Builder;
pub use id::{Id, id, try_id};
pub use join_error::JoinError;
pub use join_handle::JoinHandle;
#[doc(inline)]
pub use join_set::JoinSet;
pub use local::{LocalSet, spawn_local};
pub use recorded::yield_now;
pub use spawn::spawn;

pub(crate) use identified::Identified;
pub(crate) use recorded::recorded;
#[cfg(all(tokio_unstable, feature = "tracing"))]
pub(crate) use traced::Traced;
