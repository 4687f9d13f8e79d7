//! The budget of operations that a poll has: tokio's own, for tasks that are not tokio's.
//!
//! tokio's sockets, timers, channels and semaphores count their operations. After 128 in one poll they answer `Pending`
//! and wake the task, so that a loop over a channel that is never empty lets other tasks run. tokio renews the budget
//! before each poll of its own tasks; on a thread that polls others it is unlimited. This worker's polls renew it by
//! what tokio makes public: [`poll_proceed`] takes one operation and gives a guard that, dropped, sets the budget to
//! what it was before. The guard of the first operation of a full budget renews it.
//!
//! # Cost
//!
//! 93 instructions for a poll that receives and sends on a channel, with what tokio itself then does to count; none of
//! them is locked: 1329.7 before, 1422.8 after, by `cargo xtask instructions "8 pairs, channels"`.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Builder;
use tokio::task::coop::{RestoreOnPending, poll_proceed};

/// The budget of the current thread's polls.
pub(crate) struct OpBudget {
    /// Dropped, it makes the budget full. `None`: tokio gave none, and polls are not limited.
    full: Cell<Option<RestoreOnPending>>,
}

impl OpBudget {
    /// Of the thread that calls this, outside of any tokio runtime's `block_on`.
    pub(crate) fn new() -> Self {
        // Only what tokio polls has a budget to begin with. Without drivers a runtime is a few allocations.
        let full = Builder::new_current_thread().build().map(|tokio| tokio.block_on(poll_fn(poll_proceed)));
        Self { full: Cell::new(full.ok()) }
    }

    /// A poll begins: it may do 127 operations.
    #[inline]
    pub(crate) fn renew(&self) {
        drop(self.full.take());
        // Full, so this is ready, and the waker is not used.
        if let Poll::Ready(full) = poll_proceed(&mut Context::from_waker(Waker::noop())) {
            self.full.set(Some(full));
        }
    }
}
