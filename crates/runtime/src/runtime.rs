//! Runtime: the workers, and their shutdown.
//!
//! By default a runtime has a worker for each allowed CPU, which runs on the CPUs that share its last-level cache, or fewer
//! workers, which run anywhere, if a cgroup's quota allows less. `Runtime` owns the threads: dropping it cancels every task, then ends the workers. A `Handle`
//! spawns from any thread; it does not keep the workers running. README.md, "Notes on the end", has the order of the
//! shutdown and its reasons.
//!
//! A worker costs a thread and four descriptors, among them an epoll instance, an event descriptor and a timer.

use crate::block::{self, EnterGuard};
use crate::context;
use crate::error::BuildError;
use crate::join::JoinHandle;
use crate::observe;
use crate::runtime_metrics::{self, RuntimeMetrics};
use crate::shared::Shared;
use crate::spawn::TaskBuilder;
use crate::sync::threads::sleep;
use crate::sync::{Ordering::*, fence};
use crate::task_cell::RunnableTask;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use warmcore_tenant::Tenant;
use warmcore_types::{CpuId, ignore_poison};

mod build;
mod builder;
mod handle;
#[cfg(all(test, shuttle))]
mod shuttle;

#[cfg(test)]
pub(crate) use build::{remote, shared};
pub use builder::{Builder, Smt};
pub use handle::Handle;

/// Workers, and the tasks that run on them.
///
/// Dropping it shuts down the runtime, and waits for the polls that are under way. Dropping it on a worker's thread, of
/// this runtime or of another, does not wait: the shutdown goes on in the background.
///
/// A program makes one at its start, or `#[warmcore::main]` does:
///
/// ```
/// use warmcore_runtime::{JoinError, Runtime, spawn};
///
/// let runtime = Runtime::new()?;
/// let lengths = runtime.block_on(async {
///     let short = spawn(async { "warm".len() });
///     let long = spawn(async { "warmer".len() }); // on another worker, if one is idle
///     Ok::<_, JoinError>((short.await?, long.await?))
/// })?;
/// assert_eq!(lengths, (4, 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    /// Dropped after `end` has returned. The workers have ended by then, unless the runtime was dropped on a worker's
    /// thread or the timeout of the shutdown was over.
    observer: Option<observe::Observer>,
}

