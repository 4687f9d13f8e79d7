//! Atomics and locks, in one place where loom and shuttle can replace them; and the locks that other workers wait for.

#[cfg(warmcore_loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(any(warmcore_loom, shuttle)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
};

use std::ops::{Deref, DerefMut};
use warmcore_sys::slice;
use warmcore_types::ignore_poison;

/// A lock that is held in a section with a longer time slice: the kernel should not preempt the thread while other workers
/// wait for it. The fields are dropped in this order, so the section ends after the lock.
pub(crate) struct Locked<'a, T> {
    guard: MutexGuard<'a, T>,
    _section: slice::Section,
}

impl<'a, T> Locked<'a, T> {
    /// Waits for the lock, and then asks for the longer slice.
    #[inline(always)]
    pub(crate) fn lock(mutex: &'a Mutex<T>) -> Self {
        Self::of(ignore_poison(mutex.lock()))
    }

    #[inline(always)]
    pub(crate) fn of(guard: MutexGuard<'a, T>) -> Self {
        Self { guard, _section: slice::ask() }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
