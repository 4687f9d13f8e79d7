//! Own areas: the areas of this crate, for processes whose libc registers none (musl, glibc before 2.35, or glibc with
//! rseq disabled).
//!
//! An area is thread-local. That of the first thread that calls `rseq::support` is registered by `register_first`. In
//! another thread, the first operation that finds no registered area takes a slow path, which registers one
//! (`register_thread`). A thread-local destructor unregisters it, because the kernel must not write to the memory of a
//! thread that has ended.
//!
//! Source. rseq(2) as of Linux 4.18; EINVAL and EBUSY mean that another library has registered an area for the thread.

use super::{FOUND, Unavailable, field, section};
use crate::checked;
use std::cell::UnsafeCell;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// The signature: the word before every abort address, which the kernel checks.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
/// The signature: the word before every abort address, which the kernel checks.
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
const SIGNATURE: u32 = 0xd428_bc00;
/// The signature: an instruction, which is little-endian on big-endian systems too.
#[cfg(all(target_arch = "aarch64", target_endian = "big"))]
const SIGNATURE: u32 = 0x00bc_28d4;

/// An area, with a cache line of its own.
#[repr(C, align(64))]
struct Area(UnsafeCell<[u32; AREA_ROOM / 4]>);

const AREA_ROOM: usize = 64;

impl Area {
    const fn unregistered() -> Self {
        let mut words = [0; AREA_ROOM / 4];
        words[field::CPU_ID / 4] = u32::MAX; // negative: no section runs before the registration
        Self(UnsafeCell::new(words))
    }
}

/// Unregisters the area when the thread ends.
struct Registration;

impl Drop for Registration {
    fn drop(&mut self) {
        const UNREGISTER: i32 = 1;
        // The kernel sets `cpu_id` to -1 here. Later destructors of the thread take the slow path, which does not
        // register an area again, since `REGISTRATION` is destroyed.
        let _ = rseq(UNREGISTER);
    }
}

thread_local! {
    static AREA: Area = const { Area::unregistered() };
    static REGISTRATION: Registration = const { Registration };
}

fn area() -> *mut u8 {
    AREA.with(|area| area.0.get().cast())
}

fn rseq(flags: i32) -> io::Result<()> {
    // SAFETY: the area lives as long as the thread, and is unregistered before it ends.
    checked(unsafe { libc::syscall(libc::SYS_rseq, area(), bytes(), flags, SIGNATURE) }).map(drop)
}

/// Returns the size to register: all fields of the kernel if they fit, because longer slices need more than 32 bytes.
fn bytes() -> usize {
    // AT_RSEQ_FEATURE_SIZE and AT_RSEQ_ALIGN. SAFETY: getauxval accepts any number.
    let [bytes, align] = [27, 28].map(|name| unsafe { libc::getauxval(name) } as usize);
    if (field::AREA_BYTES..=AREA_ROOM).contains(&bytes) && align <= AREA_ROOM {
        bytes
    } else {
        field::AREA_BYTES
    }
}

/// Returns the distance from the thread pointer to this thread's area.
fn offset_from_thread_pointer() -> isize {
    area() as isize - section::thread_pointer() as isize
}

pub fn register_first() -> Result<isize, Unavailable> {
    let offset = offset_from_thread_pointer();
    // The thread-locals of a library loaded with dlopen may be on the heap, at another offset from the thread pointer
    // in each thread. Then there are no sections.
    let same_elsewhere = std::thread::Builder::new()
        .spawn(offset_from_thread_pointer)
        .map_err(|e| Unavailable(format!("no rseq: a thread to try it could not be started: {e}")))?
        .join()
        .is_ok_and(|other| other == offset);
    if !same_elsewhere {
        return Err(Unavailable(
            "no rseq: this library was loaded at run time, so its threads' areas have no fixed place; \
             link it into the program, or use glibc 2.35 or later"
                .into(),
        ));
    }
    if !register() {
        let error = rseq(0).err().unwrap_or_else(|| io::ErrorKind::Other.into());
        let kernel = crate::platform::kernel();
        return Err(Unavailable(match error.raw_os_error() {
            Some(libc::ENOSYS) => format!(
                "no rseq: kernel {kernel} answers ENOSYS, so it is older than 4.18, was built without \
                 CONFIG_RSEQ, or is emulated (qemu-user has no rseq)"
            ),
            Some(libc::EINVAL | libc::EBUSY) => {
                "no rseq: another library in this process registered its own area, which we can't find; \
                 use glibc 2.35 or later, or remove the other registration"
                    .into()
            }
            Some(libc::EPERM) => {
                "no rseq: the syscall is forbidden, by a seccomp filter perhaps; allow rseq(2)".into()
            }
            _ => format!("no rseq: the kernel {kernel} refused to register an area: {error}"),
        }));
    }
    Ok(offset)
}

pub fn register_thread() -> bool {
    offset_from_thread_pointer() == (FOUND.load(Relaxed) >> 32) as isize && register()
}

/// Registers this thread unless it is ending or registered already. Returns whether it is registered now.
fn register() -> bool {
    // SAFETY: this thread's own area, which the kernel writes only while this thread is in the kernel.
    let is_registered = || unsafe { area().byte_add(field::CPU_ID).cast::<i32>().read_volatile() >= 0 };
    is_registered() || (REGISTRATION.try_with(|_| ()).is_ok() && rseq(0).is_ok() && is_registered())
}
