//! Context: the runtime and the worker of the current thread, in thread-local variables.
//!
//! A worker's thread has a pointer to its `Worker`. A thread in `block_on`, and a thread that entered a runtime, has
//! that runtime. [`schedule`] is called for every wake that makes a task runnable. If the current thread is a worker of
//! the task's runtime, it calls `Core::schedule`, else `Workers::schedule_external`.
//!
//! A wake by a task that runs on the worker that polled the woken task last reads the pointer, makes a few
//! comparisons and pushes to the worker's ring.

use crate::header::Header;
use crate::owned_tasks::TaskCounts;
use crate::shared::{SchedulerRef, Shared};
use crate::sync::{AtomicU64, Ordering::*};
use crate::task_cell::RunnableTask;
use crate::worker::Worker;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use warmcore_budget::process::unaccounted;

#[cfg(shuttle)]
use shuttle::thread_local as local;
#[cfg(not(shuttle))]
use std::thread_local as local;

local! {
    static WORKER: Cell<*const Worker> = const { Cell::new(std::ptr::null()) };
    /// The runtimes that the thread entered, the last one at the end. `None`: it is inside no runtime until that entry is
    /// removed.
    static ENTERED: RefCell<Vec<Option<Arc<Shared>>>> = const { RefCell::new(Vec::new()) };
    /// The scheduler of the tasks that the thread spawned last, as no worker of theirs.
    static LAST_SPAWN: RefCell<LastSpawn> = const { RefCell::new(LastSpawn::NONE) };
    /// Whether a runtime started this thread to run its workers.
    static IS_A_RUNTIMES: Cell<bool> = const { Cell::new(false) };
}

/// What a thread keeps that spawns tasks from outside. It keeps no runtime alive.
struct LastSpawn {
    /// The runtime, for comparisons.
    shared: *const Shared,
    scheduler: Weak<SchedulerRef>,
}

impl LastSpawn {
    const NONE: Self = Self { shared: std::ptr::null(), scheduler: Weak::new() };
}

/// Marks the current thread as started by a runtime.
pub(crate) fn become_a_runtimes() {
    IS_A_RUNTIMES.with(|is| is.set(true));
}

/// Whether a runtime started this thread to run its workers.
pub(crate) fn is_a_runtimes() -> bool {
    // False while thread-local variables are destroyed: a thread that ends polls no tasks.
    IS_A_RUNTIMES.try_with(Cell::get).unwrap_or(false)
}

/// Calls `act` with the current thread's worker, if it has one.
#[inline]
pub(crate) fn with_worker<R>(act: impl FnOnce(Option<&Worker>) -> R) -> R {
    // None while thread-local variables are destroyed.
    let worker = WORKER.try_with(Cell::get).unwrap_or(std::ptr::null());
    // SAFETY: set by `set_current`, whose caller owns the worker and clears the pointer before it is dropped.
    act(unsafe { worker.as_ref() })
}

/// The same, if it is a worker of `shared`.
#[inline]
pub(crate) fn with_worker_of<R>(shared: &Shared, act: impl FnOnce(Option<&Worker>) -> R) -> R {
    with_worker(|worker| act(worker.filter(|worker| std::ptr::eq(&*worker.shared, shared))))
}

/// Makes `worker` the current thread's worker until the guard is dropped or the worker is handed off.
pub(crate) fn set_current(worker: &Worker) -> impl Drop {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            clear_current();
        }
    }
    WORKER.with(|current| current.set(worker));
    Back
}

/// Clears the current thread's worker.
pub(crate) fn clear_current() {
    let _ = WORKER.try_with(|worker| worker.set(std::ptr::null()));
}

/// Tells the current thread's worker that its driver stopped waiting and begins to run. Does nothing on a thread that runs no
/// worker.
///
/// A driver that has tasks of its own, as tokio's has those of `tokio::spawn`, calls it so that the runtime notices if
/// they keep one worker busy while others idle: `TokioDriverConfig::on_run`. Costs a load, unless such tasks exist.
pub fn driver_runs() {
    with_worker(|worker| worker.into_iter().for_each(|w| w.shared.watchdog.driver_runs(&w.shared, w.me())));
}

