//! Fork: handlers that run in a child of fork(2) before other code of the child.
//!
//! The child has one thread and a copy of all memory. A lock that another thread of the parent held during the fork
//! stays locked in the child, unless a handler of its owner releases it there.
//!
//! Source. pthread_atfork(3).

use std::io;

/// Registers `act` to be called in each child that this process makes later with the libc's `fork`, on the child's
/// thread, before `fork` returns there. A raw clone(2) and vfork(2) do not call it. `act` must not take a lock or
/// allocate memory, since another thread of the parent may have held that lock, or one of the allocator, during the
/// fork. Fails if there is no memory for the registration.
#[cfg(unix)]
pub fn in_children(act: extern "C" fn()) -> io::Result<()> {
    // SAFETY: a static function; nothing is called before the fork.
    match unsafe { libc::pthread_atfork(None, None, Some(act)) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Does nothing: this platform has no fork.
#[cfg(not(unix))]
pub fn in_children(_: extern "C" fn()) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
pub(crate) mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// Held by each test of this crate that forks, and by one that counts its own pages: a page that a child shares is
    /// not counted.
    pub(crate) static FORKS: Mutex<()> = Mutex::new(());

    static CALLS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count() {
        CALLS.fetch_add(1, Relaxed);
    }

    #[test]
    fn the_handler_runs_in_the_child_only() {
        let _one_at_a_time = FORKS.lock();
        in_children(count).unwrap();
        // SAFETY: the child calls nothing but `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(CALLS.load(Relaxed) as i32) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: writes to `status` during the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!((libc::WEXITSTATUS(status), CALLS.load(Relaxed)), (1, 0));
    }
}
