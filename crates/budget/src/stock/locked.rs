//! A stock behind a lock, as in the linux-mm patches below. Only for comparison and simulation.
//!
//! The kernel holds the lock with preemption off. A user-space thread cannot: the lock's holder may be preempted, and a
//! thread of higher real-time priority that spins for the lock on the same CPU may wait for ever (`tests/preemption.rs`
//! shows it). So this kind is not offered to users.
//!
//! In the kernel the lock cost the owning CPU 2 to 13 cycles, and reduced the time of a drain of 128 CPUs by 63 %. The
//! lock is the stock's second word, which is 1 while the lock is held.
//!
//! Source: linux-mm, January 2023, "Introduce memcg_stock_pcp remote draining", v2.

use super::atomic::{charged, reduced, refilled, snapshot, uncharged};
use super::table::{StockAddr, Table};
use super::{Key, Reduction, StockSnapshot, Stocks};
use std::sync::atomic::Ordering::*;
use warmcore_types::CpuId;

/// Stocks with a lock each: the published design, kept to compare with.
#[derive(Debug)]
pub struct LockedStocks(Table);

impl LockedStocks {
    /// As [`AtomicStocks::new`](super::AtomicStocks::new).
    pub fn new(cpus: u32) -> Self {
        Self(Table::new(cpus))
    }

    /// Whether the lock of that stock is held now. For the test that shows the deadlock.
    pub fn is_held(&self, cpu: CpuId, key: Key) -> bool {
        self.0.stock(cpu, key)[1].load(Relaxed) != 0
    }

    /// Replaces the stock's word by what `change` makes of it, under the stock's lock. Returns false, and changes
    /// nothing, if that is `None`.
    #[inline(always)]
    fn update(&self, cpu: CpuId, key: Key, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        let [word, lock] = self.0.stock(cpu, key);
        // ORDERING: Acquire; pairs with the Release below.
        while lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            std::hint::spin_loop();
        }
        let new = change(word.load(Relaxed));
        if let Some(new) = new {
            word.store(new, Relaxed);
        }
        // ORDERING: Release; pairs with the Acquire above.
        lock.store(0, Release);
        new.is_some()
    }

    fn replace(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, new: u64) -> bool {
        self.update(cpu, key, |word| (word == seen.words[0]).then_some(new))
    }
}

impl Stocks for LockedStocks {
    const STRICT: bool = true;
    const NAME: &'static str = "lock";

    fn cpus(&self) -> u32 {
        self.0.cpus()
    }

    #[inline(always)]
    fn charge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.update(cpu(), key, |word| charged(word, key, n))
    }

    #[inline(always)]
    fn uncharge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.update(cpu(), key, |word| uncharged(word, key, n))
    }

    fn stock_addr(&self, key: Key) -> StockAddr {
        self.0.stock_addr(key)
    }

    fn snapshot(&self, cpu: CpuId, key: Key) -> StockSnapshot {
        let mut seen = 0;
        self.update(cpu, key, |word| {
            seen = word;
            None
        });
        snapshot(seen)
    }

    fn refill(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, units: u32, capacity_log2: u8) -> bool {
        self.replace(cpu, key, seen, refilled(key, seen, units, capacity_log2))
    }

    fn reduce(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, to: Reduction) -> bool {
        self.replace(cpu, key, seen, reduced(seen, to))
    }

    fn bind(&self, cpu: CpuId, key: Key, seen: &StockSnapshot) -> bool {
        self.replace(cpu, key, seen, refilled(key, seen, 0, 0))
    }

    fn resident_bytes(&self) -> std::io::Result<usize> {
        self.0.resident_bytes()
    }
}
