//! The sections for aarch64, from ARMv8.0. Each carries its pseudo-code; the frame is in the
//! parent's page.
//!
//! # Notes on order
//!
//! ARM lets plain loads and stores pass one another, and every access here is plain. Four things
//! hold the order that x86-64 gives for nothing:
//!
//! 1. *One CPU.* It sees its own accesses in program order, across interrupts and switches too:
//!    a section and the one that comes next on the same slot need no more. A concurrency id that
//!    moves to another CPU is handed over by the scheduler, which orders what stood before the
//!    hand-over ahead of what follows.
//! 2. *The fence.* `membarrier` is a full barrier on every CPU that runs this process, and on the
//!    caller before and after. What committed before the interrupt is visible to the caller; what
//!    begins or begins again after it loads the new `active`. CPUs that it skips switch to this
//!    process later, through a full barrier, and sections that were switched out start again.
//! 3. *The address dependency.* After the fence the caller reads and zeroes the slots it moved
//!    away from, and one day stores their address in `active` again, with no second fence:
//!
//! ```text
//!    caller                         section
//!    r = old.word; old.word = 0
//!    active = old    // Release     slot = *active + …   // sees `old`
//!                                   x = slot.word        // sees 0, not r
//!                                   slot.word = x + n    // not seen by the caller's read
//! ```
//!
//!    The Release keeps the caller's reads and zeroes before its store of `active`. In the
//!    section the address of the word is computed from the loaded `active`, and an address
//!    dependency orders a load before the accesses made through its result, loads and stores
//!    alike. In asm no compiler can cut it. It holds for what is reached *through* `active` only:
//!    an `Acquire` would order more, and nothing here needs more.
//! 4. *One location.* Loads of `active` that are ordered, in one thread or by happens-before
//!    across two, never go back to an older value.
//!
//! So a store of `active` must be Release or stronger, and be followed by the fence before the
//! slots that it moved away from are touched. The dependency reaches as far as a slot's items: a
//! drain that put new ones there would publish them, but not what they refer to.
//!
//! `aarch64/*.litmus` put 2, 3 and 4 to ARM's own model with herd7; each names the change that
//! breaks it. `section/tests.rs` ran under qemu-user, aborts included. No ARM kernel has run
//! these sections yet: `selftest` asks the one at hand before any counter trusts them.

use super::super::{ABORTS, CPU_OFFSET, ENABLED, RseqArea, field};
use std::arch::asm;
use std::sync::atomic::AtomicPtr;

/// The thread pointer, as glibc and musl set it.
#[inline(always)]
pub(crate) fn thread_pointer() -> *mut u8 {
    let pointer;
    // SAFETY: reads one register of this thread.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

/// `CPU_OFFSET`.
#[inline(always)]
pub(crate) fn cpu_offset() -> isize {
    CPU_OFFSET.load(std::sync::atomic::Ordering::Relaxed) as isize
}

/// A word of this thread's area, `offset` from the thread pointer.
#[inline(always)]
pub(crate) fn read_area(offset: isize) -> u32 {
    // SAFETY: `offset` leads into this thread's area, which lives as long as the thread.
    unsafe { thread_pointer().byte_offset(offset).cast::<u32>().read_volatile() }
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
            "adrp {offset}, {ENABLED}",
            "ldr {offset}, [{offset}, :lo12:{ENABLED}]",
            "mov {field:w}, {offset:w}",
            "asr {offset}, {offset}, #32",
            "mrs {area}, tpidr_el0",
            "add {area}, {area}, {offset}",
            "ldr {id:w}, [{area}, #{cpu_id}]",
            "cmp {offset}, #0",
            "ccmp {id:w}, #0, #8, ne", // no offset: flags as if the id were negative
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

/// Where `__rseq_offset` and `__rseq_size` are, or null without them: weak, so that the program
/// links and starts without them too. For static glibc, where no `dlsym` finds them.
pub(crate) fn weak_glibc_symbols() -> (*const isize, *const u32) {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: reads two words of the table of addresses that the linker made.
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

/// The frame of every section: descriptor, abort stub, arm, the body up to its commit. `slow` is
/// what the stub does after counting: it names a label that does not return into the section.
/// What stands after `then` is no part of it: where a commit may fail, the look at whether it did.
///
/// The stub may be out of a branch's reach, ±128 MiB; a linker then goes through a veneer, which
/// writes x16 and x17. So both are taken, and free for the body to use, though not for its
/// commit: `delay` takes x16 before it. Nothing but `b` may name a place in the stub, since no
/// linker extends a conditional branch's ±1 MiB.
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
            ".balign 4",
            ".inst 0xd428bc00", // brk: the signature must not be code to fall into
            "55:",
            "adrp {slot}, {ABORTS}",
            "add {slot}, {slot}, :lo12:{ABORTS}",
            "99: ldxr x16, [{slot}]", // ARMv8.0 has no one instruction for it
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

/// Adds `n` to the word at the start of the slot. False: aborted, nothing was added.
///
/// ```text
/// x = slot.word
/// slot.word = x + n       // commit
/// ```
///
/// # Safety
/// `*active + (id << SHIFT)` is a writable, aligned word for every id that the kernel may give,
/// written by nobody else but sections, until `active` was changed and a fence passed.
#[inline(always)]
pub unsafe fn add<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>, n: u64) -> bool {
    // SAFETY: the caller's promise; the scratch registers are the asm's own.
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

/// Adds `n` to the word at `base + id * stride`. False: aborted, nothing was added.
///
/// ```text
/// slot = base + *index * stride
/// x = slot.word
/// slot.word = x + n       // commit
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

/// Takes the top item of the slot's stack; 0 when there is none or the section was aborted.
///
/// ```text
/// if slot.len == 0: return 0
/// item = slot.items[len - 1]
/// slot.len = len - 1      // commit
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

/// Takes up to `max` items off the slot's stack into `out`; says how many, 0 also when aborted.
///
/// ```text
/// k = min(max, slot.len); if k == 0: return 0
/// out[0..k] = slot.items[len - k..len]
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

/// Puts up to `n` items on the slot's stack; says how many, 0 when full or aborted.
///
/// ```text
/// k = min(n, slot.cap - slot.len); if k == 0: return 0
/// slot.items[len..len + k] = items[0..k]
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
