//! Rseq: sections that the kernel restarts when they were disturbed, and the ids it keeps.
//!
//! Model.   Every thread shares a 32-byte area with the kernel, at a fixed distance from its
//!          thread pointer. The kernel writes the CPU and the concurrency id there; the thread
//!          writes only `rseq_cs`, the address of the section it is about to enter. A thread
//!          that is preempted, migrated or signalled inside a section comes back at its abort
//!          address instead, so that a section that reached its last store ran undisturbed on
//!          one CPU with one id.
//! Number.  An area is 32 bytes in one line of the thread's own; a section costs two stores.
//! Writers. The kernel: all fields. The thread: `rseq_cs` (+8). Nobody else.
//! Source.  Linux `include/uapi/linux/rseq.h`; glibc manual, "Restartable Sequences".

mod own;
pub mod section;
mod selftest;

pub use selftest::selftest;

use crate::affinity;
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use warmcore_types::CpuId;

/// Where the fields of the area stand, in bytes. `section` and `own` use them in asm.
pub(crate) mod field {
    pub const CPU_ID: usize = 4;
    pub const RSEQ_CS: usize = 8;
    pub const NODE_ID: usize = 20;
    pub const MM_CID: usize = 24;
    /// The area as every kernel since 4.18 takes it.
    pub const AREA_BYTES: usize = 32;
}

/// Which of the kernel's ids a section indexes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PercpuMode {
    /// The CPU's number: sparse, up to the number of possible CPUs.
    Cpu,
    /// The process's concurrency id: below the number of its threads, and of the CPUs they may
    /// use. A kernel without it (before 6.3) gives the CPU's number instead; the data does not
    /// care.
    Cid,
}

/// Who registered the areas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// glibc, at each thread's start.
    Glibc,
    /// This crate, at each thread's first slow path.
    Own,
}

/// What this process has of rseq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Support {
    /// Who registered the areas.
    pub source: Source,
    /// Whether the kernel keeps a concurrency id there (6.3).
    pub has_mm_cid: bool,
    /// Whether the kernel keeps the NUMA node there (6.3).
    pub has_node_id: bool,
}

/// Why this process has no rseq: the fact, then the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(pub(crate) String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Where every thread's area is and where in it the concurrency id stands, in one word so that
/// nobody sees one without the other: the distance from the thread pointer above, the field's
/// offset in the lower half. 0: none. Written once, in `support`; read by `RseqArea::lookup`.
static FOUND: AtomicI64 = AtomicI64::new(0);

/// How far the CPU's number is from the thread pointer: of `FOUND`, what [`cpu_hint`] needs. 0: there
/// is none. Written once, in `support`.
pub(crate) static CPU_OFFSET: AtomicI64 = AtomicI64::new(0);

/// `FOUND`, once sections may run; 0 before, and for ever if they may not. Written once, in
/// `enable_sections`; read by `section::area` on every fast path.
pub(crate) static ENABLED: AtomicI64 = AtomicI64::new(0);

/// How often any section of this process was aborted. Written by the abort stubs.
pub(crate) static ABORTS: AtomicU64 = AtomicU64::new(0);

/// How often a section of this process was aborted so far, on any thread.
pub fn aborts() -> u64 {
    ABORTS.load(Relaxed)
}

static SUPPORT: OnceLock<Result<Support, Unavailable>> = OnceLock::new();

/// Finds or registers the areas, once per process. What it says holds for threads started
/// later too; one whose own registration fails is simply without an area.
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

/// Lets [`RseqArea::current`] find areas from now on. Before this, and without it, every fast path ends
/// in its slow one. Pins the library that this code is in, should it have been loaded at run
/// time: the kernel may look at the last descriptor after everybody else has forgotten it.
///
/// # Safety
/// From now on no slot of any section may be written by locked instructions, or lent out as if it
/// were.
pub unsafe fn enable_sections() -> Result<Support, Unavailable> {
    let support = support()?;
    pin_this_library();
    // ORDERING: Relaxed. Whoever sees it reads its own thread's area, which needs no other store
    // of ours.
    ENABLED.store(FOUND.load(Relaxed), Relaxed);
    Ok(support)
}

