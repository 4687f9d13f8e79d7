//! Own areas: where no libc registered one (musl, glibc before 2.35 or told not to).
//!
//! Model.   A thread-local area, registered at the thread's first slow path, unregistered by a
//!          thread-local destructor: the kernel must not write to a dead thread's memory.
//! Source.  rseq(2) as in Linux 4.18; EINVAL and EBUSY mean that somebody else registered.

use super::Unavailable;

/// What the kernel and the abort stubs agree on: the word before every abort address.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
/// What the kernel and the abort stubs agree on: the word before every abort address.
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
const SIGNATURE: u32 = 0xd428_bc00;
/// What the kernel and the abort stubs agree on: an instruction, which is little-endian there too.
#[cfg(all(target_arch = "aarch64", target_endian = "big"))]
const SIGNATURE: u32 = 0x00bc_28d4;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod linux {
    use super::super::{FOUND, field, section};
    use super::{SIGNATURE, Unavailable};
    use std::cell::UnsafeCell;
    use std::io;
    use std::sync::atomic::Ordering::Relaxed;

    /// As the kernel wants it: 32 bytes, aligned to 32; a line to itself.
    #[repr(C, align(64))]
    struct Area(UnsafeCell<[u32; field::AREA_BYTES / 4]>);

    impl Area {
        const fn unregistered() -> Self {
            let mut words = [0; field::AREA_BYTES / 4];
            words[field::CPU_ID / 4] = u32::MAX; // negative: no section runs before the kernel says so
            Self(UnsafeCell::new(words))
        }
    }

    /// Unregisters when the thread ends.
    struct Registration;

    impl Drop for Registration {
        fn drop(&mut self) {
            const UNREGISTER: i32 = 1;
            // The kernel sets `cpu_id` to -1 here: sections in later destructors take the slow
            // path, which finds this destructor gone and registers no more.
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
        let done = unsafe { libc::syscall(libc::SYS_rseq, area(), field::AREA_BYTES, flags, SIGNATURE) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// From the thread pointer to this thread's area.
    fn offset() -> isize {
        area() as isize - section::thread_pointer() as isize
    }

    pub fn register_first() -> Result<isize, Unavailable> {
        let offset = offset();
        // A dlopened library gets its thread-locals from the heap: no fixed offset, no sections.
        let same_elsewhere = std::thread::Builder::new()
            .spawn(self::offset)
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
        offset() == (FOUND.load(Relaxed) >> 32) as isize && register()
    }

    /// Registers this thread unless it is ending or registered already.
    fn register() -> bool {
        // SAFETY: this thread's own area, written by the kernel in this very thread.
        let is_registered = || unsafe { area().byte_add(field::CPU_ID).cast::<i32>().read_volatile() >= 0 };
        is_registered() || (REGISTRATION.try_with(|_| ()).is_ok() && rseq(0).is_ok() && is_registered())
    }
}
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use linux::{register_first, register_thread};

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub fn register_thread() -> bool {
    false
}
