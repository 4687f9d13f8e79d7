//! Rseq: restartable sections, and the ids of the CPU and the thread that the kernel publishes.
//!
//! A registered thread shares an area of at least 32 bytes with the kernel. Its distance from the thread pointer is the
//! same in all threads. The kernel writes the CPU number there and, since Linux 6.3, the concurrency id. The thread
//! writes only `rseq_cs`, the address of the descriptor of the section that it enters, and a byte of [`slice`]. If the
//! thread is preempted, migrated or signalled inside the section, the kernel continues it at the section's abort
//! address. So a section that has executed its last store ran uninterrupted on one CPU with one id.
//!
//! The shortest section costs two stores: one to `rseq_cs` and its last one.
//!
//! # Source
//!
//! Linux `include/uapi/linux/rseq.h`; glibc manual, "Restartable Sequences".
//!
//! Writers. The kernel: all fields. The thread: `rseq_cs` (offset 8), and `slice_ctrl.request` (offset 28), only.
//!
//! [`slice`]: crate::slice

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod own;
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod own {
    /// Returns false: this platform has no areas.
    pub fn register_thread() -> bool {
        false
    }
}
#[cfg_attr(
    not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))),
    allow(unreachable_code, unused_variables, unused_unsafe)
)]
pub mod section;
mod selftest;

pub use selftest::selftest;

use crate::affinity;
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use warmcore_types::CpuId;

/// The offsets of the area's fields, in bytes. `section` and `own` use them in asm.
pub(crate) mod field {
    pub const CPU_ID: usize = 4;
    pub const RSEQ_CS: usize = 8;
    pub const NODE_ID: usize = 20;
    pub const MM_CID: usize = 24;
    /// Two bytes: `request` and `granted`. The module `slice` has them.
    pub const SLICE_CONTROL: usize = 28;
    /// The size of an area that every kernel since 4.18 accepts.
    pub const AREA_BYTES: usize = 32;
}

/// The id by which a section indexes slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PercpuMode {
    /// The CPU number, below `affinity::nr_cpu_ids()`. CPU numbers may have gaps.
    Cpu,
    /// The concurrency id (`mm_cid`): as a rule below the number of the process's threads, and below the number of CPUs
    /// that they may use. On kernels before 6.3, which have none, it is the CPU number.
    Cid,
}

/// The code that registered the areas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// glibc, when a thread starts.
    Glibc,
    /// This crate: in [`support`] for the first thread that calls it, in [`register_thread`] for the others.
    Own,
}

/// The rseq features that this process can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Support {
    /// The code that registered the areas.
    pub source: Source,
    /// Whether the kernel writes the concurrency id to the area (since 6.3).
    pub has_mm_cid: bool,
    /// Whether the kernel writes the NUMA node to the area (since 6.3).
    pub has_node_id: bool,
}

/// The reason why this process cannot use rseq, and what to do about it if something can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(pub(crate) String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// The place of every thread's area and of the concurrency id in it. One word, so that both are read together: the
/// upper half is the distance from the thread pointer, the lower half the field's offset. 0 if there are no areas, and
/// before `support`. Written once, in `support`; read by `RseqArea::lookup`, `enable_sections` and
/// `own::register_thread`.
static FOUND: AtomicI64 = AtomicI64::new(0);

/// The distance of the field with the CPU number from the thread pointer, for [`cpu_hint`]. 0 if there are no areas,
/// and before `support`. Written once, in `support`.
pub(crate) static CPU_OFFSET: AtomicI64 = AtomicI64::new(0);

/// The value of `FOUND` once sections are enabled; 0 before. Written once, in `enable_sections`; read by
/// `section::area` on every fast path.
pub(crate) static ENABLED: AtomicI64 = AtomicI64::new(0);

/// The number of aborted sections in this process. Written by the abort stubs.
pub(crate) static ABORTS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of aborted sections in this process, of all threads.
pub fn aborts() -> u64 {
    ABORTS.load(Relaxed)
}

static SUPPORT: OnceLock<Result<Support, Unavailable>> = OnceLock::new();

/// Finds glibc's areas or else registers this thread's own one, once per process. Every call returns the first result.
/// With own areas, another thread has none until [`register_thread`] registers one.
pub fn support() -> Result<Support, Unavailable> {
    SUPPORT
        .get_or_init(|| {
            let (source, offset, feature_bytes) = find()?;
            let support = Support {
                source,
                has_mm_cid: feature_bytes >= field::MM_CID + 4,
                has_node_id: feature_bytes >= field::NODE_ID + 4,
            };
            let field = if support.has_mm_cid { field::MM_CID } else { field::CPU_ID };
            let offset = i32::try_from(offset).map_err(|_| {
                Unavailable(format!("no rseq: its area is {offset} bytes off, further than a library's"))
            })?;
            FOUND.store(i64::from(offset) << 32 | field as i64, Relaxed);
            CPU_OFFSET.store(i64::from(offset) + field::CPU_ID as i64, Relaxed);
            Ok(support)
        })
        .clone()
}

