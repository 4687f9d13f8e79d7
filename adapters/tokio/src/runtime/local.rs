//! LocalRuntime: tokio's, with handles of the face.

use super::{Builder, EnterGuard, Handle, RuntimeMetrics, Scheduler};
use crate::task::{Id, Identified, JoinHandle, recorded};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

/// A current-thread runtime whose tasks need not be `Send`, and that stays on its thread. It is tokio's.
#[derive(Debug)]
pub struct LocalRuntime {
    handle: Handle,
    /// `None`: it was shut down.
    runtime: Option<real::runtime::LocalRuntime>,
}

impl LocalRuntime {
    pub(crate) fn of(runtime: real::runtime::LocalRuntime) -> Self {
        let handle = Handle::of(Scheduler::Tokio(runtime.handle().clone()));
        Self { handle, runtime: Some(runtime) }
    }

    /// A runtime with the builder's defaults and all drivers.
    ///
    /// # Errors
    /// If the system refuses a descriptor.
    pub fn new() -> std::io::Result<Self> {
        Builder::new_current_thread().enable_all().build_local(Default::default())
    }

    fn runtime(&self) -> &real::runtime::LocalRuntime {
        self.runtime.as_ref().expect("taken only when it ends")
    }

    /// Returns a handle, which spawns from any thread what is `Send`.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Spawns a task on this thread.
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let id = Id::next();
        JoinHandle::tokio(id, self.runtime().spawn_local(recorded(None, Identified::new(id, future))))
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

    /// Runs a future, and the runtime's tasks meanwhile, on this thread until the future is ready.
    ///
    /// # Panics
    /// In a task and inside another `block_on`, or if the future panics.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _outside = warmcore_runtime::outside();
        self.runtime().block_on(recorded(None, future))
    }

    /// Enters the runtime on this thread until the guard is dropped.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Cancels the tasks, and waits up to `duration` for closures of `spawn_blocking` that run.
    ///
    /// # Panics
    /// In a task and inside a `block_on`, unless the duration is 0.
    pub fn shutdown_timeout(mut self, duration: Duration) {
        let _outside = warmcore_runtime::outside();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(duration);
            warmcore_record::flush();
        }
    }

    /// Cancels the tasks, and waits for no closure.
    pub fn shutdown_background(self) {
        self.shutdown_timeout(Duration::ZERO);
    }

    /// Returns the runtime's numbers.
    pub fn metrics(&self) -> RuntimeMetrics {
        self.handle.metrics()
    }
}

impl Drop for LocalRuntime {
    fn drop(&mut self) {
        // As `Runtime::end` does.
        let _outside = warmcore_runtime::outside();
        if let Some(runtime) = self.runtime.take() {
            drop(runtime);
            warmcore_record::flush();
        }
    }
}

impl UnwindSafe for LocalRuntime {}

impl RefUnwindSafe for LocalRuntime {}
