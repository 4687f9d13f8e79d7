//! Scope: jobs that compute, and may borrow from who waits for them.
//!
//! Model.   Jobs wait in a queue of the scope. Tasks of the runtime, one per worker at most, and the caller itself
//!          take them from there in handfuls, so that jobs of one scope share the workers with everybody else's
//!          tasks. The scope ends when every job has.
//! Number.  A job is a box and two locks of the scope, less where many wait.
//! Writers. `jobs`, `panic`: under their locks. `pending`: who adds and who ends a job.

use crate::block;
use crate::context;
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
use warmcore_types::ignore_poison;

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that are taken at once, at most: who took them holds up the scope's end.
const HANDFUL_MAX: usize = 32;

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
    /// Runs some of the jobs that wait. False: none did.
    fn run_some(&self) -> bool {
        let mut taken: Vec<Job> = {
            let mut jobs = ignore_poison(self.jobs.lock());
            let share = jobs.len() / (2 * self.shared.remotes.len());
            let handful = share.clamp(1, HANDFUL_MAX).min(jobs.len());
            jobs.drain(..handful).collect()
        };
        let count = taken.len();
        for job in taken.drain(..) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                self.keep(panic);
            }
        }
        // ORDERING: AcqRel; who sees 0 (`Acquire` in `scope`) sees all that the jobs did.
        if count > 0 && self.pending.fetch_sub(count, AcqRel) == count {
            self.caller.unpark();
        }
        count > 0
    }

    /// The first panic is the scope's. The others end here, also those that panic when they are dropped.
    fn keep(&self, panic: Box<dyn Any + Send>) {
        let mut first = ignore_poison(self.panic.lock());
        if first.is_none() {
            *first = Some(panic);
            return;
        }
        drop(first);
        end(panic);
    }
}

/// Drops what a panic carried, which may panic in turn.
fn end(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}

/// Where jobs are started: [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    inner: Arc<Inner>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a job. It may borrow what outlives the scope.
    pub fn spawn(&'scope self, job: impl FnOnce() + Send + 'scope) {
        let job: Box<dyn FnOnce() + Send + 'scope> = Box::new(job);
        // SAFETY: `scope` does not return before `pending` is 0, so before this job has ended and was dropped.
        let job: Job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + 'scope>, Job>(job) };
        let inner = &self.inner;
        inner.pending.fetch_add(1, Relaxed);
        ignore_poison(inner.jobs.lock()).push_back(job);
        // A job may start others while the caller waits for it, and the runtime may be at its end.
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

/// Calls `act` with a scope, and returns when all jobs that were started in it have ended. The caller works on
/// them, too. For what computes: on a worker it is a [`block_in_place`](crate::block_in_place).
///
/// Panics outside a runtime, and if `act` or a job did, once all have ended.
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
        // ORDERING: Acquire; see `run_some`.
        while inner.pending.load(Acquire) > 0 {
            // A job may start others.
            if !inner.run_some() {
                std::thread::park();
            }
        }
        let panic = ignore_poison(inner.panic.lock()).take();
        match (result, panic) {
            (Err(first), second) => {
                // Not while the first unwinds: a panic in its drop would be the second at a time.
                second.into_iter().for_each(end);
                resume_unwind(first)
            }
            (Ok(_), Some(panic)) => resume_unwind(panic),
            (Ok(result), None) => result,
        }
    })
}
