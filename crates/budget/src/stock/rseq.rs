#![doc = include_str!("README.md")]

use super::table::{Place, SHIFT, Table};
use super::{Key, LEAVING, Look, Lower, Stocks, Tag, mark_of};
use std::sync::atomic::Ordering::*;
use warmcore_sys::rseq::{self, Here, Ids, section};
use warmcore_terms::CpuId;

/// How often an aborted section is tried again before it counts as hopeless (a debugger that
/// single-steps aborts every one).
const RETRIES: u32 = 16;

/// Restartable sections on the CPU's own word: fast, and in debt for a moment now and then.
#[derive(Debug)]
pub struct Rseq(Table);

impl Rseq {
    /// Tables for all CPU numbers of this machine.
    ///
    /// # Safety
    /// [`rseq::enable_sections`] was called, or never will be: nobody else decides about these words.
    pub(crate) unsafe fn new(cpus: u32) -> Self {
        Self(Table::new(cpus))
    }

    fn here(&self) -> Option<Here> {
        // A thread without an area gets one here if it may have one.
        if rseq::register_thread() { Here::new(Ids::Cpu) } else { None }
    }

    fn retry(&self, mut section: impl FnMut(Here) -> bool) -> bool {
        self.here().is_some_and(|here| (0..RETRIES).any(|_| section(here)))
    }
}

impl Stocks for Rseq {
    const STRICT: bool = false;
    const NAME: &'static str = "rseq";

    fn cpus(&self) -> u32 {
        self.0.cpus()
    }

    #[inline(always)]
    fn charge(&self, _: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        // SAFETY: a place in this very table.
        Here::new(Ids::Cpu).is_some_and(|here| unsafe { charge_at(here, self.0.place(key), n) })
    }

    #[inline(always)]
    fn uncharge(&self, _: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        // SAFETY: as in `charge`.
        Here::new(Ids::Cpu).is_some_and(|here| unsafe { uncharge_at(here, self.0.place(key), n) })
    }

    fn place(&self, key: Key) -> Place {
        self.0.place(key)
    }

    fn look(&self, cpu: CpuId, key: Key) -> Look {
        let [head, grant] = self.0.stock(cpu, key);
        // ORDERING: Acquire; pairs with the raise that wrote it, in `stock_grant`: what is read of
        // `used` below is at least what it was then. See "Notes on debt". Model: `rseq/loom.rs`.
        let grant = grant.load(Acquire);
        let head = head.load(Relaxed);
        look(head, grant)
    }

    fn raise(&self, cpu: CpuId, key: Key, seen: &Look, units: u32, room_log2: u8) -> bool {
        let [head, grant] = seen.words;
        let new = Tag { key, mark: 0, room_log2 }.with((grant as u32).wrapping_add(units));
        self.retry(|here| {
            // SAFETY: as in `charge_at`.
            unsafe {
                section::stock_grant::<SHIFT>(here, self.0.place(key).first.as_ptr(), cpu.0, head, grant, new)
            }
        })
    }

    fn lower(&self, cpu: CpuId, key: Key, seen: &Look, to: Lower) -> bool {
        let units = (seen.words[1] as u32).wrapping_sub(to.taken as u32);
        let mark = if to.mark { mark_of(seen.words[0] as u32) } else { 0 };
        let new = Tag { key: seen.key, mark, room_log2: to.room_log2 }.with(units);
        // ORDERING: AcqRel; Acquire pairs as in `look`, and Release passes on to the next drainer
        // what this one acquired.
        self.0.stock(cpu, key)[1].compare_exchange(seen.words[1], new, AcqRel, Relaxed).is_ok()
    }

    /// In three sections, each of which leaves a state from which whoever comes next goes on: see
    /// "Notes on changing hands".
    fn bind(&self, cpu: CpuId, key: Key, seen: &Look) -> bool {
        let first = self.0.place(key).first.as_ptr();
        let [head, grant] = seen.words;
        let used = head as u32;
        let leaving = Tag { key, mark: LEAVING, room_log2: 0 }.with(used);
        let bound = u64::from(key) << 32 | u64::from(used);
        self.retry(|here| {
            // SAFETY: as in `charge_at`.
            unsafe { section::stock_grant::<SHIFT>(here, first, cpu.0, head, grant, leaving) }
        }) && self.retry(|here| {
            // SAFETY: as in `charge_at`.
            unsafe { section::stock_rebind::<SHIFT>(here, first, cpu.0, head, leaving, bound) }
        }) && self.retry(|here| {
            let closed = Tag { key, mark: 0, room_log2: 0 }.with(used);
            // SAFETY: as in `charge_at`.
            unsafe { section::stock_grant::<SHIFT>(here, first, cpu.0, bound, leaving, closed) }
        })
    }

    fn resident_bytes(&self) -> std::io::Result<usize> {
        self.0.resident_bytes()
    }
}

/// [`Stocks::charge`], without a look at the table.
///
/// # Safety
/// A place in the table of an [`Rseq`] that lives; `here` is by [`Ids::Cpu`].
#[inline(always)]
pub(crate) unsafe fn charge_at(here: Here, place: Place, n: u32) -> bool {
    // SAFETY: the table has a stock of two words for every CPU number of this machine; `head` is
    // written by sections only, `grant` by locked instructions only.
    unsafe { section::stock_charge::<SHIFT>(here, place.first.as_ptr(), place.key, n) }
}

/// [`Stocks::uncharge`], without a look at the table.
///
/// # Safety
/// As [`charge_at`].
#[inline(always)]
pub(crate) unsafe fn uncharge_at(here: Here, place: Place, n: u32) -> bool {
    // SAFETY: as in `charge_at`.
    unsafe { section::stock_uncharge::<SHIFT>(here, place.first.as_ptr(), place.key, n) }
}

/// What two words say.
fn look(head: u64, grant: u64) -> Look {
    let (tag, used) = (Tag::of(grant), head as u32);
    Look {
        key: (head >> 32) as Key,
        free: (grant as u32).wrapping_sub(used) as i32,
        room_log2: tag.room_log2,
        is_idle: tag.mark == mark_of(used),
        is_leaving: tag.mark == LEAVING,
        words: [head, grant],
    }
}
