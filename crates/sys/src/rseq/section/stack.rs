//! Stacks: items of a CPU or a concurrency id, one or several popped and pushed at a time.
//!
//! A slot has `len: u64, cap: u64, items: [u64; cap]`. `pop` returns 0 if it took no item, so callers must not push 0.

use super::section;
use crate::rseq::RseqArea;
use std::sync::atomic::AtomicPtr;

/// Pops the top item of the slot's stack. Returns 0 if the stack is empty or the section was aborted.
///
/// ```text
/// if slot.len == 0: return 0
/// item = slot.items[len - 1]
/// slot.len = len - 1      // commit; on x86-64 a single instruction on memory was 8 % slower when measured
/// ```
///
/// # Safety
/// `*active + (id << SHIFT)` is a stack (`len: u64, cap: u64, items: [u64; cap]`) for every id that the kernel may use.
/// Only sections write it until `active` was changed and a fence was issued after that.
#[inline(always)]
pub unsafe fn pop<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>) -> u64 {
    let item;
    // SAFETY: the caller guarantees it.
    unsafe {
        section!(
            area,
            x86_64: {
                stub: ["77: xor {item:e}, {item:e}", "jmp 44f"],
                at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
                body: [
                    "mov {len}, qword ptr [{slot}]",
                    "test {len}, {len}",
                    "jz 77b",
                    "mov {item}, qword ptr [{slot} + {len} * 8 + 8]",
                    "dec {len}",
                ],
                commit: "mov qword ptr [{slot}], {len}",
            },
            aarch64: {
                stub: ["mov {item}, xzr", "b 44f"],
                at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
                body: [
                    "ldr {len}, [{slot}]",
                    "mov {item}, xzr",
                    "cbz {len}, 44f",
                    "add x16, {slot}, {len}, lsl #3",
                    "ldr {item}, [x16, #8]",
                    "sub {len}, {len}, #1",
                ],
                commit: "str {len}, [{slot}]",
            },
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            len = out(reg) _,
            item = out(reg) item,
        )
    };
    item
}

/// Pushes an item on the slot's stack. Returns false, and leaves the stack's items as they were, if the stack is full
/// or the section was aborted.
///
/// ```text
/// if slot.len >= slot.cap: return false
/// slot.items[len] = item  // above `len`: not read before the commit
/// slot.len = len + 1      // commit
/// ```
///
/// # Safety
/// As [`pop`].
#[inline(always)]
pub unsafe fn push<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>, item: u64) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe {
        section!(
            area,
            x86_64: {
                at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
                body: [
                    "mov {len}, qword ptr [{slot}]",
                    "cmp {len}, qword ptr [{slot} + 8]",
                    "jae {slow}",
                    "mov qword ptr [{slot} + {len} * 8 + 16], {item}",
                    "inc {len}",
                ],
                commit: "mov qword ptr [{slot}], {len}",
            },
            aarch64: {
                at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
                body: [
                    "ldp {len}, x17, [{slot}]",
                    "cmp {len}, x17",
                    "b.hs {slow}",
                    "add x16, {slot}, {len}, lsl #3",
                    "str {item}, [x16, #16]",
                    "add {len}, {len}, #1",
                ],
                commit: "str {len}, [{slot}]",
            },
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            len = out(reg) _,
            item = in(reg) item,
        )
    }
}

