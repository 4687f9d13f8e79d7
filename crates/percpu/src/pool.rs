//! Pool: memory with one copy per slot, allocated when a slot is first written.
//!
//! A chunk is `(slots + 1) × 4 KiB` of address space; one slot is a spare. Each slot owns 4 KiB of it: one page, or
//! a part of a page where pages are larger. A block is the same few bytes in every slot. Many small blocks share a
//! chunk, so a slot in use takes one page for hundreds of counters, on the NUMA node of the CPU that writes it
//! first, and an unused slot takes no memory. A block larger than 2 KiB gets a region of its own, whose stride is
//! its size rounded up to a pair of cache lines.
//!
//! # Cost
//!
//! With pages of 4 KiB and 8192 slots of which 2 are in use, a chunk takes 32 MiB of address space and 8 KiB of memory.
//!
//! # Source
//!
//! Linux's percpu allocator (`mm/percpu.c`): units of one page, holes filled first-fit.
//!
//! Writers. The list of chunks: under its lock. The bytes of a block: the block's users.

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
/// The unit of a block's offset and size, in bytes.
const GRAIN: usize = 8;
const GRAINS: usize = SLOT_BYTES / GRAIN;
/// The largest block that shares a chunk, in bytes. Larger blocks get a region of their own.
pub(crate) const SHARED_BYTES_MAX: usize = SLOT_BYTES / 2;

/// The memory of one id space: all its slots, most of them untouched. For libraries that allocate ids of their own and
/// keep the data of many owners together; see [`PerCid::of`](crate::PerCid::of).
///
/// A spare slot follows the last one. No section writes it; threads that cannot run sections do.
#[derive(Debug)]
pub struct Pool {
    slots: usize,
    chunks: Mutex<Vec<Arc<Chunk>>>,
    /// Never written. A drain directs sections to it while it empties the real slots. Reading it maps the kernel's zero
    /// page and takes no memory.
    nothing: OnceLock<Region>,
}

#[derive(Debug)]
struct Chunk {
    region: Region,
    /// One bit per grain; it is set if the grain is taken. Writers: `Pool::block`, `Block::drop`.
    taken: Mutex<[u64; GRAINS / 64]>,
    /// The number of free grains, so that a search skips chunks with too few. Written under the lock of `taken`.
    free: AtomicUsize,
}

/// The same bytes in every slot, zeroed at first. They stay allocated as long as the block lives.
#[derive(Debug)]
pub(crate) struct Block {
    chunk: Arc<Chunk>,
    /// Slot 0's copy. Stored here, so that an add needs one load and not a second one through `chunk`.
    base: NonNull<u8>,
    /// The offset of `base` in the region.
    offset: usize,
    bytes: usize,
    stride: usize,
    slots: usize,
    /// Slots outside of these ranges were never written, so dropping the block does not read them.
    written: [Range<usize>; 2],
}

// SAFETY: a Block is a part of a region that it keeps alive. Its owner decides which threads access the bytes, as with
// the region itself.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` returns an address and numbers only.
unsafe impl Sync for Block {}

impl Pool {
    /// Returns the pool of one of the kernel's id spaces.
    pub(crate) fn of(mode: PercpuMode) -> &'static Self {
        static POOLS: [OnceLock<Pool>; 2] = [const { OnceLock::new() }; 2];
        let pool = &POOLS[match mode {
            PercpuMode::Cpu => 0,
            PercpuMode::Cid => 1,
        }];
        pool.get().unwrap_or_else(|| set_up(|| pool.get_or_init(|| Self::with_slots(affinity::nr_cpu_ids()))))
    }

    /// Creates a pool with any number of slots. It takes no memory until the first block.
    pub fn with_slots(slots: usize) -> Self {
        Self { slots, chunks: Mutex::new(Vec::new()), nothing: OnceLock::new() }
    }

    /// Returns the number of slots of each block, without the spare one.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the address of slots that are all zeros and never written. Panics if no address space is left for them.
    pub(crate) fn nothing(&self) -> *mut u8 {
        self.nothing.get_or_init(|| reserve(self.slots, SLOT_BYTES)).start().as_ptr()
    }

    /// Allocates `bytes` per slot. Panics if `align` is more than a pair of cache lines, or if no address space is
    /// left.
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
        // A chunk that only this list refers to has no blocks: free its memory.
        chunks.retain(|chunk| Arc::strong_count(chunk) > 1);
        let block = |chunk: &Arc<Chunk>, at| Block::new(chunk.clone(), at, bytes, SLOT_BYTES, self.slots);
        // The newest chunk first: older chunks are mostly full.
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
    /// Takes `bytes` that no block has and returns their offset in a slot, or `None` if there are none.
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

/// Returns the number of grains of a block of `bytes`.
fn grains(bytes: usize) -> usize {
    bytes.div_ceil(GRAIN).max(1)
}

impl Block {
    fn new(chunk: Arc<Chunk>, offset: usize, bytes: usize, stride: usize, slots: usize) -> Self {
        // SAFETY: the offset is inside the first slot of the region.
        let base = unsafe { chunk.region.start().add(offset) };
        Self { chunk, base, offset, bytes, stride, slots, written: [0..slots + 1, 0..0] }
    }

    /// Returns the address of slot 0's copy. Slot `n`'s is `n` × [`Block::stride`] bytes further.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Declares that only these slots were written, so that dropping the block reads no other slots.
    pub(crate) fn only_written(&mut self, slots: [Range<usize>; 2]) {
        self.written = slots;
    }

    /// Returns the distance from one slot's copy to the next, in bytes.
    #[inline]
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the number of slots, without the spare one.
    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the resident memory of the block's chunk or own region, of all slots, in bytes.
    pub(crate) fn resident_bytes(&self) -> std::io::Result<usize> {
        Ok(self.chunk.region.resident_pages()? * page_bytes())
    }
}

impl Drop for Block {
    /// Zeroes the block's bytes for the next block at the same place; reads each slot that may have been written. If
    /// the chunk has no other block, it frees the chunk's memory instead, if the system can. A block with a region of
    /// its own does neither.
    fn drop(&mut self) {
        if self.stride != SLOT_BYTES || self.bytes > SHARED_BYTES_MAX {
            return; // the block has a region of its own, which is unmapped with it
        }
        let mut taken = ignore_poison(self.chunk.taken.lock());
        let (first, grains) = (self.offset / GRAIN, grains(self.bytes));
        (first..first + grains).for_each(|at| taken[at / 64] &= !(1 << (at % 64)));
        let is_empty = self.chunk.free.fetch_add(grains, Relaxed) + grains == GRAINS;
        if is_empty && self.chunk.region.discard().is_ok() {
            return;
        }
        for slot in self.written.iter().flat_map(Range::clone) {
            // SAFETY: this block's bytes in that slot. No thread uses them: each user of the addresses holds the block,
            // and the next block at this place can only be made under the lock of `taken`, which is held here.
            let copy =
                unsafe { std::slice::from_raw_parts_mut(self.base().add(slot * self.stride), self.bytes) };
            // Writing zeros to an untouched page would allocate it.
            if copy.iter().any(|byte| *byte != 0) {
                copy.fill(0);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
