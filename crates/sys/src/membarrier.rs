//! Membarrier: a fence on every CPU that runs this process, paid by the caller alone.
//!
//! Model.   After `fence_rseq` returns, every restartable section of this process that was under
//!          way on another CPU has committed or begun again, and every store before it is seen.
//! Number.  0.25 to 0.5 µs when no sibling runs. With one: about 1 µs on bare metal; 9 to 11 µs
//!          measured on a virtual machine, where the interrupt leaves the guest.
//! Source.  membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, Linux 5.10.

#[cfg(target_os = "linux")]
use std::io;

/// The commands, by the numbers of `linux/membarrier.h`; libc has them as an enum per target.
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
    let got = unsafe { libc::syscall(libc::SYS_membarrier, cmd, 0, 0) };
    if got >= 0 { Ok(got as i32) } else { Err(io::Error::last_os_error()) }
}

/// Tells the kernel that this process will call [`fence_rseq`]. Once per process; a child of
/// fork inherits it. An error says what is missing and what follows.
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

/// Restarts every section under way on another CPU, and makes all its stores visible.
///
/// Ends the process if the kernel refuses, which it must not after [`register_rseq`]: a filter
/// installed since, or no memory for a CPU mask. Callers are in the middle of moving data, and a
/// fence that did not happen loses updates without a trace.
///
/// **Touches** no line of ours; interrupts each CPU that runs a thread of this process.
#[cfg(target_os = "linux")]
pub fn fence_rseq() {
    if let Err(error) = call(cmd::PRIVATE_EXPEDITED_RSEQ) {
        eprintln!("membarrier(PRIVATE_EXPEDITED_RSEQ) failed after it was registered: {error}; can't go on");
        std::process::abort();
    }
}

/// What `doctor` prints: the expedited commands this kernel has.
#[cfg(target_os = "linux")]
pub fn describe() -> String {
    match call(cmd::QUERY) {
        Err(error) => format!("none: {error}"),
        Ok(bits) => {
            let both = |run, register| bits & run != 0 && bits & register != 0;
            let named = [
                ("private_expedited", both(cmd::PRIVATE_EXPEDITED, cmd::REGISTER_PRIVATE_EXPEDITED)),
                (
                    "private_expedited_rseq",
                    both(cmd::PRIVATE_EXPEDITED_RSEQ, cmd::REGISTER_PRIVATE_EXPEDITED_RSEQ),
                ),
            ];
            named.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    /// Always an error: membarrier is Linux's.
    pub fn register_rseq() -> Result<(), String> {
        Err("membarrier is Linux's".into())
    }

    /// Never called: nothing here runs restartable sections.
    pub fn fence_rseq() {
        unreachable!("fence_rseq without register_rseq")
    }

    /// `none`.
    pub fn describe() -> String {
        "none: membarrier is Linux's".into()
    }
}
#[cfg(not(target_os = "linux"))]
pub use elsewhere::*;
