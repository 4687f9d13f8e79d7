//! Exit: handlers that run when the process exits normally.
//!
//! A normal exit is a return from `main`, also after a panic, and `std::process::exit`. An abort, a signal and `_exit`
//! call no handler. Other threads run while a handler does.
//!
//! Source. atexit(3).

use std::io;

/// Registers `act` to be called when this process exits normally, after the handlers that are registered later. A child
/// of fork(2) inherits the registration. Fails if there is no memory for it.
#[cfg(unix)]
pub fn at_exit(act: extern "C" fn()) -> io::Result<()> {
    // SAFETY: a static function, called at most once a process.
    match unsafe { libc::atexit(act) } {
        0 => Ok(()),
        _ => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

/// Does nothing: handlers are not supported on this platform.
#[cfg(not(unix))]
pub fn at_exit(_: extern "C" fn()) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    extern "C" fn leave_with_7() {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(7) };
    }

    #[test]
    fn the_handler_runs_at_exit() {
        let _one_at_a_time = crate::fork::tests::FORKS.lock();
        // SAFETY: the child only registers the handler and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let registered = at_exit(leave_with_7);
            // SAFETY: as above; the handler ends the process before the handlers of the test harness, if it runs.
            unsafe { if registered.is_ok() { libc::exit(1) } else { libc::_exit(2) } };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: writes to `status` during the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), 7);
    }
}
