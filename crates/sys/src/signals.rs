//! Signals: starting library threads that take no signals of the program.
//!
//! A thread inherits the signal mask of the thread that creates it. So the creator blocks all signals, creates the
//! thread, and restores its own mask.

/// Calls `act` with all signals blocked on this thread, except those that cannot be blocked (SIGKILL, SIGSTOP, and
/// those that the libc uses itself). A thread that `act` creates inherits this mask.
#[cfg(unix)]
pub fn blocked<R>(act: impl FnOnce() -> R) -> R {
    /// Restores the mask when dropped, also if `act` panics.
    struct Before(libc::sigset_t);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: a mask that pthread_sigmask wrote.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    // SAFETY: the calls initialise both sets before they are read.
    let _before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        Before(before)
    };
    act()
}

/// Calls `act`: this platform has no signals.
#[cfg(not(unix))]
pub fn blocked<R>(act: impl FnOnce() -> R) -> R {
    act()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Returns the blocked signals of this thread; signal 1 is the lowest bit.
    fn mask() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let hex = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(hex.trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_created_inside_blocks_signals_and_its_creator_does_not() {
        let before = mask();
        let inside = blocked(|| std::thread::spawn(mask)).join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGPROF] {
            assert_eq!(inside >> (signal - 1) & 1, 1, "signal {signal} is not in {inside:x}");
        }
        assert_eq!(mask(), before);
    }
}
