//! Affinity: the CPUs on which a thread may run, and the CPU on which it runs now.
//!
//! Each thread has a mask of its own. The kernel's mask may be wider than 1024 CPUs, so `allowed_to` tries a longer
//! buffer if the kernel refuses the first one as too short.
//!
//! Source. sched_setaffinity(2), getcpu(2).

#[cfg(target_os = "linux")]
use crate::checked;
use std::io;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use warmcore_types::{CpuId, CpuSet};

/// Returns the CPUs on which this thread may run.
pub fn allowed() -> io::Result<CpuSet> {
    allowed_to(0)
}

/// Returns the CPUs on which the process's first thread may run: those of the process, unless the program has
/// changed that thread's mask.
pub fn allowed_to_main() -> io::Result<CpuSet> {
    allowed_to(std::process::id())
}

/// Returns this thread's id (gettid(2)), for [`allowed_to`].
#[cfg(target_os = "linux")]
pub fn this_thread() -> u32 {
    // SAFETY: no arguments, no memory, and it cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Returns the CPUs on which a thread may run, by its id; 0 is this thread. Fails if there is no such thread.
///
/// After a thread's end the kernel may give its id to another thread.
#[cfg(target_os = "linux")]
pub fn allowed_to(thread: u32) -> io::Result<CpuSet> {
    let mut words = vec![0u64; 16];
    loop {
        // SAFETY: the kernel writes at most the given length, which is the buffer's.
        let got = unsafe {
            libc::syscall(libc::SYS_sched_getaffinity, thread, words.len() * 8, words.as_mut_ptr())
        };
        if got >= 0 {
            words.truncate(got as usize / 8);
            return Ok(CpuSet::from_words(words));
        }
        let error = io::Error::last_os_error();
        // EINVAL: the kernel's mask is wider than the buffer. Linux has no mask wider than 8192 CPUs today.
        if error.raw_os_error() != Some(libc::EINVAL) || words.len() >= 1 << 14 {
            return Err(error);
        }
        words.resize(words.len() * 2, 0);
    }
}

/// Restricts this thread to `cpus`. When this returns `Ok`, the thread runs on one of them.
#[cfg(target_os = "linux")]
pub fn set_allowed(cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.words();
    // SAFETY: the kernel reads the given length, which is the buffer's.
    checked(unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, words.len() * 8, words.as_ptr()) })
        .map(drop)
}

/// Restricts this thread to one CPU.
pub fn pin(cpu: CpuId) -> io::Result<()> {
    set_allowed(&[cpu].into_iter().collect())
}

/// Returns the CPU on which this thread runs, by `sched_getcpu` of the libc, which may be a system call. The thread may
/// migrate before the caller uses the number.
#[cfg(target_os = "linux")]
#[inline]
pub fn current_cpu() -> CpuId {
    // SAFETY: no arguments, no memory. It fails only if the kernel does not have the system call; then the result
    // is 0, which is usable.
    CpuId(unsafe { libc::sched_getcpu() }.max(0) as u32)
}

/// The largest number of CPUs for which Linux can be configured (`NR_CPUS`).
const LINUX_CPUS_MAX: usize = 8192;

/// Returns a number above every CPU number and every concurrency id that the kernel uses until the machine is shut
/// down, CPUs that are plugged in later included. Every call returns the same number, so tables that are sized by it
/// at different times have the same size.
///
/// It is the width in which the kernel prints its own masks, which is fixed at boot, rounded up to a hex digit.
/// `/sys/devices/system/cpu/possible` would be exact, but some containers show a smaller set, and a table sized by it
/// would be too small. The first call reads the width from `/proc/self/status`. If it finds no mask there (no
/// descriptors left, no `/proc`), it uses the width of the mask as the kernel stores it, or 8192 if the kernel does not
/// return the mask. Both are large enough for every CPU.
///
/// **Touches** one read-mostly static, after the first call.
#[cfg(target_os = "linux")]
pub fn nr_cpu_ids() -> usize {
    static END: OnceLock<usize> = OnceLock::new();
    *END.get_or_init(|| {
        let mut words = [0u64; LINUX_CPUS_MAX / 64];
        // SAFETY: the kernel writes at most the given length, which is the buffer's.
        let bytes =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&words), words.as_mut_ptr()) };
        // The width of the mask as it is stored: never too small, but on some kernels several times too large.
        let stored = if bytes > 0 { bytes as usize * 8 } else { LINUX_CPUS_MAX };
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        printed_width(&status).map_or(stored, |printed| printed.min(stored))
    })
}

/// Parses the width of the mask in the line `Cpus_allowed:\tff,ffffffff`, in CPUs. Returns `None` if there is no such
/// line or no mask in it.
#[cfg(target_os = "linux")]
fn printed_width(status: &str) -> Option<usize> {
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"))?.trim();
    let digits = mask.chars().filter(char::is_ascii_hexdigit).count();
    (digits > 0 && mask.chars().all(|c| c == ',' || c.is_ascii_hexdigit())).then_some(digits * 4)
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::*;

    /// Returns 0: threads have no masks on this platform.
    pub fn this_thread() -> u32 {
        0
    }

    /// Returns CPUs 0 to n - 1, where n is `available_parallelism`: affinity is not supported on this platform.
    pub fn allowed_to(_: u32) -> io::Result<CpuSet> {
        let n = std::thread::available_parallelism()?.get() as u32;
        Ok((0..n).map(CpuId).collect())
    }

    /// Returns the error `Unsupported`.
    pub fn set_allowed(_: &CpuSet) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    /// Returns 1: this platform reports no CPU numbers, so per-CPU data (crate `warmcore-percpu`) has one slot.
    pub fn nr_cpu_ids() -> usize {
        1
    }

    /// Returns CPU 0.
    pub fn current_cpu() -> CpuId {
        CpuId(0)
    }
}
#[cfg(not(target_os = "linux"))]
pub use elsewhere::*;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_on_its_cpu() {
        let before = allowed().unwrap();
        for cpu in before.iter() {
            pin(cpu).unwrap();
            assert_eq!((current_cpu(), allowed().unwrap().len()), (cpu, 1));
        }
        set_allowed(&before).unwrap();
        assert_eq!(allowed().unwrap(), before);
    }

    #[test]
    fn nr_cpu_ids_is_above_every_allowed_cpu() {
        let last = allowed().unwrap().last().unwrap();
        assert!(last.index() < nr_cpu_ids() && nr_cpu_ids() <= LINUX_CPUS_MAX);
        assert_eq!(printed_width("Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n"), Some(4));
        assert_eq!(printed_width("Cpus_allowed:\tff,ffffffff,ffffffff\n"), Some(72));
        assert_eq!((printed_width("Cpus_allowed:\t\n"), printed_width("")), (None, None));
    }

    #[test]
    fn the_mask_of_another_live_thread_can_be_read() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let last = allowed().unwrap().last().unwrap();
        let thread = std::thread::spawn(move || {
            pin(last).unwrap();
            tell.send(this_thread()).unwrap();
            let _ = ended.recv();
        });
        let number = told.recv().unwrap();
        assert_eq!(allowed_to(number).unwrap(), [last].into_iter().collect());
        assert_ne!(number, this_thread());
        drop(end);
        thread.join().unwrap();
        assert_eq!(allowed_to(this_thread()).unwrap(), allowed().unwrap());
    }

    #[test]
    fn no_cpu_and_a_missing_cpu_are_refused() {
        assert!(set_allowed(&CpuSet::new()).is_err());
        assert!(pin(CpuId(8191)).is_err());
    }
}
