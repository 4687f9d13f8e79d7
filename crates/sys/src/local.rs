//! Local: Unix sockets: connecting without blocking, and the credentials of the process at the other end.
//!
//! `connect(2)` on a blocking Unix socket waits while the listener's backlog is full. [`connect`] returns an error
//! instead. [`peer`] reads `SO_PEERCRED`: the process that called `listen(2)`, `connect(2)` or `socketpair(2)`, as the
//! kernel recorded it. The owner and the name of the socket's file are no proof, since every user may create files in a
//! shared folder.
//!
//! Source. unix(7).

use crate::checked;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The process at the other end of a local socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process id in this process's namespace, or 0 if it is not in that namespace.
    pub pid: u32,
    /// Its effective user id when it called `listen(2)`, `connect(2)` or `socketpair(2)`.
    pub user: u32,
}

/// Returns the effective user id of this thread.
pub fn user() -> u32 {
    // SAFETY: no pointer is passed; it cannot fail.
    unsafe { libc::geteuid() }
}

/// Connects to the Unix socket at `path`, in non-blocking mode. An error of kind `WouldBlock` means that a process
/// listens there and its backlog is full.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointer is passed.
    let fd = checked(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: a new descriptor, which nothing else owns.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let length = offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    // SAFETY: `stream` owns the descriptor; the first `length` bytes of `address` are read during the call.
    checked(unsafe { libc::connect(fd, (&raw const address).cast(), length as libc::socklen_t) })?;
    Ok(stream)
}

/// Returns the process at the other end, as it was when it called `listen(2)`, `connect(2)` or `socketpair(2)`.
pub fn peer(stream: &UnixStream) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is valid; `found` has `length` bytes, and both outlive the call.
    checked(unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut length,
        )
    })?;
    Ok(Peer { pid: found.pid.max(0) as u32, user: found.uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn folder(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("warmcore-sys-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_full_backlog_is_an_error() {
        let folder = folder("full");
        let path = folder.join("s");
        let listener = UnixListener::bind(&path).unwrap();
        // `bind` sets a backlog of up to 4096. Filling that backlog would take 4096 descriptors. SAFETY: the
        // descriptor is open; no memory is passed.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 1) }, 0);
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "the backlog is 1");
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
        let us = Peer { pid: std::process::id(), user: user() };
        assert_eq!(peer(&waiting[0]).unwrap(), us);
        drop(listener);
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_path_that_does_not_fit_an_address_is_an_error() {
        let long = "x".repeat(200);
        for path in [long.as_str(), "a\0b"] {
            assert_eq!(connect(Path::new(path)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
