//! The seam through which atomics and locks enter, so that loom can stand in for them.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

/// Waits a little for somebody who is in the middle of a few instructions, or was preempted there.
/// It sleeps before long: a thread of higher priority that spun would keep that one from its CPU.
pub(crate) fn pause(tries: u32) {
    #[cfg(loom)]
    {
        let _ = tries;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    match tries {
        0..16 => std::hint::spin_loop(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}
