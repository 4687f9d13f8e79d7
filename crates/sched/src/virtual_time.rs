//! VirtualTimes: the virtual time of each tenant, over all workers of a runtime.
//!
//! A tenant's virtual time is the run time of its tasks on all workers, times 100, divided by its weight. Of the
//! tenants whose tasks wait at a worker, the worker next runs a task of the tenant with the least virtual time; one
//! choice of 65 536 goes in turn instead (`run_queue.rs`). So two tenants whose tasks wait at all workers get run time
//! in proportion to their weights, whatever the number of their tasks. A tenant of which no task waited or ran at a worker, because they
//! slept or waited for their budget, resumes there at most [`MAX_CREDIT`] behind the others. A busy worker that finds,
//! at a neighbour chosen at random, a waiting task of a tenant that lags by more than [`LAG_MIN`] behind all tenants
//! that wait at this worker takes the task, if the policy lets busy workers take tasks.
//!
//! A worker polls tasks of one tenant for a slice (`worker/slice.rs`), and then adds its virtual time to the shared word. With m workers,
//! slices of at most s ns, and tasks of two tenants waiting at each worker, one tenant leads the other by at most m × s × 100 / weight of
//! virtual time. When a worker last picked it, its word was not above the other's, which is not above what the other ran. Since then no
//! worker has begun a slice of it, so that it ran what its word says and one slice a worker. Picks in turn, and the 1 that breaks a tie,
//! come on top.
//!
//! Based on SFQ(D), "Interposed proportional sharing for a storage service utility", SIGMETRICS 2004.

use crate::sync::{AtomicU64, Mutex, Ordering::*};
use std::collections::HashMap;
use std::sync::Arc;
use warmcore_line::Padded;
use warmcore_types::ignore_poison;

/// Virtual time is run time in ns × this / weight.
const WEIGHT_UNIT: u64 = 100;

/// Virtual time by which a tenant whose tasks come back may be behind the others. It must exceed the pauses of a tenant
/// whose tasks wait for their budget, so that the tenant gets its share of the run time: with 1 ms, a tenant of weight
/// 1000 got 4.6 times the run time of one of weight 100 (two workers, polls of 20 µs).
pub(crate) const MAX_CREDIT: u64 = 4_000_000;

/// Virtual time by which a tenant must lag before a busy worker takes a task of it from another worker. Smaller lags
/// are not worth a move.
pub(crate) const LAG_MIN: u64 = MAX_CREDIT / 2;

/// Number of tenants from which on a tenant that no run queue refers to may be dropped.
pub(crate) const TENANTS_KEPT: usize = 64;

/// `VirtualTimes::only`: there are several.
const SEVERAL: u64 = u64::MAX;

/// One tenant's virtual time. Written by every worker that runs its tasks; it never decreases.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime(Padded<AtomicU64>);

/// The virtual times of all tenants of a runtime.
#[derive(Debug, Default)]
pub(crate) struct VirtualTimes {
    /// The number of the only tenant whose tasks have run or waited, plus 1; 0: there is none; or [`SEVERAL`]. Read before every poll.
    only: Padded<AtomicU64>,
    /// The highest virtual time that a tenant had before a slice. Written by the workers.
    floor: Padded<AtomicU64>,
    /// By the tenant's number.
    all: Mutex<HashMap<u64, Arc<VirtualTime>>>,
}

impl VirtualTimes {
    /// Whether tasks of several tenants have run, or waited in a run queue, so that run time is charged from now on. Tasks without a
    /// tenant are those of one more.
    #[inline]
    pub(crate) fn has_several_tenants(&self) -> bool {
        // ORDERING: Relaxed; if the second tenant is seen late, what runs until then is not charged.
        self.only.load(Relaxed) == SEVERAL
    }

    /// A task of this tenant is going to run.
    #[inline]
    pub(crate) fn know(&self, tenant: u64) {
        if [SEVERAL, tenant + 1].contains(&self.only.load(Relaxed)) {
            return;
        }
        let first = self.only.compare_exchange(0, tenant + 1, Relaxed, Relaxed);
        if first.is_err_and(|first| first != tenant + 1) {
            self.only.store(SEVERAL, Relaxed);
        }
    }

    /// The virtual time of a tenant, which is added if it is not known yet.
    /// The caller sees to it that the memory is not charged to the tenant of the current task.
    pub(crate) fn of(&self, tenant: u64) -> Arc<VirtualTime> {
        let mut all = ignore_poison(self.all.lock());
        if let Some(vtime) = all.get(&tenant) {
            return vtime.clone();
        }
        if all.len() >= TENANTS_KEPT && all.len() == all.capacity() {
            all.retain(|_, vtime| Arc::strong_count(vtime) > 1);
        }
        let vtime = Arc::<VirtualTime>::default();
        all.insert(tenant, vtime.clone());
        self.know(tenant);
        vtime
    }

    /// Raises the virtual time of a tenant that has a task waiting at a worker again, so that it is at most
    /// [`MAX_CREDIT`] behind. `there` is the least virtual time of the tenants whose tasks wait at the worker. If tasks can't move, `there`
    /// may be far below the virtual times of tenants at other workers. The lower of `there` and `floor` counts, so that
    /// the tenant does not wait until the tenants at this worker have caught up with the others. A tenant that never
    /// ran gets no credit.
    pub(crate) fn reactivate(&self, vtime: &VirtualTime, there: Option<u64>) {
        let floor = self.floor.load(Relaxed);
        let kept = if vtime.get() == 0 { 0 } else { MAX_CREDIT };
        let least = there.map_or(floor, |there| there.min(floor)).saturating_sub(kept);
        if vtime.get() < least {
            vtime.0.fetch_max(least, Relaxed);
        }
    }

    /// Records the virtual time that a tenant had before a slice.
    pub(crate) fn advance(&self, had: u64) {
        if had > self.floor.load(Relaxed) {
            self.floor.fetch_max(had, Relaxed);
        }
    }
}

impl VirtualTime {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, virtual_ns: u64) {
        self.0.fetch_add(virtual_ns, Relaxed);
    }
}

/// Virtual time of a run time. `rest` carries the remainder of the division from call to call.
pub(crate) fn virtual_time(ns: u64, weight: u32, rest: &mut u64) -> u64 {
    let (units, weight) = (ns * WEIGHT_UNIT + *rest, u64::from(weight.max(1)));
    *rest = units % weight;
    units / weight
}
