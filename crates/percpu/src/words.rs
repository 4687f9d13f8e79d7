//! Words: a few 64-bit words in every slot, and which slot is ours.
//!
//! Model.   `word(slot, k)` for `slot < slots`, `k < per_slot`. Under loom they are loom's words
//!          in a plain vector, since loom must see every access.

use crate::sync::AtomicU64;
#[cfg(not(loom))]
use crate::{backend::one_slot, pool::Block, pool::Pool, pool::SHIFT};
#[cfg(not(loom))]
use warmcore_sys::{affinity, rseq};

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

    /// Slot 0's first word.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.block.base()
    }

    /// The first word of a slot, from slot 0's: without a look at the block.
    ///
    /// # Safety
    /// `base` is [`Words::base`] or a word behind it in slot 0, and `slot < slots`.
    #[inline(always)]
    pub(crate) unsafe fn word_from(&self, base: *mut u8, slot: usize) -> &AtomicU64 {
        // SAFETY: the caller's promise; a block of words always has a pool's stride.
        unsafe { &*base.add(slot << SHIFT).cast::<AtomicU64>() }
    }

    #[inline]
    pub(crate) fn word(&self, slot: usize, k: usize) -> &AtomicU64 {
        debug_assert!(slot < self.slots && k < self.per_slot);
        // SAFETY: inside the block, aligned to 8; everybody reaches these words as atomics or
        // in restartable sections.
        unsafe { &*self.block.base().add(slot * self.block.stride() + k * 8).cast::<AtomicU64>() }
    }
}

#[cfg(loom)]
impl Words {
    pub(crate) fn for_model(slots: usize, per_slot: usize) -> Self {
        Self { words: (0..slots * per_slot).map(|_| AtomicU64::new(0)).collect(), per_slot, slots }
    }

    /// An address that is not null: models know open from shut, not one bank from another.
    pub(crate) fn base(&self) -> *mut u8 {
        self.words.as_ptr() as *mut u8
    }

    /// # Safety
    /// None to keep.
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

    /// Slot by slot, the `k`th word.
    pub(crate) fn column(&self, k: usize) -> impl Iterator<Item = &AtomicU64> {
        (0..self.slots).map(move |slot| self.word(slot, k))
    }
}

/// The slot for locked instructions: that of the CPU we are probably on, whatever the id space.
/// Any slot is right, a near one is fast.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn probable_slot(slots: usize) -> usize {
    /// Apart, so that the fast path saves no registers for the call: a locked instruction waits
    /// until every store before it is out, saved registers too.
    #[cold]
    fn asked() -> usize {
        affinity::current_cpu().index()
    }
    let cpu = match rseq::cpu_hint() {
        Some(cpu) => cpu as usize,
        None => asked(),
    };
    // `plain` has one slot; a number beyond the end is a kernel that broke its word, not ours.
    if cpu < slots { cpu } else { 0 }
}
