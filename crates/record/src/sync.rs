//! Atomics: the standard library's, or loom's in the model of the ring.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::format::Record;

/// Room for a record, which is written and read by turns. The words are atomics that are only loaded and stored, so this
/// needs no unsafe code. Zeros are valid.
#[cfg(not(loom))]
pub(crate) struct Slot([AtomicU32; 5]);

#[cfg(not(loom))]
impl Slot {
    #[inline(always)]
    pub(crate) fn write(&self, record: Record) {
        for (to, word) in self.0.iter().zip(record) {
            to.store(word, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn read(&self) -> Record {
        std::array::from_fn(|word| self.0[word].load(Ordering::Relaxed))
    }
}

/// The same for loom, which then fails if a read and a write are not ordered. With atomics it would not notice a read that
/// the CPU does after the store that follows it.
#[cfg(loom)]
pub(crate) struct Slot(loom::cell::UnsafeCell<Record>);

// SAFETY: loom panics if two threads use the cell at the same time.
#[cfg(loom)]
unsafe impl Sync for Slot {}

#[cfg(loom)]
impl Slot {
    pub(crate) fn new() -> Self {
        Self(loom::cell::UnsafeCell::new([0; 5]))
    }

    pub(crate) fn write(&self, record: Record) {
        // SAFETY: as above.
        self.0.with_mut(|slot| unsafe { *slot = record });
    }

    pub(crate) fn read(&self) -> Record {
        // SAFETY: as above.
        self.0.with(|slot| unsafe { *slot })
    }
}
