//! Signals: keeping them from threads that are nobody's.
//!
//! Model.   A thread inherits the mask of blocked signals from whoever makes it. So one is made with
//!          all of them blocked, and the maker's mask is as it was afterwards.

/// Runs `act` with all signals blocked on this thread, so that a thread made in it takes none. The
/// kernel keeps out of it those that cannot be blocked.
#[cfg(unix)]
pub fn blocked<R>(act: impl FnOnce() -> R) -> R {
    /// Puts the mask back, also when `act` panics.
    struct Before(libc::sigset_t);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: a mask that the system filled.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    // SAFETY: both sets are the system's to fill; a zeroed one is valid to be filled.
    let _before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        Before(before)
    };
    act()
}

/// Runs `act`: this platform has no signals that we know of.
#[cfg(not(unix))]
pub fn blocked<R>(act: impl FnOnce() -> R) -> R {
    act()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The signals that this thread has blocked, the first in the lowest bit.
    fn mask() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let hex = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(hex.trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_made_inside_takes_no_signals_and_its_maker_does_again() {
        let before = mask();
        let inside = blocked(|| std::thread::spawn(mask)).join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGPROF] {
            assert_eq!(inside >> (signal - 1) & 1, 1, "signal {signal} is not in {inside:x}");
        }
        assert_eq!(mask(), before);
    }
}
