//! VirtualTimes: what each tenant has had of a whole runtime, in virtual time.
//!
//! Model.   A tenant's virtual time is the time that its tasks ran on any worker, times 100, over its weight. Of the
//!          tenants whose tasks wait at a worker, the one with the least virtual time runs next; so two tenants whose
//!          tasks wait everywhere get time as their weights are, however many tasks each has and wherever they are. A
//!          tenant that had no task waiting at a worker, because its tasks slept or waited for room in their budget,
//!          comes back at most [`MAX_CREDIT`] behind the others. Where the tasks of a tenant that is behind wait at one
//!          worker only, other workers fetch some: [`LAG_MIN`].
//! Number.  A worker adds what it measured when that comes to [`BATCH`], so the shared words are written seldom. With m
//!          workers, polls of at most c ns and tasks of two tenants waiting at all of them, one leads the other by at
//!          most (2m − 1)(BATCH + c × 100 / weight) of virtual time.
//! Writers. Said at the fields.
//! Source.  SFQ(D), "Interposed proportional sharing for a storage service utility", SIGMETRICS 2004.

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*};
use std::collections::HashMap;
use std::sync::Arc;
use warmcore_budget::process::unaccounted;
use warmcore_line::Padded;
use warmcore_types::ignore_poison;

/// Virtual time: nanoseconds × this / weight.
const WEIGHT_UNIT: u64 = 100;

/// Virtual time that a tenant keeps while none of its tasks waits for a worker. Longer than the gaps of a tenant whose
/// tasks wait for room in their budget, which is to keep its vtime: with 1 ms one of weight 1000 beside one of weight 100
/// got 4.6 times its run time (two workers, polls of 20 µs).
pub(crate) const MAX_CREDIT: u64 = 4_000_000;

/// Virtual time that a tenant is behind before a task of it is fetched for that: moves are to be few.
pub(crate) const LAG_MIN: u64 = 2_000_000;

/// Virtual time that a worker measures before it adds it up.
pub(crate) const BATCH: u64 = 50_000;

/// Tenants that no queue knows are forgotten above so many.
const FORGET_ABOVE: usize = 64;

/// One tenant's virtual time. Written by every worker that runs its tasks; it never falls.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime(Padded<AtomicU64>);

/// All tenants' of one runtime.
#[derive(Debug, Default)]
pub(crate) struct VirtualTimes {
    /// How many are known. Written under the lock, read before every poll.
    known: Padded<AtomicU32>,
    /// The most that any tenant had before a poll of it. Written by the workers.
    floor: Padded<AtomicU64>,
    /// By tenant; 0 is that of tasks without one.
    all: Mutex<HashMap<u64, Arc<VirtualTime>>>,
}

impl VirtualTimes {
    /// Whether tasks of several tenants are about, so that what each runs is to be measured.
    #[inline]
    pub(crate) fn has_several_tenants(&self) -> bool {
        // ORDERING: Relaxed; a poll that is not measured because the second tenant has just come is one poll.
        self.known.load(Relaxed) > 1
    }

    /// A tenant's vtime.
    pub(crate) fn of(&self, tenant: u64) -> Arc<VirtualTime> {
        let mut all = ignore_poison(self.all.lock());
        if let Some(vtime) = all.get(&tenant) {
            return vtime.clone();
        }
        if all.len() >= FORGET_ABOVE && all.len() == all.capacity() {
            all.retain(|_, vtime| Arc::strong_count(vtime) > 1);
        }
        // Whichever task spawns: it is the runtime's.
        let vtime = unaccounted(|| {
            let vtime = Arc::<VirtualTime>::default();
            all.insert(tenant, vtime.clone());
            vtime
        });
        self.known.store(all.len() as u32, Relaxed);
        vtime
    }

    /// A tenant that had no task waiting at a worker has one again; that worker has not added all of its time yet, and
    /// of the tenants whose tasks wait there the one that had least had `there`. Where tasks can't move that may be far
    /// behind the tenants elsewhere, and the one that comes is not to wait until it has caught up with those. One that
    /// never ran was never behind.
    pub(crate) fn reactivate(&self, vtime: &VirtualTime, pending: u64, there: Option<u64>) {
        let floor = self.floor.load(Relaxed);
        let kept = if vtime.get() + pending == 0 { 0 } else { MAX_CREDIT };
        let least = there.map_or(floor, |there| there.min(floor)).saturating_sub(kept + pending);
        if vtime.get() < least {
            vtime.0.fetch_max(least, Relaxed);
        }
    }

    /// A task of a tenant ran that had so much before.
    pub(crate) fn advance(&self, had: u64) {
        if had > self.floor.load(Relaxed) + BATCH {
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

/// What so many nanoseconds are to a tenant of a weight; `rest` is what was too little to count before, and now.
pub(crate) fn virtual_time(ns: u64, weight: u32, rest: &mut u64) -> u64 {
    let (units, weight) = (ns * WEIGHT_UNIT + *rest, u64::from(weight.max(1)));
    *rest = units % weight;
    units / weight
}
