//! An account as its users see it: what `Explain` prints, guarantees under concurrent charges, and the deepest trees.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use warmcore_budget::{Account, DEPTH_MAX, Explain, Level, OnCpu, StockKind};
use warmcore_types::CpuId;

fn level(account: &str, charged: u64, limit: u64) -> Level {
    Level {
        account: account.into(),
        charged,
        peak: charged,
        limit,
        soft_limit: u64::MAX,
        guarantee: 0,
        reserve: 0,
        in_stocks_max: 0,
        stocks: 0,
        stocks_disabled: 0,
        waiting: 0,
    }
}

fn on(cpu: u32, free: u64, debt: u64) -> OnCpu {
    OnCpu { cpu: CpuId(cpu), free, capacity: 8192, debt }
}

#[test]
fn explain_prints_bytes_where_limits_are_whole_kib() {
    let orders = Level {
        stocks: 2,
        in_stocks_max: 9000,
        guarantee: 8 << 20,
        reserve: (8 << 20) - 1,
        soft_limit: 48 << 20,
        waiting: 1,
        ..level("orders", 13_000, 64 << 20)
    };
    let server = Level { stocks: 3, in_stocks_max: 9000, waiting: 2, ..level("server", 3 << 29, 4 << 30) };
    let explain =
        Explain { kind: "rseq", path: vec![orders, server], cpus: vec![on(0, 8192, 0), on(17, 1000, 288)] };
    assert_eq!(explain.used(), 13_000 + 288 - 9192);
    let text = "\
orders: 4 KiB used of 64 MiB, 8.9 KiB more in 2 stocks; peak 12.6 KiB with stocks; soft limit 48 MiB; \
8 MiB guaranteed, 7.9 MiB of it unused; 1 charge waits here
server: at least 1.4 GiB used of 4 GiB, up to 8.7 KiB more in 3 stocks; peak 1.5 GiB with stocks; 2 charges wait here
  cpu0: 8 KiB of 8 KiB in stock (rseq)
  cpu17: 1000 B of 8 KiB in stock (rseq), 288 B spent and not charged yet
";
    assert_eq!(explain.to_string(), text);
}

#[test]
fn explain_prints_groups_of_digits_where_limits_are_no_bytes() {
    let requests = Level { stocks: 1, in_stocks_max: 1, ..level("requests", 12_345, 100_000) };
    let all = level("all", 1_012_345, u64::MAX);
    let explain = Explain { kind: "atomic", path: vec![requests, all], cpus: vec![on(3, 345, 0)] };
    let text = "\
requests: 12 000 used of 100 000, 345 more in 1 stock; peak 12 345 with stocks
all: 1 012 345 used, no limit; peak 1 012 345 with stocks
  cpu3: 345 of 8 192 in stock (atomic)
";
    assert_eq!(explain.to_string(), text);
}

/// Reads an account until `used` units are in use. The background thread may close a stock between the two moments at
/// which charges and stocks are read; a later attempt is right.
fn becomes(account: &Account, used: u64) -> Explain {
    let began = Instant::now();
    loop {
        let explain = account.explain();
        if explain.used() == used {
            return explain;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "not {used}: {explain}");
    }
}

#[test]
fn explain_matches_what_is_held_on_every_kind() {
    for kind in [StockKind::Rseq, StockKind::Atomic] {
        let server = Account::root("server").limit(1 << 30).kind(kind).build();
        let orders = server.child("orders").limit(64 << 20).build();
        let held: Vec<_> = (0..100).map(|_| orders.try_hold(4096).expect("it fits")).collect();
        let text = becomes(&orders, 400 << 10).to_string();
        assert!(text.starts_with("orders: 400 KiB used of 64 MiB"), "{text}");
        drop(held);
        let text = becomes(&orders, 0).to_string();
        assert!(text.starts_with("orders: 0 B used of 64 MiB"), "{text}");
    }
}

/// Larger than any stock here, so that each charge goes up the tree.
const PIECE: u64 = 64 << 10;
const PIECES: u64 = 16;
const GUARANTEE: u64 = PIECE * PIECES;

/// An account can always charge its guarantee, and no other account can, under concurrent charges.
#[test]
fn a_guarantee_is_never_refused_nor_another_accounts() {
    for kind in [StockKind::Rseq, StockKind::Atomic] {
        let root = Account::root("root").kind(kind).limit(GUARANTEE).build();
        let owner = root.child("owner").guarantee(GUARANTEE).build();
        let other = root.child("other").build();
        let (is_over, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thief = {
            let (is_over, taken) = (is_over.clone(), taken.clone());
            thread::spawn(move || {
                while !is_over.load(Relaxed) {
                    taken.fetch_add(other.try_hold(1).map_or(0, |held| held.units()), Relaxed);
                }
            })
        };
        let users: Vec<_> = (0..2)
            .map(|_| {
                let owner = owner.clone();
                thread::spawn(move || {
                    let mut refused = 0;
                    for _ in 0..20_000 {
                        // Each thread charges half of the guarantee.
                        let held: Vec<_> = (0..PIECES / 2).map(|_| owner.try_hold(PIECE)).collect();
                        refused += held.iter().filter(|held| held.is_err()).count();
                    }
                    refused
                })
            })
            .collect();
        let refused: usize = users.into_iter().map(|user| user.join().unwrap()).sum();
        is_over.store(true, Relaxed);
        thief.join().unwrap();
        let level = owner.explain().path[0].clone();
        let found = (refused, taken.load(Relaxed), level.charged + level.reserve);
        assert_eq!(found, (0, 0, GUARANTEE), "on {kind}: refused, taken by others, kept");
    }
}

/// The stack size of the thread that compacts tenants' ids, the smallest of warmcore's threads. That thread may drop
/// accounts.
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

/// A chain of `DEPTH_MAX` accounts, every operation on it, and its end.
#[test]
fn the_deepest_tree_fits_a_small_stack() {
    for kind in [StockKind::Atomic, StockKind::Rseq] {
        on_a_small_stack(move || {
            let chain = chain(kind, 10_000);
            let leaf = chain[DEPTH_MAX - 1].clone();
            for account in &chain {
                account.try_charge(10).unwrap();
            }
            // A charge that the root refuses, and a forced one: both close every open stock of the tree.
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
