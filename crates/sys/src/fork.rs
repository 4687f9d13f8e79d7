//! Fork: what runs in a child of fork(2) before anything else does.
//!
//! Model.   A child has one thread, and a copy of all memory: a lock that another thread held is held for ever there.
//! Source.  pthread_atfork(3).

use std::io;

/// Has `act` called in every child that this process forks from now on, on the child's thread, before `fork` returns
/// there. `act` takes no lock and allocates nothing: another thread may have been in the middle of either. An error
/// where there is no memory for it.
#[cfg(unix)]
pub fn in_children(act: extern "C" fn()) -> io::Result<()> {
    // SAFETY: a function that lives for ever; nothing is called before the fork.
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
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    static CALLS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count() {
        CALLS.fetch_add(1, Relaxed);
    }

    #[test]
    fn it_runs_in_the_child_alone() {
        in_children(count).unwrap();
        // SAFETY: the child calls nothing but `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(CALLS.load(Relaxed) as i32) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: writes the number that we give it.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!((libc::WEXITSTATUS(status), CALLS.load(Relaxed)), (1, 0));
    }
}
