//! The table with the stocks of all CPUs.

use super::Key;
#[cfg(loom)]
use crate::sync::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use warmcore_types::CpuId;
#[cfg(not(loom))]
use {std::ptr::NonNull, warmcore_sys::map::Region};

/// Each CPU's table has `1 << SHIFT` bytes.
#[cfg(not(loom))]
pub(crate) const SHIFT: u32 = 15;
/// The size of a stock in bytes: two words.
#[cfg(not(loom))]
const STOCK_BYTES: usize = 16;
/// The number of slots per CPU. Accounts whose keys differ by a multiple of this share a slot.
#[cfg(not(loom))]
pub(crate) const SLOTS: u32 = (1 << SHIFT) / STOCK_BYTES as u32;
#[cfg(loom)]
pub(crate) const SLOTS: u32 = 1;

#[derive(Debug)]
pub(crate) struct Table {
    #[cfg(not(loom))]
    region: Region,
    #[cfg(loom)]
    stocks: Vec<[AtomicU64; 2]>,
    cpus: u32,
}

#[cfg(not(loom))]
impl Table {
    /// Reserves 32 KiB of addresses for every CPU number. Panics if no address space is left.
    pub(crate) fn new(cpus: u32) -> Self {
        let region = Region::reserve((cpus as usize) << SHIFT).unwrap_or_else(|error| {
            panic!("no address space for the stocks of {cpus} CPUs ({error}); raise `ulimit -v`")
        });
        Self { region, cpus }
    }

    /// Where an account's stocks are.
    #[inline(always)]
    pub(crate) fn stock_addr(&self, key: Key) -> StockAddr {
        // SAFETY: inside CPU 0's table.
        let first = unsafe { self.region.start().add((key % SLOTS) as usize * STOCK_BYTES) };
        StockAddr { first, cpus: self.cpus, key }
    }

    /// Both words of a stock.
    #[inline(always)]
    pub(crate) fn stock(&self, cpu: CpuId, key: Key) -> &[AtomicU64; 2] {
        // SAFETY: an address in this table.
        unsafe { self.stock_addr(key).stock(cpu) }
    }

    pub(crate) fn resident_bytes(&self) -> std::io::Result<usize> {
        Ok(self.region.resident_pages()? * warmcore_sys::map::page_bytes())
    }
}

/// Where an account's stocks are. Stored in its node, so that a charge need not read the table.
#[cfg(not(loom))]
#[derive(Debug, Clone, Copy)]
pub struct StockAddr {
    /// The address of CPU 0's stock; CPU n's is `n << SHIFT` bytes further.
    pub(crate) first: NonNull<u8>,
    cpus: u32,
    pub(crate) key: Key,
}

#[cfg(not(loom))]
impl StockAddr {
    /// Both words of a CPU's stock.
    ///
    /// # Safety
    ///
    /// The table lives as long as the reference.
    #[inline(always)]
    pub(crate) unsafe fn stock<'a>(self, cpu: CpuId) -> &'a [AtomicU64; 2] {
        #[cold]
        fn beyond(_: CpuId) -> usize {
            0
        }
        // From the kernel, a number beyond the end would be an error; CPU 0's stock is used then. This is a branch,
        // because the following load would have to wait for a conditional move.
        let cpu = if cpu.0 < self.cpus { cpu.index() } else { beyond(cpu) };
        // SAFETY: inside that CPU's table, aligned to 16; zeroed memory that is only accessed as atomics or in
        // restartable sections.
        unsafe { self.first.add(cpu << SHIFT).cast().as_ref() }
    }
}

// SAFETY: an address and numbers; the memory there is atomic.
#[cfg(not(loom))]
unsafe impl Send for StockAddr {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for StockAddr {}

/// Under loom a table is a vector, and an address a key.
#[cfg(loom)]
#[derive(Debug, Clone, Copy)]
pub struct StockAddr {
    pub(crate) key: Key,
}

#[cfg(loom)]
impl Table {
    pub(crate) fn stock_addr(&self, key: Key) -> StockAddr {
        StockAddr { key }
    }

    pub(crate) fn new(cpus: u32) -> Self {
        Self { stocks: (0..cpus).map(|_| Default::default()).collect(), cpus }
    }

    pub(crate) fn stock(&self, cpu: CpuId, _: Key) -> &[AtomicU64; 2] {
        &self.stocks[cpu.index()]
    }

    pub(crate) fn resident_bytes(&self) -> std::io::Result<usize> {
        Ok(0)
    }
}

impl Table {
    pub(crate) fn cpus(&self) -> u32 {
        self.cpus
    }
}
