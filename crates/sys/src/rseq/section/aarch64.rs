//! The frame of sections for aarch64 (ARMv8.0 and later), and how a thread finds its area.
//!
//! # Notes on order
//!
//! ARM may reorder plain loads and stores, and the accesses in these sections are plain, except the compare-and-swap of
//! `stock_grant`. Four facts ensure the order that x86-64 guarantees by itself:
//!
//! 1. *One CPU.* A CPU sees its own accesses in program order, also across interrupts and context switches. So a
//!    section sees the stores of the previous section on the same slot. If a concurrency id moves to another CPU, the
//!    scheduler orders all accesses before the move ahead of those after it.
//! 2. *The fence.* `membarrier` is a full barrier on every CPU that runs this process, and on the calling CPU before
//!    and after. A section that committed before the interrupt is visible to the caller. A section that begins after
//!    it, or is tried again, loads the new `active`. A CPU without a thread of this process gets no interrupt. It
//!    executes a full barrier when it switches to this process, and sections that were switched out are aborted.
//! 3. *The address dependency.* After the fence the caller reads and zeroes the old slots. Later it stores their
//!    address in `active` again, without a second fence:
//!
//! ```text
//!    caller                         section
//!    r = old.word; old.word = 0
//!    active = old    // Release     slot = *active + …   // sees `old`
//!                                   x = slot.word        // sees 0, not r
//!                                   slot.word = x + n    // not seen by the caller's read
//! ```
//!
//!    The Release orders the caller's reads and zeroing before its store to `active`. The section computes the address
//!    of the word from the loaded `active`, and an address dependency orders that load before the accesses through its
//!    result, loads and stores alike. A compiler cannot remove a dependency in asm. It orders only accesses *through*
//!    `active`. An `Acquire` would order more, which these sections do not need.
//! 4. *One location.* Of two ordered loads of `active`, in one thread or by happens-before in two, the later one does
//!    not return an older value.
//!
//! Therefore a store to `active` must be Release or stronger, and the old slots may be accessed only after a fence that
//! follows it. The dependency covers a slot's items: new items that a drain stored would be visible, but not the
//! memory to which they point.
//!
//! `aarch64/*.litmus` check 2, 3 and 4 against ARM's memory model with herd7; each file names a change that breaks it.
//! `section/tests.rs` has run under qemu-user, including aborts. These sections have not run on an ARM kernel yet;
//! `selftest` checks the kernel before the `rseq` backend is used.

use crate::rseq::{CPU_OFFSET, ENABLED, field};
use std::arch::asm;

/// Returns the thread pointer, as set by glibc and musl.
#[inline(always)]
pub(crate) fn thread_pointer() -> *mut u8 {
    let pointer;
    // SAFETY: reads one register of this thread.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

/// Returns `CPU_OFFSET`.
#[inline(always)]
pub(crate) fn cpu_offset() -> isize {
    CPU_OFFSET.load(std::sync::atomic::Ordering::Relaxed) as isize
}

/// Returns the word at `offset` from the thread pointer, a field of this thread's area.
#[inline(always)]
pub(crate) fn read_area(offset: isize) -> u32 {
    // SAFETY: `offset` leads into this thread's area, which lives as long as the thread.
    unsafe { thread_pointer().byte_offset(offset).cast::<u32>().read_volatile() }
}

/// Returns this thread's area, or null if it has no registered one or sections are not enabled; and the offset of the
/// concurrency id in an area.
///
/// ```text
/// (offset, field) = ENABLED               // one word and one load, so both match
/// area = thread pointer + offset          // offset 0 is the control block, which may be read
/// if area.cpu_id < 0 or offset == 0: area = null
/// ```
#[inline(always)]
pub(crate) fn area() -> (*mut u8, usize) {
    let (area, field): (*mut u8, usize);
    // SAFETY: reads `ENABLED`, the control block, and this thread's area. `nomem` declares that other code cannot
    // change the result: both are set before the thread's first section and then constant until its end.
    unsafe {
        asm!(
            "adrp {offset}, {ENABLED}",
            "ldr {offset}, [{offset}, :lo12:{ENABLED}]",
            "mov {field:w}, {offset:w}",
            "asr {offset}, {offset}, #32",
            "mrs {area}, tpidr_el0",
            "add {area}, {area}, {offset}",
            "ldr {id:w}, [{area}, #{cpu_id}]",
            "cmp {offset}, #0",
            "ccmp {id:w}, #0, #8, ne", // offset 0: sets the flags as for a negative id
            "csel {area}, {area}, xzr, ge",
            offset = out(reg) _,
            field = out(reg) field,
            area = out(reg) area,
            id = out(reg) _,
            cpu_id = const field::CPU_ID,
            ENABLED = sym ENABLED,
            options(pure, nomem, nostack),
        )
    };
    (area, field)
}

/// Returns the addresses of `__rseq_offset` and `__rseq_size`, or null if there are none. The symbols are weak, so the
/// program links and starts without them. For static glibc, where `dlsym` does not find them.
pub(crate) fn weak_glibc_symbols() -> (*const isize, *const u32) {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: reads two words of the global offset table.
    unsafe {
        asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "adrp {offset}, :got:__rseq_offset",
            "ldr {offset}, [{offset}, :got_lo12:__rseq_offset]",
            "adrp {size}, :got:__rseq_size",
            "ldr {size}, [{size}, :got_lo12:__rseq_size]",
            offset = out(reg) offset,
            size = out(reg) size,
            options(pure, nomem, nostack, preserves_flags),
        )
    };
    (offset, size)
}

