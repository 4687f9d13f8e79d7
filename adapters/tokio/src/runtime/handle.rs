//! Handle: a runtime from any thread.

use super::{RuntimeFlavor, RuntimeMetrics, Scheduler, TryCurrentError};
use crate::task::blocking::spawn_blocking_on;
use crate::task::spawn::spawn_on;
use crate::task::{JoinHandle, recorded};
#[cfg(all(tokio_unstable, feature = "tracing"))]
use crate::task::{Traced, id::Id};
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

/// Spawns on a runtime from any thread. It may outlive the runtime.
#[derive(Debug, Clone)]
pub struct Handle {
    scheduler: Scheduler,
}

/// Keeps the current thread inside a runtime until it is dropped.
///
/// # Panics
/// Guards of one thread must be dropped in the reverse order of their creation; dropping one of them in another order
/// panics.
#[must_use = "the thread leaves the runtime when the guard is dropped"]
pub struct EnterGuard<'a> {
    _guard: Guard<'a>,
}

enum Guard<'a> {
    Warm { _entered: warmcore_runtime::EnterGuard<'a> },
    Tokio { _entered: real::runtime::EnterGuard<'a>, _outside: warmcore_runtime::Outside },
}

impl fmt::Debug for EnterGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_warm = matches!(self._guard, Guard::Warm { .. });
        f.debug_struct("EnterGuard").field("is_warm", &is_warm).finish_non_exhaustive()
    }
}

impl Handle {
    pub(crate) fn of(scheduler: Scheduler) -> Self {
        Self { scheduler }
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Enters the runtime on this thread until the guard is dropped.
    pub fn enter(&self) -> EnterGuard<'_> {
        let guard = match &self.scheduler {
            Scheduler::Warm(warm) => Guard::Warm { _entered: warm.handle.enter() },
            Scheduler::Tokio(handle) => {
                let outside = warmcore_runtime::outside();
                Guard::Tokio { _entered: handle.enter(), _outside: outside }
            }
        };
        EnterGuard { _guard: guard }
    }

    /// Returns the current thread's runtime.
    ///
    /// # Panics
    /// If the thread is inside no runtime.
    #[track_caller]
    pub fn current() -> Self {
        match Self::try_current() {
            Ok(handle) => handle,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the current thread's runtime.
    ///
    /// # Errors
    /// If the thread is inside no runtime, or ends.
    pub fn try_current() -> Result<Self, TryCurrentError> {
        Scheduler::try_current().map(Self::of)
    }

    /// Spawns a task. After the runtime's shutdown it is cancelled before its first poll.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        spawn_on(self, future)
    }

    /// Runs a closure that blocks on a thread for such closures.
    #[track_caller]
    pub fn spawn_blocking<F, R>(&self, function: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        spawn_blocking_on(self, function)
    }

    /// Runs a future on this thread until it is ready. It drives no sockets and timers: a multi-thread runtime's workers
    /// do, and of a current-thread runtime only [`Runtime::block_on`](super::Runtime::block_on).
    ///
    /// # Panics
    /// In a task and inside another `block_on`. [`block_in_place`](crate::task::block_in_place) makes it possible in a
    /// task of a multi-thread runtime.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.scheduler {
            Scheduler::Warm(warm) => {
                // The first words are tokio's, which programs and their users know.
                assert!(
                    warmcore_runtime::worker_index().is_none(),
                    "Cannot start a runtime from within a runtime. `block_on` was called in a task, where it would block the \
                     worker's other tasks; await the future, or call `block_on` inside `block_in_place`"
                );
                #[cfg(all(tokio_unstable, feature = "tracing"))]
                let future = Traced::new("block_on", Id::next(), None, future);
                warm.handle.block_on(recorded(None, future))
            }
            Scheduler::Tokio(handle) => {
                let _outside = warmcore_runtime::outside();
                handle.block_on(recorded(None, future))
            }
        }
    }

    /// Returns the kind of the runtime. [`MultiThread`](RuntimeFlavor::MultiThread) if it is Warmcore's.
    pub fn runtime_flavor(&self) -> RuntimeFlavor {
        match &self.scheduler {
            Scheduler::Warm(_) => RuntimeFlavor::MultiThread,
            Scheduler::Tokio(handle) => handle.runtime_flavor(),
        }
    }

    /// Returns the runtime's id, which no other runtime of this process has at the same time.
    pub fn id(&self) -> super::Id {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.blocking().id(),
            Scheduler::Tokio(handle) => handle.id(),
        }
    }

    /// Returns the name that [`Builder::name`](super::Builder::name) gave the runtime.
    pub fn name(&self) -> Option<&str> {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.attached().name.as_deref(),
            Scheduler::Tokio(handle) => handle.name(),
        }
    }

    /// Returns the runtime's numbers.
    pub fn metrics(&self) -> RuntimeMetrics {
        RuntimeMetrics::of(self.scheduler.clone())
    }

    #[cfg(tokio_unstable)]
    pub(crate) fn task_hooks(&self) -> Option<std::sync::Arc<super::TaskHooks>> {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.attached().hooks.clone(),
            Scheduler::Tokio(handle) => super::hooks::of(handle.id()),
        }
    }
}

impl UnwindSafe for Handle {}

impl RefUnwindSafe for Handle {}
