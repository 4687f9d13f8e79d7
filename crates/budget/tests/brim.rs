//! At the brim: threads that open stocks while others are being refused there all come through.
#![cfg(not(loom))]

use warmcore_budget::{Account, Kind};
use warmcore_sys::affinity;

const LIMIT: u64 = 100_000;
const THREADS: u64 = 4;
const CHARGES: u64 = if cfg!(debug_assertions) { 200_000 } else { 2_000_000 };

/// A charge that has taken room for a stock must not wait for somebody who waits for that room to go.
#[test]
fn who_takes_room_for_a_stock_does_not_wait_for_who_is_being_refused() {
    // Two kinds of stocks: only the strict one waits for a moment that is exact.
    let cpus: Vec<_> = affinity::allowed().unwrap().iter().take(2).collect();
    let group = Account::root("root").limit(LIMIT).kind(Kind::Word).build().child("group").limit(LIMIT).build();
    let leaf = group.child("leaf").limit(LIMIT).build();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (leaf, cpu) = (&leaf, cpus[thread as usize % cpus.len()]);
            scope.spawn(move || {
                // Two on a CPU: they are preempted between any two steps.
                affinity::pin(cpu).unwrap();
                let (mut held, mut own, mut state) = (std::collections::VecDeque::new(), 0, thread);
                for _ in 0..CHARGES {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let n = (1 + (state >> 58)).min(LIMIT / 3 - own);
                    if n > 0 && leaf.try_charge(n).is_ok() {
                        held.push_back(n);
                        own += n;
                    } else {
                        for n in held.drain(..held.len().min(8)) {
                            leaf.uncharge(n).unwrap();
                            own -= n;
                        }
                    }
                }
                held.into_iter().for_each(|n| leaf.uncharge(n).unwrap());
            });
        }
    });
    assert_eq!(leaf.exact_usage(), 0);
}
