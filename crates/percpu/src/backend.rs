//! Backend: how this process runs on, and why.
//!
//! Model.   `rseq` where the kernel has it and its self-test passes; else `atomic`: the slot of
//!          the CPU one probably runs on, changed by locked instructions; `plain` where there is
//!          no CPU to ask for: one slot. Chosen once, at the first use or at [`try_backend`].
//! Number.  The choice takes 5 to 50 ms, once: the self-test waits to be preempted.
//! Source.  ClickHouse#117700: rseq "was never used in release binaries", and nobody saw it.
//!          Hence a backend that everybody can ask for and print.

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
    /// Locked instructions on the slot of the current CPU, and why not better.
    Atomic(String),
    /// Atomics on one slot, and why not better.
    Plain(String),
}

impl Backend {
    /// `rseq`, `atomic` or `plain`.
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

/// A forced backend that this system does not have, or that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendError {
    text: String,
    unknown: bool,
}

impl BackendError {
    /// The variable names no backend at all.
    pub fn is_unknown_name(&self) -> bool {
        self.unknown
    }

    /// The backend exists, but not here.
    pub fn is_unavailable(&self) -> bool {
        !self.unknown
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for BackendError {}

/// The backend of this process; chooses it at the first call.
///
/// An error only if `WARMCORE_PERCPU` forces what this system has not: a program that wants to
/// say so in its own words asks here before it makes its first counter.
pub fn try_backend() -> Result<&'static Backend, &'static BackendError> {
    static BACKEND: OnceLock<Result<Backend, BackendError>> = OnceLock::new();
    let chosen = || {
        let backend = choose(std::env::var_os(VARIABLE).map(|v| v.to_string_lossy().into_owned()).as_deref());
        // ORDERING: Relaxed; data gets its slots after `BACKEND` was set, and a thread that finds slots synchronises with
        // the one that gave them.
        LOCKS.store(!matches!(backend, Ok(Backend::Rseq(_))), Relaxed);
        backend
    };
    BACKEND.get().unwrap_or_else(|| set_up(|| BACKEND.get_or_init(chosen))).as_ref()
}

/// The backend of this process. Panics where [`try_backend`] is an error, with its text.
pub fn backend() -> &'static Backend {
    try_backend().unwrap_or_else(|error| panic!("{error}"))
}

/// Whether this process runs on locked instructions: the `atomic` and `plain` backends. Means something
/// for data that has slots: [`backend`] is chosen before the first slots are given. One load.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn locks() -> bool {
    LOCKS.load(Relaxed)
}

/// Whether this process has one slot for everybody: the `plain` backend. As [`locks`].
#[cfg(not(loom))]
pub(crate) fn one_slot() -> bool {
    matches!(backend(), Backend::Plain(_))
}

/// Gives this thread what restartable sections need, if it may have it and has not; says whether
/// it has it now. Nobody has to call it: the first slow path does. On musl a thread that starts
/// with a hot loop is faster from the beginning if it does.
pub fn register_thread() -> bool {
    matches!(backend(), Backend::Rseq(_)) && rseq::register_thread()
}

/// Written once, in `try_backend`, before any data has slots.
static LOCKS: AtomicBool = AtomicBool::new(false);

fn choose(forced: Option<&str>) -> Result<Backend, BackendError> {
    // Also where no section will run: the areas tell the CPU faster than any call.
    let _ = rseq::support();
    match forced {
        None | Some("") => Ok(rseq_backend().unwrap_or_else(without_rseq)),
        Some("rseq") => rseq_backend().map_err(|why| BackendError {
            text: format!("{VARIABLE}=rseq, but {why}; unset it to fall back by itself"),
            unknown: false,
        }),
        Some("atomic") => Ok(Backend::Atomic(format!("{VARIABLE}=atomic"))),
        Some("plain") => Ok(Backend::Plain(format!("{VARIABLE}=plain"))),
        Some(other) => Err(BackendError {
            text: format!("{VARIABLE}={other} names no backend; it takes rseq, atomic or plain"),
            unknown: true,
        }),
    }
}

/// All that sections need: areas, fences, and a kernel that restarts. The reason if one lacks.
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
    fn a_forced_backend_is_taken_and_a_wrong_name_is_an_error() {
        assert_eq!(choose(Some("atomic")).unwrap().name(), "atomic");
        assert_eq!(choose(Some("plain")).unwrap().name(), "plain");
        let error = choose(Some("fast")).unwrap_err();
        assert!(error.is_unknown_name() && !error.is_unavailable());
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
