//! The frame of sections for x86-64, and how a thread finds its area.

use crate::rseq::{CPU_OFFSET, ENABLED, field};
use std::arch::asm;

/// Returns the thread pointer: glibc and musl store it at `fs:0`.
#[inline(always)]
pub(crate) fn thread_pointer() -> *mut u8 {
    let pointer;
    // SAFETY: reads one word of the thread control block.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

/// Returns `CPU_OFFSET` with a single load. For an ordinary load of a static, the compiler may first load its address
/// (position-independent code).
#[inline(always)]
pub(crate) fn cpu_offset() -> isize {
    let offset;
    // SAFETY: reads one static, which is written once.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + {CPU_OFFSET}]",
            offset = out(reg) offset,
            CPU_OFFSET = sym CPU_OFFSET,
            options(readonly, nostack, preserves_flags),
        )
    };
    offset
}

/// Returns the word at `offset` from the thread pointer, a field of this thread's area. One load; computing the address
/// first would need a second load, of the thread pointer, before it.
#[inline(always)]
pub(crate) fn read_area(offset: isize) -> u32 {
    let word;
    // SAFETY: `offset` leads into this thread's area, which lives as long as the thread.
    unsafe {
        asm!(
            "mov {word:e}, dword ptr fs:[{offset}]",
            offset = in(reg) offset,
            word = out(reg) word,
            options(readonly, nostack, preserves_flags),
        )
    };
    word
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
            "mov {offset}, qword ptr [rip + {ENABLED}]",
            "mov {field:e}, {offset:e}",
            "sar {offset}, 32",
            "mov {area}, fs:0",
            "add {area}, {offset}",
            "cmp dword ptr [{area} + {cpu_id}], 0",
            "mov {null:e}, 0",
            "cmovl {area}, {null}",
            "test {offset}, {offset}",
            "cmovz {area}, {null}",
            offset = out(reg) _,
            field = out(reg) field,
            area = out(reg) area,
            null = out(reg) _,
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
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            offset = out(reg) offset,
            size = out(reg) size,
            options(pure, nomem, nostack, preserves_flags),
        )
    };
    (offset, size)
}

/// The frame of every section. `section.rs` describes its parts.
///
/// Numeric labels have no digit 0 or 1, since the assembler reads labels like `0`, `1` and `10` as binary numbers in
/// this syntax.
macro_rules! section {
    (
        $area:ident,
        x86_64: {
            stub: [$($stub:literal),+],
            at: [$($at:literal),+],
            body: [$($line:literal),* $(,)?],
            commit: $commit:literal $(then $after:literal)?,
            $($own:tt)*
        },
        aarch64: $aarch64:tt,
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
            ".byte 0x0f, 0xb9, 0x3d", // ud1, whose operand is the signature: executing it is an error
            ".long 0x53053053",
            "55:",
            "lock inc qword ptr [rip + {ABORTS}]",
            $($stub,)+
            ".popsection",
            "lea {slot}, [rip + 66b]",
            "mov qword ptr [{area} + {rseq_cs}], {slot}",
            "33:",
            "mov {slot:e}, dword ptr [{index}]",
            $($at,)+
            $($line,)*
            #[cfg(feature = "delay")]
            "mov r11d, dword ptr [rip + {DELAY}]",
            #[cfg(feature = "delay")]
            "88: sub r11d, 1",
            #[cfg(feature = "delay")]
            "jns 88b",
            $commit,
            "44:",
            $($after,)?
            slot = out(reg) _,
            rseq_cs = const $crate::rseq::field::RSEQ_CS,
            ABORTS = sym $crate::rseq::ABORTS,
            #[cfg(feature = "delay")]
            DELAY = sym $crate::rseq::section::DELAY_SPINS,
            #[cfg(feature = "delay")]
            out("r11") _,
            area = in(reg) $area.base.as_ptr(),
            index = in(reg) $area.index.as_ptr(),
            $($operand)*
            $($own)*
            options(nostack),
        )
    };
    // An abort or a jump to `slow` returns false.
    ($area:ident, x86_64: { $($x86_64:tt)* }, aarch64: $aarch64:tt, $($operand:tt)*) => {{
        section!(
            $area,
            x86_64: { stub: ["jmp {slow}"], $($x86_64)* slow = label { return false }, },
            aarch64: $aarch64,
            $($operand)*
        );
        true
    }};
}
pub(crate) use section;
