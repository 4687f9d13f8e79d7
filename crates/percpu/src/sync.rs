//! The seam through which atomics and locks enter, so that loom can stand in for them.

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

/// A SeqCst read-modify-write is in the one order of all SeqCst operations; loom knows only
/// fences to be, so under loom it is followed by one. Nothing without loom.
#[inline(always)]
pub(crate) fn seq_cst() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
