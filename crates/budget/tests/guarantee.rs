//! An account can always charge its guarantee, and no other account can, under concurrent charges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use warmcore_budget::{Account, StockKind};

/// Larger than any stock here, so that each charge goes up the tree.
const PIECE: u64 = 64 << 10;
const PIECES: u64 = 16;
const GUARANTEE: u64 = PIECE * PIECES;

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
