//! Blocks: taking and returning 64 bytes, with a free list, a pool or an allocator.
//!
//! Warmcore's free list and the pools store `Box<[u64; 8]>`; an allocator returns 64 bytes. All start warm. Each thread
//! returns the blocks that it took, so no variant's path for blocks of another thread is measured.
//!
//! The floor is a load and two stores; a malloc with thread caches takes 2 to 5 ns.
//!
//! Notes on what differs. An allocator finds the size class at each call, and would serve any
//! size; it is called through `GlobalAlloc`, as by `Box`, so those that can are told the size when
//! freeing. jemalloc runs without its background threads, tcmalloc without
//! `process_background_actions`: both return memory to the system later, in no block's path.
//! tcmalloc keeps per-thread caches here, since glibc has registered the thread's area for
//! restartable sequences and tcmalloc wants one of its own; `tcmalloc.rs` gives it that.
//! The pools' guards give back on drop, and a reset, where there is one, does nothing.

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

/// As large as the objects that are freed and wanted again: a small request, a node of a tree.
type Content = [u64; 8];
type Block = Box<Content>;
const LAYOUT: Layout = Layout::new::<Content>();

/// Blocks of a batch.
const BATCH: usize = 32;

/// What a pool starts with: a batch for each of two threads.
const FILL: usize = 2 * BATCH;

fn block() -> Block {
    Box::new([0; 8])
}

/// Makes a variant that runs `blocks(n)`, which takes and returns `n` blocks. With `two`, another CPU does the same at
/// the same time, with the same list, pool or allocator.
fn variant<'a>(name: &str, two: bool, blocks: impl Fn(u64) + Sync + Copy + 'a) -> Variant<'a> {
    const SOME: u64 = 8 * BATCH as u64;
    let beside = move || {
        blocks(SOME);
        SOME
    };
    // mimalloc's first block takes a millisecond: enough for one to pass for a slice.
    blocks(SOME);
    let variant = Variant::new(name, blocks);
    if two { variant.beside(beside) } else { variant }
}

/// One block at a time from an allocator.
pub fn malloc_pair<'a>(name: &str, two: bool, heap: &'a (impl GlobalAlloc + Sync)) -> Variant<'a> {
    variant(name, two, move |n| {
        for _ in 0..n {
            // SAFETY: the layout has a size; the block goes back with the same layout. No
            // allocator here is out of 64 bytes; jemalloc would object to the null.
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
            // SAFETY: as in `malloc_pair`; each block goes back once.
            unsafe {
                let blocks: [*mut u8; BATCH] = std::array::from_fn(|_| heap.alloc(LAYOUT));
                black_box(blocks).into_iter().for_each(|block| heap.dealloc(block, LAYOUT));
            }
        }
    })
}

/// Ours and the pools of a case.
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

/// `peers.freelist.pair`, and with a partner `peers.freelist.pair.2threads`.
pub fn pair(ctx: &CaseCtx, two: bool) -> anyhow::Result<Option<Vec<Row>>> {
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
    Ok(ctx.interleave(variants)?.map(|measured| rows(&measured)))
}

/// `peers.freelist.batch32`, and with a partner `peers.freelist.batch32.2threads`. The times are
/// per block.
pub fn batch32(ctx: &CaseCtx, two: bool) -> anyhow::Result<Option<Vec<Row>>> {
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
    Ok(ctx.interleave(variants)?.map(|measured| rows(&measured)))
}
