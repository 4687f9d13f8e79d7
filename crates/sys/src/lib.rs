#![doc = include_str!("../README.md")]

pub mod affinity;
pub mod background;
pub mod clock;
pub mod exit;
pub mod files;
pub mod fork;
#[cfg(target_os = "linux")]
pub mod local;
pub mod map;
pub mod membarrier;
pub mod platform;
pub mod rseq;
pub mod signals;
pub mod slice;
#[cfg(target_os = "linux")]
pub mod timer;

/// Returns what a system call returned, or the error that it left in `errno` if it returned -1.
#[cfg(target_os = "linux")]
fn checked<T: PartialEq + From<i8>>(returned: T) -> std::io::Result<T> {
    if returned == T::from(-1) { Err(std::io::Error::last_os_error()) } else { Ok(returned) }
}
