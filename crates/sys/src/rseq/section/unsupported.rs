//! No sections: this platform has no rseq. `area` returns null, so no other function of this module is called.

use super::super::RseqArea;
use std::sync::atomic::AtomicPtr;

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

/// Never called: this platform has no [`RseqArea`].
///
/// # Safety
/// Always safe to call.
pub unsafe fn add<const SHIFT: u32>(_: RseqArea, _: &AtomicPtr<u8>, _: u64) -> bool {
    false
}

/// Never called: this platform has no [`RseqArea`].
///
/// # Safety
/// Always safe to call.
pub unsafe fn add_delayed<const SHIFT: u32>(_: RseqArea, _: &AtomicPtr<u8>, _: u64, _: u64, _: bool) -> bool {
    false
}

/// Never called: this platform has no [`RseqArea`].
///
/// # Safety
/// Always safe to call.
pub unsafe fn pop<const SHIFT: u32>(_: RseqArea, _: &AtomicPtr<u8>) -> u64 {
    0
}

/// Never called: this platform has no [`RseqArea`].
///
/// # Safety
/// Always safe to call.
pub unsafe fn push<const SHIFT: u32>(_: RseqArea, _: &AtomicPtr<u8>, _: u64) -> bool {
    false
}

/// Never called: this platform has no [`RseqArea`].
///
/// # Safety
/// Always safe to call.
pub unsafe fn pop_batch<const SHIFT: u32>(_: RseqArea, _: &AtomicPtr<u8>, _: *mut u64, _: usize) -> usize {
    0
}

/// Never called: this platform has no [`RseqArea`].
///
/// # Safety
/// Always safe to call.
pub unsafe fn push_batch<const SHIFT: u32>(_: RseqArea, _: &AtomicPtr<u8>, _: *const u64, _: usize) -> usize {
    0
}

/// Never called: this platform has no [`RseqArea`].
///
/// # Safety
/// Always safe to call.
pub unsafe fn add_strided(_: RseqArea, _: *mut u8, _: usize, _: u64) -> bool {
    false
}

/// Never called: this platform has no [`RseqArea`].
///
/// # Safety
/// Always safe to call.
pub unsafe fn cmpeqv_storev<const SHIFT: u32>(_: RseqArea, _: &AtomicPtr<u8>, _: u64, _: u64) -> bool {
    false
}

pub(super) mod stock {
    //! The operations on stocks: never called either.

    use super::RseqArea;

    pub unsafe fn charge<const SHIFT: u32>(_: RseqArea, _: *mut u8, _: u32, _: u32) -> bool {
        false
    }

    pub unsafe fn uncharge<const SHIFT: u32>(_: RseqArea, _: *mut u8, _: u32, _: u32) -> bool {
        false
    }

    pub unsafe fn grant<const SHIFT: u32>(_: RseqArea, _: *mut u8, _: u32, _: u64, _: u64, _: u64) -> bool {
        false
    }

    pub unsafe fn rebind<const SHIFT: u32>(_: RseqArea, _: *mut u8, _: u32, _: u64, _: u64, _: u64) -> bool {
        false
    }
}
