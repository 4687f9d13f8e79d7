//! Contain: code of the program's that budget calls: wakers, listeners, and what a dropped listener owns.
//!
//! Model.   The thread that calls it is the one that happened to give units back, to charge, or to tidy. A panic is
//!          told by the panic hook and ends here, so that the charge is finished, the next waiter is woken, and the
//!          background thread goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `act`; `None`: it panicked.
pub(crate) fn contain<R>(act: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => Some(result),
        Err(panic) => {
            // What it panicked with may panic when it is dropped.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
            None
        }
    }
}
