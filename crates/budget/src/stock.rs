//! Stock: budget that an account holds ready on one CPU, and the three ways to keep it.
//!
//! Model.   Every CPU has a table, and an account's stock stands at the same place in each, its *slot*.
//!          Accounts outnumber places, so a slot says whose stock it holds: it is *bound*. A stock has
//!          free units and *room*: how many may lie there. Room 0 is closed: nothing is spent from it,
//!          nothing returns to it.
//! Number.  A stock is 16 bytes, a table 32 KiB of addresses, of which a page exists where one of its
//!          256 stocks was used.
//! Writers. `charge`, `uncharge`, `raise`, `bind`: on the CPU whose table it is. `lower`: anybody.
//! Source.  Linux `mm/memcontrol.c`, `struct memcg_stock_pcp`; linux-mm, January 2023, "Introduce
//!          memcg_stock_pcp remote draining", v2. Bound slots are our own.

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

/// Which account, as a stock knows it: below 2^24, and 0 is nobody.
pub type Key = u32;

/// The keys end here: what a stock can name.
pub const KEYS_END: Key = 1 << 24;

/// The largest room is `2^CAPACITY_LOG2_MAX - 1` units.
pub const CAPACITY_LOG2_MAX: u8 = 30;

/// What a stock that is between two accounts shows as its mark.
const LEAVING: u8 = 7;

/// A stock as it was a moment ago. What changes it names what it saw, and fails if that is not so any
/// more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockSnapshot {
    /// Whose it is; 0: nobody's.
    pub key: Key,
    /// Units in it. Negative is debt: spent after a drain had taken them.
    pub free: i32,
    /// The room is `2^capacity_log2 - 1`; 0 is closed.
    pub capacity_log2: u8,
    /// Whether it has not changed since it was marked.
    pub is_idle: bool,
    /// It is between two accounts: closed and empty, until `bind` has finished.
    pub is_leaving: bool,
    pub(crate) words: [u64; 2],
}

impl StockSnapshot {
    /// How many units may lie there.
    pub fn capacity(&self) -> u64 {
        capacity(self.capacity_log2)
    }

    /// Whether units may lie there.
    pub fn is_open(&self) -> bool {
        self.capacity_log2 > 0
    }
}

/// The units of a room.
pub const fn capacity(capacity_log2: u8) -> u64 {
    (1 << capacity_log2) - 1
}

/// What [`Stocks::lower`] leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    /// Units to take; negative: debt that was paid.
    pub taken: i32,
    /// The room from now on.
    pub capacity_log2: u8,
    /// Whether to mark it, so that a later look tells whether it was used.
    pub mark: bool,
}

/// The stocks of all CPUs: one of the three kinds.
///
/// The CPU is asked for where a kind must know it: a function, because the section of [`RseqStocks`] knows by
/// itself. A simulator answers with the CPU that it imagines.
pub trait Stocks: Sync {
    /// Whether a stock is never in debt.
    const STRICT: bool;
    /// The kind's name.
    const NAME: &'static str;

    /// How many CPU numbers there are tables for.
    fn cpus(&self) -> u32;

    /// Spends `n` units from the stock of `key` here. False: it is not bound, or has not so many, or
    /// this thread was disturbed; nothing happened.
    fn charge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool;

    /// Puts `n` units into the stock of `key` here. False: no room, or as in `charge`.
    fn uncharge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool;

    /// Where the stocks of `key` stand.
    #[doc(hidden)]
    fn stock_addr(&self, key: Key) -> StockAddr;

    /// What is in `key`'s slot of that CPU, whoever's it is.
    fn snapshot(&self, cpu: CpuId, key: Key) -> StockSnapshot;

    /// Adds units, and room. On the stock's own CPU only: false elsewhere.
    fn refill(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, units: u32, capacity_log2: u8) -> bool;

    /// Takes units or room, or marks. From any CPU, without disturbing the stock's own.
    fn reduce(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, to: Reduction) -> bool;

    /// Binds a slot that is closed and even to `key`. On its own CPU only: false elsewhere.
    fn bind(&self, cpu: CpuId, key: Key, seen: &StockSnapshot) -> bool;

    /// Memory that the tables have, in bytes.
    fn resident_bytes(&self) -> std::io::Result<usize>;
}

/// The upper half of the word that everybody may change: whose, marked how, how much room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tag {
    key: Key,
    /// 0: not marked. 1 to 6: what the units were when it was. 7: leaving.
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

/// What the mark of a stock with these units is. Use that leaves them as they were, or six times as
/// many further, looks like none: it costs one slow charge.
fn mark_of(units: u32) -> u8 {
    1 + (units % 6) as u8
}
