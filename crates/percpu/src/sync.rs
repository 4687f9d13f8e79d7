//! Atomics and locks: the standard library's, or loom's in models.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, Ordering},
};

/// A fence under loom, to be called after a SeqCst read-modify-write. Such an operation is part of the single order
/// of all SeqCst operations, but loom models that order for fences only. Does nothing without loom.
#[inline(always)]
pub(crate) fn seq_cst() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