/// The current thread's runtime: the runtime that it entered last, else the runtime of its worker.
pub(crate) fn current() -> Option<Arc<Shared>> {
    match ENTERED.try_with(|entered| entered.borrow().last().cloned()).ok().flatten() {
        Some(entered) => entered,
        None => with_worker(|worker| worker.map(|worker| worker.shared.clone())),
    }
}

/// Until the guard is dropped, the current thread counts as inside no runtime of this crate: for
/// [`Handle::try_current`](crate::Handle::try_current), [`spawn`](crate::spawn()) and [`worker_index`]. Code that runs
/// another runtime on the thread, below a task or a `block_on` of this one, hides this one so. A runtime that is entered
/// later counts. Wakes are not affected.
///
/// ```
/// use warmcore_runtime::{Handle, Runtime, outside};
///
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let outside = outside();
///     assert!(Handle::try_current().is_none());
///     drop(outside);
///     assert!(Handle::try_current().is_some());
/// });
/// # Ok::<(), warmcore_runtime::BuildError>(())
/// ```
pub fn outside() -> Outside {
    Outside { _entered: push(None) }
}

/// Keeps the current thread outside of all runtimes: [`outside`].
#[must_use = "the thread is inside its runtime again when the guard is dropped"]
pub struct Outside {
    _entered: Entered,
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside").finish_non_exhaustive()
    }
}

/// The index of the worker that the current thread runs: an index into
/// [`RuntimeMetrics::workers`](crate::RuntimeMetrics::workers). `None`: it runs none, as a thread in `block_on` or in
/// [`block_in_place`](crate::block_in_place), or it is [`outside`]. A task may be on another worker after each `.await`.
///
/// ```
/// use warmcore_runtime::{Runtime, worker_index};
///
/// let runtime = Runtime::builder().worker_threads(1).build()?;
/// assert_eq!(runtime.block_on(async { worker_index() }), None);
/// assert_eq!(runtime.block_on(runtime.spawn(async { worker_index() }))?, Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn worker_index() -> Option<usize> {
    let is_outside = || ENTERED.try_with(|entered| matches!(entered.borrow().last(), Some(None)));
    let worker = with_worker(|worker| worker.map(|worker| worker.me().index()))?;
    (is_outside() == Ok(false)).then_some(worker)
}

/// Enters a runtime on the current thread until the guard is dropped.
pub(crate) fn enter(shared: Arc<Shared>) -> Entered {
    push(Some(shared))
}

fn push(shared: Option<Arc<Shared>>) -> Entered {
    let depth = ENTERED.try_with(|entered| {
        let mut entered = entered.borrow_mut();
        entered.push(shared);
        entered.len() - 1
    });
    // While thread-local variables are destroyed, nothing is entered: the thread counts as inside no runtime.
    Entered { depth: depth.unwrap_or(usize::MAX), not_send: std::marker::PhantomData }
}

pub(crate) struct Entered {
    /// How many runtimes were entered before this one.
    depth: usize,
    /// A guard of another thread would remove that thread's entry.
    not_send: std::marker::PhantomData<std::sync::MutexGuard<'static, ()>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // This runtime is not always the last in the list: `block_in_place` adds the worker's runtime, which stays in
        // the list until the poll ends.
        let left = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            (self.depth < entered.len()).then(|| entered.remove(self.depth))
        });
        drop(left);
    }
}

/// Makes the current thread leave every runtime that it entered.
pub(crate) fn exit_all() {
    let all = ENTERED.with(|entered| std::mem::take(&mut *entered.borrow_mut()));
    drop(all);
}

