//! The cost of charging every allocation to an account.
//!
//! A block is allocated, each of its cache lines is written, and the block is freed. This is done with an allocator
//! alone and with `BudgetAlloc` over the same allocator, which charges an account; over mimalloc also without an
//! account. The calls go through `GlobalAlloc`, as those of `Box` do, on instances other than the process's global
//! allocator. The case `alloc.bare` does not write to the blocks, unlike real programs. A loop that holds one block at
//! a time usually gets it from the front of a free list in the L1 cache, so the case `alloc` also has variants that
//! hold 64 blocks of mixed sizes, as a server does.
//!
//! Writing the 64 lines of a block of 4 KiB takes longer than a charge and its uncharge; writing one line does not.

use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::{Measured, Variant};
use fastrand::Rng;
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use warmcore_budget::Account;
use warmcore_budget::process::{BudgetAlloc, enter};
use warmcore_results::{Bound, Row};

static MIMALLOC: MiMalloc = MiMalloc;
static OVER_MIMALLOC: BudgetAlloc<MiMalloc> = BudgetAlloc::new(MiMalloc);
static OVER_SYSTEM: BudgetAlloc<System> = BudgetAlloc::new(System);

const OVER_PLAIN_MAX: f64 = 1.3;
const SIZES: [usize; 4] = [64, 256, 1024, 4096];
const LINE_BYTES: usize = 64;
/// The number of blocks that are allocated at the same time in the variants with mixed sizes.
const LIVE: usize = 64;
/// The number of random sizes that are drawn before the measurement.
const DRAWN: usize = 1024;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).expect("small, and a power of two")
}

/// Allocates and frees `n` blocks, one at a time; writes each of their cache lines if `touched`.
#[inline(always)]
fn blocks(heap: &impl GlobalAlloc, layout: Layout, touched: bool, n: u64) {
    for i in 0..n {
        // SAFETY: the layout has a size; the block is written only within it, and freed with the same layout.
        unsafe {
            let block = black_box(heap.alloc(layout));
            assert!(!block.is_null(), "no memory for {} bytes", layout.size());
            if touched {
                (0..layout.size()).step_by(LINE_BYTES).for_each(|at| block.add(at).cast::<u64>().write(i));
            }
            heap.dealloc(black_box(block), layout);
        }
    }
}

/// Allocates and writes `n` blocks. Frees each after `LIVE` others are allocated, or at the end.
#[inline(always)]
fn mixed(heap: &impl GlobalAlloc, layouts: &[Layout; DRAWN], live: &mut [(*mut u8, Layout); LIVE], n: u64) {
    for i in 0..n as usize {
        let layout = layouts[i % DRAWN];
        // SAFETY: as in `blocks`; each block is freed once, with its own layout.
        unsafe {
            let block = black_box(heap.alloc(layout));
            assert!(!block.is_null(), "no memory for {} bytes", layout.size());
            (0..layout.size() - 7).step_by(LINE_BYTES).for_each(|at| block.add(at).cast::<u64>().write(1));
            let (old, its) = std::mem::replace(&mut live[i % LIVE], (block, layout));
            if !old.is_null() {
                heap.dealloc(old, its);
            }
        }
    }
    for (block, layout) in live {
        if !block.is_null() {
            // SAFETY: as above; the list no longer has the block afterwards.
            unsafe { heap.dealloc(std::mem::replace(block, std::ptr::null_mut()), *layout) };
        }
    }
}

/// A variant that allocates and frees blocks of one size, in the account (if there is one).
fn variant<'a>(
    name: &str,
    size: usize,
    touched: bool,
    heap: &'static impl GlobalAlloc,
    account: Option<&'a Account>,
) -> Variant<'a> {
    let layout = layout(size, 8);
    Variant::new(&named(name, size), move |n| {
        let _current = account.map(enter);
        blocks(heap, layout, touched, n);
    })
}

/// As [`variant`], with blocks of mixed sizes that are all written.
fn mixed_variant<'a>(
    name: &str,
    layouts: &'a [Layout; DRAWN],
    heap: &'static impl GlobalAlloc,
    account: Option<&'a Account>,
) -> Variant<'a> {
    let mut live = [(std::ptr::null_mut(), layout(8, 8)); LIVE];
    Variant::new(&mixed_named(name), move |n| {
        let _current = account.map(enter);
        mixed(heap, layouts, &mut live, n);
    })
}

fn mixed_named(name: &str) -> String {
    format!("{name}, 64 to 4096 B mixed")
}

fn named(name: &str, size: usize) -> String {
    format!("{name}, {size} B")
}

const PLAIN: &str = "mimalloc";
const BILLED: &str = "warmcore over mimalloc";
const UNBILLED: &str = "warmcore over mimalloc, nobody pays";
const SYSTEM: &str = "system allocator";
const BILLED_SYSTEM: &str = "warmcore over the system's";

