//! Stocks: units that a CPU holds ready for an account, in two words per CPU. Only that CPU writes one of the
//! words; all CPUs may write the other.
//!
//! `slot = first + (*index << SHIFT)` has 16 aligned bytes:
//!
//! ```text
//! word 0, head    key << 32 | used        the account's key; units used from the stock, less those given back
//! word 1, grant   tag << 32 | granted     units granted, less those taken out; low 5 bits of tag: log2 of the capacity
//! free = granted - used                   modulo 2³², as a signed number: below 0 is a debt
//! ```
//!
//! A CPU charges its stock by increasing its own `used`, up to `granted`, without a locked instruction. Another CPU
//! takes units out by decreasing `granted`, without waiting for the stock's CPU. A charge in progress may miss that and
//! leave a debt; an uncharge in progress may leave more free units than the capacity. No units are lost by this, since
//! both words are running totals.
//!
//! # Cost
//!
//! A charge and an uncharge together are 4 stores and 8 loads: 1.39 ns on a 3.7 GHz Zen 4, where four stores alone take
//! 1.08 ns and two locked adds 4.0 ns.
//!
//! # Source
//!
//! Linux `mm/memcontrol.c`, `consume_stock`, which uses a per-CPU lock.
//!
//! Writers. `head`: sections on the slot's CPU. `grant`: any CPU, by locked instructions.
//!
//! # Order on aarch64
//!
//! `stock_charge` and `stock_uncharge` use plain accesses. The next section on this CPU sees their stores, whichever
//! thread runs it (`aarch64.rs`, "Notes on order", 1). Another CPU sees them at the latest through the next
//! `stock_grant`, which is a Release. In `stock_rebind` the store comes after both comparisons, by a control
//! dependency.

use super::section;
use crate::rseq::RseqArea;

/// Charges `n` units to the current CPU's stock if its key is `key` and it has that many free units. Returns
/// false, and changes nothing, if it has another key or fewer free units, or if the section was aborted.
///
/// ```text
/// if slot.key != key: return false
/// new = slot.used + n
/// if (slot.granted - new) as i32 < 0: return false
/// slot.used = new         // commit, the lower half of `head`
/// ```
///
/// # Safety
/// `first + (id << SHIFT)` is a stock, 16 bytes, aligned to 16, for every CPU number that the kernel may use. `area`
/// was made with [`PercpuMode::Cpu`](crate::rseq::PercpuMode::Cpu). As long as sections may run on the stock, only
/// sections write its `head`, and only locked instructions its `grant`.
#[inline(always)]
pub unsafe fn stock_charge<const SHIFT: u32>(area: RseqArea, first: *mut u8, key: u32, n: u32) -> bool {
    // SAFETY: the caller guarantees it. The commit stores the lower half of `head`; the upper half is still `key`.
    unsafe {
        section!(
            area,
            x86_64: {
                at: ["shl {slot}, {shift}", "add {slot}, {first}"],
                body: [
                    "cmp dword ptr [{slot} + 4], {key:e}",
                    "jne {slow}",
                    // A load of the same width as the commit, because only such a load is forwarded from a recent
                    // store. Measured: an add with a memory operand was three times slower, one load of both halves
                    // five times.
                    "mov {used:e}, dword ptr [{slot}]",
                    "add {used:e}, {n:e}",
                    "cmp dword ptr [{slot} + 8], {used:e}",
                    "js {slow}", // the sign of the difference modulo 2^32; jl would compare without the modulus
                ],
                commit: "mov dword ptr [{slot}], {used:e}",
            },
            aarch64: {
                at: ["add {slot}, {first}, {slot}, lsl #{shift}"],
                body: [
                    "ldp {used:w}, w17, [{slot}]",
                    "cmp w17, {key:w}",
                    "b.ne {slow}",
                    "ldr w16, [{slot}, #8]",
                    "add {used:w}, {used:w}, {n:w}",
                    "subs w16, w16, {used:w}",
                    "b.mi {slow}", // not tbnz: it reaches only 32 KiB, and `slow` may be further away in the caller
                ],
                commit: "str {used:w}, [{slot}]",
            },
            shift = const SHIFT,
            first = in(reg) first,
            key = in(reg) key,
            n = in(reg) n,
            used = out(reg) _,
        )
    }
}

