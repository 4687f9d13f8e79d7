//! The trait [`Executor`], which has what a case needs of a runtime, so that each case is written once; and its
//! implementations for tokio and smol.
//!
//! Spawning, joining and yielding are each runtime's own functions, and so is sleeping on tokio and smol; Warmcore's
//! tasks sleep with tokio's `sleep`. Channels are those of tokio on every runtime: they work on any executor. The
//! module `runtimes` makes the threads. On two CPUs all runtimes together have some twenty threads; at any time most of
//! them wait.
//!
//! Source: the documentation of tokio and smol.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The tenant of a task, if the runtime has tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenancy {
    /// The tenant of tasks that compute all the time.
    Hogs,
    /// The tenant of a task that should run soon after a wake.
    Quick,
}

/// The future of a task.
pub trait Job: Future<Output: Send + 'static> + Send + 'static {}

impl<F: Future<Output: Send + 'static> + Send + 'static> Job for F {}

/// A runtime, as the cases use it.
pub trait Executor: Copy + Send + Sync + 'static {
    /// A handle that waits for a task.
    type Join<T: Send + 'static>: Send + 'static;

    /// Runs a future from a thread that is not a worker.
    fn block_on<F: Future>(self, future: F) -> F::Output;

    /// Spawns from a task, or from a future in `block_on`.
    fn spawn<F: Job>(self, future: F) -> Self::Join<F::Output>;

    /// Spawns a task from a thread that is not a worker; a runtime that never moves tasks spreads them by `number`,
    /// others ignore it.
    fn spawn_nth<F: Job>(self, number: usize, future: F) -> Self::Join<F::Output>;

    /// As [`Executor::spawn_nth`], for a tenant if the runtime has tenants.
    fn spawn_for<F: Job>(self, _: Tenancy, number: usize, future: F) -> Self::Join<F::Output> {
        self.spawn_nth(number, future)
    }

    /// Waits for the task and returns its output.
    fn join<T: Send + 'static>(task: Self::Join<T>) -> impl Future<Output = T> + Send;

    /// Lets other tasks run.
    fn yield_now() -> impl Future<Output = ()> + Send;

    /// Waits for a time.
    fn sleep(time: Duration) -> impl Future<Output = ()> + Send;

    /// Runs jobs that borrow data, from a thread that is not a worker, and waits for all of them. Panics if the runtime
    /// has no scopes.
    fn scope(self, _jobs: usize, _job: &(dyn Fn(usize) + Sync)) {
        unreachable!("not raced: it has no scope")
    }

    /// Waits for all tasks and returns their outputs in their order.
    fn join_all<T: Send + 'static>(self, tasks: Vec<Self::Join<T>>) -> Vec<T> {
        self.block_on(async {
            let mut all = Vec::with_capacity(tasks.len());
            for task in tasks {
                all.push(Self::join(task).await);
            }
            all
        })
    }
}

/// The number of the calling thread, in the order in which threads first call this.
pub fn me() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static ME: u32 = NEXT.fetch_add(1, Relaxed));
    ME.with(|me| *me)
}

/// Tokio's multi-threaded runtime (one handle), or its single-threaded runtimes (one handle for each CPU), between which
/// tasks do not move.
#[derive(Clone, Copy)]
pub struct Tokio(pub &'static [tokio::runtime::Handle]);

impl Executor for Tokio {
    type Join<T: Send + 'static> = tokio::task::JoinHandle<T>;

    fn block_on<F: Future>(self, future: F) -> F::Output {
        self.0[0].block_on(future)
    }

    fn spawn<F: Job>(self, future: F) -> Self::Join<F::Output> {
        tokio::spawn(future)
    }

    fn spawn_nth<F: Job>(self, number: usize, future: F) -> Self::Join<F::Output> {
        self.0[number % self.0.len()].spawn(future)
    }

    async fn join<T: Send + 'static>(task: Self::Join<T>) -> T {
        task.await.expect("a task of a case neither panics nor is aborted")
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }
}

/// Smol's executor on a thread for each CPU.
#[derive(Clone, Copy)]
pub struct Smol(pub &'static smol::Executor<'static>);

impl Executor for Smol {
    type Join<T: Send + 'static> = smol::Task<T>;

    fn block_on<F: Future>(self, future: F) -> F::Output {
        smol::block_on(future)
    }

    fn spawn<F: Job>(self, future: F) -> Self::Join<F::Output> {
        self.0.spawn(future)
    }

    fn spawn_nth<F: Job>(self, _: usize, future: F) -> Self::Join<F::Output> {
        self.0.spawn(future)
    }

    fn join<T: Send + 'static>(task: Self::Join<T>) -> impl Future<Output = T> + Send {
        task
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        smol::future::yield_now()
    }

    async fn sleep(time: Duration) {
        smol::Timer::after(time).await;
    }
}
