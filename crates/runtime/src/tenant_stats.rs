//! TenantStats: polls, run time and tasks of each tenant, in one runtime.
//!
//! A tenant has a slot here from the first `TaskBuilder` that gets it. The slot's index is the tenant's index among the
//! tenants that are alive. The next tenant with that index takes over the slot; the counts that are in the slot by then
//! are subtracted from its numbers. Polls and tasks are counted exactly, on the CPU where they happen. Run time is
//! measured if a task's polls take 4 µs or more on average; of shorter polls a random sample is measured, and each
//! measured poll counts several times.
//!
//! # Cost
//! A task without a tenant costs two branches a poll. A tenant's task costs 13 ns when it begins and when it ends, an
//! add to a per-CPU counter for each poll, and two readings of the clock for each poll if its polls are long: 20 ns of
//! at least 4 µs. With the tenant's ids and account a poll costs 255 instructions (`cargo xtask instructions "8
//! pairs"`, where counters are atomics). The run time of 1000 short polls is right to about 12 %, of 100 000 to 1 %. A
//! slot takes 200 bytes, and 24 bytes for each CPU that counted in it. There are at most as many slots as tenants
//! were ever alive at once.

use crate::sync::{AtomicU64, Mutex, Ordering::*};
use bytemuck::Zeroable;
use std::ptr::NonNull;
use std::sync::OnceLock;
use warmcore_budget::process::unaccounted;
use warmcore_line::{Line, Padded};
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_tenant::Tenant;
use warmcore_types::{GrowingTable, ignore_poison};

/// The run time that a sampled poll of `ran` ns adds to its tenant's: it counts for `half_polls` halves of a poll.
pub(crate) fn scale_sample(ran: u64, half_polls: u32) -> u64 {
    ran * u64::from(half_polls) / 2
}

/// A tenant's counters on one CPU.
#[derive(Zeroable)]
struct Counts {
    polls: LocalU64,
    run_ns: LocalU64,
    /// Tasks that began less tasks that ended. A task may end on another CPU, so only the sum over all CPUs means something.
    num_alive_tasks: LocalU64,
}

/// A tenant's numbers, over all CPUs.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    polls: u64,
    run_ns: u64,
    num_alive_tasks: u64,
}

/// The counters of one tenant at a time.
#[derive(Default, Line)]
#[line(pair)]
#[repr(align(128))]
pub(crate) struct TenantSlot {
    /// Serial number of the slot's tenant. 0: none yet. Written under the lock of `base`.
    #[line(read_mostly)]
    serial: AtomicU64,
    #[line(read_mostly)]
    counts: PerCid<Counts>,
    /// What the previous tenants of the slot counted.
    #[line(contended)]
    base: Padded<Mutex<Totals>>,
}

impl TenantSlot {
    /// Assigns the slot to this tenant unless the slot is assigned to it already. The slot's previous tenant and its
    /// tasks have ended before.
    fn assign(&self, serial: u64) {
        // ORDERING: Acquire; pairs with the Release below: a thread that sees the serial sees the `base` that goes with it.
        if self.serial.load(Acquire) == serial {
            return;
        }
        let mut base = ignore_poison(self.base.lock());
        if self.serial.load(Relaxed) != serial {
            *base = self.totals();
            self.serial.store(serial, Release);
        }
    }

    fn totals(&self) -> Totals {
        Totals {
            polls: self.counts.sum(field!(Counts, polls)),
            run_ns: self.counts.sum(field!(Counts, run_ns)),
            num_alive_tasks: self.counts.sum(field!(Counts, num_alive_tasks)),
        }
    }

