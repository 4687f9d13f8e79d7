//! Context: the runtime and the worker of the current thread, in thread-local variables.
//!
//! A worker's thread has a pointer to its `Worker`. A thread in `block_on`, and a thread that entered a runtime, has
//! that runtime. [`schedule`] is called for every wake that makes a task runnable. If the current thread is a worker of
//! the task's runtime, it calls `Core::schedule`, else `Workers::schedule_external`. [`measured`] wraps every poll of
//! a task's future.
//!
//! A wake by a task that runs on the worker that polled the woken task last reads the pointer, makes a few
//! comparisons and locks the worker's run queue.

use crate::header::{Header, RunnableTask};
use crate::shared::{SchedulerRef, Shared};
use crate::sync::Ordering::*;
use crate::tenant_stats::{self, TenantRef};
use crate::worker::Worker;
use async_task::{Runnable, ScheduleInfo};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use warmcore_types::{CpuId, Nanos};

#[cfg(shuttle)]
use shuttle::thread_local as local;
#[cfg(not(shuttle))]
use std::thread_local as local;

local! {
    static WORKER: Cell<*const Worker> = const { Cell::new(std::ptr::null()) };
    /// The runtimes that the thread entered, the last one at the end. `None`: it is inside no runtime until that entry is
    /// removed.
    static ENTERED: RefCell<Vec<Option<Arc<Shared>>>> = const { RefCell::new(Vec::new()) };
    /// Whether a runtime started this thread to run its workers.
    static IS_A_RUNTIMES: Cell<bool> = const { Cell::new(false) };
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

/// Tells the current thread's worker that its driver stopped waiting and begins to run, with the driver's
/// [`run_seq`](warmcore_driver::Driver::run_seq) before. Does nothing on a thread that runs no worker.
///
/// A driver that has tasks of its own, as tokio's has those of `tokio::spawn`, calls it so that the runtime notices if
/// they keep one worker busy while others idle: `TokioDriverConfig::on_run`. Costs a load, unless such tasks exist.
pub fn driver_runs(run_seq: u64) {
    with_worker(|worker| {
        if let Some(worker) = worker {
            worker.shared.foreign.begin(&worker.shared, worker.me(), run_seq);
        }
    });
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
/// its workers, the next worker's in turn.
pub(crate) fn scheduler(shared: &Arc<Shared>) -> Arc<SchedulerRef> {
    with_worker(|worker| match worker {
        Some(worker) if Arc::ptr_eq(&worker.shared, shared) => worker.scheduler.clone(),
        _ => {
            let worker = shared.outside.fetch_add(1, Relaxed) as usize % shared.remotes.len();
            Arc::new(SchedulerRef { shared: shared.clone(), worker: CpuId(worker as u32) })
        }
    })
}

/// Called by async-task when a wake makes a task runnable, and by `Runnable::schedule` for a new task.
#[inline]
pub(crate) fn schedule(runnable: Runnable<Header>, info: ScheduleInfo) {
    let task = RunnableTask::new(runnable);
    if task.header().attrs.is_some() {
        record_wake(task.header(), info.woken_while_running);
    }
    with_worker(|worker| match worker {
        Some(worker) if std::ptr::eq(&*worker.shared, &*task.header().scheduler.shared) => {
            worker.core.schedule(&worker.shared, task, info.woken_while_running);
        }
        _ => schedule_external(task),
    });
}

/// Records a wake. Of a task that was woken in its poll, async-task does not say by which thread.
#[inline(never)]
fn record_wake(header: &Header, is_in_poll: bool) {
    match header.record() {
        None => {}
        Some(record) if !is_in_poll => record.woken(),
        Some(record) => record.woken_in_poll(),
    }
}

#[cold]
fn schedule_external(task: RunnableTask) {
    let shared = task.header().scheduler.shared.clone();
    shared.workers.schedule_external(&shared, task, shared.worker_here());
}

/// Calls `poll`, which polls a task. If the poll is measured, its duration counts as run time of the task's tenant; if
/// it was also chosen at random and returned pending, its duration is recorded in the task's header.
#[inline]
pub(crate) fn measured<T, E>(
    header: &Header,
    poll: impl FnOnce() -> Result<Poll<T>, E>,
) -> Result<Poll<T>, E> {
    let is_sampled = with_worker(|worker| worker.is_some_and(|worker| worker.core.is_sampled()));
    let is_long = header.tenant().is_some_and(|tenant| begin_of(tenant, header));
    let measured = match is_sampled | is_long {
        true => begin_measured(is_sampled, is_long),
        false => NOT_MEASURED,
    };
    let result = poll();
    let is_pending = matches!(result, Ok(Poll::Pending));
    // The poll may have handed the worker off to another thread.
    with_worker(|worker| {
        let Some(worker) = worker else { return };
        if is_pending {
            worker.core.fell_asleep(header.sched.usual_sleep());
        }
        if measured.stands_for > 0 || worker.core.remote().is_stuck.load(Relaxed) {
            end_measured(worker, header, measured, is_sampled, is_pending);
        }
    });
    result
}

/// A poll whose duration is measured.
#[derive(Clone, Copy)]
struct Measured {
    /// When the poll began.
    since: Nanos,
    /// For how many halves of a poll this poll's duration is counted in its tenant's run time. A poll that is measured
    /// because it was chosen at random also counts for the polls before it that were not measured. 2: for itself alone.
    /// 0: it is not counted.
    stands_for: u32,
}

const NOT_MEASURED: Measured = Measured { since: Nanos(0), stands_for: 0 };

/// Counts the poll of a tenant's task. Returns whether it must be measured because polls of this task take
/// [`tenant_stats::LONG_NS`] or more on average.
///
/// Not inlined, so that tasks without a tenant don't carry the code.
#[inline(never)]
fn begin_of(tenant: &TenantRef, header: &Header) -> bool {
    tenant.count_poll();
    // If no poll of the task was recorded yet, this worker's average is taken.
    let usual = || {
        with_worker(|worker| {
            worker.map_or(0, |worker| worker.core.remote().status.mean_poll_ns.load(Relaxed))
        })
    };
    header.sched.poll_ns().unwrap_or_else(usual) >= tenant_stats::LONG_NS
}

/// Begins a poll that is measured, unless this thread has no worker. Most polls are not measured, so this is not
/// inlined.
#[cold]
fn begin_measured(is_sampled: bool, is_long: bool) -> Measured {
    with_worker(|worker| {
        let Some(worker) = worker else { return NOT_MEASURED };
        // Decided before the poll, so that the poll's duration does not change for how many polls it is counted.
        let stands_for = if is_sampled { worker.core.draw_sample() } else { 0 };
        let stands_for = if is_long { 2 } else { stands_for };
        Measured { since: worker.remote().driver.now(), stands_for }
    })
}

/// Ends a poll that was measured, or that the watchdog found to be long. A poll that was sampled at random and returned
/// pending updates the averages of its task.
#[cold]
fn end_measured(worker: &Worker, header: &Header, measured: Measured, is_sampled: bool, is_pending: bool) {
    let mut is_long = worker.core.remote().is_stuck.load(Relaxed);
    let Measured { since, stands_for } = measured;
    if stands_for > 0 {
        let ran = worker.core.end_sample(&worker.shared, since);
        worker.shared.task_groups.record_poll(worker.me(), header, ran, stands_for);
        if let Some(tenant) = header.tenant() {
            tenant.count_run(tenant_stats::scale_sample(ran, stands_for));
        }
        if is_sampled && is_pending {
            header.sched.record_poll(ran);
            header.sched.sleep(worker.core.now());
        }
        is_long |= worker.core.is_long(ran);
    }
    if is_long {
        worker.found_long_poll(header);
    }
}
