//! Trees of the greatest depth need little stack, and deeper ones are refused.
//!
//! A chain of `DEPTH_MAX` accounts, every operation on it, and its end, on a thread with 128 KiB of stack: the
//! stack size of the thread that compacts tenants' ids, the smallest of warmcore's threads. That thread may drop
//! accounts.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use warmcore_budget::{Account, DEPTH_MAX, StockKind};

const STACK: usize = 128 << 10;

/// The accounts from the root down.
fn chain(kind: StockKind, limit: u64) -> Vec<Account> {
    let mut chain = vec![Account::root("0").kind(kind).limit(limit).on_event(|_| ()).build()];
    while chain.len() < DEPTH_MAX {
        let child = chain[chain.len() - 1].child(chain.len().to_string()).guarantee(3).build();
        chain.push(child);
    }
    chain
}

fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    thread::Builder::new().stack_size(STACK).spawn(test).unwrap().join().unwrap();
}

#[test]
fn the_deepest_tree_fits_a_small_stack() {
    for kind in [StockKind::Atomic, StockKind::Rseq] {
        on_a_small_stack(move || {
            let chain = chain(kind, 10_000);
            let leaf = chain[DEPTH_MAX - 1].clone();
            for account in &chain {
                account.try_charge(10).unwrap();
            }
            // A charge that the root refuses, and a forced one: both first close every stock on the path.
            assert!(leaf.try_charge(10_000).is_err());
            assert!(leaf.force_charge(10_000).is_err());
            let used = 10_000 + 10 * DEPTH_MAX as u64;
            assert_eq!(chain[0].exact_usage(), used);
            assert_eq!(leaf.explain().path.len(), DEPTH_MAX);
            chain[0].set_limit(100_000);
            leaf.set_guarantee(50_000).unwrap();
            leaf.set_guarantee(0).unwrap();
            leaf.uncharge(10_000).unwrap();
            for account in &chain {
                account.uncharge(10).unwrap();
            }
            chain[0].drain_all();
            // The leaf's handle is dropped last: its end ends all other accounts.
            drop(chain);
            drop(leaf);
            Account::reclaim_idle_all();
        });
    }
}

#[test]
fn an_account_that_is_too_deep_panics_and_the_tree_stays_usable() {
    for kind in [StockKind::Atomic, StockKind::Rseq] {
        on_a_small_stack(move || {
            let chain = chain(kind, u64::MAX);
            let leaf = &chain[DEPTH_MAX - 1];
            let refused = catch_unwind(AssertUnwindSafe(|| leaf.child("one more").try_build()));
            let text = refused.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains("one more: 65 accounts") && text.contains("64 deep"), "{text}");
            leaf.try_charge(1).unwrap();
            chain[DEPTH_MAX - 2].child("a sibling").build().try_charge(1).unwrap();
            leaf.uncharge(1).unwrap();
        });
    }
}