/// Keeps the shared object with our descriptors in memory until the process ends. For the main
/// program there is nothing to keep, and the loader says no.
#[cfg(target_os = "linux")]
fn pin_this_library() {
    // SAFETY: dladdr of an address in this very object fills `info`; a static linker's dladdr
    // says no. NOLOAD only adds NODELETE to what is loaded already.
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

/// The areas' owner, their offset, and how many bytes the kernel keeps up to date.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn find() -> Result<(Source, isize, usize), Unavailable> {
    // AT_RSEQ_FEATURE_SIZE. 0 before Linux 6.3: then the area ends with `flags`, at 20.
    // SAFETY: getauxval takes any number.
    let kernel_keeps = match unsafe { libc::getauxval(27) } as usize {
        0 => 20,
        bytes => bytes.min(field::AREA_BYTES),
    };
    match glibc_area() {
        Some((offset, size)) if size > 0 => {
            // `__rseq_size` is 32 in 2.35–2.39, 20 in 2.40 and some patched 2.36, whatever the
            // kernel keeps; from 2.41 it is what both know.
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

/// glibc's `__rseq_offset` and `__rseq_size`, looked up by name: a link against them would bar
/// musl and older glibc.
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

/// This thread's registered area, and where in it the index stands.
#[derive(Clone, Copy)]
pub struct RseqArea {
    pub(crate) base: NonNull<u8>,
    pub(crate) index: NonNull<u32>,
}

impl RseqArea {
    /// This thread's area, if it has a registered one and [`enable_sections`] was called.
    ///
    /// Compiles to ten instructions without a branch, and the compiler may lift it out of a
    /// loop: a thread keeps its area. For the same reason it must not be kept across a switch
    /// of stacks that changes the thread; no `await` can do that, since a poll returns first.
    /// What was lifted above [`enable_sections`] is `None`: slow, not wrong.
    ///
    /// **Touches** two read-mostly statics and this thread's own area.
    #[inline(always)]
    pub fn current(mode: PercpuMode) -> Option<Self> {
        let (area, cid_field) = section::area();
        Some(Self::at(NonNull::new(area)?, mode, cid_field))
    }

    /// This thread's area, if it has a registered one, whether or not sections are enabled.
    /// For slow paths and tests, and for whoever only reads the ids.
    #[inline(always)]
    pub fn lookup(mode: PercpuMode) -> Option<Self> {
        let found = FOUND.load(Relaxed);
        let (offset, cid_field) = ((found >> 32) as isize, found as u32 as usize);
        let area = NonNull::new(section::thread_pointer().wrapping_byte_offset(offset));
        let area = area.filter(|_| offset != 0)?;
        // A negative number: this thread is not registered, and its other fields mean nothing.
        let is_registered = (Self::at(area, PercpuMode::Cpu, cid_field).index() as i32) >= 0;
        is_registered.then(|| Self::at(area, mode, cid_field))
    }

    #[inline(always)]
    fn at(base: NonNull<u8>, mode: PercpuMode, cid_field: usize) -> Self {
        let field = match mode {
            PercpuMode::Cpu => field::CPU_ID,
            PercpuMode::Cid => cid_field,
        };
        // SAFETY: both fields stand inside the 32 bytes of the area.
        let index = unsafe { base.byte_add(field).cast::<u32>() };
        Self { base, index }
    }

    /// The id that the kernel wrote last. Stale as soon as it is read, unless a section reads it.
    #[inline(always)]
    pub fn index(self) -> u32 {
        // SAFETY: the field of this thread's live area; the kernel writes it in this very thread.
        unsafe { self.index.read_volatile() }
    }

    /// Whether a section was armed in this thread since the kernel last cleared it: the proof
    /// that the code path really runs sections, in the build at hand.
    pub fn is_armed(self) -> bool {
        // SAFETY: `rseq_cs` of this thread's own area.
        unsafe { self.base.byte_add(field::RSEQ_CS).cast::<u64>().read_volatile() != 0 }
    }
}

/// The CPU that the kernel wrote last for this thread, if it writes: [`affinity::current_cpu`]
/// without a call. For who indexes by a CPU and does not mind being moved.
///
/// [`affinity::current_cpu`]: crate::affinity::current_cpu
#[inline(always)]
pub fn cpu_hint() -> Option<u32> {
    let offset = section::cpu_offset();
    if offset == 0 {
        return None;
    }
    let cpu = section::read_area(offset);
    // A negative number: this thread is not registered.
    ((cpu as i32) >= 0).then_some(cpu)
}

/// The CPU that this thread runs on, or ran on a moment ago: by [`cpu_hint`], else by a call.
#[inline(always)]
pub fn current_cpu() -> CpuId {
    /// Apart, so that the fast path saves no registers for the call.
    #[cold]
    fn asked() -> CpuId {
        affinity::current_cpu()
    }
    cpu_hint().map_or_else(asked, CpuId)
}

/// Gives this thread an area if it has none and may have one; says whether it has one now.
///
/// The slow path of every section calls it, so nobody has to. With own areas (musl) a thread that
/// begins with a hot loop should: the compiler may have lifted [`RseqArea::current`] out of that loop,
/// and then the whole of it takes the slow path.
#[cold]
pub fn register_thread() -> bool {
    match SUPPORT.get() {
        Some(Ok(Support { source: Source::Own, .. })) => own::register_thread(),
        Some(Ok(Support { source: Source::Glibc, .. })) => RseqArea::lookup(PercpuMode::Cpu).is_some(),
        _ => false,
    }
}

/// The process-wide concurrency id of this thread, if the kernel keeps one.
pub fn mm_cid() -> Option<u32> {
    RseqArea::lookup(PercpuMode::Cid).filter(|_| support().is_ok_and(|s| s.has_mm_cid)).map(RseqArea::index)
}

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
