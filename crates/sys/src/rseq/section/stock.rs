//! Stocks: two words per CPU, one written by that CPU only, the other taken from by everybody.
//!
//! Model.   `slot = first + (*index << SHIFT)` holds, in 16 aligned bytes,
//!
//! ```text
//! word 0, head    key << 32 | used        whose stock it is; how much of it was ever used
//! word 1, grant   tag << 32 | granted     how much was ever granted; low 5 bits of the tag: capacity
//! free = granted - used                   modulo 2³², read as signed: below 0 is a debt
//! ```
//!
//! A CPU charges by moving its own `used` towards `granted`, and needs no locked instruction for it.
//! Who takes from another CPU lowers `granted`, and never waits for its owner. A charge under way
//! may miss that and leave a debt, an uncharge something free above the capacity.
//! Nothing is lost by it, since both numbers only ever say what was done.
//!
//! Number.  A charge and an uncharge are 4 stores, 8 loads: 1.39 ns on a 3.7 GHz Zen 4, whose floor
//!          for four stores is 1.08 ns; two locked adds take 4.0 ns there.
//! Writers. `head`: sections on the CPU whose slot it is. `grant`: any CPU, by compare-and-swap.
//! Source.  Linux `mm/memcontrol.c`, `consume_stock`, where a lock of the CPU's own does it.
//!
//! The asm is the architectures'; what it does is said here, once.

use crate::rseq::RseqArea;

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
use super::aarch64::stock as verbs;
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
use super::unsupported::stock as verbs;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use super::x86_64::stock as verbs;

/// Uses `n` of the slot's stock if it is `key`'s and has them free. False: it is not, it has not,
/// or the section was aborted; nothing happened.
///
/// ```text
/// if slot.key != key: return false
/// new = slot.used + n
/// if (slot.granted - new) as i32 < 0: return false
/// slot.used = new         // commit, the lower half of `head`
/// ```
///
/// # Safety
/// `first + (id << SHIFT)` is a stock, 16 bytes, aligned to 16, for every CPU that the kernel may
/// give; `area` is by [`PercpuMode::Cpu`](crate::rseq::PercpuMode::Cpu). Nobody but sections writes its `head`,
/// and its `grant` is written by locked instructions only, as long as sections may run on it.
#[inline(always)]
pub unsafe fn stock_charge<const SHIFT: u32>(area: RseqArea, first: *mut u8, key: u32, n: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { verbs::charge::<SHIFT>(area, first, key, n) }
}

/// Gives `n` back to the slot's stock if it is `key`'s and the capacity allows it: less than 2^capacity free after
/// it, and no debt. False: it is not, it has not, or the section was aborted; nothing happened.
///
/// ```text
/// if slot.key != key: return false
/// new = slot.used - n
/// (tag, granted) = slot.grant     // one load: both of one moment
/// if (granted - new) as u32 >> (tag & 31) != 0: return false
/// slot.used = new                 // commit, the lower half of `head`
/// ```
///
/// # Safety
/// As [`stock_charge`].
#[inline(always)]
pub unsafe fn stock_uncharge<const SHIFT: u32>(area: RseqArea, first: *mut u8, key: u32, n: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { verbs::uncharge::<SHIFT>(area, first, key, n) }
}

/// Replaces `grant` by `new` if this is still `cpu`, and `head` and `grant` are what the caller saw
/// there. False: not so, or the section was aborted; nothing happened. On aarch64 also for no reason:
/// try again.
///
/// ```text
/// if *index != cpu or slot.head != head: return false
/// compare_exchange(slot.grant, grant, new)    // commit, if it succeeds
/// ```
///
/// **Order.** Whoever acquires `new` sees every store that sections on this CPU committed before
/// it. It acquires what it replaces.
///
/// # Safety
/// As [`stock_charge`].
pub unsafe fn stock_grant<const SHIFT: u32>(
    area: RseqArea,
    first: *mut u8,
    cpu: u32,
    head: u64,
    grant: u64,
    new: u64,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe { verbs::grant::<SHIFT>(area, first, cpu, head, grant, new) }
}

/// Replaces `head` by `new` if this is still `cpu`, and `head` and `grant` are what the caller saw
/// there: the stock changes hands. False: not so, or the section was aborted; nothing happened.
///
/// ```text
/// if *index != cpu or slot.head != head or slot.grant != grant: return false
/// slot.head = new         // commit; `grant` may have changed since it was looked at
/// ```
///
/// # Safety
/// As [`stock_charge`].
pub unsafe fn stock_rebind<const SHIFT: u32>(
    area: RseqArea,
    first: *mut u8,
    cpu: u32,
    head: u64,
    grant: u64,
    new: u64,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe { verbs::rebind::<SHIFT>(area, first, cpu, head, grant, new) }
}
