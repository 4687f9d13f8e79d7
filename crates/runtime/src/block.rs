//! Block: `block_on`, which runs a future on a thread that is no worker, and `block_in_place`, which runs a closure that
//! blocks on a worker's thread.
//!
//! `block_on` parks the thread between polls. On a worker's thread `block_in_place` first hands the worker off to
//! another thread, if there is one, so that the worker's tasks and sockets don't wait. That costs the wake of a waiting
//! thread, about 10 µs, or the start of a new one.

use crate::context;
use crate::shared::Shared;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use warmcore_driver::Driver;
use warmcore_sys::affinity;
use warmcore_types::CpuId;

/// The driver of the worker on this thread's CPU; if there is none, or the CPU is not known, of worker 0. It serves the
/// sockets and timers that the thread creates.
fn nearest_driver(shared: &Shared) -> &dyn Driver {
    &*shared.remote(shared.worker_here().unwrap_or(CpuId(0))).driver
}

/// Calls `act` on this thread, inside the runtime.
pub(crate) fn with_context<R>(shared: &Arc<Shared>, act: impl FnOnce() -> R) -> R {
    let _entered = context::enter(shared.clone());
    let _in_driver = nearest_driver(shared).enter();
    act()
}

/// Enters the runtime on this thread until the guard is dropped.
pub(crate) fn enter(shared: &Arc<Shared>) -> EnterGuard<'_> {
    let _entered = context::enter(shared.clone());
    EnterGuard { driver: nearest_driver(shared).enter(), _entered }
}

/// Keeps the current thread inside a runtime: [`Runtime::enter`](crate::Runtime::enter).
///
/// Guards of one thread must be dropped in the reverse order of their creation; tokio panics otherwise.
#[must_use = "the thread leaves the runtime when the guard is dropped"]
pub struct EnterGuard<'a> {
    driver: warmcore_driver::Entered<'a>,
    _entered: context::Entered,
}

impl fmt::Debug for EnterGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { driver, _entered: _ } = self;
        f.debug_struct("EnterGuard").field("driver", driver).finish()
    }
}

/// Runs a future on this thread until it is ready.
#[track_caller]
pub(crate) fn on<F: Future>(shared: &Arc<Shared>, future: F) -> F::Output {
    // Tokio's driver refuses that too, and a `block_on` inside another one, but does not know the caller's line.
    assert!(
        context::with_worker(|worker| worker.is_none()),
        "block_on on a worker's thread blocks the worker's other tasks and can deadlock; await the future, or call \
         it inside block_in_place"
    );
    let _entered = context::enter(shared.clone());
    let (mut future, mut output) = (pin!(future), None);
    nearest_driver(shared).block_on(&mut |cx| {
        output = Some(ready!(future.as_mut().poll(cx)));
        Poll::Ready(())
    });
    output.expect("a driver polls until the future is ready")
}

/// Calls a closure that blocks or computes for long. In a task of this runtime, another thread first takes over the
/// worker with its other tasks and its sockets, so that only the calling task waits for the closure; this thread may
/// then run on all CPUs that the process's first thread may use. If the system grants no thread, or in a task of
/// `tokio::spawn`, the worker's other tasks wait too. On a thread that runs no worker this just calls the closure.
///
/// # Panics
/// In a `LocalSet` of tokio's inside [`Runtime::block_on`](crate::Runtime::block_on), where tokio allows no blocking.
///
/// ```
/// # let runtime = warmcore_runtime::Runtime::new().unwrap();
/// # runtime.block_on(async {
/// let sum = warmcore_runtime::block_in_place(|| (0..1000u64).sum::<u64>());
/// # assert_eq!(sum, 499_500);
/// # });
/// ```
pub fn block_in_place<R>(act: impl FnOnce() -> R) -> R {
    let is_in_driver = context::with_worker(|worker| {
        let Some(worker) = worker else { return false };
        // If no thread can be started, or this thread is inside the driver, the worker itself blocks. If that takes
        // long and another worker is idle, the watchdog (`watchdog.rs`) marks this one as stuck.
        if worker.hand_off() {
            // The other thread may be pinned to the worker's CPU. If this thread can't leave that CPU, the two threads
            // share it.
            let _ = affinity::allowed_to_main().and_then(|cpus| affinity::set_allowed(&cpus));
        }
        worker.core.is_in_driver()
    });
    // With an empty budget of operations a `block_on` inside the closure would wait for ever.
    if is_in_driver || context::current().is_none() {
        // A task of `tokio::spawn`, or a thread outside: there is no `block_on` of ours to leave.
        warmcore_driver::unconstrained(act)
    } else {
        warmcore_driver::leave_block_on(act)
    }
}
