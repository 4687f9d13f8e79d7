//! SpareCpus: whether the CPUs of parked workers are idle, or run other threads.
//!
//! To wake the last parked worker for a light task pays if its CPU is idle: the clients are on other machines, or wait too. It
//! takes time from others if clients run there, or another program. So a worker that parks compares, a few times in a second, how
//! long workers were parked with how long the machine's CPUs were idle. Other threads run if that is less than half as long
//! ([`View::others_run`](warmcore_sched::View::others_run)).
//!
//! Only where the workers may use all CPUs of the machine, because the kernel tells the sum of all.
//!
//! # Cost
//! A load when a worker parks, and 5 µs in a tenth of a second.
//!
//! Source: proc_uptime(5).

use crate::sync::{AtomicU64, Mutex, Ordering::*};
use warmcore_sched::RECENT;
use warmcore_types::Nanos;

/// What was seen when a worker looked last.
pub(crate) struct SpareCpus {
    /// When a worker looks again.
    next: AtomicU64,
    /// How long CPUs were idle, and how long workers were parked, in ns.
    seen: Mutex<(u64, u64)>,
}

impl SpareCpus {
    /// If not `can_tell`, no worker looks.
    pub(crate) fn new(can_tell: bool) -> Self {
        Self { next: AtomicU64::new(if can_tell { 0 } else { u64::MAX }), seen: Mutex::default() }
    }

    /// Called by a worker that is about to park; `parked_ns` is how long all workers were parked. Returns whether other threads run on
    /// their CPUs, if it is time to look.
    #[inline]
    pub(crate) fn look(&self, now: Nanos, parked_ns: impl FnOnce() -> u64) -> Option<bool> {
        if now.0 < self.next.load(Relaxed) { None } else { self.compare(now, parked_ns()) }
    }

    #[cold]
    fn compare(&self, now: Nanos, parked: u64) -> Option<bool> {
        self.next.store(now.0 + RECENT.0 / 10, Relaxed);
        let now = (idle_ns()?, parked);
        Some(others_run(std::mem::replace(&mut *self.seen.try_lock().ok()?, now), now))
    }
}

/// Whether others ran on the CPUs of parked workers: how long CPUs were idle, and workers parked, before and now.
fn others_run(before: (u64, u64), now: (u64, u64)) -> bool {
    2 * now.0.saturating_sub(before.0) < now.1.saturating_sub(before.1)
}

/// How long the machine's CPUs were idle, all together. `None`: the system does not tell.
fn idle_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some((seconds * 1e9) as u64)
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;

    #[test]
    fn others_run_if_cpus_were_idle_for_less_than_half_as_long_as_workers_were_parked() {
        assert!(!others_run((500, 800), (560, 920)));
        assert!(others_run((500, 800), (559, 920)));
        assert!(!others_run((500, 800), (500, 800)), "no worker was parked");
        // A CPU that goes offline takes its time along.
        assert!(others_run((500, 800), (300, 900)));
    }

    #[test]
    fn linux_tells_how_long_cpus_were_idle() {
        assert!(idle_ns().is_some_and(|idle| idle > 0));
    }
}
