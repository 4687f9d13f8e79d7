//! Set-up: the allocations of first uses.
//!
//! The first add of a counter chooses the backend, if it was not chosen before, and reserves slots, under locks. Both
//! allocate memory. A global allocator that adds to a counter therefore re-enters this crate during a set-up, in the
//! same thread or in a thread for which the set-up waits. A process-wide number of set-ups in progress shows this:
//! while it is above 0, an add to a counter without slots takes no lock.
//!
//! The slots serve the whole process and not the thread that uses them first. A library that charges allocations to
//! the current thread's account passes a function to [`set_up_within`] which suspends that.
//!
//! Writers. `SETTING_UP`: threads in `set_up`. `WITHIN`: `set_up_within`, once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// A function that calls its argument once.
pub type Within = fn(&mut dyn FnMut());

static WITHIN: OnceLock<Within> = OnceLock::new();

/// The number of `set_up` calls in progress.
static SETTING_UP: AtomicU32 = AtomicU32::new(0);

/// Runs all later set-ups (the choice of the backend, allocations of slots) inside `within`, which calls its argument
/// once. For a library that charges each thread's memory to an account. Only the first call has an effect.
pub fn set_up_within(within: Within) {
    let _ = WITHIN.set(within);
}

/// Whether any thread is in [`set_up`]: this thread, a thread that waits for this one, or an unrelated thread.
#[cfg(not(loom))]
pub(crate) fn is_setting_up() -> bool {
    // ORDERING: Acquire; pairs with the Release in `set_up`: a thread that was started in a set-up sees it.
    SETTING_UP.load(Acquire) > 0
}

/// Runs `act`, which may allocate under a lock of this crate.
pub(crate) fn set_up<R>(act: impl FnOnce() -> R) -> R {
    struct Less;
    impl Drop for Less {
        fn drop(&mut self) {
            SETTING_UP.fetch_sub(1, Relaxed);
        }
    }
    // ORDERING: Release; pairs with the Acquire in `is_setting_up`.
    SETTING_UP.fetch_add(1, Release);
    let _less = Less;
    let Some(within) = WITHIN.get() else { return act() };
    let (mut act, mut result) = (Some(act), None);
    within(&mut || result = act.take().map(|act| act()));
    result.expect("`within` calls what it is given")
}
