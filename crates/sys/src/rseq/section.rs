//! Sections: fixed operations on the slot of the current CPU or concurrency id.
//!
//! # Protocol
//!
//! `slot = *active + (index << SHIFT)`. A section loads both `*active` and the index, so a retry after an abort uses
//! the current values. If a thread changes `*active` and then issues a fence ([`membarrier::fence_rseq`]), every later
//! operation works on the new slots, and none is left on the old ones. [`add_strided`] and the operations on stocks
//! have no `*active`: their caller passes the address of slot 0.
//!
//! Each operation ends in one store, its commit (in `stock_grant` a compare-and-swap). No effect of it is visible to
//! other operations before the commit. An operation that cannot commit (aborted, empty, full) returns immediately, and
//! the caller decides whether to try it again. So a debugger can step through it.
//!
//! # Cost
//!
//! `add` is 2 stores and 3 loads: 0.55 ns on a 3.7 GHz Zen 4, where two stores alone take 2 cycles, 0.54 ns.
//!
//! # Source
//!
//! librseq `pseudocode.h`, Linux `tools/testing/selftests/rseq`. The layout of the stack is this crate's.
//!
//! Writers of a slot. Sections on the CPU or with the id of the slot. Another thread only after it has changed
//! `*active` and issued the fence. For stocks see `stock.rs`.
//!
//! # Frame
//!
//! ```text
//! descriptor (section __rseq_cs): version 0, flags 0, start, commit - start, abort address
//!     area.rseq_cs = &descriptor                  // arm
//! 33: slot = *index                               // the section begins
//!     at                                          // mostly slot = *active + (slot << SHIFT)
//!     body
//!     commit                                      // one store
//! 44: then                                        // the section has ended
//! signature; 55: aborts += 1; stub                // the kernel continues an aborted thread here
//! ```
//!
//! `section!` of the architecture's module (`x86_64.rs`, `aarch64.rs`) has these instructions; the operations here, in
//! `stack.rs` and in `stock.rs` give the other parts for each architecture. `then` checks whether the commit succeeded,
//! if it can fail. The stub jumps out of the section. An operation without a `stub` returns false if it is aborted, and
//! also if its body jumps to `slow`.
//!
//! The feature `delay` adds a spin before the commit of every section, for tests: a section of ten instructions
//! is interrupted so rarely that a test would not find a broken section.
//!
//! [`membarrier::fence_rseq`]: crate::membarrier::fence_rseq

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
mod aarch64;
mod stack;
mod stock;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod x86_64;

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
pub(crate) use aarch64::*;
pub use stack::{pop, pop_batch, push, push_batch};
pub use stock::{stock_charge, stock_grant, stock_rebind, stock_uncharge};
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(crate) use unsupported::*;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) use x86_64::*;

use super::RseqArea;
use std::sync::atomic::AtomicPtr;

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod unsupported {
    //! No sections: this platform has no rseq. `area` returns null, so no thread has an [`RseqArea`](super::RseqArea),
    //! and no operation is called.

    pub(crate) fn thread_pointer() -> *mut u8 {
        std::ptr::null_mut()
    }

    pub(crate) fn cpu_offset() -> isize {
        0
    }

    pub(crate) fn read_area(_: isize) -> u32 {
        u32::MAX
    }

    pub(crate) fn area() -> (*mut u8, usize) {
        (std::ptr::null_mut(), 0)
    }

    macro_rules! section {
        ($area:ident, $($operation:tt)*) => {
            unreachable!("a section on the area {:?} of a platform without rseq", $area.base)
        };
    }
    pub(crate) use section;
}

