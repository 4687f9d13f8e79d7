//! Context: which runtime, and which worker, the current thread is of.
//!
//! Model.   A worker's thread has a pointer to what is its own (`Worker`); a thread in `block_on`, or that has
//!          entered a runtime, has the runtime. A task that is woken on its own worker's thread goes the short
//!          way; all others ask placement.
//! Number.  A wake at home: the pointer, two comparisons, the queue's lock.
//! Writers. The thread.

use crate::header::{Header, RunnableTask};
use crate::shared::{SchedulerRef, Shared};
use crate::sync::Ordering::*;
use crate::tenant_stats::{self, TenantRef};
use crate::worker::Worker;
use async_task::ScheduleInfo;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Poll;
use warmcore_types::{CpuId, Nanos};

#[cfg(shuttle)]
use shuttle::thread_local as local;
#[cfg(not(shuttle))]
use std::thread_local as local;

local! {
    static WORKER: Cell<*const Worker> = const { Cell::new(std::ptr::null()) };
    static ENTERED: RefCell<Vec<Arc<Shared>>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread was started by a runtime, to be its workers.
    static IS_A_RUNTIMES: Cell<bool> = const { Cell::new(false) };
}

/// The thread is a runtime's from now on.
pub(crate) fn become_a_runtimes() {
    IS_A_RUNTIMES.with(|is| is.set(true));
}

/// Whether a runtime started this thread, to be its workers.
pub(crate) fn is_a_runtimes() -> bool {
    // A thread that ends has no tasks any more.
    IS_A_RUNTIMES.try_with(Cell::get).unwrap_or(false)
}

/// Calls `act` with what is this thread's own, if it is a worker's.
#[inline]
pub(crate) fn with_worker<R>(act: impl FnOnce(Option<&Worker>) -> R) -> R {
    // A thread that ends has no worker any more.
    let worker = WORKER.try_with(Cell::get).unwrap_or(std::ptr::null());
    // SAFETY: set by `set_current`, whose frame owns it and takes it back before it ends.
    act(unsafe { worker.as_ref() })
}

/// The thread is this worker's until the guard is dropped, or the worker goes on elsewhere.
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

/// The thread is no worker any more.
pub(crate) fn clear_current() {
    let _ = WORKER.try_with(|worker| worker.set(std::ptr::null()));
}

/// The runtime that the thread is in: the one that it entered last, else the one that it works for.
pub(crate) fn current() -> Option<Arc<Shared>> {
    let entered = ENTERED.try_with(|entered| entered.borrow().last().cloned()).ok().flatten();
    entered.or_else(|| with_worker(|worker| worker.map(|worker| worker.shared.clone())))
}

/// The thread is in this runtime until the guard is dropped.
pub(crate) fn enter(shared: Arc<Shared>) -> Entered {
    let depth = ENTERED.with(|entered| {
        let mut entered = entered.borrow_mut();
        entered.push(shared);
        entered.len() - 1
    });
    Entered { depth, not_send: std::marker::PhantomData }
}

pub(crate) struct Entered {
    /// How many were entered before.
    depth: usize,
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Not always the last: who blocks in place meanwhile is in its runtime until its poll ends.
        let left = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            (self.depth < entered.len()).then(|| entered.remove(self.depth))
        });
        drop(left);
    }
}

/// The thread is in no runtime any more, however often it entered one.
pub(crate) fn exit_all() {
    let all = ENTERED.with(|entered| std::mem::take(&mut *entered.borrow_mut()));
    drop(all);
}

/// What a task that is spawned here, on the runtime that the thread is in, is found by.
pub(crate) fn current_scheduler() -> Option<Arc<SchedulerRef>> {
    let entered = ENTERED.try_with(|entered| entered.borrow().last().map(scheduler)).ok().flatten();
    entered.or_else(|| with_worker(|worker| worker.map(|worker| worker.scheduler.clone())))
}

/// What a task that is spawned here is found by: this worker's list, or, from outside, one after the other.
pub(crate) fn scheduler(shared: &Arc<Shared>) -> Arc<SchedulerRef> {
    with_worker(|worker| match worker {
        Some(worker) if Arc::ptr_eq(&worker.shared, shared) => worker.scheduler.clone(),
        _ => {
            let worker = shared.outside.fetch_add(1, Relaxed) as usize % shared.remotes.len();
            Arc::new(SchedulerRef { shared: shared.clone(), worker: CpuId(worker as u32) })
        }
    })
}

