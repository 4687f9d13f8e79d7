//! The runtimes. A multi-thread runtime is Warmcore's, a current-thread runtime is tokio's.
//!
//! With `WARMCORE=0` in the environment, which is read once per process, multi-thread runtimes are tokio's too.
//!
//! The types here hold either one. The current runtime of a thread is Warmcore's if the thread entered one of those last;
//! entering one of tokio's hides it until the guard is dropped.

mod builder;
mod handle;
#[cfg(tokio_unstable)]
mod hooks;
mod local;
mod metrics;
#[expect(clippy::module_inception, reason = "the module that has `Runtime`")]
mod runtime;
mod scheduler;

pub use builder::Builder;
pub use handle::{EnterGuard, Handle};
#[cfg(tokio_unstable)]
pub(crate) use hooks::TaskHooks;
#[cfg(tokio_unstable)]
pub use hooks::TaskMeta;
pub use local::LocalRuntime;
pub use metrics::RuntimeMetrics;
pub use real::runtime::*;
pub use runtime::Runtime;
pub(crate) use scheduler::{Scheduler, Warm};

/// Returns the index of the worker that runs on this thread, as [`RuntimeMetrics`] counts workers. `None` on threads that
/// run no worker, such as those in `block_on` of a multi-thread runtime or in `spawn_blocking`.
pub fn worker_index() -> Option<usize> {
    let index = warmcore_runtime::worker_index();
    #[cfg(any(tokio_unstable, tokio_1_54))]
    let index = index.or_else(real::runtime::worker_index);
    index
}
