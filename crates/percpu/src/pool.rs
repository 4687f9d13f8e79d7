//! Pool: memory with one copy per slot, which exists where a slot was touched.
//!
//! Model.   A chunk is `slots × 4 KiB` of address space: each slot owns one page of it (a quarter
//!          or a sixteenth where pages are larger), and a block is the same few bytes in every page. Many small blocks share the pages, so a
//!          slot that runs pays one page for hundreds of counters, on its own node, and a slot
//!          that never runs pays nothing. What is larger than half a page gets a region of its
//!          own with a stride rounded up to a pair of lines, not to a power of two.
//! Number.  8192 slots, 2 of them running: a chunk is 32 MiB of addresses and 8 KiB of memory.
//! Writers. The chunk list: under its lock. The blocks' bytes: their users.
//! Source.  Linux percpu allocator (`mm/percpu.c`): units of one page, holes filled first-fit.

use crate::set_up::set_up;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use warmcore_line::PAIR;
use warmcore_sys::{
    affinity,
    map::{Region, page_bytes},
    rseq::PercpuMode,
};
use warmcore_types::ignore_poison;

/// A slot's share of a chunk is `1 << SHIFT` bytes: a page on most machines.
pub(crate) const SHIFT: u32 = 12;
pub(crate) const SLOT_BYTES: usize = 1 << SHIFT;
/// What a block's offset and size are counted in.
const GRAIN: usize = 8;
const GRAINS: usize = SLOT_BYTES / GRAIN;
/// Larger blocks get a region of their own.
pub(crate) const SHARED_BYTES_MAX: usize = SLOT_BYTES / 2;

/// One id space's memory: all slots of it, few of them touched. For hosts that hand out ids of
/// their own and keep the data of many owners together; see [`PerCid::of`](crate::PerCid::of).
///
/// One more slot than ids stands at the end: what no section reaches, for who runs none.
#[derive(Debug)]
pub struct Pool {
    slots: usize,
    chunks: Mutex<Vec<Arc<Chunk>>>,
    /// Never written: where verbs are sent while their real slots are collected. Reading it
    /// maps the kernel's zero page and costs no memory.
    nothing: OnceLock<Region>,
}

#[derive(Debug)]
struct Chunk {
    region: Region,
    /// Which grains are taken, a bit each. Writers: `Pool::block`, `Block::drop`.
    taken: Mutex<[u64; GRAINS / 64]>,
    /// How many are not: who wants more need not look. Written under the lock of `taken`.
    free: AtomicUsize,
}

/// The same bytes in every slot, zeroed. Whoever holds it may give out its addresses.
#[derive(Debug)]
pub(crate) struct Block {
    chunk: Arc<Chunk>,
    /// Slot 0's copy: one load for who adds, where the chunk's region would be two.
    base: NonNull<u8>,
    /// Where that is in the region.
    offset: usize,
    bytes: usize,
    stride: usize,
    slots: usize,
    /// Slots outside these were never written: nobody need look there when the block goes back.
    written: [Range<usize>; 2],
}

// SAFETY: a Block is bytes in a region that it keeps alive; who may touch them is its owner's
// business, as with the region itself.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` gives out an address and numbers.
unsafe impl Sync for Block {}

impl Pool {
    /// The pool of one of the kernel's id spaces.
    pub(crate) fn of(mode: PercpuMode) -> &'static Self {
        static POOLS: [OnceLock<Pool>; 2] = [const { OnceLock::new() }; 2];
        let pool = &POOLS[match mode {
            PercpuMode::Cpu => 0,
            PercpuMode::Cid => 1,
        }];
        pool.get().unwrap_or_else(|| set_up(|| pool.get_or_init(|| Self::with_slots(affinity::nr_cpu_ids()))))
    }

    /// A pool of its own, for any number of slots. Costs nothing until something is in it.
    pub fn with_slots(slots: usize) -> Self {
        Self { slots, chunks: Mutex::new(Vec::new()), nothing: OnceLock::new() }
    }

    /// How many slots its blocks have, the spare one aside.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// As many zero bytes as any block's slots, never written.
    pub(crate) fn nothing(&self) -> *mut u8 {
        self.nothing.get_or_init(|| reserve(self.slots, SLOT_BYTES)).start().as_ptr()
    }

    /// `bytes` per slot, aligned to `align`, at most a pair of lines. Panics without address space.
    pub(crate) fn block(&self, bytes: usize, align: usize) -> Block {
        set_up(|| self.find_or_make(bytes, align))
    }

    fn find_or_make(&self, bytes: usize, align: usize) -> Block {
        assert!(align <= PAIR, "a slot aligned to {align} bytes; the pool aligns to {PAIR} at most");
        let whole = |stride| Chunk {
            region: reserve(self.slots, stride),
            taken: Mutex::new([0; _]),
            free: AtomicUsize::new(GRAINS),
        };
        if bytes > SHARED_BYTES_MAX {
            let stride = bytes.next_multiple_of(PAIR);
            return Block::new(Arc::new(whole(stride)), 0, bytes, stride, self.slots);
        }
        let mut chunks = ignore_poison(self.chunks.lock());
        // A chunk that only this list still knows has no block left: its memory goes back.
        chunks.retain(|chunk| Arc::strong_count(chunk) > 1);
        let block = |chunk: &Arc<Chunk>, at| Block::new(chunk.clone(), at, bytes, SLOT_BYTES, self.slots);
        // The newest first: the older ones are mostly full.
        if let Some(found) = chunks.iter().rev().find_map(|c| Some(block(c, c.take(bytes, align)?))) {
            return found;
        }
        let chunk = Arc::new(whole(SLOT_BYTES));
        let offset = chunk.take(bytes, align).expect("half a page fits an empty one");
        chunks.push(chunk);
        block(&chunks[chunks.len() - 1], offset)
    }

    #[cfg(test)]
    pub(crate) fn resident_pages(&self) -> usize {
        self.chunks.lock().unwrap().iter().map(|c| c.region.resident_pages().unwrap()).sum()
    }
}

