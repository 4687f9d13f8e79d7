//! Calls code of the program that may panic: wakers, listeners, and destructors of what a listener owns.
//!
//! The calling thread may be in the middle of a charge, an uncharge or a reclaim. The panic hook reports the
//! panic, and the panic is caught here, so that the charge is finished, the next waiter is woken, and the
//! background thread continues.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `act`. Returns `None` if it panicked.
pub(crate) fn contain<R>(act: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => Some(result),
        Err(panic) => {
            // The panic's payload may panic when it is dropped.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
            None
        }
    }
}
