//! OpBudget: tokio's budget of operations for the polls of this runtime's tasks.
//!
//! Tokio's sockets, timers, channels and semaphores count their operations. After 128 in one poll they return `Pending`
//! and wake the task, so that a loop over a channel that is never empty lets other tasks run. Tokio renews the budget
//! before each poll of its own tasks; on other threads the budget is unlimited. This runtime limits and renews it through
//! tokio's public API: [`poll_proceed`] takes one operation and returns a guard; dropping the guard sets the budget to what
//! it was before. The guard of the first operation of a full budget therefore renews it.
//!
//! # When it is renewed
//!
//! A renewal costs about 60 instructions, and most polls do few operations, so [`POLLS`] polls in a row share a budget. A
//! poll never begins with an empty budget. So code that tries a channel once, as its poll's first operation and with a
//! waker that wakes no task (`now_or_never`, a biased `select!`), never takes a full channel for an empty one. Later
//! operations of a poll may find the budget empty, at most once in 127 operations of the worker's polls: the task is woken
//! and polled again, and code that tries only once sees `Pending`, as with tokio after 128 operations. Most polls that
//! empty the budget end with their task woken by itself; after such a poll each of the next [`POLLS_EACH`] polls has its
//! own budget, so that the operations of one task don't stop the task after it again and again.
//!
//! # Cost
//!
//! Instructions of a poll that receives and sends on a channel, by `cargo xtask instructions "8 pairs, channels"`:
//! 1275.9 with a renewal before each poll, 1217.2 with one for eight polls; none of them is locked.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Builder;
use tokio::task::coop::{RestoreOnPending, has_budget_remaining, poll_proceed};

/// Polls that share a budget; 16 operations for each of them.
const POLLS: u32 = 8;

/// Polls with their own budget after a poll whose task woke itself. More than the tasks of a busy worker.
const POLLS_EACH: u32 = 1024;

/// The budget of operations of the current thread's polls.
pub(crate) struct OpBudget {
    /// Dropping it makes the budget full. `None`: tokio gave none, and polls are not limited.
    full: Cell<Option<RestoreOnPending>>,
    /// Polls that may begin before the budget is renewed.
    left: Cell<u32>,
    /// Polls left that have their own budget each.
    each: Cell<u32>,
}

impl OpBudget {
    /// Must be called outside of any tokio runtime's `block_on`, on the thread that will poll.
    pub(crate) fn new() -> Self {
        // Only a thread that tokio polls on has a budget. Without drivers a runtime costs a few allocations.
        let full = Builder::new_current_thread().build().map(|tokio| tokio.block_on(poll_fn(poll_proceed)));
        Self { full: Cell::new(full.ok()), left: Cell::new(0), each: Cell::new(0) }
    }

    /// Begins a poll. It may do at least one operation, and with the polls that share its budget at most 127.
    #[inline]
    pub(crate) fn begin_poll(&self) {
        match self.left.get() {
            left if left > 0 && has_budget_remaining() => self.left.set(left - 1),
            _ => self.renew(),
        }
    }

    /// Ends a poll whose task woke itself.
    #[inline]
    pub(crate) fn was_woken_in_poll(&self) {
        self.left.set(0);
        self.each.set(POLLS_EACH);
    }

    #[inline(never)]
    fn renew(&self) {
        match self.each.get() {
            0 => self.left.set(POLLS - 1),
            each => self.each.set(each - 1),
        }
        drop(self.full.take());
        // The budget is full, so this is ready and does not use the waker.
        if let Poll::Ready(full) = poll_proceed(&mut Context::from_waker(Waker::noop())) {
            self.full.set(Some(full));
        }
    }
}