/// Pops up to `max` items of the slot's stack into `out`. Returns how many: 0 if the stack is empty or the section was
/// aborted.
///
/// ```text
/// k = min(max, slot.len); if k == 0: return 0
/// out[0..k] = slot.items[len - k..len]    // on x86-64 two at a time, an odd one first
/// slot.len = len - k      // commit
/// ```
///
/// # Safety
/// As [`pop`]; `out` is valid for `max` writes. Its contents are unspecified if the result is 0.
#[inline(always)]
pub unsafe fn pop_batch<const SHIFT: u32>(
    area: RseqArea,
    active: &AtomicPtr<u8>,
    out: *mut u64,
    max: usize,
) -> usize {
    let taken;
    // SAFETY: the caller guarantees it.
    unsafe {
        section!(
            area,
            x86_64: {
                stub: ["77: xor {taken:e}, {taken:e}", "jmp 44f"],
                at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
                body: [
                    "mov {len}, qword ptr [{slot}]",
                    "mov {taken}, {max}",
                    "cmp {len}, {taken}",
                    "cmovb {taken}, {len}",
                    "test {taken}, {taken}",
                    "jz 77b",
                    "sub {len}, {taken}",
                    "lea {from}, [{slot} + {len} * 8 + 16]",
                    "mov {at}, {taken}",
                    "test {at:l}, 1",
                    "jz 22f",
                    "mov {item}, qword ptr [{from} + {at} * 8 - 8]",
                    "mov qword ptr [{out} + {at} * 8 - 8], {item}",
                    "dec {at}",
                    "jz 23f",
                    "22: movups {two}, xmmword ptr [{from} + {at} * 8 - 16]",
                    "movups xmmword ptr [{out} + {at} * 8 - 16], {two}",
                    "sub {at}, 2",
                    "jnz 22b",
                    "23:",
                ],
                commit: "mov qword ptr [{slot}], {len}",
                item = out(reg) _,
                two = out(xmm_reg) _,
            },
            aarch64: {
                stub: ["mov {taken}, xzr", "b 44f"],
                at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
                body: [
                    "ldr {len}, [{slot}]",
                    "cmp {len}, {max}",
                    "csel {taken}, {len}, {max}, lo",
                    "cbz {taken}, 44f",
                    "sub {len}, {len}, {taken}",
                    "add {from}, {slot}, {len}, lsl #3",
                    "add {from}, {from}, #16",
                    "mov {at}, xzr",
                    "22: ldr x16, [{from}, {at}, lsl #3]",
                    "str x16, [{out}, {at}, lsl #3]",
                    "add {at}, {at}, #1",
                    "cmp {at}, {taken}",
                    "b.lo 22b",
                ],
                commit: "str {len}, [{slot}]",
            },
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            out = in(reg) out,
            max = in(reg) max,
            len = out(reg) _,
            from = out(reg) _,
            at = out(reg) _,
            taken = out(reg) taken,
        )
    };
    taken
}

/// Pushes up to `n` items on the slot's stack. Returns how many: 0 if the stack is full or the section was aborted.
///
/// ```text
/// k = min(n, slot.cap - slot.len); if k == 0: return 0
/// slot.items[len..len + k] = items[0..k]  // on x86-64 two at a time, an odd one first
/// slot.len = len + k      // commit
/// ```
///
/// # Safety
/// As [`pop`]; `items` is valid for `n` reads.
#[inline(always)]
pub unsafe fn push_batch<const SHIFT: u32>(
    area: RseqArea,
    active: &AtomicPtr<u8>,
    items: *const u64,
    n: usize,
) -> usize {
    let put;
    // SAFETY: the caller guarantees it.
    unsafe {
        section!(
            area,
            x86_64: {
                stub: ["77: xor {put:e}, {put:e}", "jmp 44f"],
                at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
                body: [
                    "mov {len}, qword ptr [{slot}]",
                    "mov {put}, qword ptr [{slot} + 8]",
                    "sub {put}, {len}",
                    "cmp {n}, {put}",
                    "cmovb {put}, {n}",
                    "test {put}, {put}",
                    "jz 77b",
                    "lea {to}, [{slot} + {len} * 8 + 16]",
                    "add {len}, {put}",
                    "mov {at}, {put}",
                    "test {at:l}, 1",
                    "jz 22f",
                    "mov {item}, qword ptr [{items} + {at} * 8 - 8]",
                    "mov qword ptr [{to} + {at} * 8 - 8], {item}",
                    "dec {at}",
                    "jz 23f",
                    "22: movups {two}, xmmword ptr [{items} + {at} * 8 - 16]",
                    "movups xmmword ptr [{to} + {at} * 8 - 16], {two}",
                    "sub {at}, 2",
                    "jnz 22b",
                    "23:",
                ],
                commit: "mov qword ptr [{slot}], {len}",
                item = out(reg) _,
                two = out(xmm_reg) _,
            },
            aarch64: {
                stub: ["mov {put}, xzr", "b 44f"],
                at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
                body: [
                    "ldp {len}, {put}, [{slot}]",
                    "sub {put}, {put}, {len}",
                    "cmp {n}, {put}",
                    "csel {put}, {n}, {put}, lo",
                    "cbz {put}, 44f",
                    "add {to}, {slot}, {len}, lsl #3",
                    "add {to}, {to}, #16",
                    "add {len}, {len}, {put}",
                    "mov {at}, xzr",
                    "22: ldr x16, [{items}, {at}, lsl #3]",
                    "str x16, [{to}, {at}, lsl #3]",
                    "add {at}, {at}, #1",
                    "cmp {at}, {put}",
                    "b.lo 22b",
                ],
                commit: "str {len}, [{slot}]",
            },
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            items = in(reg) items,
            n = in(reg) n,
            len = out(reg) _,
            to = out(reg) _,
            at = out(reg) _,
            put = out(reg) put,
        )
    };
    put
}