/// Enables sections: [`RseqArea::current`] returns the areas of registered threads from now on. Before this call it
/// returns `None`, so every operation takes its slow path.
///
/// If this code is in a library that was loaded at run time, the library stays loaded until the process ends, because
/// the kernel may read the descriptor of a thread's last section at any later time.
///
/// # Safety
/// From now on no thread may write a slot with locked instructions while sections may run on it.
pub unsafe fn enable_sections() -> Result<Support, Unavailable> {
    let support = support()?;
    pin_this_library();
    // ORDERING: Relaxed. A thread that sees the value reads its own area, which depends on no other store of this
    // process.
    ENABLED.store(FOUND.load(Relaxed), Relaxed);
    Ok(support)
}

/// Keeps the shared object with the descriptors loaded until the process ends. If that object is the main program,
/// which is never unloaded, the calls may fail; that changes nothing.
#[cfg(target_os = "linux")]
fn pin_this_library() {
    // SAFETY: dladdr with an address in this object fills `info`; in a static program it fails. NOLOAD only adds
    // NODELETE to an object that is loaded already.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let own = (&raw const ENABLED).cast();
        if libc::dladdr(own, &mut info) != 0 && !info.dli_fname.is_null() {
            libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn pin_this_library() {}

/// Returns the code that registered the areas, their offset, and how many bytes of them the kernel writes. Registers an
/// area of this crate for this thread if there is none of glibc.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn find() -> Result<(Source, isize, usize), Unavailable> {
    // AT_RSEQ_FEATURE_SIZE. It is 0 before Linux 6.3, where the last field, `flags`, ends at byte 20.
    // SAFETY: getauxval accepts any number.
    let kernel_keeps = match unsafe { libc::getauxval(27) } as usize {
        0 => 20,
        bytes => bytes.min(field::AREA_BYTES),
    };
    match glibc_area() {
        Some((offset, size)) if size > 0 => {
            // If it is not 0, `__rseq_size` is always 32 in glibc 2.35 to 2.39, and always 20 in 2.40 and some patched
            // 2.36. From 2.41 on it is the size that both glibc and the kernel support.
            let bytes = if matches!(size, 20 | 32) { kernel_keeps } else { kernel_keeps.min(size) };
            Ok((Source::Glibc, offset, bytes))
        }
        _ => own::register_first().map(|offset| (Source::Own, offset, kernel_keeps)),
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn find() -> Result<(Source, isize, usize), Unavailable> {
    Err(Unavailable(format!(
        "no rseq: it is for Linux on x86-64 and aarch64, this is {} on {}",
        std::env::consts::OS,
        std::env::consts::ARCH
    )))
}

/// Returns glibc's `__rseq_offset` and `__rseq_size`, or `None` if there are none. They are looked up by name, since a
/// program that is linked against them would not start with musl or an older glibc.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn glibc_area() -> Option<(isize, usize)> {
    // SAFETY: dlsym with a NUL-terminated name. The symbols, where they exist, are a ptrdiff_t
    // and an unsigned int that never change after start-up.
    unsafe {
        let mut offset =
            libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>().cast_const();
        let mut size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>().cast_const();
        if offset.is_null() || size.is_null() {
            (offset, size) = section::weak_glibc_symbols();
        }
        (!offset.is_null() && !size.is_null()).then(|| (*offset, *size as usize))
    }
}

/// Returns the distance of the areas from the thread pointer. 0 if there are none, and before [`support`].
pub(crate) fn offset_of_area() -> isize {
    (FOUND.load(Relaxed) >> 32) as isize
}

/// This thread's registered area, and the field of it that sections use as their index.
#[derive(Clone, Copy)]
pub struct RseqArea {
    pub(crate) base: NonNull<u8>,
    pub(crate) index: NonNull<u32>,
}

impl RseqArea {
    /// Returns this thread's area, if it has a registered one and [`enable_sections`] was called.
    ///
    /// Finding the area takes ten instructions without a branch. The compiler may hoist this out of a loop, since a
    /// registered thread's area does not change. If it is hoisted above [`enable_sections`] or [`register_thread`], it
    /// returns `None`, which is slow but correct. The value must not be used after a switch of stacks that continues
    /// this code on another thread. An `await` is no such switch, because the poll returns first.
    ///
    /// **Touches** one read-mostly static, this thread's control block (on x86-64) and its area.
    #[inline(always)]
    pub fn current(mode: PercpuMode) -> Option<Self> {
        let (area, cid_field) = section::area();
        Some(Self::at(NonNull::new(area)?, mode, cid_field))
    }

    /// Returns this thread's area, if it has a registered one and [`support`] has found areas, whether or not sections
    /// are enabled. For slow paths, tests, and code that only reads the ids.
    #[inline(always)]
    pub fn lookup(mode: PercpuMode) -> Option<Self> {
        let found = FOUND.load(Relaxed);
        let (offset, cid_field) = ((found >> 32) as isize, found as u32 as usize);
        let area = NonNull::new(section::thread_pointer().wrapping_byte_offset(offset));
        let area = area.filter(|_| offset != 0)?;
        // A negative CPU number: this thread is not registered, and its other fields are undefined.
        let is_registered = (Self::at(area, PercpuMode::Cpu, cid_field).index() as i32) >= 0;
        is_registered.then(|| Self::at(area, mode, cid_field))
    }

    #[inline(always)]
    fn at(base: NonNull<u8>, mode: PercpuMode, cid_field: usize) -> Self {
        let field = match mode {
            PercpuMode::Cpu => field::CPU_ID,
            PercpuMode::Cid => cid_field,
        };
        // SAFETY: both fields are inside the 32 bytes of the area.
        let index = unsafe { base.byte_add(field).cast::<u32>() };
        Self { base, index }
    }

    /// Returns the id that the kernel wrote last. Outside of a section it may be outdated immediately.
    #[inline(always)]
    pub fn index(self) -> u32 {
        // SAFETY: the field of this thread's live area; the kernel writes it only while this thread is in the kernel.
        unsafe { self.index.read_volatile() }
    }

    /// Whether this thread has entered a section since the kernel last cleared `rseq_cs`. Tests use it to prove that a
    /// code path runs sections in the given build.
    pub fn is_armed(self) -> bool {
        // SAFETY: `rseq_cs` of this thread's own area.
        unsafe { self.base.byte_add(field::RSEQ_CS).cast::<u64>().read_volatile() != 0 }
    }
}

/// Returns the CPU on which this thread runs, read from its area, or `None` if the thread has no registered area or
/// [`support`] has not found areas yet. The thread may migrate before the caller uses the number.
/// [`affinity::current_cpu`] calls the libc instead.
///
/// [`affinity::current_cpu`]: crate::affinity::current_cpu
#[inline(always)]
pub fn cpu_hint() -> Option<u32> {
    let offset = section::cpu_offset();
    if offset == 0 {
        return None;
    }
    let cpu = section::read_area(offset);
    // A negative CPU number: this thread is not registered.
    ((cpu as i32) >= 0).then_some(cpu)
}

/// Returns the CPU on which this thread runs, by [`cpu_hint`] or else by [`affinity::current_cpu`]. The thread may
/// migrate before the caller uses the number.
#[inline(always)]
pub fn current_cpu() -> CpuId {
    /// A separate function, so that the fast path saves no registers for the call.
    #[cold]
    fn asked() -> CpuId {
        affinity::current_cpu()
    }
    cpu_hint().map_or_else(asked, CpuId)
}

/// Registers an area for this thread if it has none and the areas are this crate's ([`Source::Own`]). Returns whether
/// the thread has an area now; false before the first call of [`support`].
///
/// The slow paths of counters and free lists (crate `warmcore-percpu`) and of stocks (crate `warmcore-budget`) call
/// this function, so calling it is optional. With areas of this crate (musl), a thread that begins with a hot loop
/// should call it first: the compiler may have hoisted [`RseqArea::current`] out of the loop, and then each iteration
/// takes the slow path.
#[cold]
pub fn register_thread() -> bool {
    match SUPPORT.get() {
        Some(Ok(Support { source: Source::Own, .. })) => own::register_thread(),
        Some(Ok(Support { source: Source::Glibc, .. })) => RseqArea::lookup(PercpuMode::Cpu).is_some(),
        _ => false,
    }
}

/// Returns the concurrency id of this thread, if the kernel has concurrency ids and the thread has an area.
pub fn mm_cid() -> Option<u32> {
    RseqArea::lookup(PercpuMode::Cid).filter(|_| support().is_ok_and(|s| s.has_mm_cid)).map(RseqArea::index)
}

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
