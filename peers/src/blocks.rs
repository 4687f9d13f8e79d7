//! Blocks of 64 bytes, taken and given back: from a free list, a pool or an allocator.
//!
//! Warmcore's free list and the pools keep `Box<[u64; 8]>`; an allocator returns 64 bytes. All variants have blocks in
//! their caches at the start. Each thread gives back the blocks that it took, so freeing another thread's blocks is not
//! measured. The least possible work is a load and two stores; a malloc with thread caches takes 2 to 5 ns.
//!
//! # Differences
//! An allocator finds the size class at each call, and would serve any size. It is called through `GlobalAlloc`, as
//! `Box` does, so an allocator that can use the size when freeing gets it. jemalloc runs without its background
//! threads, tcmalloc without `process_background_actions`: these only return memory to the system later, not while a
//! block is freed. tcmalloc uses per-thread caches here: for per-CPU caches it must register the thread's area for
//! restartable sequences, and glibc has done that already. `tcmalloc.rs` runs it without glibc's registration. The
//! pools' guards give the block back when they are dropped; a pool's function that resets a block does nothing.

use crate::{rows, tcmalloc};
use lockfree_object_pool::LinearObjectPool;
use mimalloc::MiMalloc;
use object_pool::Pool;
use snmalloc_rs::SnMalloc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use tcmalloc_better::TCMalloc;
use tikv_jemallocator::Jemalloc;
use warmcore_bench::measure::Variant;
use warmcore_bench::{CaseCtx, percpu};
use warmcore_percpu::FreeList;
use warmcore_results::Row;

/// The size of objects that are typically freed and allocated again: a small request, a node of a tree.
type Content = [u64; 8];
type Block = Box<Content>;
const LAYOUT: Layout = Layout::new::<Content>();

/// Blocks of a batch.
const BATCH: usize = 32;

/// How many blocks `object-pool` starts with: a batch for each of two threads.
const FILL: usize = 2 * BATCH;

fn block() -> Block {
    Box::new([0; 8])
}

/// A variant whose `blocks(n)` takes and gives back `n` blocks. If `two`, a thread on another CPU does the same with
/// the same list, pool or allocator.
fn variant<'a>(name: &str, two: bool, blocks: impl Fn(u64) + Sync + Copy + 'a) -> Variant<'a> {
    const SOME: u64 = 8 * BATCH as u64;
    let beside = move || {
        blocks(SOME);
        SOME
    };
    // Warm up: mimalloc's first block takes a millisecond, which is as long as a slice.
    blocks(SOME);
    let variant = Variant::new(name, blocks);
    if two { variant.beside(beside) } else { variant }
}

/// One block at a time from an allocator.
pub fn malloc_pair<'a>(name: &str, two: bool, heap: &'a (impl GlobalAlloc + Sync)) -> Variant<'a> {
    variant(name, two, move |n| {
        for _ in 0..n {
            // SAFETY: the layout's size is not 0; the block is freed with the same layout. No allocator fails to give 64
            // bytes here; a null would make jemalloc fail.
            unsafe {
                let block = black_box(heap.alloc(LAYOUT));
                heap.dealloc(block, LAYOUT);
            }
        }
    })
}

/// A batch at a time from an allocator.
pub fn malloc_batch<'a>(name: &str, two: bool, heap: &'a (impl GlobalAlloc + Sync)) -> Variant<'a> {
    variant(name, two, move |n| {
        for _ in 0..n.div_ceil(BATCH as u64) {
            // SAFETY: as in `malloc_pair`; each block is freed once.
            unsafe {
                let blocks: [*mut u8; BATCH] = std::array::from_fn(|_| heap.alloc(LAYOUT));
                black_box(blocks).into_iter().for_each(|block| heap.dealloc(block, LAYOUT));
            }
        }
    })
}

/// Warmcore's free list and the pools of a case.
struct Pools {
    ours: FreeList<Block>,
    lock_free: LinearObjectPool<Block>,
    object_pool: Pool<Block>,
}

impl Pools {
    fn new() -> Self {
        let ours = FreeList::new();
        (0..BATCH).for_each(|_| ours.push(block()));
        Self { ours, lock_free: LinearObjectPool::new(block, |_| {}), object_pool: Pool::new(FILL, block) }
    }
}

/// The case `peers.freelist.pair`; if `two`, `peers.freelist.pair.2threads`.
pub fn pair(ctx: &CaseCtx, two: bool) -> anyhow::Result<Vec<Row>> {
    let pools = Pools::new();
    let variants = vec![
        variant(&percpu::ours(), two, |n| {
            for _ in 0..n {
                pools.ours.push(black_box(pools.ours.pop()).unwrap_or_else(block));
            }
        }),
        malloc_pair(percpu::MALLOC, two, &System),
        malloc_pair("mimalloc", two, &MiMalloc),
        malloc_pair("jemalloc", two, &Jemalloc),
        malloc_pair("snmalloc", two, &SnMalloc),
        malloc_pair(tcmalloc::name(), two, &TCMalloc),
        variant("lockfree-object-pool", two, |n| {
            (0..n).for_each(|_| drop(black_box(pools.lock_free.pull())));
        }),
        variant("object-pool", two, |n| {
            (0..n).for_each(|_| drop(black_box(pools.object_pool.pull(block))));
        }),
    ];
    Ok(rows(&ctx.interleave(variants)?))
}

/// The case `peers.freelist.batch32`; if `two`, `peers.freelist.batch32.2threads`. The times are per block.
pub fn batch32(ctx: &CaseCtx, two: bool) -> anyhow::Result<Vec<Row>> {
    let pools = Pools::new();
    let variants = vec![
        variant(&percpu::ours(), two, |n| {
            let mut held = Vec::with_capacity(BATCH);
            for _ in 0..n.div_ceil(BATCH as u64) {
                pools.ours.pop_batch(black_box(&mut held), BATCH);
                held.resize_with(BATCH, block);
                pools.ours.push_batch(black_box(&mut held));
            }
        }),
        malloc_batch(percpu::MALLOC, two, &System),
        malloc_batch("mimalloc", two, &MiMalloc),
        malloc_batch("jemalloc", two, &Jemalloc),
        malloc_batch("snmalloc", two, &SnMalloc),
        malloc_batch(tcmalloc::name(), two, &TCMalloc),
        variant("lockfree-object-pool", two, |n| {
            for _ in 0..n.div_ceil(BATCH as u64) {
                drop(black_box(std::array::from_fn::<_, BATCH, _>(|_| pools.lock_free.pull())));
            }
        }),
        variant("object-pool", two, |n| {
            for _ in 0..n.div_ceil(BATCH as u64) {
                drop(black_box(std::array::from_fn::<_, BATCH, _>(|_| pools.object_pool.pull(block))));
            }
        }),
    ];
    Ok(rows(&ctx.interleave(variants)?))
}
