//! Set up: what first uses allocate, so that it is no account's, and so that a global allocator may count in a counter.
//!
//! Model.   The first add of a counter chooses the backend and reserves slots, under locks. Both allocate. A global
//!          allocator that adds to a counter comes back here in the midst of that, or in a thread that this one waits
//!          for; a count of the process tells it so, and an add to a counter without slots takes no lock then. A host that
//!          charges what threads allocate sets [`set_up_within`]: what is allocated here serves the whole process, not only
//!          the account of the thread that is first.
//! Writers. The count: threads in `set_up`. The host's function: the host, once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Calls what it is given, once.
pub type Within = fn(&mut dyn FnMut());

static WITHIN: OnceLock<Within> = OnceLock::new();

/// Threads in `set_up`.
static SETTING_UP: AtomicU32 = AtomicU32::new(0);

/// From now on what counters and lists allocate for their slots is allocated within `within`, which calls what it is
/// given, once. For a host that charges each thread's memory to an account; the first host's function stays.
pub fn set_up_within(within: Within) {
    let _ = WITHIN.set(within);
}

/// Whether a thread is in [`set_up`]: this one, perhaps, or one that waits for this one.
#[cfg(not(loom))]
pub(crate) fn is_setting_up() -> bool {
    // ORDERING: Acquire; pairs with the Release in `set_up`: a thread that was begun in a set-up is told of it.
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