/// Returns `n` units to the current CPU's stock if its key is `key`, and if afterwards it has no debt and fewer
/// free units than its capacity. Returns false, and changes nothing, if that is not so or if the section was
/// aborted.
///
/// ```text
/// if slot.key != key: return false
/// new = slot.used - n
/// (tag, granted) = slot.grant     // one load, so both are of the same moment
/// if (granted - new) as u32 >> (tag & 31) != 0: return false
/// slot.used = new                 // commit, the lower half of `head`
/// ```
///
/// # Safety
/// As [`stock_charge`].
#[inline(always)]
pub unsafe fn stock_uncharge<const SHIFT: u32>(area: RseqArea, first: *mut u8, key: u32, n: u32) -> bool {
    // SAFETY: as in `stock_charge`.
    unsafe {
        section!(
            area,
            x86_64: {
                at: ["shl {slot}, {shift}", "add {slot}, {first}"],
                body: [
                    "cmp dword ptr [{slot} + 4], {key:e}",
                    "jne {slow}",
                    "mov {free}, qword ptr [{slot} + 8]",
                    "mov {used:e}, dword ptr [{slot}]",
                    "mov rcx, {free}",
                    "shr rcx, 32",
                    "sub {used:e}, {n:e}",
                    "sub {free:e}, {used:e}",
                    // A shift by 0 keeps the flags of the subtraction, which are right for it. Otherwise the shift uses
                    // the low 5 bits of cl.
                    "shr {free:e}, cl",
                    "jnz {slow}",
                ],
                commit: "mov dword ptr [{slot}], {used:e}",
                free = out(reg) _,
                out("rcx") _,
            },
            aarch64: {
                at: ["add {slot}, {first}, {slot}, lsl #{shift}"],
                body: [
                    "ldp {used:w}, w17, [{slot}]",
                    "cmp w17, {key:w}",
                    "b.ne {slow}",
                    "ldr x16, [{slot}, #8]", // one load: a pair of halves may be of different moments
                    "sub {used:w}, {used:w}, {n:w}",
                    "lsr x17, x16, #32",
                    "sub w16, w16, {used:w}",
                    "lsr w16, w16, w17", // shifts by the low 5 bits of w17
                    "cbnz w16, {slow}",
                ],
                commit: "str {used:w}, [{slot}]",
            },
            shift = const SHIFT,
            first = in(reg) first,
            key = in(reg) key,
            n = in(reg) n,
            used = out(reg) _,
        )
    }
}

/// Replaces `grant` by `new` if the thread runs on `cpu`, and if `head` and `grant` have the given values. Returns
/// false, and changes nothing, if that is not so or if the section was aborted. On aarch64 it may fail spuriously, so
/// the caller tries again.
///
/// ```text
/// if *index != cpu or slot.head != head: return false
/// compare_exchange(slot.grant, grant, new)    // commit, if it succeeds
/// ```
///
/// **Order.** A thread that acquires `new` sees every store that sections on this CPU committed before this operation.
/// The operation acquires the value that it replaces.
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
    // SAFETY: the caller guarantees it. The flags survive a context switch after the commit.
    unsafe {
        section!(
            area,
            x86_64: {
                at: ["cmp {slot:e}, {cpu:e}", "jne {slow}", "shl {slot}, {shift}", "add {slot}, {first}"],
                body: ["cmp qword ptr [{slot}], {head}", "jne {slow}"],
                commit: "lock cmpxchg qword ptr [{slot} + 8], {new}" then "jne {slow}",
                new = in(reg) new,
                inout("rax") grant => _,
            },
            aarch64: {
                at: ["cmp {slot:w}, {cpu:w}", "b.ne {slow}", "add {slot}, {first}, {slot}, lsl #{shift}"],
                body: [
                    "ldr x16, [{slot}], #8",
                    "cmp x16, {head}",
                    "b.ne {slow}",
                    "ldaxr x16, [{slot}]",
                    "cmp x16, {grant}",
                    "b.eq 22f",
                    "clrex",
                    "b {slow}",
                    "22:",
                ],
                commit: "stlxr w17, {new}, [{slot}]" then "cbnz w17, {slow}",
                grant = in(reg) grant,
                new = in(reg) new,
            },
            shift = const SHIFT,
            first = in(reg) first,
            cpu = in(reg) cpu,
            head = in(reg) head,
        )
    }
}

/// Replaces `head` by `new` if the thread runs on `cpu`, and if `head` and `grant` have the given values. For binding
/// the stock to another account. Returns false, and changes nothing, if that is not so or if the section was aborted.
///
/// ```text
/// if *index != cpu or slot.head != head or slot.grant != grant: return false
/// slot.head = new         // commit; `grant` may have changed since it was compared
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
    // SAFETY: the caller guarantees it.
    unsafe {
        section!(
            area,
            x86_64: {
                at: ["cmp {slot:e}, {cpu:e}", "jne {slow}", "shl {slot}, {shift}", "add {slot}, {first}"],
                body: [
                    "cmp qword ptr [{slot}], {head}",
                    "jne {slow}",
                    "cmp qword ptr [{slot} + 8], {grant}",
                    "jne {slow}",
                ],
                commit: "mov qword ptr [{slot}], {new}",
            },
            aarch64: {
                at: ["cmp {slot:w}, {cpu:w}", "b.ne {slow}", "add {slot}, {first}, {slot}, lsl #{shift}"],
                body: [
                    "ldr x16, [{slot}]",
                    "ldr x17, [{slot}, #8]",
                    "cmp x16, {head}",
                    "ccmp x17, {grant}, #0, eq",
                    "b.ne {slow}",
                ],
                commit: "str {new}, [{slot}]",
            },
            shift = const SHIFT,
            first = in(reg) first,
            cpu = in(reg) cpu,
            head = in(reg) head,
            grant = in(reg) grant,
            new = in(reg) new,
        )
    }
}
