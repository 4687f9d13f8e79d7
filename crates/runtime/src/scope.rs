//! Scope: closures that compute, run on the workers, and may borrow from the thread that waits for them.
//!
//! The closures, called jobs, wait in the scope's queue. The caller, and about one task for each worker, take jobs from
//! that queue, at most [`SHARE_MAX`] at a time. Such a task yields after each handful, so other tasks run on the
//! workers in between. The scope ends when every job has ended.
//!
//! A job costs a box, and two locks of the scope's queue, or less than two if many jobs wait; a scope also spawns a
//! task with each job until it has one for each worker.

use crate::block;
use crate::context;
use crate::error::drop_caught;
use crate::shared::Shared;
use crate::spawn::{TaskBuilder, no_runtime, yield_now};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use warmcore_sched::SHARE_MAX;
use warmcore_types::ignore_poison;

type Job = Box<dyn FnOnce() + Send>;

struct Inner {
    shared: Arc<Shared>,
    jobs: Mutex<VecDeque<Job>>,
    /// Jobs that have not ended.
    pending: AtomicUsize,
    /// Tasks that run jobs.
    runners: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

impl Inner {
    /// Runs some of the jobs that wait. False: no job waits.
    fn run_some(&self) -> bool {
        let taken: Vec<Job> = {
            let mut jobs = ignore_poison(self.jobs.lock());
            let share = jobs.len() / (2 * self.shared.remotes.len());
            let handful = share.clamp(1, SHARE_MAX).min(jobs.len());
            jobs.drain(..handful).collect()
        };
        let count = taken.len();
        for job in taken {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                self.keep(panic);
            }
        }
        // ORDERING: AcqRel; pairs with the Acquire in `scope`: a thread that sees 0 sees what the jobs did.
        if count > 0 && self.pending.fetch_sub(count, AcqRel) == count {
            self.caller.unpark();
        }
        count > 0
    }

    /// Keeps the first panic, which the scope raises. Later panics are dropped, even if dropping their payload panics.
    fn keep(&self, panic: Box<dyn Any + Send>) {
        let mut first = ignore_poison(self.panic.lock());
        if first.is_none() {
            *first = Some(panic);
        } else {
            drop(first);
            drop_caught(panic);
        }
    }
}

/// Starts jobs. [`scope`] passes it to its closure.
pub struct Scope<'scope, 'env: 'scope> {
    inner: Arc<Inner>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a job. The job may borrow data that outlive the scope.
    #[track_caller]
    pub fn spawn(&'scope self, job: impl FnOnce() + Send + 'scope) {
        let job: Box<dyn FnOnce() + Send + 'scope> = Box::new(job);
        // SAFETY: `scope` returns after `pending` is 0, and so after this job has run and was dropped.
        let job: Job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + 'scope>, Job>(job) };
        let inner = &self.inner;
        inner.pending.fetch_add(1, Relaxed);
        ignore_poison(inner.jobs.lock()).push_back(job);
        // If a job starts this job, the caller may be parked, and if the runtime is shutting down no task runs jobs. So
        // the caller is woken to run them.
        inner.caller.unpark();
        let runners = inner.runners.load(Relaxed);
        if runners < inner.shared.remotes.len() {
            inner.runners.fetch_add(1, Relaxed);
            let runner = inner.clone();
            let spawner = TaskBuilder::of(&inner.shared);
            drop(spawner.spawn(async move {
                while runner.run_some() {
                    yield_now().await;
                }
                runner.runners.fetch_sub(1, Relaxed);
            }));
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.inner.pending.load(Relaxed);
        f.debug_struct("Scope").field("pending", &pending).finish_non_exhaustive()
    }
}

/// Calls `act` with a scope, and returns when all jobs that were started in it have ended. The caller runs jobs too; on
/// a worker it first hands the worker off, as [`block_in_place`](crate::block_in_place) does, if the system grants a
/// thread. Jobs should compute, not wait.
///
/// Panics outside a runtime. Panics after all jobs have ended if `act` or a job panicked.
///
/// ```
/// # let runtime = warmcore_runtime::Runtime::new().unwrap();
/// # runtime.with_context(|| {
/// let mut numbers = vec![1u64; 1000];
/// warmcore_runtime::scope(|scope| {
///     for part in numbers.chunks_mut(100) {
///         scope.spawn(|| part.iter_mut().for_each(|number| *number += 1));
///     }
/// });
/// assert_eq!(numbers.iter().sum::<u64>(), 2000);
/// # });
/// ```
#[track_caller]
pub fn scope<'env, R>(act: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
    let Some(shared) = context::current() else { no_runtime() };
    block::block_in_place(|| {
        let inner = Arc::new(Inner {
            shared,
            jobs: Mutex::default(),
            pending: AtomicUsize::new(0),
            runners: AtomicUsize::new(0),
            panic: Mutex::default(),
            caller: std::thread::current(),
        });
        let scope = Scope { inner: inner.clone(), scope: PhantomData, env: PhantomData };
        let result = catch_unwind(AssertUnwindSafe(|| act(&scope)));
        while inner.run_some() {}
        // ORDERING: Acquire; pairs with the AcqRel in `run_some`.
        while inner.pending.load(Acquire) > 0 {
            // A job that ran elsewhere may have started jobs, so the caller runs these before it parks again.
            if !inner.run_some() {
                std::thread::park();
            }
        }
        let panic = ignore_poison(inner.panic.lock()).take();
        match (result, panic) {
            (Err(first), second) => {
                // Drops the second panic first. If its drop panicked while the first panic unwinds, the process would
                // abort.
                second.into_iter().for_each(drop_caught);
                resume_unwind(first)
            }
            (Ok(_), Some(panic)) => resume_unwind(panic),
            (Ok(result), None) => result,
        }
    })
}
