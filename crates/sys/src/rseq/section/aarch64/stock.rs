//! The sections of a stock for aarch64. `section/stock.rs` documents them.
//!
//! # Order
//!
//! `charge` and `uncharge` use plain accesses. The next section on this CPU sees their stores, whichever thread runs it
//! (the parent's "Notes on order", 1). Another CPU sees them at the latest through the next `grant`, which is a Release.
//! In `rebind` the store comes after both comparisons, by a control dependency.

use crate::rseq::{ABORTS, RseqArea, field};
use std::arch::asm;

#[inline(always)]
pub(in crate::rseq::section) unsafe fn charge<const SHIFT: u32>(
    area: RseqArea,
    first: *mut u8,
    key: u32,
    n: u32,
) -> bool {
    // SAFETY: the caller guarantees it. With `key` unchanged the commit is a store of the whole word.
    unsafe {
        section!(
            at: ["add {slot}, {first}, {slot}, lsl #{shift}"],
            stub: ["b {slow}"],
            body: [
                "ldp {used:w}, w17, [{slot}]",
                "cmp w17, {key:w}",
                "b.ne {slow}",
                "ldr w16, [{slot}, #8]",
                "add {used:w}, {used:w}, {n:w}",
                "subs w16, w16, {used:w}",
                "b.mi {slow}" // not tbnz: it reaches only 32 KiB, and `slow` may be further away in the caller
            ],
            commit: "str {used:w}, [{slot}]",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            first = in(reg) first,
            key = in(reg) key,
            n = in(reg) n,
            used = out(reg) _,
            slow = label { return false },
        )
    };
    true
}

#[inline(always)]
pub(in crate::rseq::section) unsafe fn uncharge<const SHIFT: u32>(
    area: RseqArea,
    first: *mut u8,
    key: u32,
    n: u32,
) -> bool {
    // SAFETY: as in `charge`.
    unsafe {
        section!(
            at: ["add {slot}, {first}, {slot}, lsl #{shift}"],
            stub: ["b {slow}"],
            body: [
                "ldp {used:w}, w17, [{slot}]",
                "cmp w17, {key:w}",
                "b.ne {slow}",
                "ldr x16, [{slot}, #8]", // one load: a pair of halves may be of different moments
                "sub {used:w}, {used:w}, {n:w}",
                "lsr x17, x16, #32",
                "sub w16, w16, {used:w}",
                "lsr w16, w16, w17", // shifts by the low 5 bits of w17
                "cbnz w16, {slow}"
            ],
            commit: "str {used:w}, [{slot}]",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            first = in(reg) first,
            key = in(reg) key,
            n = in(reg) n,
            used = out(reg) _,
            slow = label { return false },
        )
    };
    true
}

pub(in crate::rseq::section) unsafe fn grant<const SHIFT: u32>(
    area: RseqArea,
    first: *mut u8,
    cpu: u32,
    head: u64,
    grant: u64,
    new: u64,
) -> bool {
    // SAFETY: the caller guarantees it. The status register survives a context switch after the commit.
    unsafe {
        section!(
            at: ["cmp {slot:w}, {cpu:w}", "b.ne {slow}", "add {slot}, {first}, {slot}, lsl #{shift}"],
            stub: ["b {slow}"],
            body: [
                "ldr x16, [{slot}], #8",
                "cmp x16, {head}",
                "b.ne {slow}",
                "ldaxr x16, [{slot}]",
                "cmp x16, {grant}",
                "b.eq 22f",
                "clrex",
                "b {slow}",
                "22:"
            ],
            commit: "stlxr w17, {new}, [{slot}]" then "cbnz w17, {slow}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            first = in(reg) first,
            cpu = in(reg) cpu,
            head = in(reg) head,
            grant = in(reg) grant,
            new = in(reg) new,
            slow = label { return false },
        )
    };
    true
}

pub(in crate::rseq::section) unsafe fn rebind<const SHIFT: u32>(
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
            at: ["cmp {slot:w}, {cpu:w}", "b.ne {slow}", "add {slot}, {first}, {slot}, lsl #{shift}"],
            stub: ["b {slow}"],
            body: [
                "ldr x16, [{slot}]",
                "ldr x17, [{slot}, #8]",
                "cmp x16, {head}",
                "ccmp x17, {grant}, #0, eq",
                "b.ne {slow}"
            ],
            commit: "str {new}, [{slot}]",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            first = in(reg) first,
            cpu = in(reg) cpu,
            head = in(reg) head,
            grant = in(reg) grant,
            new = in(reg) new,
            slow = label { return false },
        )
    };
    true
}
