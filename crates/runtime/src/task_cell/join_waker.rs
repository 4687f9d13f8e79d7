//! JoinWaker: the waker of the task that waits at a task's handle.
//!
//! While the state's flag `JOIN_WAKER` is clear, the handle owns the waker. While it is set, the handle and the task's last
//! poll may both read it: the handle to compare it with another one, the last poll to wake it. A complete task's flag
//! does not change any more, so a waker that is published by then stays until the task is freed.
//!
//! Models: `state/loom.rs`.

use super::State;
use crate::sync::UnsafeCell;
use std::task::Waker;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct JoinWaker(UnsafeCell<Option<Waker>>);

// SAFETY: the protocol above says which thread may read or write the waker.
unsafe impl Sync for JoinWaker {}

impl JoinWaker {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Makes the last poll wake `waker`. False: the task is complete. Only the handle calls it.
    pub(crate) fn register(&self, state: &State, waker: &Waker) -> bool {
        let now = state.load();
        if now.is_complete() {
            return false;
        }
        if now.has_join_waker() {
            // SAFETY: only the handle writes the waker, and not while it is published.
            let is_same =
                self.0.with(|published| unsafe { &*published }.as_ref().is_some_and(|w| w.will_wake(waker)));
            if is_same {
                return true;
            }
            if !state.clear_join_waker() {
                return false;
            }
        }
        // SAFETY: the waker is not published, so no other thread reads it.
        self.0.with_mut(|own| unsafe { *own = Some(waker.clone()) });
        state.set_join_waker()
    }

    /// Drops the waker when the handle is dropped. `was_published`: the flag was set until the handle cleared it.
    pub(crate) fn take_back(&self, was_published: bool) {
        if was_published {
            // SAFETY: the handle has cleared the flag, so no other thread reads the waker.
            drop(self.0.with_mut(|own| unsafe { (*own).take() }));
        }
    }

    /// Wakes the waker. Only the last poll calls it, when it has completed a task whose flag was set.
    pub(super) fn wake(&self) {
        // SAFETY: no thread writes the published waker of a complete task.
        self.0.with(|published| unsafe { &*published }.as_ref().map(Waker::wake_by_ref));
    }

    /// Removes the waker of a task that is freed.
    pub(super) fn take(&mut self) -> Option<Waker> {
        // SAFETY: no other thread has a reference to the task.
        self.0.with_mut(|own| unsafe { (*own).take() })
    }
}