/// The frame of every section. `section.rs` describes its parts.
///
/// The stub may be more than a branch's range, ±128 MiB, away. The linker then inserts a veneer, which writes x16 and
/// x17. So the frame declares both as outputs, and the body may use them. The commit must not read x16, which `delay`
/// overwrites before it. Only `b` may jump to the stub: linkers do not extend a conditional branch's range of ±1 MiB.
macro_rules! section {
    (
        $area:ident,
        x86_64: $x86_64:tt,
        aarch64: {
            stub: [$($stub:literal),+],
            at: [$($at:literal),+],
            body: [$($line:literal),* $(,)?],
            commit: $commit:literal $(then $after:literal)?,
            $($own:tt)*
        },
        $($operand:tt)*
    ) => {
        std::arch::asm!(
            // "aw": PIE relocates the descriptor; "?": it is in the section group of its function.
            ".pushsection __rseq_cs, \"aw?\", @progbits",
            ".balign 32",
            "66:",
            ".long 0, 0",
            ".quad 33f, 44f - 33f, 55f",
            ".popsection",
            ".pushsection .text.unlikely, \"ax?\", @progbits",
            ".balign 4",
            ".inst 0xd428bc00", // the signature is a brk: executing it is an error
            "55:",
            "adrp {slot}, {ABORTS}",
            "add {slot}, {slot}, :lo12:{ABORTS}",
            "99: ldxr x16, [{slot}]", // ARMv8.0 has no single instruction for an atomic add
            "add x16, x16, #1",
            "stxr w17, x16, [{slot}]",
            "cbnz w17, 99b",
            $($stub,)+
            ".popsection",
            "adrp {slot}, 66b",
            "add {slot}, {slot}, :lo12:66b",
            "str {slot}, [{area}, #{rseq_cs}]",
            "33:",
            "ldr {slot:w}, [{index}]",
            $($at,)+
            $($line,)*
            #[cfg(feature = "delay")]
            "adrp x16, {DELAY}",
            #[cfg(feature = "delay")]
            "ldr w16, [x16, :lo12:{DELAY}]",
            #[cfg(feature = "delay")]
            "88: subs w16, w16, #1",
            #[cfg(feature = "delay")]
            "b.pl 88b",
            $commit,
            "44:",
            $($after,)?
            slot = out(reg) _,
            rseq_cs = const $crate::rseq::field::RSEQ_CS,
            ABORTS = sym $crate::rseq::ABORTS,
            #[cfg(feature = "delay")]
            DELAY = sym $crate::rseq::section::DELAY_SPINS,
            out("x16") _,
            out("x17") _,
            area = in(reg) $area.base.as_ptr(),
            index = in(reg) $area.index.as_ptr(),
            $($operand)*
            $($own)*
            options(nostack),
        )
    };
    // An abort or a jump to `slow` returns false.
    ($area:ident, x86_64: $x86_64:tt, aarch64: { $($aarch64:tt)* }, $($operand:tt)*) => {{
        section!(
            $area,
            x86_64: $x86_64,
            aarch64: { stub: ["b {slow}"], $($aarch64)* slow = label { return false }, },
            $($operand)*
        );
        true
    }};
}
pub(crate) use section;
