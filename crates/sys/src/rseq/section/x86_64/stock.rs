//! The sections of a stock for x86-64. `section/stock.rs` documents them.

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
            at: ["shl {slot}, {shift}", "add {slot}, {first}"],
            stub: ["jmp {slow}"],
            body: [
                "cmp dword ptr [{slot} + 4], {key:e}",
                "jne {slow}",
                // A load of the same width as the commit, because only such a load is forwarded from a recent store. Measured:
                // an add with a memory operand was three times slower, one load of key and `used` five times.
                "mov {used:e}, dword ptr [{slot}]",
                "add {used:e}, {n:e}",
                "cmp dword ptr [{slot} + 8], {used:e}",
                "js {slow}" // the sign of the difference modulo 2^32; jl would compare without the modulus
            ],
            commit: "mov dword ptr [{slot}], {used:e}",
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
            at: ["shl {slot}, {shift}", "add {slot}, {first}"],
            stub: ["jmp {slow}"],
            body: [
                "cmp dword ptr [{slot} + 4], {key:e}",
                "jne {slow}",
                "mov {free}, qword ptr [{slot} + 8]",
                "mov {used:e}, dword ptr [{slot}]",
                "mov rcx, {free}",
                "shr rcx, 32",
                "sub {used:e}, {n:e}",
                "sub {free:e}, {used:e}",
                // A shift by 0 keeps the flags of the subtraction, which are right for it. Otherwise the shift uses the low
                // 5 bits of cl.
                "shr {free:e}, cl",
                "jnz {slow}"
            ],
            commit: "mov dword ptr [{slot}], {used:e}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            first = in(reg) first,
            key = in(reg) key,
            n = in(reg) n,
            used = out(reg) _,
            free = out(reg) _,
            out("rcx") _,
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
    // SAFETY: the caller guarantees it. The flags survive a context switch after the commit.
    unsafe {
        section!(
            at: ["cmp {slot:e}, {cpu:e}", "jne {slow}", "shl {slot}, {shift}", "add {slot}, {first}"],
            stub: ["jmp {slow}"],
            body: ["cmp qword ptr [{slot}], {head}", "jne {slow}"],
            commit: "lock cmpxchg qword ptr [{slot} + 8], {new}" then "jne {slow}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            first = in(reg) first,
            cpu = in(reg) cpu,
            head = in(reg) head,
            new = in(reg) new,
            inout("rax") grant => _,
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
            at: ["cmp {slot:e}, {cpu:e}", "jne {slow}", "shl {slot}, {shift}", "add {slot}, {first}"],
            stub: ["jmp {slow}"],
            body: [
                "cmp qword ptr [{slot}], {head}",
                "jne {slow}",
                "cmp qword ptr [{slot} + 8], {grant}",
                "jne {slow}"
            ],
            commit: "mov qword ptr [{slot}], {new}",
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
