//! Files: access control lists, and opening a file without following a symbolic link.
//!
//! A POSIX access control list is the extended attribute `system.posix_acl_access`. A file without a list has no such
//! attribute (`ENODATA`); a file system without lists returns `ENOTSUP`.
//!
//! Source: acl(5), xattr(7), open(2).

#[cfg(unix)]
use std::{fs::File, io, path::Path};

/// Opens the file at `path` for writing and truncates it; creates it if there is none. Fails if the file itself is a
/// symbolic link; links among the folders of the path are followed.
#[cfg(unix)]
pub fn open_no_link(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Copies the access control list of the file at `from` to the open file `to`. If `from` has no list, it removes that
/// of `to`, since a new file may have inherited one from its folder. If `from` is a symbolic link, it is not followed.
///
/// # Errors
///
/// Returns the kernel's error for either file, or an error if `from` contains a NUL. If the file system of `to` has no
/// lists, nothing is copied, and that is not an error.
#[cfg(target_os = "linux")]
pub fn copy_acl(from: &Path, to: &File) -> io::Result<()> {
    use std::ffi::CString;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    /// The size of the buffer for a list, whose entries have 8 bytes: more than ext4 and XFS store.
    const BYTES_MAX: usize = 1 << 16;
    const NAME: &std::ffi::CStr = c"system.posix_acl_access";
    let none = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENODATA | libc::ENOTSUP));
    let from = CString::new(from.as_os_str().as_bytes())?;
    let mut list = vec![0u8; BYTES_MAX];
    // SAFETY: both names end with a NUL; the kernel writes at most as many bytes as the buffer has.
    let got = unsafe { libc::lgetxattr(from.as_ptr(), NAME.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    let done = match usize::try_from(got) {
        // SAFETY: the descriptor is open as long as `to` lives; `len` bytes of the list are initialised.
        Ok(len) => unsafe { libc::fsetxattr(to.as_raw_fd(), NAME.as_ptr(), list.as_ptr().cast(), len, 0) },
        Err(_) => {
            let error = io::Error::last_os_error();
            if !none(&error) {
                return Err(error);
            }
            // SAFETY: as above; nothing is read or written but the name.
            unsafe { libc::fremovexattr(to.as_raw_fd(), NAME.as_ptr()) }
        }
    };
    match done {
        0 => Ok(()),
        _ => Some(io::Error::last_os_error()).filter(|error| !none(error)).map_or(Ok(()), Err),
    }
}

/// Does nothing: not supported on this platform.
#[cfg(all(unix, not(target_os = "linux")))]
pub fn copy_acl(_: &Path, _: &File) -> io::Result<()> {
    Ok(())
}