/// A task was woken: async-task calls this, once per wake that counts.
#[inline]
pub(crate) fn schedule(runnable: RunnableTask, info: ScheduleInfo) {
    with_worker(|worker| match worker {
        Some(worker) if std::ptr::eq(&*worker.shared, &*runnable.metadata().scheduler.shared) => {
            worker.schedule(runnable, info.woken_while_running);
        }
        _ => outside(runnable),
    });
}

#[cold]
fn outside(runnable: RunnableTask) {
    let shared = runnable.metadata().scheduler.shared.clone();
    shared.schedule_external(runnable);
}

/// Polls, notes in the header what the poll shows, and counts for its tenant what it ran for.
#[inline]
pub(crate) fn measured<T, E>(
    header: &Header,
    poll: impl FnOnce() -> Result<Poll<T>, E>,
) -> Result<Poll<T>, E> {
    let is_sampled = with_worker(|worker| worker.is_some_and(Worker::is_sampled));
    let is_long = header.tenant().is_some_and(|tenant| begin_of(tenant, header));
    let measured = match is_sampled | is_long {
        true => begin_measured(is_sampled, is_long),
        false => NOT_MEASURED,
    };
    let result = poll();
    let is_pending = matches!(result, Ok(Poll::Pending));
    // Meanwhile the worker may have gone on elsewhere.
    with_worker(|worker| {
        let Some(worker) = worker else { return };
        if is_pending {
            worker.fell_asleep(header.usual_sleep());
        }
        if measured.stands_for > 0 || worker.remote().is_stuck.load(Relaxed) {
            end_measured(worker, header, measured, is_sampled, is_pending);
        }
    });
    result
}

/// A poll whose time is measured.
#[derive(Clone, Copy)]
struct Measured {
    /// When it began.
    since: Nanos,
    /// So many half polls of its tenant's, of those that are not measured, it stands for. 2: for itself. 0: it is not
    /// measured.
    stands_for: u32,
}

const NOT_MEASURED: Measured = Measured { since: Nanos(0), stands_for: 0 };

/// A poll of a tenant's task begins, which is counted. Whether it is measured because the task's polls are long.
///
/// Not inlined: a task without a tenant is not to carry the code.
#[inline(never)]
fn begin_of(tenant: &TenantRef, header: &Header) -> bool {
    tenant.count_poll();
    // Of a task whose polls were never measured: what this worker's run for on average.
    let usual =
        || with_worker(|worker| worker.map_or(0, |worker| worker.remote().status.mean_poll_ns.load(Relaxed)));
    header.poll_ns().unwrap_or_else(usual) >= tenant_stats::LONG_NS
}

/// A poll begins that is measured: of most nothing is, and this is outside of their way.
#[cold]
fn begin_measured(is_sampled: bool, is_long: bool) -> Measured {
    with_worker(|worker| {
        let Some(worker) = worker else { return NOT_MEASURED };
        // Drawn and decided before the poll: none is counted for more because it was long.
        let stands_for = if is_sampled { worker.draw_sample() } else { 0 };
        let stands_for = if is_long { 2 } else { stands_for };
        Measured { since: worker.remote().driver.now(), stands_for }
    })
}

/// A poll has ended that was measured, or that was found to be long. One that was measured by chance tells what polls
/// of its task take.
#[cold]
fn end_measured(worker: &Worker, header: &Header, measured: Measured, is_sampled: bool, is_pending: bool) {
    let mut is_long = worker.remote().is_stuck.load(Relaxed);
    let Measured { since, stands_for } = measured;
    if stands_for > 0 {
        let ran = worker.end_sample(since);
        if let Some(tenant) = header.tenant() {
            tenant.count_run(tenant_stats::scale_sample(ran, stands_for));
        }
        if is_sampled && is_pending {
            header.record_poll(ran);
            header.sleep(worker.now());
        }
        is_long |= worker.is_long(ran);
    }
    if is_long {
        worker.count_long_poll(Some(header));
    }
}