    fn read(&self) -> Option<TenantMetrics> {
        // The handle keeps the tenant alive, and with it its slot.
        let tenant = Tenant::by_serial(self.serial.load(Acquire))?;
        let base = ignore_poison(self.base.lock());
        let now = self.totals();
        Some(TenantMetrics {
            name: tenant.name().to_owned(),
            serial: tenant.serial(),
            weight: tenant.weight(),
            // If a task begins on one CPU and ends on another during the sum, its end may be counted without its begin.
            num_alive_tasks: (now.num_alive_tasks.wrapping_sub(base.num_alive_tasks) as i64).max(0) as usize,
            polls: now.polls.wrapping_sub(base.polls),
            run_ns: now.run_ns.wrapping_sub(base.run_ns),
        })
    }
}

/// Counts polls, run time and tasks of each tenant in one runtime: see the module's documentation.
#[derive(Default)]
pub(crate) struct TenantStats {
    /// By the tenant's index.
    slots: GrowingTable<OnceLock<Box<TenantSlot>>>,
}

impl TenantStats {
    /// The tenant, with its slot in these counters.
    ///
    /// # Safety
    /// `self` is not moved or dropped while the returned reference counts.
    pub(crate) unsafe fn tenant_ref(&self, tenant: &Tenant) -> TenantRef {
        let empty = |slots| (0..slots).map(|_| OnceLock::new()).collect();
        // The slot stays as long as the runtime, for later tenants, so no account is charged for it.
        let slot = unaccounted(|| self.slots.get_or_alloc(tenant.index(), empty).get_or_init(Box::default));
        slot.assign(tenant.serial());
        TenantRef { tenant: tenant.clone(), slot: NonNull::from(&**slot) }
    }

    /// The numbers of the tenants that are alive and had a task in this runtime, sorted by serial number.
    pub(crate) fn read(&self) -> Vec<TenantMetrics> {
        let slots = self.slots.iter().filter_map(OnceLock::get);
        let mut all: Vec<_> = slots.filter_map(|slot| slot.read()).collect();
        all.sort_by_key(|tenant| tenant.serial);
        all
    }
}

/// A task's tenant, with the tenant's slot.
pub(crate) struct TenantRef {
    pub(crate) tenant: Tenant,
    slot: NonNull<TenantSlot>,
}

// SAFETY: the slot is `Sync`.
unsafe impl Send for TenantRef {}
// SAFETY: as above.
unsafe impl Sync for TenantRef {}

impl TenantRef {
    pub(crate) fn name(&self) -> &str {
        self.tenant.name()
    }

    #[inline]
    fn counts(&self) -> &PerCid<Counts> {
        // SAFETY: as the caller of `TenantStats::tenant_ref` guarantees.
        unsafe { &self.slot.as_ref().counts }
    }

    #[inline]
    pub(crate) fn count_poll(&self) {
        self.counts().add(field!(Counts, polls), 1);
    }

    /// Neither this method nor the two below are inlined, so that their code is not part of each poll of a task without
    /// a tenant.
    #[inline(never)]
    pub(crate) fn count_run(&self, ns: u64) {
        self.counts().add(field!(Counts, run_ns), ns);
    }

    #[inline(never)]
    pub(crate) fn begin(&self) {
        self.counts().add(field!(Counts, num_alive_tasks), 1);
    }

    #[inline(never)]
    pub(crate) fn end(&self) {
        self.counts().add(field!(Counts, num_alive_tasks), 1_u64.wrapping_neg());
    }
}

/// Numbers of a tenant in one runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct TenantMetrics {
    /// The tenant's name. Several tenants may have the same.
    pub name: String,
    /// The tenant's serial number: [`Tenant::serial`].
    pub serial: u64,
    /// The tenant's share of the workers while tasks of other tenants wait too.
    pub weight: u32,
    /// The tenant's tasks that are alive.
    pub num_alive_tasks: usize,
    /// Polls of the tenant's tasks.
    pub polls: u64,
    /// Run time of the tenant's tasks, in ns. If a task's polls take less than 4 µs on average, about one of sixteen is
    /// measured and counts for all of them. Otherwise every poll is measured. A poll whose worker was handed off by
    /// `block_in_place` is not included.
    pub run_ns: u64,
}

#[cfg(test)]
mod tests;
