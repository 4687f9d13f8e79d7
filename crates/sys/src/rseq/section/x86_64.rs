//! The sections for x86-64, each with its pseudo-code. The parent module describes the frame.

use super::super::{ABORTS, CPU_OFFSET, ENABLED, RseqArea, field};
use std::arch::asm;
use std::sync::atomic::AtomicPtr;

/// Returns the thread pointer: glibc and musl store it at `fs:0`.
#[inline(always)]
pub(crate) fn thread_pointer() -> *mut u8 {
    let pointer;
    // SAFETY: reads one word of the thread control block.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

/// Returns `CPU_OFFSET` with a single load. Position-independent code of the compiler may first load its address.
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
    // SAFETY: reads `ENABLED`, the control block, and this thread's area. `nomem` declares that other code cannot change
    // the result: both are set before the thread's first section and then constant until its end.
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

/// The frame of every section: descriptor, abort stub, arming, and the body up to its commit. `slow` is what the stub does
/// after it has counted the abort: a jump to a label outside of the section. Code after `then` is not part of the section;
/// it checks whether a commit that can fail did. Numeric labels have two digits, since the assembler reads 0 and 1 as
/// binary numbers in this syntax.
macro_rules! section {
    (at: [$($at:literal),+], stub: [$($slow:literal),+], body: [$($line:literal),+], commit: $commit:literal $(then $after:literal)?, $($operand:tt)*) => {
        asm!(
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
            $($slow,)+
            ".popsection",
            "lea {slot}, [rip + 66b]",
            "mov qword ptr [{area} + {rseq_cs}], {slot}",
            "33:",
            "mov {slot:e}, dword ptr [{index}]",
            $($at,)+
            $($line,)+
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
            rseq_cs = const field::RSEQ_CS,
            ABORTS = sym ABORTS,
            #[cfg(feature = "delay")]
            DELAY = sym $crate::rseq::section::DELAY_SPINS,
            #[cfg(feature = "delay")]
            out("r11") _,
            $($operand)*
            options(nostack),
        )
    };
}

pub(super) mod stock;

/// Adds `n` to the word at the start of the slot. Returns false, and changes nothing, if the section was aborted.
///
/// ```text
/// slot.word += n          // load, add and store in one instruction: the commit
/// ```
///
/// # Safety
/// `*active + (id << SHIFT)` is a writable, aligned word for every id that the kernel may use. Only sections write it until
/// `active` was changed and a fence was issued after that.
#[inline(always)]
pub unsafe fn add<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>, n: u64) -> bool {
    // SAFETY: the caller guarantees it; the scratch register is an output of the asm.
    unsafe {
        section!(
            at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
            stub: ["jmp {slow}"],
            body: [""],
            commit: "add qword ptr [{slot}], {n}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            n = in(reg) n,
            slow = label { return false },
        )
    };
    true
}

/// Adds `n` to the word at `base + id * stride`. Returns false, and changes nothing, if the section was aborted.
///
/// ```text
/// slot = base + *index * stride; slot.word += n      // commit
/// ```
///
/// # Safety
/// `base + id * stride` is a writable, aligned word for every id that the kernel may use. Only sections write it while they
/// may run.
#[inline(always)]
pub unsafe fn add_strided(area: RseqArea, base: *mut u8, stride: usize, n: u64) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe {
        section!(
            at: ["imul {slot}, {stride}"],
            stub: ["jmp {slow}"],
            body: [""],
            commit: "add qword ptr [{base} + {slot}], {n}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            base = in(reg) base,
            stride = in(reg) stride,
            n = in(reg) n,
            slow = label { return false },
        )
    };
    true
}

/// Stores `new` in the word at the start of the slot if the word is `expected`. Returns false, and changes nothing, if it
/// is not or if the section was aborted.
///
/// ```text
/// if slot.word != expected: return false
/// slot.word = new         // commit
/// ```
///
/// # Safety
/// As [`add`].
pub unsafe fn cmpeqv_storev<const SHIFT: u32>(
    area: RseqArea,
    active: &AtomicPtr<u8>,
    expected: u64,
    new: u64,
) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe {
        section!(
            at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
            stub: ["jmp {slow}"],
            body: ["cmp qword ptr [{slot}], {expected}", "jne {slow}"],
            commit: "mov qword ptr [{slot}], {new}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            expected = in(reg) expected,
            new = in(reg) new,
            slow = label { return false },
        )
    };
    true
}

