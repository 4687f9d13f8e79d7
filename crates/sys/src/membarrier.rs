//! Membarrier: a fence on every CPU that runs this process, issued by one thread.
//!
//! When [`fence_rseq`] returns, each restartable section of this process that was running on another CPU when it was
//! called has committed or was aborted, and the caller sees every store that was committed.
//!
//! # Cost
//!
//! 0.25 to 0.5 µs if no other thread of the process runs. If one runs, about 1 µs on bare metal, and 9 to 11 µs on a
//! virtual machine, where the interrupt leaves the guest (measured).
//!
//! # Source
//!
//! membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, Linux 5.10.

#[cfg(target_os = "linux")]
use std::io;

/// The commands, with the numbers of `linux/membarrier.h`. The libc crate has them only on some targets.
#[cfg(target_os = "linux")]
mod cmd {
    pub const QUERY: i32 = 0;
    pub const PRIVATE_EXPEDITED: i32 = 1 << 3;
    pub const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
    pub const PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
    pub const REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;
}

#[cfg(target_os = "linux")]
fn call(cmd: i32) -> io::Result<i32> {
    // SAFETY: membarrier takes no pointers.
    crate::checked(unsafe { libc::syscall(libc::SYS_membarrier, cmd, 0, 0) }).map(|got| got as i32)
}

/// Registers this process for [`fence_rseq`]. Needed once per process; a child of fork inherits it. The error
/// says which call failed, or that the kernel is too old.
#[cfg(target_os = "linux")]
pub fn register_rseq() -> Result<(), String> {
    let supported =
        call(cmd::QUERY).map_err(|e| format!("membarrier: {e}; a seccomp filter may forbid it"))?;
    if supported & cmd::PRIVATE_EXPEDITED_RSEQ == 0 {
        return Err("membarrier has no PRIVATE_EXPEDITED_RSEQ, needs kernel 5.10".into());
    }
    call(cmd::REGISTER_PRIVATE_EXPEDITED_RSEQ)
        .map(drop)
        .map_err(|e| format!("membarrier would not register: {e}"))
}

/// Aborts the restartable sections of this process that run on other CPUs, and makes the stores of these CPUs visible
/// to the caller.
///
/// Aborts the process if the call fails. After [`register_rseq`] it fails only because of a seccomp filter that was
/// installed later, or if the kernel has no memory for a CPU mask. The callers are moving data at that moment, and
/// going on without the fence would lose updates silently.
///
/// **Touches** no cache line of this process; interrupts each other CPU that runs a thread of it.
#[cfg(target_os = "linux")]
pub fn fence_rseq() {
    if let Err(error) = call(cmd::PRIVATE_EXPEDITED_RSEQ) {
        eprintln!("membarrier(PRIVATE_EXPEDITED_RSEQ) failed after it was registered: {error}; can't go on");
        std::process::abort();
    }
}

/// Returns which of the commands `private_expedited` and `private_expedited_rseq` the kernel has, or `none` and the
/// error if it does not answer. For `warmcore doctor`.
#[cfg(target_os = "linux")]
pub fn describe() -> String {
    match call(cmd::QUERY) {
        Err(error) => format!("none: {error}"),
        Ok(bits) => {
            let commands = [
                ("private_expedited", cmd::PRIVATE_EXPEDITED | cmd::REGISTER_PRIVATE_EXPEDITED),
                (
                    "private_expedited_rseq",
                    cmd::PRIVATE_EXPEDITED_RSEQ | cmd::REGISTER_PRIVATE_EXPEDITED_RSEQ,
                ),
            ];
            let has_both = |(name, both): (&'static str, i32)| (bits & both == both).then_some(name);
            commands.into_iter().filter_map(has_both).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    /// Returns an error: only Linux has membarrier.
    pub fn register_rseq() -> Result<(), String> {
        Err("membarrier is Linux's".into())
    }

    /// Panics. `register_rseq` returns an error on this platform, so no caller gets this far.
    pub fn fence_rseq() {
        unreachable!("fence_rseq without register_rseq")
    }

    /// Returns a text that begins with `none`.
    pub fn describe() -> String {
        "none: membarrier is Linux's".into()
    }
}
#[cfg(not(target_os = "linux"))]
pub use elsewhere::*;