/// The scheduler of a task that this thread spawns on its current runtime. `None`: it is inside no runtime.
pub(crate) fn current_scheduler() -> Option<Arc<SchedulerRef>> {
    let of = |entered: &Option<Arc<Shared>>| entered.as_ref().map(scheduler);
    match ENTERED.try_with(|entered| entered.borrow().last().map(of)).ok().flatten() {
        Some(entered) => entered,
        None => with_worker(|worker| worker.map(|worker| worker.scheduler.clone())),
    }
}

/// The scheduler of a task that this thread spawns on `shared`: the current worker's, or, if this thread is not one of
/// its workers, one of its own.
pub(crate) fn scheduler(shared: &Arc<Shared>) -> Arc<SchedulerRef> {
    let own = with_worker_of(shared, |worker| worker.map(|worker| worker.scheduler.clone()));
    own.unwrap_or_else(|| outside_scheduler(shared))
}

/// The scheduler of a task that a thread spawns which is no worker: the same as long as a task has it, so that a batch
/// allocates one.
fn outside_scheduler(shared: &Arc<Shared>) -> Arc<SchedulerRef> {
    // The thread keeps its memory for later tasks, so it is charged to no account.
    let make = || unaccounted(|| Arc::new(SchedulerRef { shared: shared.clone() }));
    let kept = LAST_SPAWN.try_with(|last| {
        let mut last = last.borrow_mut();
        // Compared first: the upgrade of another runtime's could become the last reference to that runtime.
        if last.shared == Arc::as_ptr(shared)
            && let Some(scheduler) = last.scheduler.upgrade()
        {
            return scheduler;
        }
        let scheduler = make();
        *last = LastSpawn { shared: Arc::as_ptr(shared), scheduler: Arc::downgrade(&scheduler) };
        scheduler
    });
    kept.unwrap_or_else(|_| make())
}

/// Counts a task that this thread spawned, or ended.
#[inline]
pub(crate) fn count_tasks(shared: &Shared, which: impl FnOnce(&TaskCounts) -> &AtomicU64) {
    // ORDERING: Release; pairs, for tasks that ended, with the Acquire of `TaskCounts::alive`.
    with_worker_of(shared, |worker| match worker {
        Some(worker) => {
            // No other thread writes this one.
            let count = which(&worker.remote().task_counts);
            count.store(count.load(Relaxed) + 1, Release);
        }
        None => _ = which(&shared.outside).fetch_add(1, Release),
    });
}

/// Queues a task that a wake or a spawn made runnable. `is_in_poll`: it was woken during its own poll.
#[inline]
pub(crate) fn schedule(task: RunnableTask, is_in_poll: bool) {
    with_worker(|worker| match worker {
        Some(worker) if std::ptr::eq(&*worker.shared, &*task.header().scheduler.shared) => {
            worker.schedule(task, is_in_poll);
        }
        _ => {
            // Any thread may poll the task and free it as soon as it is queued.
            let scheduler = task.header().scheduler.clone();
            schedule_external(&scheduler.shared, task, is_in_poll);
        }
    });
}

/// Called with a task that was woken and need not be queued, since it waits already or is polled; it may have been freed. If this
/// thread polls it, the task yields.
#[inline(never)]
pub(crate) fn note_yield(task: NonNull<Header>) {
    with_worker(|worker| {
        worker.filter(|worker| worker.is_polling(task.as_ptr())).inspect(|worker| worker.core.note_yield());
    });
}

/// Queues a new task, whose handle the caller has: so its scheduler stays.
#[inline]
pub(crate) fn schedule_new(task: RunnableTask, scheduler: &SchedulerRef) {
    with_worker_of(&scheduler.shared, |worker| match worker {
        Some(worker) => worker.schedule(task, false),
        None => schedule_external(&scheduler.shared, task, false),
    });
}

#[cold]
fn schedule_external(shared: &Shared, task: RunnableTask, is_in_poll: bool) {
    task.header().record_wake(is_in_poll);
    shared.workers.schedule_external(shared, task, shared.worker_here());
}
