//! The budget of operations that a poll has: tokio's own, for tasks that are not tokio's.
//!
//! tokio's sockets, timers, channels and semaphores count their operations. After 128 in one poll they answer `Pending`
//! and wake the task, so that a loop over a channel that is never empty lets other tasks run. tokio renews the budget
//! before each poll of its own tasks; on a thread that polls others it is unlimited. This worker's polls renew it by
//! what tokio makes public: [`poll_proceed`] takes one operation and gives a guard that, dropped, sets the budget to
//! what it was before. The guard of the first operation of a full budget renews it.
//!
//! # When it is renewed
//!
//! To renew it costs about 60 instructions, and a poll does few operations, so [`POLLS`] polls in a row share a budget.
//! No poll begins with none: if it is used up it is renewed, so what asks a channel once, first in its poll and by a waker
//! that nothing hears (`now_or_never`, a `select!` that is biased), never takes a full one for empty. The second
//! operation of a poll and those behind it may find the budget used up, at most once in 127 operations of the worker's
//! polls: the task is woken and polled once more, and what asks only once sees `Pending` there, as with tokio after 128.
//! After a poll whose task woke itself, which is how a poll mostly ends that used the budget up, each of the next
//! [`POLLS_EACH`] polls has a budget of its own: no task is stopped again and again by what the task before it does.
//!
//! # Cost
//!
//! Instructions of a poll that receives and sends on a channel, by `cargo xtask instructions "8 pairs, channels"`:
//! 1275.9 with a renewal before each of them, 1217.2 with one for eight; none of them is locked.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Builder;
use tokio::task::coop::{RestoreOnPending, has_budget_remaining, poll_proceed};

/// So many polls share a budget: 16 operations for each of them.
const POLLS: u32 = 8;

/// So many polls have a budget each after a poll whose task woke itself: more than tasks wait on a busy worker.
const POLLS_EACH: u32 = 1024;

/// The budget of the current thread's polls.
pub(crate) struct OpBudget {
    /// Dropped, it makes the budget full. `None`: tokio gave none, and polls are not limited.
    full: Cell<Option<RestoreOnPending>>,
    /// Polls that may begin before the budget is renewed.
    left: Cell<u32>,
    /// Polls before which it is renewed, each.
    each: Cell<u32>,
}

impl OpBudget {
    /// Of the thread that calls this, outside of any tokio runtime's `block_on`.
    pub(crate) fn new() -> Self {
        // Only what tokio polls has a budget to begin with. Without drivers a runtime is a few allocations.
        let full = Builder::new_current_thread().build().map(|tokio| tokio.block_on(poll_fn(poll_proceed)));
        Self { full: Cell::new(full.ok()), left: Cell::new(0), each: Cell::new(0) }
    }

    /// A poll begins. It may do at least one operation, and together with at most [`POLLS`] less one before it 127.
    #[inline]
    pub(crate) fn begin_poll(&self) {
        match self.left.get() {
            left if left > 0 && has_budget_remaining() => self.left.set(left - 1),
            _ => self.renew(),
        }
    }

    /// A poll has ended whose task woke itself.
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
        // Full, so this is ready, and the waker is not used.
        if let Poll::Ready(full) = poll_proceed(&mut Context::from_waker(Waker::noop())) {
            self.full.set(Some(full));
        }
    }
}
