//! Registry: all tenants of this process, and the thread that compacts their ids.
//!
//! Model.   A tenant has an index here, weakly known, and a flag beside those of its neighbours that
//!          says whether it is *busy*: whether it has ids in use. Who enters sets the flag, and that
//!          is all: no lock, no list, nobody woken. Every 100 ms the thread reads the flags and
//!          compacts the busy ones. It begins with the first tenant and ends with the last.
//!          Before that, it reads the masks of the busy tenants' threads: the kernel sends no notice when one changes.
//! Number.  10 000 tenants of which 10 are busy: 10 000 flags read, 2 µs, and 10 compactions; and a system call for each
//!          thread that is in one of the 10, 0.32 µs (sched_getaffinity in a loop on a virtual AMD EPYC).
//! Writers. Flags: whoever enters a tenant that is not busy, the compactor, and a tenant's end.
//!          Everything else: under the lock. A tenant is never dropped under it, since its end takes
//!          the lock too.

use crate::tenant::{Inner, Masks};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use warmcore_budget::process::unaccounted;
use warmcore_sys::background::{Background, Task};
use warmcore_types::ignore_poison;

/// An id that nobody used between two compactions, which are so far apart, is taken back.
pub const COMPACTION_PERIOD: Duration = Duration::from_millis(100);

/// The low bits of a serial are its tenant's index, the high ones count all tenants that ever were.
const INDEX_BITS: u32 = 24;

/// Flags of so many tenants are allocated together, and stay: a byte for each at the peak.
const CHUNK: usize = 1024;

#[derive(Default)]
struct RegistryEntry {
    /// 0 if it is free.
    serial: u64,
    tenant: Weak<Inner>,
}

struct Registry {
    entries: Vec<RegistryEntry>,
    free: Vec<usize>,
    busy: Vec<&'static [AtomicBool; CHUNK]>,
    alive: usize,
    made: u64,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { entries: Vec::new(), free: Vec::new(), busy: Vec::new(), alive: 0, made: 0 });

fn lock() -> MutexGuard<'static, Registry> {
    ignore_poison(REGISTRY.lock())
}

/// The index of the tenant with this serial.
pub(crate) fn index_of(serial: u64) -> usize {
    (serial & ((1 << INDEX_BITS) - 1)) as usize
}

impl Registry {
    /// An index for a new tenant: its serial and its flag.
    fn add_entry(&mut self) -> (u64, &'static AtomicBool) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(RegistryEntry::default());
            self.entries.len() - 1
        });
        assert!(index < 1 << INDEX_BITS, "{index} tenants at once, and there is room for no more");
        if index / CHUNK == self.busy.len() {
            self.busy.push(Box::leak(Box::new([const { AtomicBool::new(false) }; CHUNK])));
        }
        self.made += 1;
        self.alive += 1;
        let serial = self.made << INDEX_BITS | index as u64;
        self.entries[index].serial = serial;
        (serial, &self.busy[index / CHUNK][index % CHUNK])
    }
}

/// An index without a tenant: given back when dropped.
struct Reserved(u64);

impl Drop for Reserved {
    fn drop(&mut self) {
        forget(self.0);
    }
}

/// A tenant that is known from now on, made with its serial and its flag.
pub(crate) fn register(make: impl FnOnce(u64, &'static AtomicBool) -> Inner) -> Arc<Inner> {
    // What all tenants share grows here, and stays: it is no account's, whichever is current.
    let (serial, is_busy) = unaccounted(|| lock().add_entry());
    // To make the tenant may panic, without address space for its pcpu_cids. Made, it gives its index back by itself.
    let reserved = Reserved(serial);
    let tenant = Arc::new(make(serial, is_busy));
    std::mem::forget(reserved);
    lock().entries[index_of(serial)].tenant = Arc::downgrade(&tenant);
    unaccounted(|| COMPACTOR.ensure());
    tenant
}

/// At a tenant's end.
pub(crate) fn forget(serial: u64) {
    let (mut registry, index) = (lock(), index_of(serial));
    registry.busy[index / CHUNK][index % CHUNK].store(false, Relaxed);
    // Dropped after the lock: it may be the last that knows the tenant's memory.
    let before = std::mem::take(&mut registry.entries[index]);
    unaccounted(|| registry.free.push(index));
    registry.alive -= 1;
    let is_last = registry.alive == 0;
    drop(registry);
    if is_last {
        COMPACTOR.notify();
    }
    drop(before);
}

/// The tenant with this serial, if it lives.
pub(crate) fn tenant(serial: u64) -> Option<Arc<Inner>> {
    let registry = lock();
    let entry = registry.entries.get(index_of(serial)).filter(|entry| entry.serial == serial)?;
    entry.tenant.upgrade()
}

/// Says of each serial whether its tenant lived when this was called.
pub(crate) fn alive_serials() -> impl Fn(u64) -> bool {
    let serials: Vec<u64> = lock().entries.iter().map(|entry| entry.serial).collect();
    move |serial| serials.get(index_of(serial)) == Some(&serial)
}

/// The thread that compacts.
struct Compactor;

/// Without a thread to be had, ids are not taken back until the next tenant is made: more slots are used, nothing is
/// wrong.
static COMPACTOR: Background<Compactor> =
    Background::new(Compactor, "warmcore-cids", 128 << 10, COMPACTION_PERIOD);

impl Task for Compactor {
    fn is_needed(&self) -> bool {
        lock().alive > 0
    }

    fn round(&self) {
        let registry = lock();
        let flags = registry.busy.iter().flat_map(|flags| flags.iter());
        let busy = registry.entries.iter().zip(flags).filter(|(_, flag)| flag.load(Relaxed));
        let busy: Vec<Arc<Inner>> = busy.filter_map(|(entry, _)| entry.tenant.upgrade()).collect();
        drop(registry);
        let mut masks = Masks::default();
        busy.iter().for_each(|tenant| tenant.compact(&mut masks));
    }
}