impl Runtime {
    /// A runtime with the builder's defaults: a worker for every CPU that the process may use, or fewer if a cgroup's
    /// quota allows less.
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// A builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Runs a future on this thread until it is ready. Tasks that the future spawns with [`spawn`](crate::spawn())
    /// run on the workers, and a worker drives the sockets and timers that the future creates.
    ///
    /// Panics on a worker's thread, because the worker's other tasks would wait. Inside
    /// [`block_in_place`](crate::block_in_place) the thread runs no worker, if the worker could be handed to another
    /// thread.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        block::on(&self.shared, future)
    }

    /// Spawns a task.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        TaskBuilder::of(&self.shared).spawn(future)
    }

    /// Spawns a task of a tenant. It runs with the tenant's ids, account and weight.
    #[track_caller]
    pub fn spawn_in<F>(&self, tenant: &Tenant, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        TaskBuilder::of(&self.shared).tenant(tenant).spawn(future)
    }

    /// A builder of tasks with a name, a tenant or a placement.
    pub fn task_builder(&self) -> TaskBuilder {
        TaskBuilder::of(&self.shared)
    }

    /// A handle that spawns from any thread. It may outlive the runtime.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Numbers of the workers and the tenants, and their state now.
    ///
    /// **Touches** nine cache lines of each worker and, of each tenant, one for each CPU: 2 µs a tenant on two CPUs. It
    /// takes a lock of each worker's driver and of each tenant's counters.
    pub fn metrics(&self) -> RuntimeMetrics {
        runtime_metrics::read(&self.shared)
    }

    /// Enters the runtime on this thread until the guard is dropped: [`spawn`](crate::spawn()) and tokio's sockets work.
    ///
    /// ```
    /// let runtime = warmcore_runtime::Runtime::new()?;
    /// let guard = runtime.enter();
    /// let task = warmcore_runtime::spawn(async { 42 });
    /// drop(guard);
    /// assert_eq!(runtime.block_on(task).expect("it does not panic"), 42);
    /// # Ok::<(), warmcore_runtime::BuildError>(())
    /// ```
    pub fn enter(&self) -> EnterGuard<'_> {
        block::enter(&self.shared)
    }

    /// Calls `act` on this thread as inside the runtime. In contrast to [`enter`](Self::enter), no guard can be dropped in
    /// the wrong order.
    pub fn with_context<R>(&self, act: impl FnOnce() -> R) -> R {
        block::with_context(&self.shared, act)
    }

    /// Cancels every task, then ends the workers, as tokio's method of this name. Returns whether all workers ended
    /// within `timeout`. A poll that takes longer than that goes on in the background, and its task and thread end
    /// after it. Returns false at once in a task of the same runtime. If a task of each of two runtimes shuts the other
    /// runtime down, both wait until the shorter timeout is over.
    pub fn shutdown_timeout(self, timeout: Duration) -> bool {
        self.end(Some(timeout))
    }

    /// As [`shutdown_timeout`](Self::shutdown_timeout) with a timeout of zero: cancels every task and returns without
    /// waiting for the polls that are under way. A task may call it.
    pub fn shutdown_background(self) {
        self.shutdown_timeout(Duration::ZERO);
    }

    /// Cancels every task, refuses new ones, and returns. The workers end when the runtime is dropped or shut down.
    pub fn begin_shutdown(&self) {
        self.shared.close_tasks();
    }

    fn end(&self, deadline: Option<Duration>) -> bool {
        let (shared, began) = (&self.shared, Instant::now());
        // ORDERING: SeqCst; `Core::mark_parked` marks the worker as parked before `Core::search` reads `is_shutdown`; this
        // writes `is_shutdown` and then reads whether the worker is parked. So at least one of the two sees the other's
        // write.
        let give_notice = || {
            shared.is_shutdown.store(true, SeqCst);
            shared.worker_threads.end();
            fence(SeqCst);
            for worker in 0..shared.remotes.len() as u32 {
                shared.workers.try_unpark(&**shared, CpuId(worker));
            }
        };
        let close_inject_queues =
            || shared.workers.inject_queues().flat_map(|queue| queue.close()).for_each(RunnableTask::cancel);
        self.begin_shutdown();
        // A task that drops its own runtime can't wait for itself. A task that drops another runtime without a timeout does not
        // wait either, because a task of that runtime may be dropping this one.
        if shared.worker_threads.is_mine() || deadline.is_none() && context::is_a_runtimes() {
            // The rest happens in the background.
            give_notice();
            close_inject_queues();
            return false;
        }
        let is_late = || deadline.is_some_and(|deadline| began.elapsed() >= deadline);
        let mut pause = Duration::from_micros(20);
        while shared.num_alive_tasks() > 0 && !is_late() {
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        give_notice();
        let mut all_ended = true;
        // A task that blocks in place during the shutdown may start another thread, so the loop reads the list until it
        // is empty.
        loop {
            let threads = std::mem::take(&mut *ignore_poison(shared.worker_threads.threads.lock()));
            if threads.is_empty() {
                break;
            }
            for thread in threads {
                while !thread.is_finished() && deadline.is_some() && !is_late() {
                    std::thread::sleep(Duration::from_micros(100));
                }
                // A worker's thread panics only because of a bug in the runtime. The panic hook has printed it already.
                all_ended &= (deadline.is_none() || thread.is_finished()) && thread.join().is_ok();
            }
        }
        close_inject_queues();
        warmcore_record::flush();
        all_ended
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.shared.is_shutdown.load(Relaxed) {
            self.end(None);
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("name", &self.shared.name)
            .field("workers", &self.shared.remotes.len())
            .field("policy", &self.shared.workers.policy())
            .finish_non_exhaustive()
    }
}
