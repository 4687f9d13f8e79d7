//! Sections: operations on a stock on its own CPU.

use super::super::table::{SHIFT, StockAddr, Table};
use super::{Key, RseqStocks};
use warmcore_sys::rseq::{self, PercpuMode, RseqArea, section};
use warmcore_types::CpuId;

/// How often `grant` and `rebind` run their section at most before they fail. A debugger that single-steps aborts every
/// attempt.
const RETRIES: u32 = 16;

impl RseqStocks {
    /// Makes tables for this number of CPU numbers. Panics if no address space is left.
    ///
    /// # Safety
    ///
    /// [`rseq::enable_sections`] was called, or never will be: no other code decides how these words are
    /// changed.
    pub(crate) unsafe fn new(cpus: u32) -> Self {
        Self { table: Table::new(cpus) }
    }

    fn area(&self) -> Option<RseqArea> {
        // A thread without an area gets one here if that is possible.
        if rseq::register_thread() { RseqArea::current(PercpuMode::Cpu) } else { None }
    }

    fn retry(&self, mut section: impl FnMut(RseqArea) -> bool) -> bool {
        self.area().is_some_and(|area| (0..RETRIES).any(|_| section(area)))
    }

    #[inline(always)]
    pub(super) fn charge_here(&self, _: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        // SAFETY: an address in this table.
        RseqArea::current(PercpuMode::Cpu)
            .is_some_and(|area| unsafe { charge_at(area, self.table.stock_addr(key), n) })
    }

    #[inline(always)]
    pub(super) fn uncharge_here(&self, _: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        // SAFETY: as in `charge_here`.
        RseqArea::current(PercpuMode::Cpu)
            .is_some_and(|area| unsafe { uncharge_at(area, self.table.stock_addr(key), n) })
    }

    /// Replaces `grant` by `new` if this thread runs on `cpu` and both words are as given. Returns whether it did;
    /// false also if the section was aborted too often or the thread has no rseq area.
    pub(super) fn grant(&self, cpu: CpuId, key: Key, head: u64, grant: u64, new: u64) -> bool {
        let first = self.table.stock_addr(key).first.as_ptr();
        self.retry(|area| {
            // SAFETY: as in `charge_at`.
            unsafe { section::stock_grant::<SHIFT>(area, first, cpu.0, head, grant, new) }
        })
    }

    /// Replaces `head` by `new` under the conditions of `grant`. Returns whether it did.
    pub(super) fn rebind(&self, cpu: CpuId, key: Key, head: u64, grant: u64, new: u64) -> bool {
        let first = self.table.stock_addr(key).first.as_ptr();
        self.retry(|area| {
            // SAFETY: as in `charge_at`.
            unsafe { section::stock_rebind::<SHIFT>(area, first, cpu.0, head, grant, new) }
        })
    }
}

/// [`Stocks::charge`](super::Stocks::charge) at a given address, without reading the table's address.
///
/// # Safety
///
/// `addr` is in the table of an [`RseqStocks`] that lives; `area` was made with [`PercpuMode::Cpu`].
#[inline(always)]
pub(crate) unsafe fn charge_at(area: RseqArea, addr: StockAddr, n: u32) -> bool {
    // SAFETY: the table has a stock of two words for every CPU number of this machine; `head` is
    // written by sections only, `grant` by locked instructions only.
    unsafe { section::stock_charge::<SHIFT>(area, addr.first.as_ptr(), addr.key, n) }
}

/// [`Stocks::uncharge`](super::Stocks::uncharge) at a given address, without reading the table's address.
///
/// # Safety
/// As [`charge_at`].
#[inline(always)]
pub(crate) unsafe fn uncharge_at(area: RseqArea, addr: StockAddr, n: u32) -> bool {
    // SAFETY: as in `charge_at`.
    unsafe { section::stock_uncharge::<SHIFT>(area, addr.first.as_ptr(), addr.key, n) }
}
