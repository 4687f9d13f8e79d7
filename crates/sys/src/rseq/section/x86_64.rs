//! The sections for x86-64. Each carries its pseudo-code; the frame is in the parent's page.

use super::super::{ABORTS, CPU_OFFSET, ENABLED, RseqArea, field};
use std::arch::asm;
use std::sync::atomic::AtomicPtr;

/// The thread pointer: glibc and musl keep its own value at `fs:0`.
#[inline(always)]
pub(crate) fn thread_pointer() -> *mut u8 {
    let pointer;
    // SAFETY: reads one word of the thread control block.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

/// `CPU_OFFSET`, without a look at where that is: two loads that wait for each other would be one
/// more than there must be.
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

/// A word of this thread's area, `offset` from the thread pointer: one load, where adding first
/// would be two that wait for each other.
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

/// This thread's area, or null when it has no registered one or sections are not enabled; and
/// where in an area the concurrency id stands.
///
/// ```text
/// (offset, field) = ENABLED               // one word, so one load: never half of it
/// area = thread pointer + offset          // offset 0 leads to the control block: harmless
/// if area.cpu_id < 0 or offset == 0: area = null
/// ```
#[inline(always)]
pub(crate) fn area() -> (*mut u8, usize) {
    let (area, field): (*mut u8, usize);
    // SAFETY: reads `ENABLED`, the control block, and this thread's area. `nomem` says that other
    // code cannot change the result: both are set before the first section and then constant for
    // the thread, until its end.
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

/// Where `__rseq_offset` and `__rseq_size` are, or null without them: weak, so that the program
/// links and starts without them too. For static glibc, where no `dlsym` finds them.
pub(crate) fn weak_glibc_symbols() -> (*const isize, *const u32) {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: reads two words of the table of addresses that the linker made.
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

/// The frame of every section: descriptor, abort stub, arm, the body up to its commit. `slow` is
/// what the stub does after counting: it names a label that does not return into the section.
/// What stands after `then` is no part of it: where a commit may fail, the look at whether it did.
/// Numeric labels have two digits, since 0 and 1 read as binary numbers in this syntax.
macro_rules! section {
    (at: [$($at:literal),+], stub: [$($slow:literal),+], body: [$($line:literal),+], commit: $commit:literal $(then $after:literal)?, $($operand:tt)*) => {
        asm!(
            // "aw": PIE relocates the descriptor; "?": it goes where its function goes.
            ".pushsection __rseq_cs, \"aw?\", @progbits",
            ".balign 32",
            "66:",
            ".long 0, 0",
            ".quad 33f, 44f - 33f, 55f",
            ".popsection",
            ".pushsection .text.unlikely, \"ax?\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d", // ud1: the signature must not look like code to fall into
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

/// Adds `n` to the word at the start of the slot. False: aborted, nothing was added.
///
/// ```text
/// slot.word += n          // load, add and store in one instruction: the commit
/// ```
///
/// # Safety
/// `*active + (id << SHIFT)` is a writable, aligned word for every id that the kernel may give,
/// written by nobody else but sections, until `active` was changed and a fence passed.
#[inline(always)]
pub unsafe fn add<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>, n: u64) -> bool {
    // SAFETY: the caller's promise; the scratch register is the asm's own.
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

/// Adds `n` to the word at `base + id * stride`. False: aborted, nothing was added.
///
/// ```text
/// slot = base + *index * stride; slot.word += n      // commit
/// ```
///
/// # Safety
/// `base + id * stride` is a writable, aligned word for every id that the kernel may give, and
/// nobody else but sections writes it while they may.
#[inline(always)]
pub unsafe fn add_strided(area: RseqArea, base: *mut u8, stride: usize, n: u64) -> bool {
    // SAFETY: the caller's promise.
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

/// Stores `new` in the word at the start of the slot if it is `expected`. False: it was not, or
/// the section was aborted; nothing happened.
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
    // SAFETY: the caller's promise.
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

/// As [`add`], with `spins` between load and store, and `armed` or not: the negative control of
/// every test, and the self-test's section that a preemption is sure to hit.
///
/// ```text
/// x = slot.word; spin; slot.word = x + n
/// ```
///
/// # Safety
/// As [`add`]. Not armed, updates may be lost: that is what it is for.
pub unsafe fn add_delayed<const SHIFT: u32>(
    area: RseqArea,
    active: &AtomicPtr<u8>,
    n: u64,
    spins: u64,
    armed: bool,
) -> bool {
    let descriptor_mask = if armed { u64::MAX } else { 0 };
    // SAFETY: the caller's promise. Not armed, `rseq_cs` is cleared again inside the section.
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

/// Takes the top item of the slot's stack; 0 when there is none or the section was aborted.
///
/// ```text
/// if slot.len == 0: return 0
/// item = slot.items[len - 1]
/// slot.len = len - 1      // commit; as one instruction on memory it measured 8 % slower
/// ```
///
/// # Safety
/// `*active + (id << SHIFT)` is a stack (`len: u64, cap: u64, items: [u64; cap]`) for every id
/// that the kernel may give, written by nobody else but sections, until `active` was changed and
/// a fence passed.
#[inline(always)]
pub unsafe fn pop<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>) -> u64 {
    let item;
    // SAFETY: the caller's promise.
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

/// Puts an item on the slot's stack. False: full, or aborted; nothing happened.
///
/// ```text
/// if slot.len >= slot.cap: return false
/// slot.items[len] = item  // above `len`: nobody reads it yet
/// slot.len = len + 1      // commit
/// ```
///
/// # Safety
/// As [`pop`].
#[inline(always)]
pub unsafe fn push<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>, item: u64) -> bool {
    // SAFETY: the caller's promise.
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

/// Takes up to `max` items off the slot's stack into `out`; says how many, 0 also when aborted.
///
/// ```text
/// k = min(max, slot.len); if k == 0: return 0
/// out[0..k] = slot.items[len - k..len]    // two at a time, an odd one first
/// slot.len = len - k      // commit
/// ```
///
/// # Safety
/// As [`pop`]; `out` is good for `max` writes, and what it holds after a 0 is unspecified.
#[inline(always)]
pub unsafe fn pop_batch<const SHIFT: u32>(
    area: RseqArea,
    active: &AtomicPtr<u8>,
    out: *mut u64,
    max: usize,
) -> usize {
    let taken;
    // SAFETY: the caller's promise.
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

/// Puts up to `n` items on the slot's stack; says how many, 0 when full or aborted.
///
/// ```text
/// k = min(n, slot.cap - slot.len); if k == 0: return 0
/// slot.items[len..len + k] = items[0..k]  // two at a time, an odd one first
/// slot.len = len + k      // commit
/// ```
///
/// # Safety
/// As [`pop`]; `items` is good for `n` reads.
#[inline(always)]
pub unsafe fn push_batch<const SHIFT: u32>(
    area: RseqArea,
    active: &AtomicPtr<u8>,
    items: *const u64,
    n: usize,
) -> usize {
    let put;
    // SAFETY: the caller's promise.
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
