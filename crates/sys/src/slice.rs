//! Slice: a few microseconds more for a thread that holds a lock when the kernel is about to preempt it.
//!
//! If a thread loses its CPU inside of a short section, the threads that want the section's lock wait until it runs again.
//! Since Linux 7.0 a thread can tell the kernel that it is in such a section: [`ask`] sets a byte in the thread's rseq
//! area. If an interrupt would preempt the thread there, the kernel may let it go on once, for a few microseconds. At
//! the section's end the thread returns what is left, with the system call `rseq_slice_yield`.
//!
//! # What the kernel does
//!
//! - An extension lasts 5 µs, or up to 50 µs if root has set that in `/sys/kernel/debug/rseq/slice_ext_nsec`. Then a timer
//!   preempts the thread. There is one extension until the thread was scheduled out.
//! - It is no guarantee: with other work pending, such as a signal, the kernel grants nothing. With `PREEMPT_RT` it
//!   grants nothing against real-time threads.
//! - Another system call in a section that was granted an extension ends the extension: the kernel first schedules, and
//!   then executes the call. So a section should make none. The unlock of a lock on which another thread sleeps is
//!   such a call: that thread is woken only when this one has its CPU again, as if there had been no extension. One that
//!   still spins gets the lock at once.
//! - Extensions are disabled in a new thread; [`enable_thread`] enables them. They need `CONFIG_RSEQ_SLICE_EXTENSION`,
//!   which Debian's kernels 7.2 and 7.3 do not have, and an area registered with more than its first 32 bytes. glibc
//!   before 2.41 registers 32; with `GLIBC_TUNABLES=glibc.pthread.rseq=0` this crate registers the area instead.
//!
//! # Cost
//!
//! Until a thread of this process has enabled extensions, a section costs one load and a branch, and another branch at its
//! end. From then on it costs two calls with two loads and two stores in this thread's area, and after a grant a system
//! call. [`ask`] reads no state of the thread: in one without extensions it sets a byte that the kernel does not read. So
//! threads enable extensions when they start.
//!
//! # Source
//!
//! Linux 7.2: `Documentation/userspace-api/rseq.rst`, `include/uapi/linux/rseq.h`, `kernel/rseq.c`.

use crate::rseq::{self, Unavailable};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering::*, compiler_fence};

/// The distance of the two bytes `request` and `granted` from the thread pointer. 0 until a thread has enabled
/// extensions. Written by `enable_thread`, always with the same value; read by `ask`.
static CONTROL: AtomicIsize = AtomicIsize::new(0);

/// Written by `end`.
static YIELDS: AtomicU64 = AtomicU64::new(0);

/// Returns how many extensions the threads of this process have returned before their time was over.
pub fn yields() -> u64 {
    YIELDS.load(Relaxed)
}

/// Enables extensions for this thread. Call it when the thread starts. After the first call that found none in the
/// kernel, later calls make no system call.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn enable_thread() -> Result<(), Unavailable> {
    static NONE: std::sync::OnceLock<Unavailable> = std::sync::OnceLock::new();
    const PR_RSEQ_SLICE_EXTENSION: i32 = 79;
    const SET: libc::c_ulong = 2;
    const ENABLE: libc::c_ulong = 1;
    /// The kernel's ENOTSUPP, which is not among the numbers of `errno`.
    const NOT_SUPPORTED: i32 = 524;

    if let Some(none) = NONE.get() {
        return Err(none.clone());
    }
    let support = rseq::support()?;
    if !rseq::register_thread() {
        return Err(Unavailable("a time slice can't be extended: this thread has no rseq area".into()));
    }
    // SAFETY: no pointer is passed.
    let set = unsafe { libc::prctl(PR_RSEQ_SLICE_EXTENSION, SET, ENABLE, 0_u64, 0_u64) };
    let Err(error) = crate::checked(set) else {
        CONTROL.store(rseq::offset_of_area() + rseq::field::SLICE_CONTROL as isize, Relaxed);
        return Ok(());
    };
    let kernel = crate::platform::kernel();
    let why = match error.raw_os_error() {
        Some(libc::EINVAL) => {
            format!("kernel {kernel} is older than 7.0 or has no CONFIG_RSEQ_SLICE_EXTENSION")
        }
        Some(NOT_SUPPORTED) => {
            let areas = match support.source {
                rseq::Source::Own => String::new(),
                rseq::Source::Glibc => format!(
                    ", or {} registers areas of 32 bytes: then set GLIBC_TUNABLES=glibc.pthread.rseq=0",
                    crate::platform::libc()
                ),
            };
            format!(
                "kernel {kernel} has no CONFIG_RSEQ_SLICE_EXTENSION, or was booted with rseq_slice_ext=0{areas}"
            )
        }
        _ => format!("the kernel {kernel} refused: {error}"),
    };
    Err(NONE.get_or_init(|| Unavailable(format!("a time slice can't be extended: {why}"))).clone())
}