fn reserve(slots: usize, stride: usize) -> Region {
    let bytes = slots.checked_add(1).and_then(|all| all.checked_mul(stride)).unwrap_or(usize::MAX);
    Region::reserve(bytes).unwrap_or_else(|error| {
        panic!(
            "no address space for {slots} slots of {stride} bytes ({error}); \
             raise `ulimit -v`, or keep less per slot"
        )
    })
}

impl Chunk {
    /// The offset of `bytes` free in every slot, which are then taken.
    fn take(&self, bytes: usize, align: usize) -> Option<usize> {
        let grains = grains(bytes);
        if self.free.load(Relaxed) < grains {
            return None;
        }
        let mut taken = ignore_poison(self.taken.lock());
        let step = align.max(GRAIN) / GRAIN;
        let is_free = |at: usize| taken[at / 64] >> (at % 64) & 1 == 0;
        let at = (0..=GRAINS - grains).step_by(step).find(|&at| (at..at + grains).all(is_free))?;
        (at..at + grains).for_each(|at| taken[at / 64] |= 1 << (at % 64));
        self.free.fetch_sub(grains, Relaxed);
        Some(at * GRAIN)
    }
}

/// What a block of so many bytes takes.
fn grains(bytes: usize) -> usize {
    bytes.div_ceil(GRAIN).max(1)
}

impl Block {
    fn new(chunk: Arc<Chunk>, offset: usize, bytes: usize, stride: usize, slots: usize) -> Self {
        // SAFETY: the offset is inside the first slot of the region.
        let base = unsafe { chunk.region.start().add(offset) };
        Self { chunk, base, offset, bytes, stride, slots, written: [0..slots + 1, 0..0] }
    }

    /// Slot 0's copy. Slot `n`'s is [`Block::stride`] × n further.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Says that only these slots were written, so that dropping reads no others.
    pub(crate) fn only_written(&mut self, slots: [Range<usize>; 2]) {
        self.written = slots;
    }

    /// From one slot's copy to the next, in bytes.
    #[inline]
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// How many ids have a slot; the spare one is beyond.
    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// What the block's chunk has in memory, in all slots.
    pub(crate) fn resident_bytes(&self) -> std::io::Result<usize> {
        Ok(self.chunk.region.resident_pages()? * page_bytes())
    }
}

impl Drop for Block {
    /// Zeroes its bytes where they are not, for the next block there: one read per slot that may
    /// have been written. The last block of a chunk gives the chunk's memory back instead.
    fn drop(&mut self) {
        if self.stride != SLOT_BYTES || self.bytes > SHARED_BYTES_MAX {
            return; // a region of its own goes with it
        }
        let mut taken = ignore_poison(self.chunk.taken.lock());
        let (first, grains) = (self.offset / GRAIN, grains(self.bytes));
        (first..first + grains).for_each(|at| taken[at / 64] &= !(1 << (at % 64)));
        let is_empty = self.chunk.free.fetch_add(grains, Relaxed) + grains == GRAINS;
        if is_empty && self.chunk.region.discard().is_ok() {
            return;
        }
        for slot in self.written.iter().flat_map(Range::clone) {
            // SAFETY: this block's bytes in that slot, which nobody uses any more: every user
            // of its addresses holds the block, and the next one waits for the lock of `taken`.
            let copy =
                unsafe { std::slice::from_raw_parts_mut(self.base().add(slot * self.stride), self.bytes) };
            // A page that was never written must not be written here either.
            if copy.iter().any(|byte| *byte != 0) {
                copy.fill(0);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
