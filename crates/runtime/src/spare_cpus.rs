//! SpareCpus: whether the CPUs of parked workers are idle, or run other threads.
//!
//! To wake the last parked worker for a light task pays if its CPU is idle: the clients are on other machines, or wait too. It
//! takes time from others if clients run there, or another program. So a worker that parks compares, a few times in a second, how
//! long workers were parked with how long the machine's CPUs were idle. Other threads run if that is less than two thirds of it
//! ([`View::others_run`](warmcore_sched::View::others_run)).
//!
//! Only where there is a worker for each CPU of the machine, without a quota, because the kernel tells the sum of all CPUs. A CPU that
//! waits for a disk, or serves a network's interrupts, does not count as idle.
//!
//! # Cost
//! A load when a worker parks, and ten times in a second 5 µs and two cache lines of each worker.
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
    seen: Mutex<Option<(u64, u64)>>,
}

impl SpareCpus {
    /// If not `can_tell`, no worker looks.
    pub(crate) fn new(can_tell: bool) -> Self {
        Self { next: AtomicU64::new(if can_tell { 0 } else { u64::MAX }), seen: Mutex::default() }
    }

    /// Called by a worker that is about to park; `parked_ns` is how long all workers were parked. Returns whether other threads run on
    /// their CPUs, if it is time to look and this can be told.
    #[inline]
    pub(crate) fn look(&self, now: Nanos, parked_ns: impl FnOnce() -> u64) -> Option<bool> {
        let next = self.next.load(Relaxed);
        if now.0 < next { None } else { self.compare(next, now, parked_ns) }
    }

    #[cold]
    fn compare(&self, next: u64, now: Nanos, parked_ns: impl FnOnce() -> u64) -> Option<bool> {
        self.next.compare_exchange(next, now.0 + RECENT.0 / 10, Relaxed, Relaxed).ok()?;
        let now = (idle_ns()?, parked_ns());
        let mut seen = self.seen.try_lock().ok()?;
        let Some(before) = *seen else {
            *seen = Some(now);
            return None;
        };
        let others_run = others_run(before, now);
        if others_run.is_some() {
            *seen = Some(now);
        }
        others_run
    }
}

/// Whether others ran on the CPUs of parked workers: how long CPUs were idle, and workers parked, before and now. `None`: workers were
/// hardly parked, and the kernel counts in 10 ms.
fn others_run(before: (u64, u64), now: (u64, u64)) -> Option<bool> {
    let (idle, parked) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
    (parked >= RECENT.0 / 20).then_some(3 * idle < 2 * parked)
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

    const MS: u64 = 1_000_000;

    #[test]
    fn others_run_if_cpus_were_idle_for_less_than_two_thirds_of_the_time_that_workers_were_parked() {
        let told = |idle, parked| others_run((500 * MS, 800 * MS), (idle * MS, parked * MS));
        assert_eq!(told(580, 920), Some(false));
        assert_eq!(told(579, 920), Some(true));
        assert_eq!(told(549, 849), None, "workers were parked for 49 ms");
        assert_eq!(told(300, 900), Some(true), "a CPU that goes offline takes its time along");
    }

    #[test]
    fn a_worker_looks_ten_times_a_second_and_tells_nothing_at_first() {
        let spare = SpareCpus::new(true);
        let at = |ms: u64| spare.look(Nanos(ms * MS), || 1 << 60);
        assert_eq!(at(1_000), None);
        *spare.seen.lock().unwrap() = Some((0, 0));
        assert_eq!(at(1_099), None, "too early");
        assert_eq!(at(1_100), Some(true), "parked for years");
        assert_eq!(SpareCpus::new(false).look(Nanos(5_000 * MS), || 1 << 60), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells_how_long_cpus_were_idle() {
        assert!(idle_ns().is_some_and(|idle| idle > 0));
    }
}
