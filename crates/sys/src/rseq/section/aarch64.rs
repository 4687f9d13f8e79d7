//! The sections for aarch64 (ARMv8.0 and later), each with its pseudo-code. The parent module describes the frame.
//!
//! # Notes on order
//!
//! ARM may reorder plain loads and stores, and every access in these sections is plain. Four facts ensure the order
//! that x86-64 guarantees by itself:
//!
//! 1. *One CPU.* A CPU sees its own accesses in program order, also across interrupts and context switches. So a section
//!    sees the stores of the previous section on the same slot. If a concurrency id moves to another CPU, the scheduler
//!    orders all accesses before the move ahead of those after it.
//! 2. *The fence.* `membarrier` is a full barrier on every CPU that runs this process, and on the calling CPU before and
//!    after. A section that committed before the interrupt is visible to the caller. A section that begins after it, or
//!    is tried again, loads the new `active`. A CPU without a thread of this process gets no interrupt. It executes a
//!    full barrier when it switches to this process, and sections that were switched out are aborted.
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
//!    The Release orders the caller's reads and zeroing before its store to `active`. The section computes the address of
//!    the word from the loaded `active`, and an address dependency orders that load before the accesses through its
//!    result, loads and stores alike. A compiler cannot remove a dependency in asm. It orders only accesses *through*
//!    `active`. An `Acquire` would order more, which these sections do not need.
//! 4. *One location.* Of two ordered loads of `active`, in one thread or by happens-before in two, the later one does not
//!    return an older value.
//!
//! Therefore a store to `active` must be Release or stronger, and the old slots may be accessed only after a fence that
//! follows it. The dependency covers a slot's items: new items that a drain stored would be visible, but not the
//! memory to which they point.
//!
//! `aarch64/*.litmus` check 2, 3 and 4 against ARM's memory model with herd7; each file names a change that breaks it.
//! `section/tests.rs` has run under qemu-user, including aborts. These sections have not run on an ARM kernel yet;
//! `selftest` checks the kernel before the `rseq` backend is used.

use super::super::{ABORTS, CPU_OFFSET, ENABLED, RseqArea, field};
use std::arch::asm;
use std::sync::atomic::AtomicPtr;

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
    // SAFETY: reads `ENABLED`, the control block, and this thread's area. `nomem` declares that other code cannot change
    // the result: both are set before the thread's first section and then constant until its end.
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

/// The frame of every section: descriptor, abort stub, arming, and the body up to its commit. `slow` is what the stub does
/// after it has counted the abort: a jump to a label outside of the section. Code after `then` is not part of the section;
/// it checks whether a commit that can fail did.
///
/// The stub may be more than a branch's range, ±128 MiB, away. The linker then inserts a veneer, which writes x16 and x17.
/// So the frame declares both as outputs, and the body may use them. The commit may not, since `delay` uses x16 before
/// it. Only `b` may jump to the stub: linkers do not extend a conditional branch's range of ±1 MiB.
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
            ".balign 4",
            ".inst 0xd428bc00", // the signature is a brk: executing it is an error
            "55:",
            "adrp {slot}, {ABORTS}",
            "add {slot}, {slot}, :lo12:{ABORTS}",
            "99: ldxr x16, [{slot}]", // ARMv8.0 has no single instruction for an atomic add
            "add x16, x16, #1",
            "stxr w17, x16, [{slot}]",
            "cbnz w17, 99b",
            $($slow,)+
            ".popsection",
            "adrp {slot}, 66b",
            "add {slot}, {slot}, :lo12:66b",
            "str {slot}, [{area}, #{rseq_cs}]",
            "33:",
            "ldr {slot:w}, [{index}]",
            $($at,)+
            $($line,)+
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
            rseq_cs = const field::RSEQ_CS,
            ABORTS = sym ABORTS,
            #[cfg(feature = "delay")]
            DELAY = sym $crate::rseq::section::DELAY_SPINS,
            out("x16") _,
            out("x17") _,
            $($operand)*
            options(nostack),
        )
    };
}

pub(super) mod stock;

/// Adds `n` to the word at the start of the slot. Returns false, and changes nothing, if the section was aborted.
///
/// ```text
/// x = slot.word
/// slot.word = x + n       // commit
/// ```
///
/// # Safety
/// `*active + (id << SHIFT)` is a writable, aligned word for every id that the kernel may use. Only sections write it until
/// `active` was changed and a fence was issued after that.
#[inline(always)]
pub unsafe fn add<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>, n: u64) -> bool {
    // SAFETY: the caller guarantees it; the scratch registers are outputs of the asm.
    unsafe {
        section!(
            at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
            stub: ["b {slow}"],
            body: ["ldr {word}, [{slot}]", "add {word}, {word}, {n}"],
            commit: "str {word}, [{slot}]",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            n = in(reg) n,
            word = out(reg) _,
            slow = label { return false },
        )
    };
    true
}

/// Adds `n` to the word at `base + id * stride`. Returns false, and changes nothing, if the section was aborted.
///
/// ```text
/// slot = base + *index * stride
/// x = slot.word
/// slot.word = x + n       // commit
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
            at: ["madd {slot}, {slot}, {stride}, {base}"],
            stub: ["b {slow}"],
            body: ["ldr {word}, [{slot}]", "add {word}, {word}, {n}"],
            commit: "str {word}, [{slot}]",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
            base = in(reg) base,
            stride = in(reg) stride,
            n = in(reg) n,
            word = out(reg) _,
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
            at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
            stub: ["b {slow}"],
            body: ["ldr x17, [{slot}]", "cmp x17, {expected}", "b.ne {slow}"],
            commit: "str {new}, [{slot}]",
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
            at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
            stub: ["b {slow}"],
            body: [
                "ldr x16, [{area}, #{rseq_cs}]",
                "and x16, x16, {mask}",
                "str x16, [{area}, #{rseq_cs}]",
                "ldr {word}, [{slot}]",
                "77: subs {spins}, {spins}, #1",
                "b.ne 77b",
                "add {word}, {word}, {n}"
            ],
            commit: "str {word}, [{slot}]",
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
/// slot.len = len - 1      // commit
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
            at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
            stub: ["mov {item}, xzr", "b 44f"],
            body: [
                "ldr {len}, [{slot}]",
                "mov {item}, xzr",
                "cbz {len}, 44f",
                "add x16, {slot}, {len}, lsl #3",
                "ldr {item}, [x16, #8]",
                "sub {len}, {len}, #1"
            ],
            commit: "str {len}, [{slot}]",
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
            at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
            stub: ["b {slow}"],
            body: [
                "ldp {len}, x17, [{slot}]",
                "cmp {len}, x17",
                "b.hs {slow}",
                "add x16, {slot}, {len}, lsl #3",
                "str {item}, [x16, #16]",
                "add {len}, {len}, #1"
            ],
            commit: "str {len}, [{slot}]",
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
/// out[0..k] = slot.items[len - k..len]
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
            at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
            stub: ["mov {taken}, xzr", "b 44f"],
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
                "b.lo 22b"
            ],
            commit: "str {len}, [{slot}]",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
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

/// Pushes up to `n` items on the slot's stack. Returns how many, or 0 if the stack is full or the section was aborted.
///
/// ```text
/// k = min(n, slot.cap - slot.len); if k == 0: return 0
/// slot.items[len..len + k] = items[0..k]
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
            at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
            stub: ["mov {put}, xzr", "b 44f"],
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
                "b.lo 22b"
            ],
            commit: "str {len}, [{slot}]",
            area = in(reg) area.base.as_ptr(),
            index = in(reg) area.index.as_ptr(),
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