/// Returns an error: this platform has no extensions.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub fn enable_thread() -> Result<(), Unavailable> {
    rseq::support().map(drop)
}

/// A section in which the kernel may extend this thread's time slice. Dropping it ends the section.
#[must_use = "the section ends when this is dropped"]
#[derive(Debug)]
pub struct Section {
    /// As `CONTROL`; 0 if there is nothing to end.
    control: isize,
    /// The bytes are this thread's, so this is not `Send`.
    _of_thread: PhantomData<*mut u8>,
}

/// Begins a section, if extensions are enabled. Within another section of this thread it does nothing.
///
/// Keep the section as short as the lock: take the lock, then ask, and drop the lock first.
///
/// ```
/// let total = std::sync::Mutex::new(1);
/// let mut locked = total.lock().unwrap();
/// let section = warmcore_sys::slice::ask();
/// *locked += 1;
/// drop(locked);
/// drop(section);
/// ```
#[inline(always)]
pub fn ask() -> Section {
    /// Apart, as `give_back` is: without extensions a section should cost its branches and no register.
    #[cold]
    #[inline(never)]
    fn begun(control: isize) -> isize {
        if begin(address(control)) { control } else { 0 }
    }
    let control = CONTROL.load(Relaxed);
    Section { control: if control == 0 { 0 } else { begun(control) }, _of_thread: PhantomData }
}

impl Drop for Section {
    #[inline(always)]
    fn drop(&mut self) {
        if self.control != 0 {
            give_back(self.control);
        }
    }
}

/// Returns the address of this thread's `request`, which `granted` follows.
fn address(control: isize) -> *mut u8 {
    rseq::section::thread_pointer().wrapping_byte_offset(control)
}

/// Sets `request`. Returns false, and changes nothing, if an outer section has set it, or has an extension now.
///
/// If the outer section's request is gone because the thread was scheduled out, the inner section asks again, and its end
/// ends that request.
fn begin(request: *mut u8) -> bool {
    // SAFETY: two aligned bytes of this thread's area, or of an area's memory in a thread that is not registered. Both
    // live as long as the thread. The kernel writes them only while this thread is in the kernel.
    unsafe {
        if request.cast::<u16>().read_volatile() != 0 {
            return false;
        }
        request.write_volatile(1);
    }
    // ORDERING: the kernel reads the byte on this CPU, in an interrupt of this thread, which sees the stores before it. So
    // only the compiler has to keep the section between the two stores.
    compiler_fence(SeqCst);
    true
}

/// Clears `request`. Returns whether the thread has an extension to give back. The kernel may take it away after that:
/// then `rseq_slice_yield` does nothing.
fn end(request: *mut u8) -> bool {
    // ORDERING: as in `begin`.
    compiler_fence(SeqCst);
    // SAFETY: as in `begin`.
    unsafe {
        request.write_volatile(0);
        request.add(1).read_volatile() != 0
    }
}

/// Ends the section, and returns what is left of an extension.
#[cold]
#[inline(never)]
fn give_back(control: isize) {
    if !end(address(control)) {
        return;
    }
    // The same number on all architectures.
    #[cfg(target_os = "linux")]
    const RSEQ_SLICE_YIELD: libc::c_long = 471;
    // SAFETY: no argument; the call changes the two bytes only.
    #[cfg(target_os = "linux")]
    let returned = unsafe { libc::syscall(RSEQ_SLICE_YIELD) };
    #[cfg(not(target_os = "linux"))]
    let returned = 0;
    YIELDS.fetch_add(u64::from(returned == 1), Relaxed);
}

#[cfg(test)]
mod tests;
