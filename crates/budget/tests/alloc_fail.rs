//! The charging allocator where an allocation over budget fails.

#[allow(dead_code)]
#[path = "alloc/kit.rs"]
mod kit;

use fastrand::Rng;
use kit::{on_each_kind, used};
use std::alloc::{Layout, System, alloc, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::thread;
use warmcore_budget::process::{BudgetAlloc, OnFull, enter};
use warmcore_budget::{Account, StockKind};

#[global_allocator]
static ALLOC: BudgetAlloc<System> = BudgetAlloc::with(System, OnFull::Fail);

const HEADER: u64 = size_of::<usize>() as u64;

/// Whether this number of bytes can be allocated. Without `black_box` the compiler would remove the allocation
/// and the free.
fn fits(bytes: usize) -> bool {
    let mut block = Vec::<u8>::new();
    let result = block.try_reserve_exact(bytes);
    drop(std::hint::black_box(block));
    result.is_ok()
}

#[test]
fn an_allocation_that_does_not_fit_fails_and_leaves_nothing() {
    on_each_kind(|kind| {
        let root = Account::root("root").kind(kind).limit(100_000).build();
        let account = root.child("account").limit(50_000).build();
        let (mut block, mut kept) = (Vec::<u8>::new(), Vec::with_capacity(100));
        let _current = enter(&account);
        assert!(block.try_reserve_exact(50_000).is_err(), "its header does not fit");
        assert_eq!(used(&root), 0);
        block.try_reserve_exact(50_000 - HEADER as usize).unwrap();
        assert_eq!(used(&root), 50_000);
        assert!(!fits(1));
        // A block that cannot grow keeps its size, and may shrink.
        assert!(block.try_reserve_exact(60_000).is_err());
        block.shrink_to(10_000);
        assert_eq!(used(&root), 10_000 + HEADER);
        // In small blocks, until the account is full.
        loop {
            let mut more = Vec::<u8>::new();
            if more.try_reserve_exact(1000).is_err() {
                break;
            }
            kept.push(more);
        }
        assert_eq!((kept.len(), used(&root)), (39, 10_000 + HEADER + 39 * (1000 + HEADER)));
        drop((block, kept));
        assert_eq!(used(&root), 0);
    });
}

#[test]
fn the_account_above_may_be_the_full_one() {
    on_each_kind(|kind| {
        let root = Account::root("root").kind(kind).limit(10_000).build();
        let [hog, other] = ["hog", "other"].map(|name| root.child(name).build());
        let block = {
            let _current = enter(&hog);
            let mut block = Vec::<u8>::new();
            block.try_reserve_exact(9000).unwrap();
            block
        };
        let _current = enter(&other);
        assert!(!fits(2000));
        drop(block);
        assert!(fits(2000));
        assert_eq!(used(&root), 0);
    });
}

#[test]
fn any_block_may_shrink_in_a_full_account() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).limit(1000).build();
        let (mut nobodys, mut mine) = (Vec::<u8>::with_capacity(5000), Vec::<u8>::new());
        let _current = enter(&account);
        mine.try_reserve_exact(1000 - HEADER as usize).unwrap();
        nobodys.shrink_to(10);
        mine.shrink_to(100);
        assert_eq!(used(&account), 100 + HEADER);
        drop((nobodys, mine));
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn a_block_grown_outside_of_its_scope_is_refused_by_its_own_account() {
    on_each_kind(|kind| {
        let [mine, other] = ["mine", "other"].map(|name| Account::root(name).kind(kind).limit(1000).build());
        let mut block = Vec::<u8>::new();
        {
            let _current = enter(&mine);
            block.try_reserve_exact(500).unwrap();
        }
        assert!(block.try_reserve_exact(2000).is_err());
        {
            let _current = enter(&other);
            assert!(block.try_reserve_exact(2000).is_err());
            block.try_reserve_exact(900).unwrap();
        }
        assert_eq!((used(&mine), used(&other)), (900 + HEADER, 0));
        drop(mine);
        assert!(block.try_reserve_exact(2000).is_err(), "limits hold without a handle, too");
        block.shrink_to(10);
        drop(block);
    });
}

#[test]
fn zeroed_and_aligned_blocks_fail_alike() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).limit(10_000).build();
        let _current = enter(&account);
        for align in (0..=12).map(|log2| 1 << log2) {
            let layout = Layout::from_size_align(10_001 - align.max(HEADER as usize), align).unwrap();
            // SAFETY: the layout is not empty. Behind `black_box`, or the compiler would assume that both
            // succeed.
            let blocks = std::hint::black_box(unsafe { (alloc(layout), alloc_zeroed(layout)) });
            assert!(blocks.0.is_null() && blocks.1.is_null(), "{align}");
            assert_eq!(used(&account), 0);
            let layout = Layout::from_size_align(layout.size() - 1, align).unwrap();
            // SAFETY: as above; it is freed once, with its layout.
            unsafe {
                let block = std::hint::black_box(alloc_zeroed(layout));
                assert!(!block.is_null(), "{align}");
                assert_eq!(used(&account), 10_000);
                dealloc(block, layout);
            }
        }
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn under_load_the_strict_kind_stays_within_the_limit_and_both_kinds_end_at_zero() {
    const LIMIT: u64 = 200_000;
    on_each_kind(|kind| {
        let root = Account::root("root").kind(kind).limit(LIMIT).build();
        let tenants: Arc<Vec<Account>> = Arc::new((0..3).map(|_| root.child("tenant").build()).collect());
        // Each thread keeps its blocks until all threads are done. Together the threads ask for more than the
        // limit, in whatever order they run, so some requests are refused.
        let all_are_done = Arc::new(std::sync::Barrier::new(4));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (tenants, all_are_done) = (tenants.clone(), all_are_done.clone());
                thread::spawn(move || {
                    let (mut rng, mut refused) = (Rng::with_seed(n + 7), 0);
                    let mut own: Vec<Vec<u8>> = (0..64).map(|_| Vec::new()).collect();
                    for _ in 0..30_000 {
                        let _current = enter(&tenants[rng.usize(..3)]);
                        let at = rng.usize(..64);
                        if rng.usize(..3) == 0 {
                            own[at] = Vec::new();
                        } else if own[at].try_reserve_exact(1 + rng.usize(..4000)).is_err() {
                            refused += 1;
                        }
                    }
                    all_are_done.wait();
                    refused
                })
            })
            .collect();
        let refused: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(refused > 0);
        assert!(root.peak() <= LIMIT || kind == StockKind::Rseq, "{} of {LIMIT}", root.peak());
        assert_eq!(used(&root), 0);
    });
}
