//! Backend: how this process updates per-CPU data.
//!
//! The `rseq` backend runs restartable sections. It is used where the kernel supports them and the self-test passes,
//! unless [`VARIABLE`] forces another. The `atomic` backend uses locked instructions on the slot of the CPU on which
//! the thread probably runs. The `plain` backend has one slot; it is for systems that do not report a thread's CPU. The
//! choice is made once per process, at the first use or in [`try_backend`].
//!
//! # Cost
//!
//! The choice mostly takes 5 to 50 ms, because the self-test (`rseq::selftest`) waits for preemptions; it gives up
//! after 100 ms. Without a self-test the choice takes less.
//!
//! # Source
//!
//! ClickHouse#117700: rseq "was never used in release binaries" and no output showed it. Therefore a program
//! can query the backend and print it.

use crate::set_up::set_up;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use warmcore_sys::{affinity, membarrier, rseq};

/// The environment variable that forces a backend: `rseq`, `atomic`, `plain`.
pub const VARIABLE: &str = "WARMCORE_PERCPU";

/// How per-CPU data is kept in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// Restartable sections on the kernel's ids.
    Rseq(rseq::Support),
    /// Locked instructions on the slot of the current CPU. The text is the reason why sections are not used.
    Atomic(String),
    /// Atomics on one slot. The text is the reason why sections are not used.
    Plain(String),
}

impl Backend {
    /// Returns `rseq`, `atomic` or `plain`.
    pub fn name(&self) -> &'static str {
        match self {
            Backend::Rseq(_) => "rseq",
            Backend::Atomic(_) => "atomic",
            Backend::Plain(_) => "plain",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Rseq(rseq::Support { source: rseq::Source::Glibc, .. }) => {
                f.write_str("rseq (areas by glibc)")
            }
            Backend::Rseq(rseq::Support { source: rseq::Source::Own, .. }) => f.write_str("rseq (own areas)"),
            Backend::Atomic(why) => write!(f, "atomic: {why}"),
            Backend::Plain(why) => write!(f, "plain: {why}"),
        }
    }
}

/// The error if `WARMCORE_PERCPU` names a backend that is not available on this system or does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendError(String);

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BackendError {}

/// Returns the backend of this process. The first call chooses it.
///
/// It fails only if `WARMCORE_PERCPU` forces a backend that is not available, or names none. A program that reports
/// this error itself calls `try_backend` before it uses per-CPU data, which panics in that case.
pub fn try_backend() -> Result<&'static Backend, &'static BackendError> {
    static BACKEND: OnceLock<Result<Backend, BackendError>> = OnceLock::new();
    let chosen = || {
        let backend = choose(std::env::var_os(VARIABLE).map(|v| v.to_string_lossy().into_owned()).as_deref());
        // ORDERING: Relaxed; data gets its slots after `BACKEND` was set, and a thread that sees slots synchronises
        // with the thread that reserved them.
        LOCKS.store(!matches!(backend, Ok(Backend::Rseq(_))), Relaxed);
        backend
    };
    BACKEND.get().unwrap_or_else(|| set_up(|| BACKEND.get_or_init(chosen))).as_ref()
}

/// Returns the backend of this process. Panics with the text of the error if [`try_backend`] fails.
///
/// ```
/// use warmcore_percpu::{Backend, backend};
///
/// if let Backend::Atomic(reason) = backend() {
///     eprintln!("counters use locked instructions: {reason}");
/// }
/// ```
pub fn backend() -> &'static Backend {
    try_backend().unwrap_or_else(|error| panic!("{error}"))
}

/// Whether this process uses locked instructions: the `atomic` and `plain` backends. The result is valid
/// only for data that has slots, since [`backend`] is chosen before the first slots are reserved. One load.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn locks() -> bool {
    LOCKS.load(Relaxed)
}

/// Whether all threads share one slot: the `plain` backend. Valid under the same condition as [`locks`].
#[cfg(not(loom))]
pub(crate) fn one_slot() -> bool {
    matches!(backend(), Backend::Plain(_))
}

/// Registers an rseq area for this thread if it has none and the backend is `rseq`. Returns whether the
/// backend is `rseq` and the thread has an area now.
///
/// The slow path of an add, a push or a pop registers the area too, so calling this is optional. On musl, where threads
/// start without an area, a thread that begins with a hot loop avoids slow operations by calling it first.
pub fn register_thread() -> bool {
    matches!(backend(), Backend::Rseq(_)) && rseq::register_thread()
}

/// Written once, in `try_backend`, before any data has slots.
static LOCKS: AtomicBool = AtomicBool::new(false);

fn choose(forced: Option<&str>) -> Result<Backend, BackendError> {
    // Areas are used also without sections: they contain the CPU number, and reading it there is faster than a
    // system call.
    let _ = rseq::support();
    match forced {
        None | Some("") => Ok(rseq_backend().unwrap_or_else(without_rseq)),
        Some("rseq") => rseq_backend().map_err(|why| {
            BackendError(format!("{VARIABLE}=rseq, but {why}; unset it to fall back by itself"))
        }),
        Some("atomic") => Ok(Backend::Atomic(format!("{VARIABLE}=atomic"))),
        Some("plain") => Ok(Backend::Plain(format!("{VARIABLE}=plain"))),
        Some(other) => {
            Err(BackendError(format!("{VARIABLE}={other} names no backend; it takes rseq, atomic or plain")))
        }
    }
}

/// Checks what sections need (areas, fences, and a kernel that restarts sections) and enables sections. The error
/// names what is missing.
fn rseq_backend() -> Result<Backend, String> {
    let support = rseq::support().map_err(|e| e.to_string())?;
    membarrier::register_rseq().map_err(|why| format!("no rseq: {why}"))?;
    rseq::selftest(affinity::nr_cpu_ids()).map_err(|e| e.to_string())?;
    // SAFETY: no data has slots before the backend is chosen, and on `Backend::Rseq` locked instructions
    // write no slot that a section writes: `sum`, `free_list` and `per` see to that.
    unsafe { rseq::enable_sections() }.map_err(|e| e.to_string())?;
    Ok(Backend::Rseq(support))
}

fn without_rseq(why: String) -> Backend {
    if cfg!(target_os = "linux") { Backend::Atomic(why) } else { Backend::Plain(why) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_forced_backend_is_used_and_an_unknown_name_is_an_error() {
        assert_eq!(choose(Some("atomic")).unwrap().name(), "atomic");
        assert_eq!(choose(Some("plain")).unwrap().name(), "plain");
        let error = choose(Some("fast")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "WARMCORE_PERCPU=fast names no backend; it takes rseq, atomic or plain"
        );
    }

    #[test]
    fn the_backend_of_this_process_is_the_forced_one() {
        match std::env::var(VARIABLE) {
            Ok(forced) if !forced.is_empty() => assert_eq!(backend().name(), forced),
            _ => println!("not forced: {}", backend()),
        }
    }
}
