//! No sections: this platform has no rseq. `area` returns null, so no thread has an [`RseqArea`](super::RseqArea), and
//! no operation is called.

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
