//! TenantStats: what each tenant's tasks used of this runtime.
//!
//! Model.   A tenant has a slot here from its first task on, at the place that it has among the tenants that live;
//!          the next tenant of that place takes the slot over, and begins where its numbers stand. A task that
//!          belongs to a tenant knows the slot. Polls and tasks are counted one by one. What polls ran for is
//!          measured where a poll is long (4 µs on average), since two looks at the clock are little then; of
//!          short ones the polls that are measured by chance stand for the others.
//! Number.  A task without a tenant pays two branches a poll. One with a tenant pays a counter on its CPU a poll, 13 ns
//!          to begin and end, and two looks at the clock where polls are long: 20 ns of 4 µs. With what its ids and
//!          its account take that is 255 instructions a poll (`cargo xtask instructions "8 pairs"`, where counters
//!          are atomics). 1000 short polls: the run time is right to about 12 %; 100 000: to 1 %. A slot is 200 bytes,
//!          and 24 on each CPU that it was counted on; there are as many as tenants ever lived at the same time.
//! Writers. `Counts`: whoever polls, begins or ends a task of the tenant. The rest: under the slot's lock.

use crate::sync::{AtomicU64, Mutex, Ordering::*};
use bytemuck::Zeroable;
use std::ptr::NonNull;
use std::sync::OnceLock;
use warmcore_budget::process::unaccounted;
use warmcore_line::{Line, Padded};
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_tenant::Tenant;
use warmcore_types::ignore_poison;

/// Seats are allocated so many at a time at first, and twice as many each time after that.
const FIRST: usize = 64;

/// Enough for every place that a tenant can have.
const BLOCKS: usize = 19;

/// From here on each poll of a tenant's task is measured.
pub(crate) const LONG_NS: u32 = 4_000;

/// What all polls ran for of which one ran for so long and stands for so many half polls.
pub(crate) fn scale_sample(ran: u64, half_polls: u32) -> u64 {
    ran * u64::from(half_polls) / 2
}

/// What is counted, on the CPU where it happens.
#[derive(Zeroable)]
struct Counts {
    polls: LocalU64,
    run_ns: LocalU64,
    /// Begun less ended. A task may end on another CPU than it began on, so only the sum means something.
    num_alive_tasks: LocalU64,
}

/// A tenant's numbers at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    polls: u64,
    run_ns: u64,
    num_alive_tasks: u64,
}

/// One tenant's, while it lives.
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub(crate) struct TenantSlot {
    /// Whose it is. 0: nobody's yet. Written under the lock of `base`.
    #[line(read_mostly)]
    serial: AtomicU64,
    #[line(read_mostly)]
    counts: PerCid<Counts>,
    /// What those before it counted.
    #[line(contended)]
    base: Padded<Mutex<Totals>>,
}

impl TenantSlot {
    fn new() -> Self {
        Self {
            serial: AtomicU64::new(0),
            counts: PerCid::new(),
            base: Padded::new(Mutex::new(Totals::default())),
        }
    }

    /// A tenant sits down, if it is not the one that sits here. Whoever sat here before is gone, and its tasks are.
    fn assign(&self, serial: u64) {
        // ORDERING: Acquire; pairs with the Release below: who sees the serial sees the base that goes with it.
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
        // Found, it stays as long as the handle does; so does its slot.
        let tenant = Tenant::by_serial(self.serial.load(Acquire))?;
        let base = ignore_poison(self.base.lock());
        let now = self.totals();
        Some(TenantMetrics {
            name: tenant.name().to_owned(),
            serial: tenant.serial(),
            weight: tenant.weight(),
            // A task that goes from one CPU to another meanwhile may be seen to end and not to begin.
            num_alive_tasks: (now.num_alive_tasks.wrapping_sub(base.num_alive_tasks) as i64).max(0) as usize,
            polls: now.polls.wrapping_sub(base.polls),
            run_ns: now.run_ns.wrapping_sub(base.run_ns),
        })
    }
}

type Block = Box<[OnceLock<Box<TenantSlot>>]>;

/// See the head of this file.
pub(crate) struct TenantStats {
    blocks: [OnceLock<Block>; BLOCKS],
}

impl TenantStats {
    pub(crate) fn new() -> Self {
        Self { blocks: [const { OnceLock::new() }; BLOCKS] }
    }

    /// The tenant as a task's, with the slot where it is counted.
    ///
    /// # Safety
    /// `self` stays where it is for as long as the tenant_ref counts anything.
    pub(crate) unsafe fn tenant_ref(&self, tenant: &Tenant) -> TenantRef {
        let (block, at) = slot_at(tenant.index());
        let empty = || (0..FIRST << block).map(|_| OnceLock::new()).collect();
        // It stays as long as the runtime, for the next tenant: no account's, whichever is current.
        let slot = unaccounted(|| {
            self.blocks[block].get_or_init(empty)[at].get_or_init(|| Box::new(TenantSlot::new()))
        });
        slot.assign(tenant.serial());
        TenantRef { tenant: tenant.clone(), slot: NonNull::from(&**slot) }
    }

    /// All tenants that live and had a task here, the oldest first.
    pub(crate) fn read(&self) -> Vec<TenantMetrics> {
        let blocks = self.blocks.iter().filter_map(OnceLock::get);
        let slots = blocks.flat_map(|block| block.iter()).filter_map(OnceLock::get);
        let mut all: Vec<_> = slots.filter_map(|slot| slot.read()).collect();
        all.sort_by_key(|tenant| tenant.serial);
        all
    }
}

/// Which block, and which slot of it.
fn slot_at(place: usize) -> (usize, usize) {
    let n = place + FIRST;
    let block = (n.ilog2() - FIRST.ilog2()) as usize;
    (block, n - (FIRST << block))
}

/// Whose a task is.
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
        // SAFETY: as `TenantStats::tenant_ref`'s caller said.
        unsafe { &self.slot.as_ref().counts }
    }

    #[inline]
    pub(crate) fn count_poll(&self) {
        self.counts().add(field!(Counts, polls), 1);
    }

    /// Not inlined, as the two below: a task without a tenant is not to carry the code.
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

/// What a tenant's tasks have used of a runtime so far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantMetrics {
    /// The tenant's name. Several may have the same.
    pub name: String,
    /// Which tenant: [`Tenant::serial`].
    pub serial: u64,
    /// How much of a worker it gets where others wait too.
    pub weight: u32,
    /// Its tasks that are not gone yet.
    pub num_alive_tasks: usize,
    /// Polls of its tasks.
    pub polls: u64,
    /// What they ran for, in ns. Where a task's polls are shorter than 4 µs on average one of sixteen is measured
    /// and stands for the others; longer ones are measured all. A poll that blocked in place is not in it.
    pub run_ns: u64,
}

#[cfg(test)]
mod tests;
