//! Words: a few 64-bit words in every slot, and the slot and the area that a thread uses.
//!
//! Words are addressed by `word(slot, k)` with `slot < slots` and `k < per_slot`. Under loom they are loom's atomics
//! in a vector, since loom must see every access.

use crate::sync::AtomicU64;
#[cfg(not(loom))]
use crate::{backend::one_slot, pool::Block, pool::Pool, pool::SHIFT};
#[cfg(not(loom))]
use warmcore_sys::{
    affinity,
    rseq::{self, PercpuMode, RseqArea},
};

/// The words of every slot.
#[derive(Debug)]
pub(crate) struct Words {
    #[cfg(not(loom))]
    block: Block,
    #[cfg(loom)]
    words: Vec<AtomicU64>,
    per_slot: usize,
    slots: usize,
}

#[cfg(not(loom))]
impl Words {
    pub(crate) fn new(pool: &Pool, per_slot: usize) -> Self {
        let block = pool.block(per_slot * 8, 8);
        // The `plain` backend uses slot 0 only; the others may touch any slot.
        let slots = if one_slot() { 1 } else { block.slots() };
        Self { block, per_slot, slots }
    }

    /// Returns the address of slot 0's first word.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.block.base()
    }

    /// Returns the word of a slot, given the address of the same word in slot 0. Unlike [`Words::word`], it does not
    /// load the block's address.
    ///
    /// # Safety
    /// `base` is [`Words::base`] or a later word of slot 0, and `slot < slots`.
    #[inline(always)]
    pub(crate) unsafe fn word_from(&self, base: *mut u8, slot: usize) -> &AtomicU64 {
        // SAFETY: the caller guarantees it; a block of words always has a pool's stride.
        unsafe { &*base.add(slot << SHIFT).cast::<AtomicU64>() }
    }

    #[inline]
    pub(crate) fn word(&self, slot: usize, k: usize) -> &AtomicU64 {
        debug_assert!(slot < self.slots && k < self.per_slot);
        // SAFETY: inside the block, aligned to 8; these words are only accessed as atomics or in restartable sections.
        unsafe { &*self.block.base().add(slot * self.block.stride() + k * 8).cast::<AtomicU64>() }
    }
}

#[cfg(loom)]
impl Words {
    pub(crate) fn for_model(slots: usize, per_slot: usize) -> Self {
        Self { words: (0..slots * per_slot).map(|_| AtomicU64::new(0)).collect(), per_slot, slots }
    }

    /// Returns an address that is not null. Models tell null from other addresses, but not one bank from another.
    pub(crate) fn base(&self) -> *mut u8 {
        self.words.as_ptr() as *mut u8
    }

    /// # Safety
    /// Always safe to call.
    pub(crate) unsafe fn word_from(&self, _: *mut u8, slot: usize) -> &AtomicU64 {
        self.word(slot, 0)
    }

    pub(crate) fn word(&self, slot: usize, k: usize) -> &AtomicU64 {
        &self.words[slot * self.per_slot + k]
    }
}

impl Words {
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Iterates over the `k`th word of each slot.
    pub(crate) fn column(&self, k: usize) -> impl Iterator<Item = &AtomicU64> {
        (0..self.slots).map(move |slot| self.word(slot, k))
    }
}

/// Returns this thread's area. Registers one first if the thread has none; returns `None` if that fails.
#[cfg(not(loom))]
pub(crate) fn registered_area(mode: PercpuMode) -> Option<RseqArea> {
    if rseq::register_thread() { RseqArea::lookup(mode) } else { None }
}

/// Returns the slot for locked instructions: the number of the CPU on which this thread probably runs, also where slots
/// are indexed by concurrency id; or 0 if there is no such slot. Any slot is correct; the CPU's own slot is fast.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn probable_slot(slots: usize) -> usize {
    /// A separate function, so that the fast path saves no registers for the call: a locked instruction waits for all
    /// earlier stores, including those of saved registers.
    #[cold]
    fn asked() -> usize {
        affinity::current_cpu().index()
    }
    let cpu = match rseq::cpu_hint() {
        Some(cpu) => cpu as usize,
        None => asked(),
    };
    // On `plain`, [`Words`] have one slot. Otherwise a CPU number beyond the slots would be a kernel bug; slot 0 is
    // safe.
    if cpu < slots { cpu } else { 0 }
}