/// The number of spins before each commit, less one. Written by tests, read inside the sections.
#[cfg(feature = "delay")]
pub static DELAY_SPINS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Adds `n` to the word at the start of the slot. Returns false, and changes nothing, if the section was aborted.
///
/// ```text
/// slot.word += n          // commit; on x86-64 one instruction that loads, adds and stores
/// ```
///
/// # Safety
/// `*active + (id << SHIFT)` is a writable, aligned word for every id that the kernel may use. Only sections write it
/// until `active` was changed and a fence was issued after that.
#[inline(always)]
pub unsafe fn add<const SHIFT: u32>(area: RseqArea, active: &AtomicPtr<u8>, n: u64) -> bool {
    // SAFETY: the caller guarantees it; the scratch registers are outputs of the asm.
    unsafe {
        section!(
            area,
            x86_64: {
                at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
                body: [],
                commit: "add qword ptr [{slot}], {n}",
            },
            aarch64: {
                at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
                body: ["ldr {word}, [{slot}]", "add {word}, {word}, {n}"],
                commit: "str {word}, [{slot}]",
                word = out(reg) _,
            },
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            n = in(reg) n,
        )
    }
}

/// Adds `n` to the word at `base + id * stride`. Returns false, and changes nothing, if the section was aborted.
///
/// ```text
/// slot = base + *index * stride; slot.word += n      // commit
/// ```
///
/// # Safety
/// `base + id * stride` is a writable, aligned word for every id that the kernel may use. Only sections write it while
/// they may run.
#[inline(always)]
pub unsafe fn add_strided(area: RseqArea, base: *mut u8, stride: usize, n: u64) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe {
        section!(
            area,
            x86_64: {
                at: ["imul {slot}, {stride}"],
                body: [],
                commit: "add qword ptr [{base} + {slot}], {n}",
            },
            aarch64: {
                at: ["madd {slot}, {slot}, {stride}, {base}"],
                body: ["ldr {word}, [{slot}]", "add {word}, {word}, {n}"],
                commit: "str {word}, [{slot}]",
                word = out(reg) _,
            },
            base = in(reg) base,
            stride = in(reg) stride,
            n = in(reg) n,
        )
    }
}

/// Stores `new` in the word at the start of the slot if the word is `expected`. Returns false, and changes nothing, if
/// it is not or if the section was aborted.
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
            area,
            x86_64: {
                at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
                body: ["cmp qword ptr [{slot}], {expected}", "jne {slow}"],
                commit: "mov qword ptr [{slot}], {new}",
            },
            aarch64: {
                at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
                body: ["ldr x17, [{slot}]", "cmp x17, {expected}", "b.ne {slow}"],
                commit: "str {new}, [{slot}]",
            },
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            expected = in(reg) expected,
            new = in(reg) new,
        )
    }
}

/// As [`add`], with `spins` spins (at least one) between load and store. Used by the self-test, since a preemption is
/// likely to hit so long a section. If `armed` is false, the section first clears `rseq_cs`, and from there on the
/// kernel does not abort it: the negative control of tests.
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
    // SAFETY: the caller guarantees it. If `armed` is false, the asm clears `rseq_cs` again at the start of the
    // section.
    unsafe {
        section!(
            area,
            x86_64: {
                at: ["shl {slot}, {shift}", "add {slot}, qword ptr [{active}]"],
                body: [
                    "and qword ptr [{area} + {rseq_cs}], {mask}",
                    "mov {word}, qword ptr [{slot}]",
                    "77: dec {spins}",
                    "jnz 77b",
                    "add {word}, {n}",
                ],
                commit: "mov qword ptr [{slot}], {word}",
            },
            aarch64: {
                at: ["ldr x16, [{active}]", "add {slot}, x16, {slot}, lsl #{shift}"],
                body: [
                    "ldr x16, [{area}, #{rseq_cs}]",
                    "and x16, x16, {mask}",
                    "str x16, [{area}, #{rseq_cs}]",
                    "ldr {word}, [{slot}]",
                    "77: subs {spins}, {spins}, #1",
                    "b.ne 77b",
                    "add {word}, {word}, {n}",
                ],
                commit: "str {word}, [{slot}]",
            },
            shift = const SHIFT,
            active = in(reg) active.as_ptr(),
            n = in(reg) n,
            mask = in(reg) descriptor_mask,
            spins = inout(reg) spins.max(1) => _,
            word = out(reg) _,
        )
    }
}

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
