//! Runtime: workers and tasks, and their end.
//!
//! The end of one of Warmcore's runtimes has the order that tokio's has: first every task is cancelled, then the pool of
//! `spawn_blocking` waits for its closures, which may wait for tasks, then the workers end. The pool is the part that
//! panics if the thread may not block, as tokio's documentation says.

use super::{Builder, EnterGuard, Handle, RuntimeMetrics, Scheduler};
use crate::task::{JoinHandle, recorded};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::{Duration, Instant};

/// A runtime.
///
/// Dropping it cancels its tasks, and waits for polls and closures of `spawn_blocking` that are under way.
///
/// # Panics
/// Dropping it panics in a task and inside a `block_on`, where blocking is not allowed. `shutdown_background` does not.
#[derive(Debug)]
pub struct Runtime {
    handle: Handle,
    owned: Owned,
}

#[derive(Debug)]
enum Owned {
    Warm {
        runtime: warmcore_runtime::Runtime,
        blocking: real::runtime::Runtime,
    },
    Tokio(real::runtime::Runtime),
    /// It was shut down.
    None,
}

impl Runtime {
    /// A runtime of Warmcore's, and its pool for `spawn_blocking`.
    pub(crate) fn warm(
        handle: Handle,
        runtime: warmcore_runtime::Runtime,
        blocking: real::runtime::Runtime,
    ) -> Self {
        Self { handle, owned: Owned::Warm { runtime, blocking } }
    }

    pub(crate) fn tokio(runtime: real::runtime::Runtime) -> Self {
        let handle = Handle::of(Scheduler::Tokio(runtime.handle().clone()));
        Self { handle, owned: Owned::Tokio(runtime) }
    }

    /// A multi-thread runtime with the builder's defaults and all drivers.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new() -> std::io::Result<Self> {
        Builder::new_multi_thread().enable_all().build()
    }

    /// Returns a handle that spawns from any thread.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Spawns a task.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn(future)
    }

    /// Runs a closure that blocks on a thread for such closures.
    #[track_caller]
    pub fn spawn_blocking<F, R>(&self, function: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.handle.spawn_blocking(function)
    }

    /// Runs a future on this thread until it is ready. A current-thread runtime runs its tasks meanwhile.
    ///
    /// # Panics
    /// In a task and inside another `block_on`, or if the future panics.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.owned {
            Owned::Tokio(runtime) => {
                let _outside = warmcore_runtime::outside();
                runtime.block_on(recorded(None, future))
            }
            Owned::Warm { .. } | Owned::None => self.handle.block_on(future),
        }
    }

    /// Enters the runtime on this thread until the guard is dropped.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Cancels the tasks, and waits up to `duration` for polls and closures that are under way. Those that take longer go on
    /// in the background.
    ///
    /// # Panics
    /// As dropping the runtime, unless the duration is 0.
    pub fn shutdown_timeout(mut self, duration: Duration) {
        self.end(Some(duration));
    }

    /// Cancels the tasks, and waits for none.
    pub fn shutdown_background(self) {
        self.shutdown_timeout(Duration::ZERO);
    }

    /// Returns the runtime's numbers.
    pub fn metrics(&self) -> RuntimeMetrics {
        self.handle.metrics()
    }

    /// Ends the runtime. `None`: without a timeout.
    fn end(&mut self, timeout: Option<Duration>) {
        match std::mem::replace(&mut self.owned, Owned::None) {
            Owned::None => {}
            Owned::Tokio(runtime) => {
                // Tokio drops the tasks in its own context, which one of Warmcore's would hide.
                let _outside = warmcore_runtime::outside();
                match timeout {
                    Some(timeout) => runtime.shutdown_timeout(timeout),
                    None => drop(runtime),
                }
                if timeout != Some(Duration::ZERO) {
                    warmcore_record::flush();
                }
            }
            Owned::Warm { runtime, blocking } => {
                let began = Instant::now();
                runtime.begin_shutdown();
                if timeout == Some(Duration::ZERO) {
                    runtime.shutdown_background();
                    return blocking.shutdown_background();
                }
                // If this panics, `runtime` is dropped while the panic unwinds.
                match timeout {
                    Some(timeout) => blocking.shutdown_timeout(timeout),
                    None => drop(blocking),
                }
                // Inside another runtime, which must be inside `block_in_place` here, a drop would not wait.
                let is_inside = warmcore_runtime::Handle::try_current().is_some();
                match timeout.or(is_inside.then_some(Duration::MAX)) {
                    Some(timeout) => _ = runtime.shutdown_timeout(timeout.saturating_sub(began.elapsed())),
                    None => drop(runtime),
                }
            }
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl UnwindSafe for Runtime {}

impl RefUnwindSafe for Runtime {}