fn variants(size: usize, touched: bool, account: &Account) -> Vec<Variant<'_>> {
    vec![
        variant(PLAIN, size, touched, &MIMALLOC, None),
        variant(BILLED, size, touched, &OVER_MIMALLOC, Some(account)),
        variant(UNBILLED, size, touched, &OVER_MIMALLOC, None),
        variant(SYSTEM, size, touched, &System, None),
        variant(BILLED_SYSTEM, size, touched, &OVER_SYSTEM, Some(account)),
    ]
}

fn ratios(measured: &Measured, size: usize) -> Vec<Row> {
    let pairs = [(BILLED, PLAIN), (UNBILLED, PLAIN), (BILLED_SYSTEM, SYSTEM)];
    pairs.iter().filter_map(|(a, b)| measured.ratio(&named(a, size), &named(b, size))).collect()
}

/// Measures allocation and free with writes to each cache line between them.
pub(super) fn touched(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let account = &leaves(default_kind(), LIMIT, 1)[0];
    let mut rng = Rng::with_seed(6);
    let sizes = SIZES[0]..=SIZES[SIZES.len() - 1];
    let layouts: &[Layout; DRAWN] =
        &std::array::from_fn(|_| layout(sizes.start() + rng.usize(..sizes.end() - sizes.start() + 1), 8));
    let mut all: Vec<Variant> = SIZES.iter().flat_map(|size| variants(*size, true, account)).collect();
    all.extend([
        mixed_variant(PLAIN, layouts, &MIMALLOC, None),
        mixed_variant(BILLED, layouts, &OVER_MIMALLOC, Some(account)),
        mixed_variant(SYSTEM, layouts, &System, None),
        mixed_variant(BILLED_SYSTEM, layouts, &OVER_SYSTEM, Some(account)),
    ]);
    let measured = ctx.interleave(all)?;
    let mut rows = measured.times();
    for size in SIZES {
        let billed = named(BILLED, size);
        let ratios = ratios(&measured, size).into_iter();
        rows.extend(ratios.map(|row| {
            let is_promised = row.variant == billed;
            row.promise_if(is_promised, Bound::AtMost, OVER_PLAIN_MAX)
        }));
    }
    rows.extend(measured.promise(&mixed_named(BILLED), &mixed_named(PLAIN), Bound::AtMost, OVER_PLAIN_MAX));
    rows.extend(measured.ratio(&mixed_named(BILLED_SYSTEM), &mixed_named(SYSTEM)));
    Ok(rows)
}

/// Measures allocation and free without writes, and the bytes that are charged for a block's header.
pub(super) fn bare(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let account = &leaves(default_kind(), LIMIT, 1)[0];
    let measured = ctx.interleave(variants(SIZES[0], false, account))?;
    let mut rows = measured.times();
    rows.extend(ratios(&measured, SIZES[0]));
    for align in [8, 16, 64] {
        let (name, bytes) = (format!("a header, aligned to {align}"), header_bytes(account, align));
        rows.push(Row::exact(ctx.name, &name, "memory each", "bytes", bytes as f64, 1));
    }
    Ok(rows)
}

/// Returns the number of bytes that are charged for a block of 64 bytes beyond its size.
fn header_bytes(account: &Account, align: usize) -> u64 {
    const SIZE: usize = 64;
    let layout = layout(SIZE, align);
    let before = account.exact_usage();
    let block = {
        let _current = enter(account);
        // SAFETY: the layout has a size.
        unsafe { OVER_SYSTEM.alloc(layout) }
    };
    let bytes = account.exact_usage() - before - SIZE as u64;
    // SAFETY: allocated above with this layout.
    unsafe { OVER_SYSTEM.dealloc(block, layout) };
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_budget::StockKind;

    #[test]
    fn a_block_is_paid_with_its_header_and_given_back() {
        let account = &leaves(StockKind::Atomic, LIMIT, 1)[0];
        assert_eq!([8, 16, 64].map(|align| header_bytes(account, align)), [8, 16, 64]);
        let _current = enter(account);
        let layouts: [Layout; DRAWN] = std::array::from_fn(|i| layout(64 + i * 3, 8));
        let mut live = [(std::ptr::null_mut(), layout(8, 8)); LIVE];
        for n in [1, 63, 64, 1000] {
            mixed(&OVER_MIMALLOC, &layouts, &mut live, n);
            mixed(&OVER_SYSTEM, &layouts, &mut live, n);
            blocks(&OVER_MIMALLOC, layout(300, 8), true, n);
            assert_eq!(account.exact_usage(), 0, "{n} blocks");
        }
    }
}
