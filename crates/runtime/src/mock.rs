//! A driver for tests. It counts the calls of two methods, and a test can make `used` wait.

use crate::runtime::{remote, shared};
use crate::shared::Shared;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use warmcore_driver::{Driver, Entered, Used};
use warmcore_sched::{PolicyKind, SchedDomains};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, CpuSet, Nanos};

#[derive(Default)]
pub(crate) struct Mock {
    /// What `foreign_tasks` returns, and how often it was called.
    pub(crate) foreign: AtomicUsize,
    pub(crate) asked: AtomicUsize,
    /// What `run_seq` returns.
    pub(crate) run_seq: AtomicU64,
    /// How often `used` was called.
    pub(crate) used: AtomicUsize,
    /// `used` returns while no test holds this lock.
    pub(crate) gate: Mutex<()>,
}

/// A worker's driver, which the test reads through another reference.
struct MockDriver(Arc<Mock>);

impl Driver for MockDriver {
    fn now(&self) -> Nanos {
        Nanos(1_000_000_000)
    }
    fn park(&self, _until: Option<Nanos>, _is_awake: &dyn Fn() -> bool) {}
    fn poll_events(&self) {}
    fn unpark(&self) {}
    fn enter(&self) -> Entered<'_> {
        Entered::none()
    }
    fn wake_at(&self, _at: Nanos) {}
    fn foreign_tasks(&self) -> usize {
        self.0.asked.fetch_add(1, Relaxed);
        self.0.foreign.load(Relaxed)
    }
    fn run_seq(&self) -> u64 {
        self.0.run_seq.load(Relaxed)
    }
    fn used(&self) -> Used {
        self.0.used.fetch_add(1, Relaxed);
        drop(self.0.gate.lock().expect("no test panics with it"));
        Used::default()
    }
    fn close(&self) {}
}

/// Creates workers that no thread runs, `per_llc` of them on each last-level cache.
pub(crate) fn workers(workers: usize, per_llc: usize) -> (Vec<Arc<Mock>>, Shared) {
    let llcs = workers / per_llc;
    let text = format!("[drawn]\nsockets = 1\nl3_per_socket = {llcs}\ncores_per_l3 = {per_llc}\nsmt = 1\n");
    let topology = Topology::from_machine(&text, "drawn").expect("a machine");
    let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
    let machine = SchedDomains::new(&topology, &cpus);
    let mocks: Vec<Arc<Mock>> = (0..workers).map(|_| Arc::default()).collect();
    let remotes = mocks.iter().map(|mock| remote(Box::new(MockDriver(mock.clone())))).collect();
    let pin_to = vec![CpuSet::default(); workers];
    let shared = shared("mock".into(), remotes, machine, PolicyKind::Home, Duration::from_millis(1), pin_to);
    (mocks, shared)
}

/// Waits until so many tasks have returned pending from their first poll.
pub(crate) fn have_pended(shared: &Shared, tasks: usize) {
    let owned = || shared.remotes.iter().map(|remote| remote.owned_tasks.count() as usize).sum::<usize>();
    while owned() < tasks {
        std::thread::yield_now();
    }
}
