#![doc = include_str!("README.md")]

#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod sections;

#[cfg(not(loom))]
pub(crate) use sections::{charge_at, uncharge_at};

use super::table::{StockAddr, Table};
use super::{Key, LEAVING, Reduction, StockSnapshot, Stocks, Tag, mark_of};
use crate::sync::Ordering::*;
use warmcore_types::CpuId;

/// Stocks that change by restartable sections on the CPU's own word. They are fast, and may be in debt until the stock
/// is drained or refilled.
#[derive(Debug)]
pub struct RseqStocks {
    table: Table,
    /// Only in loom models: held while a section runs on that CPU.
    #[cfg(loom)]
    sections: Vec<crate::sync::Mutex<()>>,
}

impl Stocks for RseqStocks {
    const STRICT: bool = false;
    const NAME: &'static str = "rseq";

    fn cpus(&self) -> u32 {
        self.table.cpus()
    }

    #[inline(always)]
    fn charge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.charge_here(cpu, key, n)
    }

    #[inline(always)]
    fn uncharge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.uncharge_here(cpu, key, n)
    }

    fn stock_addr(&self, key: Key) -> StockAddr {
        self.table.stock_addr(key)
    }

    fn snapshot(&self, cpu: CpuId, key: Key) -> StockSnapshot {
        let [head, grant] = self.table.stock(cpu, key);
        // ORDERING: Acquire; pairs with the refill that wrote it, in `stock_grant`: `used` below is read no
        // older than that. See "Notes on debt". Model: `rseq/loom.rs`.
        let grant = grant.load(Acquire);
        let head = head.load(Relaxed);
        snapshot(head, grant)
    }

    fn refill(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, units: u32, capacity_log2: u8) -> bool {
        let [head, grant] = seen.words;
        let new = Tag { key, mark: 0, capacity_log2 }.with((grant as u32).wrapping_add(units));
        self.grant(cpu, key, head, grant, new)
    }

    fn reduce(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, to: Reduction) -> bool {
        let units = (seen.words[1] as u32).wrapping_sub(to.taken as u32);
        let mark = if to.mark { mark_of(seen.words[0] as u32) } else { 0 };
        let new = Tag { key: seen.key, mark, capacity_log2: to.capacity_log2 }.with(units);
        // ORDERING: AcqRel; Acquire pairs as in `snapshot`, and Release passes on to the next drain what this
        // one acquired.
        self.table.stock(cpu, key)[1].compare_exchange(seen.words[1], new, AcqRel, Relaxed).is_ok()
    }

    /// Binds in three sections. If the thread stops after any of them, another call can start from the beginning:
    /// see "Notes on binding".
    fn bind(&self, cpu: CpuId, key: Key, seen: &StockSnapshot) -> bool {
        let [head, grant] = seen.words;
        let used = head as u32;
        let leaving = Tag { key, mark: LEAVING, capacity_log2: 0 }.with(used);
        let bound = u64::from(key) << 32 | u64::from(used);
        let closed = Tag { key, mark: 0, capacity_log2: 0 }.with(used);
        self.grant(cpu, key, head, grant, leaving)
            && self.rebind(cpu, key, head, leaving, bound)
            && self.grant(cpu, key, bound, leaving, closed)
    }

    fn resident_bytes(&self) -> std::io::Result<usize> {
        self.table.resident_bytes()
    }
}

/// Decodes both words. If their keys differ and the stock is not marked as being bound, the slot was bound to another
/// account between the two loads: then the snapshot names no account, so that no units are taken from one account for
/// another.
fn snapshot(head: u64, grant: u64) -> StockSnapshot {
    let (tag, key, used) = (Tag::of(grant), (head >> 32) as Key, head as u32);
    let words = [head, grant];
    let is_leaving = tag.mark == LEAVING;
    if tag.key != key && !is_leaving {
        return StockSnapshot { key: 0, free: 0, capacity_log2: 0, is_idle: false, is_leaving, words };
    }
    StockSnapshot {
        key,
        free: (grant as u32).wrapping_sub(used) as i32,
        capacity_log2: tag.capacity_log2,
        is_idle: tag.mark == mark_of(used),
        is_leaving,
        words,
    }
}
