//! A stock that is one atomic word, changed from any CPU by compare-and-swap.
//!
//! The word is `tag << 32 | free`. Key, capacity and units change together, so a stock that was closed is closed
//! for every CPU at once and is never in debt: this is the strict kind. It works on all platforms.
//!
//! Cost: a locked instruction on a cache line that other CPUs use only to read, mark or drain stocks, 2.0 ns on a 3.7
//! GHz Zen 4. `refill` and `bind` need not run on the stock's CPU here.
//!
//! Source: linux-mm 2026, one atomic word per counter and CPU, in review.

use super::table::{StockAddr, Table};
use super::{Key, Reduction, StockSnapshot, Stocks, Tag, mark_of};
use crate::sync::{AtomicU64, Ordering::*};
use warmcore_types::CpuId;

/// One atomic word per stock: strict and portable.
#[derive(Debug)]
pub struct AtomicStocks(Table);

impl AtomicStocks {
    /// Makes tables for this number of CPU numbers. A page takes memory once it is used. Panics if no address space is
    /// left.
    pub fn new(cpus: u32) -> Self {
        Self(Table::new(cpus))
    }

    fn replace(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, new: u64) -> bool {
        let word = &self.0.stock(cpu, key)[0];
        // ORDERING: AcqRel; pairs with itself: a refill has charged the account before it, and a reduction
        // uncharges it after. Model: `accounts/loom.rs`.
        word.compare_exchange(seen.words[0], new, AcqRel, Relaxed).is_ok()
    }
}

impl Stocks for AtomicStocks {
    const STRICT: bool = true;
    const NAME: &'static str = "atomic";

    fn cpus(&self) -> u32 {
        self.0.cpus()
    }

    #[inline(always)]
    fn charge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        charge(&self.0.stock(cpu(), key)[0], key, n)
    }

    #[inline(always)]
    fn uncharge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        uncharge(&self.0.stock(cpu(), key)[0], key, n)
    }

    fn stock_addr(&self, key: Key) -> StockAddr {
        self.0.stock_addr(key)
    }

    fn snapshot(&self, cpu: CpuId, key: Key) -> StockSnapshot {
        let word = self.0.stock(cpu, key)[0].load(Acquire);
        snapshot(word)
    }

    fn refill(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, units: u32, capacity_log2: u8) -> bool {
        self.replace(cpu, key, seen, refilled(key, seen, units, capacity_log2))
    }

    fn reduce(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, to: Reduction) -> bool {
        self.replace(cpu, key, seen, reduced(seen, to))
    }

    fn bind(&self, cpu: CpuId, key: Key, seen: &StockSnapshot) -> bool {
        debug_assert!(seen.free == 0 && seen.capacity_log2 == 0, "{seen:?}");
        self.replace(cpu, key, seen, refilled(key, seen, 0, 0))
    }

    fn resident_bytes(&self) -> std::io::Result<usize> {
        self.0.resident_bytes()
    }
}

/// Takes units from a stock's word.
#[inline(always)]
pub(crate) fn charge(word: &AtomicU64, key: Key, n: u32) -> bool {
    update(word, |seen| charged(seen, key, n))
}

/// Returns units to a stock's word.
#[inline(always)]
pub(crate) fn uncharge(word: &AtomicU64, key: Key, n: u32) -> bool {
    update(word, |seen| uncharged(seen, key, n))
}

/// Replaces the word by what `change` makes of it. Returns false, and changes nothing, if that is `None`. `change`
/// computes the new word by one addition or subtraction, because the swap waits for the result.
#[inline(always)]
fn update(word: &AtomicU64, change: impl Fn(u64) -> Option<u64>) -> bool {
    let mut seen = word.load(Relaxed);
    while let Some(new) = change(seen) {
        // ORDERING: AcqRel; pairs with `replace`.
        match word.compare_exchange_weak(seen, new, AcqRel, Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// The word after a charge; `None` if the stock has too few units or is not bound to `key`.
#[inline(always)]
pub(super) fn charged(word: u64, key: Key, n: u32) -> Option<u64> {
    (Tag::of(word).key == key && word as u32 >= n).then(|| word - u64::from(n))
}

/// The word after an uncharge; `None` if the stock has too little room or is not bound to `key`. A capacity is below
/// 2^30, so the sum never reaches the tag.
#[inline(always)]
pub(super) fn uncharged(word: u64, key: Key, n: u32) -> Option<u64> {
    let (tag, units) = (Tag::of(word), u64::from(word as u32) + u64::from(n));
    (tag.key == key && units >> tag.capacity_log2 == 0).then(|| word + u64::from(n))
}

/// The word of a stock that gets units and capacity.
pub(super) fn refilled(key: Key, seen: &StockSnapshot, units: u32, capacity_log2: u8) -> u64 {
    Tag { key, mark: 0, capacity_log2 }.with(seen.free as u32 + units)
}

/// The word of a stock that is reduced.
pub(super) fn reduced(seen: &StockSnapshot, to: Reduction) -> u64 {
    let units = (seen.free - to.taken) as u32;
    let mark = if to.mark { mark_of(units) } else { 0 };
    Tag { key: seen.key, mark, capacity_log2: to.capacity_log2 }.with(units)
}

/// Decodes a word.
pub(super) fn snapshot(word: u64) -> StockSnapshot {
    let (tag, units) = (Tag::of(word), word as u32);
    StockSnapshot {
        key: tag.key,
        free: units as i32,
        capacity_log2: tag.capacity_log2,
        is_idle: tag.mark == mark_of(units),
        is_leaving: false,
        words: [word, 0],
    }
}