/// As [`add`], with `spins` between load and store. Used by the self-test, since a preemption is likely to hit so long a
/// section, and with `armed` false as the negative control of tests.
///
/// ```text
/// x = slot.word; spin; slot.word = x + n
/// ```
///
/// # Safety
/// As [`add`]. With `armed` false it may lose updates.
pub unsafe fn add_delayed<const SHIFT: u32>(
    area: RseqArea,
    active: &AtomicPtr<u8>,
    n: u64,
    spins: u64,
    armed: bool,
) -> bool {
    let descriptor_mask = if armed { u64::MAX } else { 0 };
    // SAFETY: the caller guarantees it. If `armed` is false, the asm clears `rseq_cs` again at the start of the section.
    unsafe {
        section!(
            at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
            stub: ["jmp {slow}"],
            body: [
                "and qword ptr [{area} + {rseq_cs}], {mask}",
                "mov {word}, qword ptr [{slot}]",
                "77: dec {spins}",
                "jnz 77b",
                "add {word}, {n}"
            ],
            commit: "mov qword ptr [{slot}], {word}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            n = in(reg) n,
            mask = in(reg) descriptor_mask,
            spins = inout(reg) spins.max(1) => _,
            word = out(reg) _,
            slow = label { return false },
        )
    };
    true
}

/// Pops the top item of the slot's stack. Returns 0 if the stack is empty or the section was aborted.
///
/// ```text
/// if slot.len == 0: return 0
/// item = slot.items[len - 1]
/// slot.len = len - 1      // commit; a single instruction on memory was 8 % slower when measured
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
            at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
            stub: ["77: xor {item:e}, {item:e}", "jmp 44f"],
            body: [
                "mov {len}, qword ptr [{slot}]",
                "test {len}, {len}",
                "jz 77b",
                "mov {item}, qword ptr [{slot} + {len} * 8 + 8]",
                "dec {len}"
            ],
            commit: "mov qword ptr [{slot}], {len}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            len = out(reg) _,
            item = out(reg) item,
        )
    };
    item
}

/// Pushes an item on the slot's stack. Returns false, and changes nothing, if the stack is full or the section was aborted.
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
            at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
            stub: ["jmp {slow}"],
            body: [
                "mov {len}, qword ptr [{slot}]",
                "cmp {len}, qword ptr [{slot} + 8]",
                "jae {slow}",
                "mov qword ptr [{slot} + {len} * 8 + 16], {item}",
                "inc {len}"
            ],
            commit: "mov qword ptr [{slot}], {len}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            len = out(reg) _,
            item = in(reg) item,
            slow = label { return false },
        )
    };
    true
}

/// Pops up to `max` items of the slot's stack into `out`. Returns how many, or 0 if the section was aborted.
///
/// ```text
/// k = min(max, slot.len); if k == 0: return 0
/// out[0..k] = slot.items[len - k..len]    // two at a time, an odd one first
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
            at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
            stub: ["77: xor {taken:e}, {taken:e}", "jmp 44f"],
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
                "23:"
            ],
            commit: "mov qword ptr [{slot}], {len}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            out = in(reg) out,
            max = in(reg) max,
            len = out(reg) _,
            from = out(reg) _,
            at = out(reg) _,
            item = out(reg) _,
            two = out(xmm_reg) _,
            taken = out(reg) taken,
        )
    };
    taken
}

/// Pushes up to `n` items on the slot's stack. Returns how many, or 0 if the stack is full or the section was aborted.
///
/// ```text
/// k = min(n, slot.cap - slot.len); if k == 0: return 0
/// slot.items[len..len + k] = items[0..k]  // two at a time, an odd one first
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
            at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
            stub: ["77: xor {put:e}, {put:e}", "jmp 44f"],
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
                "23:"
            ],
            commit: "mov qword ptr [{slot}], {len}",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            items = in(reg) items,
            n = in(reg) n,
            len = out(reg) _,
            to = out(reg) _,
            at = out(reg) _,
            item = out(reg) _,
            two = out(xmm_reg) _,
            put = out(reg) put,
        )
    };
    put
}
