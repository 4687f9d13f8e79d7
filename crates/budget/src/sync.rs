//! Atomics and locks, which loom replaces in models.

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

/// Pauses once in a wait for a thread that is in the middle of a few instructions, or was preempted there. `tries` is
/// the number of pauses before this one. From 16 on it sleeps 50 µs: a thread of higher priority that kept spinning
/// would keep the other thread from running.
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
