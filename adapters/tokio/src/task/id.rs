//! Id: the number of a task.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The next number. Written by every thread that spawns.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The task whose future, closure or output this thread polls, calls or drops.
    static CURRENT: Cell<Option<Id>> = const { Cell::new(None) };
}

/// The number of a task, which no other task of the process has.
///
/// Tasks of every runtime are numbered in the order in which they are spawned, from 1. The number is not tokio's: in
/// the events that tokio itself reports to `tracing` a task on a current-thread runtime has another one.
#[derive(Clone, Copy, Debug, Hash, Eq, PartialEq, PartialOrd, Ord)]
pub struct Id(NonZeroU64);

impl Id {
    pub(crate) fn next() -> Self {
        // At 10⁹ tasks a second the counter wraps after 584 years.
        Self(NonZeroU64::new(NEXT.fetch_add(1, Relaxed)).expect("fewer than 2⁶⁴ tasks"))
    }

    #[cfg(all(tokio_unstable, feature = "tracing"))]
    pub(crate) fn as_u64(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the id of the task that is being polled or dropped on this thread, or whose `spawn_blocking` closure runs.
///
/// # Panics
/// Outside of a task. The future of `block_on` is not a task.
#[track_caller]
pub fn id() -> Id {
    try_id().expect("Can't get a task id when not inside a task")
}

/// As [`id()`], but returns `None` outside of a task.
#[track_caller]
pub fn try_id() -> Option<Id> {
    CURRENT.get()
}

/// While it lives, its task is the current one of this thread.
pub(crate) struct CurrentTask {
    outer: Option<Id>,
}

impl CurrentTask {
    #[inline]
    pub(crate) fn enter(id: Id) -> Self {
        Self { outer: CURRENT.replace(Some(id)) }
    }
}

impl Drop for CurrentTask {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}
