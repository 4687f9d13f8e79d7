//! Registry: all tenants of this process, and the thread that compacts their ids.
//!
//! Model.   The registry knows every tenant by its serial, weakly. Tenants that have ids in use are
//!          *busy*; the thread compacts those every 100 ms and sleeps when there are none. It
//!          begins with the first tenant and ends with the last.
//! Number.  10 000 tenants of which 10 are busy: 10 compactions every 100 ms.
//! Writers. Everything here: under the lock. A tenant is never dropped under it, since its end
//!          takes the lock too.

use crate::tenant::Inner;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use warmcore_sys::{affinity, signals};

/// An id that nobody used between two compactions, which are so far apart, is taken back.
pub const COMPACTION_PERIOD: Duration = Duration::from_millis(100);

struct Registry {
    tenants: BTreeMap<u64, Weak<Inner>>,
    busy: Vec<Weak<Inner>>,
    next_serial: u64,
    compactor_runs: bool,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    tenants: BTreeMap::new(),
    busy: Vec::new(),
    next_serial: 1,
    compactor_runs: false,
});

/// Told when there is somebody busy again, and when the last tenant is gone.
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tenant that is known from now on, made with its serial.
pub(crate) fn register(make: impl FnOnce(u64) -> Inner) -> Arc<Inner> {
    let serial = {
        let mut registry = lock();
        registry.next_serial += 1;
        registry.next_serial - 1
    };
    let tenant = Arc::new(make(serial));
    let mut registry = lock();
    registry.tenants.insert(serial, Arc::downgrade(&tenant));
    start(&mut registry);
    tenant
}

/// At a tenant's end.
pub(crate) fn forget(serial: u64) {
    let mut registry = lock();
    registry.tenants.remove(&serial);
    if registry.tenants.is_empty() {
        CHANGED.notify_all();
    }
}

/// The tenant with this serial, if it lives.
pub(crate) fn tenant(serial: u64) -> Option<Arc<Inner>> {
    lock().tenants.get(&serial)?.upgrade()
}

/// The serials of all living tenants, ascending.
pub(crate) fn serials() -> Vec<u64> {
    lock().tenants.keys().copied().collect()
}

/// A tenant has ids in use that the compactor does not know of.
#[cold]
pub(crate) fn is_busy(tenant: &Inner) {
    let mut registry = lock();
    // Another thread may have been here just now.
    if tenant.is_busy.swap(true, Relaxed) {
        return;
    }
    let weak = registry.tenants.get(&tenant.serial).cloned();
    registry.busy.extend(weak);
    start(&mut registry);
    CHANGED.notify_all();
}

/// Starts the compactor if it does not run. Without a thread to be had ids are not taken back until
/// the next attempt: more slots are used, nothing is wrong.
fn start(registry: &mut Registry) {
    if !registry.compactor_runs {
        let thread = std::thread::Builder::new().name("warmcore-cids".to_owned());
        // A thread of ours takes nobody's signals, and does not stay on its maker's CPU.
        let spawned = signals::blocked(|| thread.stack_size(128 << 10).spawn(compactor));
        registry.compactor_runs = spawned.is_ok();
    }
}

fn compactor() {
    if let Ok(cpus) = affinity::allowed_to_main() {
        let _ = affinity::set_allowed(&cpus);
    }
    let mut registry = lock();
    let mut due = Instant::now() + COMPACTION_PERIOD;
    loop {
        if registry.tenants.is_empty() {
            registry.compactor_runs = false;
            registry.busy = Vec::new();
            return;
        }
        if registry.busy.is_empty() {
            registry = CHANGED.wait(registry).unwrap_or_else(PoisonError::into_inner);
            due = Instant::now() + COMPACTION_PERIOD;
            continue;
        }
        if let Some(rest) = due.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            registry = CHANGED.wait_timeout(registry, rest).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let mut busy = std::mem::take(&mut registry.busy);
        drop(registry);
        busy.retain(|tenant| tenant.upgrade().is_some_and(|tenant| tenant.compact()));
        // From now: late is harmless, but two that follow each other closely take what is in use.
        due = Instant::now() + COMPACTION_PERIOD;
        registry = lock();
        registry.busy.append(&mut busy);
    }
}
