//! Handle: what spawns on a runtime and does not keep its workers running.

use super::*;
use std::any::Any;

/// Spawns on a runtime from any thread. A task that is spawned after the runtime's shutdown began is cancelled before
/// its first poll.
///
/// A thread outside of the runtime, such as one that reads from a device, passes its work to the workers:
///
/// ```
/// use warmcore_runtime::Runtime;
///
/// let runtime = Runtime::new()?;
/// let handle = runtime.handle();
/// let reader = std::thread::spawn(move || {
///     let samples = vec![3u64, 4, 5];
///     handle.spawn(async move { samples.iter().sum::<u64>() })
/// });
/// let task = reader.join().expect("it does not panic");
/// assert_eq!(runtime.block_on(task)?, 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// The handle of the current thread's runtime. Panics if the thread is inside none.
    #[track_caller]
    pub fn current() -> Self {
        match Self::try_current() {
            Some(handle) => handle,
            None => crate::spawn::no_runtime(),
        }
    }

    /// The handle of the current thread's runtime, if it is inside one.
    pub fn try_current() -> Option<Self> {
        context::current().map(|shared| Self { shared })
    }

    /// As [`Runtime::spawn`].
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        TaskBuilder::of(&self.shared).spawn(future)
    }

    /// Returns the value that is attached to the runtime, and attaches the one of `init` if there is none. A layer over the
    /// runtime keeps there what belongs to it, and finds it from each thread inside the runtime. The value is dropped with
    /// the last handle or task.
    ///
    /// # Panics
    /// If the attached value has another type: a runtime has room for one.
    ///
    /// ```
    /// use warmcore_runtime::{Handle, Runtime};
    ///
    /// struct Cluster(&'static str);
    ///
    /// let runtime = Runtime::new()?;
    /// runtime.handle().attachment(|| Cluster("west"));
    /// let name = runtime.block_on(async { Handle::current().attachment(|| Cluster("none")).0 });
    /// assert_eq!(name, "west");
    /// # Ok::<(), warmcore_runtime::BuildError>(())
    /// ```
    #[track_caller]
    pub fn attachment<T: Any + Send + Sync>(&self, init: impl FnOnce() -> T) -> &T {
        let attached = &**self.shared.attachment.get_or_init(|| Box::new(init()));
        match attached.downcast_ref() {
            Some(attached) => attached,
            None => panic!("the runtime's attachment is no {}", std::any::type_name::<T>()),
        }
    }

    /// As [`Runtime::task_builder`].
    pub fn task_builder(&self) -> TaskBuilder {
        TaskBuilder::of(&self.shared)
    }

    /// As [`Runtime::metrics`].
    pub fn metrics(&self) -> RuntimeMetrics {
        runtime_metrics::read(&self.shared)
    }

    /// Number of workers.
    pub fn num_workers(&self) -> usize {
        self.shared.remotes.len()
    }

    /// Number of tasks that are alive. Touches a cache line of each worker.
    pub fn num_alive_tasks(&self) -> usize {
        self.shared.num_alive_tasks()
    }

    /// Number of tasks in all injection queues, the sum of [`RuntimeMetrics::injection_queue_depths`]. Touches a cache
    /// line of each queue.
    pub fn injection_queue_depth(&self) -> usize {
        self.shared.workers.inject_queues().map(|queue| queue.len() as usize).sum()
    }

    /// As [`Runtime::block_on`].
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        block::on(&self.shared, future)
    }

    /// As [`Runtime::enter`].
    pub fn enter(&self) -> EnterGuard<'_> {
        block::enter(&self.shared)
    }

    /// As [`Runtime::with_context`].
    pub fn with_context<R>(&self, act: impl FnOnce() -> R) -> R {
        block::with_context(&self.shared, act)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("runtime", &self.shared.name).finish_non_exhaustive()
    }
}
