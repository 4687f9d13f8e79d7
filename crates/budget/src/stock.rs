//! Stocks: units that one CPU holds ready for one account, and three implementations of them.
//!
//! Every CPU has a table of stocks. An account's stock is at the same index, its *slot*, in each table. There may be
//! more accounts than slots, so a slot names the account whose stock it holds: the slot is *bound* to that account. A
//! stock has free units and a *capacity*, the number of units that it may hold. A stock with capacity 0 is closed: it
//! has no units for charges, and no uncharge returns units to it. With [`RseqStocks`], a section that was under way
//! when the stock was closed may still leave units or a debt in it.
//!
//! A stock is 16 bytes; a table is 32 KiB of addresses, and a page of it (256 stocks if a page has 4 KiB) takes memory
//! once one of its stocks was used. `charge`, `uncharge`, `refill` and `bind` are for the CPU that owns the table,
//! `snapshot` and `reduce` for any.
//!
//! Source: Linux `mm/memcontrol.c`, `struct memcg_stock_pcp`; linux-mm, January 2023, "Introduce memcg_stock_pcp
//! remote draining", v2. Bound slots are not from there.

#[cfg(not(loom))]
mod locked;
#[cfg(any(not(loom), test))]
mod rseq;
mod table;
#[cfg(all(test, not(loom)))]
pub(crate) use table::SLOTS;
mod atomic;
#[cfg(all(test, not(loom)))]
mod tests;

pub use atomic::AtomicStocks;
#[cfg(not(loom))]
#[doc(hidden)]
pub use locked::LockedStocks;
#[cfg(any(not(loom), test))]
pub use rseq::RseqStocks;
#[cfg(not(loom))]
pub(crate) use {
    atomic::{charge, uncharge},
    rseq::{charge_at, uncharge_at},
};

#[doc(hidden)]
pub use table::StockAddr;
use warmcore_types::CpuId;

/// The number of an account, below 2^24; 0 is none.
pub type Key = u32;

/// One more than the largest key.
pub const KEYS_END: Key = 1 << 24;

/// The largest capacity is `2^CAPACITY_LOG2_MAX - 1` units.
pub const CAPACITY_LOG2_MAX: u8 = 30;

/// The mark of a stock that is being bound to another account.
const LEAVING: u8 = 7;

/// The state of a stock at one moment. [`Stocks::refill`], [`Stocks::reduce`] and [`Stocks::bind`] are given the state
/// that they expect, and fail if they find that the stock has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockSnapshot {
    /// The account that the stock is bound to; 0 if none, or if the stock was bound to another one while it was read.
    pub key: Key,
    /// Units in the stock. A negative number is a debt: units that were spent after a drain had taken them.
    pub free: i32,
    /// The capacity is `2^capacity_log2 - 1`; 0 if the stock is closed.
    pub capacity_log2: u8,
    /// Whether the stock was marked, and seems unchanged since then.
    pub is_idle: bool,
    /// Whether the stock is being bound to another account. It is closed and empty until `bind` has finished.
    pub is_leaving: bool,
    pub(crate) words: [u64; 2],
}

impl StockSnapshot {
    /// The number of units that the stock may hold.
    pub fn capacity(&self) -> u64 {
        capacity(self.capacity_log2)
    }

    /// Whether the stock may hold units.
    pub fn is_open(&self) -> bool {
        self.capacity_log2 > 0
    }
}

/// The capacity in units.
pub const fn capacity(capacity_log2: u8) -> u64 {
    (1 << capacity_log2) - 1
}

/// A change by [`Stocks::reduce`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    /// Units to take; negative for a debt that was paid.
    pub taken: i32,
    /// The capacity afterwards.
    pub capacity_log2: u8,
    /// Whether to mark the stock, so that a later snapshot shows whether it was used.
    pub mark: bool,
}

/// The stocks of all CPUs: one of the three kinds.
///
/// `charge` and `uncharge` take a function for the CPU number: the section of [`RseqStocks`] reads the number
/// by itself, and a simulator returns the CPU that it simulates.
pub trait Stocks: Sync {
    /// Whether a stock is never in debt.
    const STRICT: bool;
    /// The name of the kind.
    const NAME: &'static str;

    /// The number of CPU numbers with a table.
    fn cpus(&self) -> u32;

    /// Takes `n` units from the stock of `key` on this CPU. Returns false, and changes nothing, if the stock is
    /// not bound to `key` or has fewer units, or, with [`RseqStocks`], if the section was aborted or this thread has
    /// no rseq area.
    fn charge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool;

    /// Returns `n` units to the stock of `key` on this CPU. Returns false, and changes nothing, if the stock
    /// would exceed its capacity or is not bound to `key`, or, with [`RseqStocks`], if the section was aborted or
    /// this thread has no rseq area.
    fn uncharge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool;

    /// Where the stocks of `key` are.
    #[doc(hidden)]
    fn stock_addr(&self, key: Key) -> StockAddr;

    /// The state of `key`'s slot of that CPU, whichever account it is bound to.
    fn snapshot(&self, cpu: CpuId, key: Key) -> StockSnapshot;

    /// Adds units, sets the capacity and clears the mark. Returns false, and changes nothing, if the state is not
    /// `seen` any more, or, with [`RseqStocks`], on another CPU than `cpu` or if the sections were aborted.
    fn refill(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, units: u32, capacity_log2: u8) -> bool;

    /// Takes units or capacity, and sets or clears the mark. Works from any CPU, and does not interrupt the CPU that
    /// owns the stock. Returns false, and changes nothing, if the stock was changed, apart from a charge or uncharge
    /// with [`RseqStocks`].
    fn reduce(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, to: Reduction) -> bool;

    /// Binds a slot that is closed and has no units and no debt to `key`. Returns false if the state is not `seen` any
    /// more, or, with [`RseqStocks`], on another CPU than `cpu` or if the sections were aborted.
    fn bind(&self, cpu: CpuId, key: Key, seen: &StockSnapshot) -> bool;

    /// Resident memory of the tables, in bytes.
    fn resident_bytes(&self) -> std::io::Result<usize>;
}

/// The upper half of the word that any CPU may change: key, mark and capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tag {
    key: Key,
    /// 0: not marked. 1 to 6: `mark_of` the units when the stock was marked. 7: being bound.
    mark: u8,
    capacity_log2: u8,
}

impl Tag {
    fn of(word: u64) -> Self {
        let tag = (word >> 32) as u32;
        Self { key: tag >> 8, mark: (tag >> 5 & 7) as u8, capacity_log2: (tag & 31) as u8 }
    }

    fn with(self, units: u32) -> u64 {
        let tag = self.key << 8 | u32::from(self.mark) << 5 | u32::from(self.capacity_log2);
        u64::from(tag) << 32 | u64::from(units)
    }
}

/// The mark of a stock with these free units; with `RseqStocks`, with these used units. If the number changes by a
/// multiple of six, the stock looks unused and may be closed; the next charge is then a slow one.
fn mark_of(units: u32) -> u8 {
    1 + (units % 6) as u8
}
