//! OpBudget: tokio's budget of operations, for the polls of tasks that are not tokio's own.
//!
//! Tokio's sockets, timers, channels and semaphores count their operations. After 128 in one poll they return `Pending`
//! and wake the task, so that a loop over a channel that is never empty lets other tasks run. Tokio renews the budget
//! before each poll of its own tasks; on other threads the budget is unlimited. A worker limits and renews it
//! through tokio's public API: [`poll_proceed`] takes one operation and returns a guard; dropping the guard sets the
//! budget to what it was before. Dropping the guard of an operation that found the budget full therefore makes it full
//! again.
//!
//! # When it is renewed
//!
//! A renewal costs about 60 instructions, and most polls do few operations, so [`POLLS`] polls in a row share a budget.
//! A poll never begins with an empty budget. So code that tries a channel once, as its poll's first operation and with
//! a waker that wakes no task (`now_or_never`, a biased `select!`), never takes a full channel for an empty one. Later
//! operations of a poll may find the budget empty, at most once in 127 operations of the worker's polls: the task is
//! woken and polled again, and code that tries only once sees `Pending`, as with tokio after 128 operations. An
//! operation that is refused wakes its task, so most polls that empty the budget end with their task woken. After a
//! poll whose task was woken before the poll ended, each poll has its own budget until the worker parks, so that
//! the operations of one task don't stop the next task again and again.
//!
//! # Cost
//!
//! Instructions of a poll that receives and sends on a channel, by `cargo xtask instructions "8 pairs, channels"`:
//! 1275.9 with a renewal before each poll, 1217.2 with one for eight polls; none of them is locked.

use crate::unlisted::unlisted;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Builder;
use tokio::task::coop::{RestoreOnPending, has_budget_remaining, poll_proceed};

/// Polls that share a budget: 16 of the 128 operations for each on average.
const POLLS: u32 = 8;

/// The budget of operations of the current thread's polls.
pub struct OpBudget {
    /// A guard; dropping it makes the budget full. `None`: polls are not limited.
    full: Cell<Option<RestoreOnPending>>,
    /// Polls that may begin before the budget is renewed.
    left: Cell<u32>,
    /// Whether each poll has its own budget.
    each: Cell<bool>,
}

impl OpBudget {
    /// Makes the budget of the current thread, which must be outside of any tokio runtime's `block_on`: there this
    /// panics. If tokio gives no budget, polls are not limited.
    pub fn new() -> Self {
        // A thread has a budget only while tokio polls on it, so this makes a tokio runtime. Without drivers it costs a
        // few allocations.
        let tokio = Builder::new_current_thread().build();
        let full = tokio.map(|tokio| tokio.block_on(unlisted(poll_fn(poll_proceed))));
        Self { full: Cell::new(full.ok()), left: Cell::new(0), each: Cell::new(false) }
    }

    /// Begins a poll. The poll may do at least one operation. All polls that share a budget may do at most 127 together.
    #[inline]
    pub fn begin_poll(&self) {
        match self.left.get() {
            left if left > 0 && has_budget_remaining() => self.left.set(left - 1),
            _ => self.renew(),
        }
    }

    /// Ends a poll whose task was woken before the poll ended.
    #[inline]
    pub fn was_woken_in_poll(&self) {
        self.left.set(0);
        self.each.set(true);
    }

    /// Polls share budgets again, until a task is woken in its poll. Called when the worker has no tasks.
    pub fn share(&self) {
        self.each.set(false);
    }

    #[inline(never)]
    fn renew(&self) {
        self.left.set(if self.each.get() { 0 } else { POLLS - 1 });
        drop(self.full.take());
        // The budget is full, so this is ready and does not use the waker.
        if let Poll::Ready(full) = poll_proceed(&mut Context::from_waker(Waker::noop())) {
            self.full.set(Some(full));
        }
    }
}

impl Default for OpBudget {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for OpBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpBudget").field("left", &self.left.get()).finish_non_exhaustive()
    }
}

/// Calls `act` without the budget of operations of the poll that calls this.
///
/// With an empty budget, tokio's sockets, timers and channels stay pending, so a `block_on` inside `act` that waits for
/// one would never end.
pub fn unconstrained<R>(act: impl FnOnce() -> R) -> R {
    let mut act = Some(act);
    let unlimited = pin!(tokio::task::coop::unconstrained(poll_fn(|_| match act.take() {
        Some(act) => Poll::Ready(act()),
        None => Poll::Pending,
    })));
    match unlimited.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the closure is called at the first poll"),
    }
}
