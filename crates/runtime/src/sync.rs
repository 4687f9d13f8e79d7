//! The seam through which atomics and locks enter, so that loom and shuttle can stand in for them.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

/// Locks, also after a panic elsewhere: what is under a lock is whole between any two steps that could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
