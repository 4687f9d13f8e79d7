//! SpareCpus: whether the CPUs of parked workers are idle, or run other threads.
//!
//! To wake the last parked worker for a light task pays if its CPU is idle: the clients are on other machines, or wait too. It
//! takes time from others if clients run there, or another program. So a worker that parks compares, a few times in a second, how
//! long workers were parked with how long the machine's CPUs were idle, and the scheduler core decides
//! ([`Workers::compare_idle`](warmcore_sched::Workers::compare_idle)).
//!
//! Only where there is a worker for each CPU of the machine, without a quota, because the kernel tells the sum of all CPUs. A CPU that
//! waits for a disk, or serves a network's interrupts, does not count as idle.
//!
//! # Cost
//! A load when a worker parks, and ten times in a second 5 µs and two cache lines of each worker.

use crate::sync::{AtomicU64, Mutex, Ordering::*};
use warmcore_sched::RECENT;
use warmcore_sys::clock;
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

    /// Called by a worker that is about to park; `parked_ns` is how long all workers were parked. Returns how long CPUs were idle and
    /// workers parked since the look before, if it is time to look and that is long enough: the kernel counts in 10 ms.
    #[inline]
    pub(crate) fn look(&self, now: Nanos, parked_ns: impl FnOnce() -> u64) -> Option<(u64, u64)> {
        let next = self.next.load(Relaxed);
        if now.0 < next { None } else { self.compare(next, now, parked_ns) }
    }

    #[cold]
    fn compare(&self, next: u64, now: Nanos, parked_ns: impl FnOnce() -> u64) -> Option<(u64, u64)> {
        self.next.compare_exchange(next, now.0 + RECENT.0 / 10, Relaxed, Relaxed).ok()?;
        let (idle, parked) = (clock::cpus_idle()?.0, parked_ns());
        let mut seen = self.seen.try_lock().ok()?;
        let (idle_before, parked_before) = *seen.get_or_insert((idle, parked));
        let since = (idle.saturating_sub(idle_before), parked.saturating_sub(parked_before));
        (since.1 >= RECENT.0 / 20).then(|| {
            *seen = Some((idle, parked));
            since
        })
    }
}

#[cfg(all(test, target_os = "linux", not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_worker_looks_ten_times_a_second_and_tells_nothing_at_first_or_while_workers_hardly_park() {
        let spare = SpareCpus::new(true);
        let look =
            |ms: u64, parked: u64| spare.look(Nanos(ms * MS), || parked * MS).map(|(_, parked)| parked);
        assert_eq!(look(1_000, 500), None);
        assert_eq!(look(1_099, 900), None, "too early");
        assert_eq!(look(1_100, 549), None, "parked for 49 ms");
        assert_eq!(look(1_200, 599), Some(99 * MS));
        assert_eq!(look(1_300, 659), Some(60 * MS));
        assert_eq!(SpareCpus::new(false).look(Nanos(5_000 * MS), || 1 << 60), None);
    }
}
