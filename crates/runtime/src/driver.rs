//! Driver: what a worker needs of its environment: a clock, a place to park that also serves sockets and timers, and
//! a way for other threads to end the park.
//!
//! `TokioDriver` implements it with tokio. The models of `runtime/shuttle.rs` and the tests implement it without
//! sockets. A poll calls `now` if it is measured, or if the runtime knows several tenants; in the second case
//! `thread_cpu` follows a poll of 0.5 ms or more. A poll without a reading of the clock calls none of these methods.

use warmcore_types::Nanos;

/// The CPU time of a worker.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Used {
    /// CPU time of all the worker's threads together.
    pub(crate) all: Nanos,
    /// The part outside of the driver, which runs sockets, timers and tasks of `tokio::spawn`. Counted only while
    /// [`Driver::count_own`] is on.
    pub(crate) own: Nanos,
}

/// What a worker needs of its environment.
pub(crate) trait Driver: Send + Sync {
    /// The current time.
    fn now(&self) -> Nanos;

    /// CPU time of the calling thread, and how often the kernel preempted it. `None`: not known.
    fn thread_cpu(&self) -> Option<(Nanos, u64)> {
        None
    }

    /// Parks the worker's thread until `is_awake` returns true, or until the given time, and serves sockets and timers
    /// meanwhile. May return early. Only the worker's own thread calls it.
    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool);

    /// Serves sockets and timers without waiting. Any thread may call it. If another thread is in the driver it returns
    /// at once, and serves nothing.
    fn poll_events(&self);

    /// Makes a thread that is in `park`, or about to enter it, check `is_awake` once more. Any thread may call it.
    fn unpark(&self);

    /// The current thread becomes the worker's thread, in place of the previous one.
    fn begin(&self) {}

    /// The current thread is no longer the worker's thread, unless another thread has replaced it already.
    fn end(&self) {}

    /// Calls `act` inside the driver's context. Workers, and threads that entered the runtime, run in that context.
    fn with_context(&self, act: &mut dyn FnMut());

    /// The tokio runtime whose context [`with_context`](Self::with_context) enters, for a guard. `None`: there is none.
    fn tokio(&self) -> Option<&tokio::runtime::Handle> {
        None
    }

    /// Makes a thread that is in `park` return at this time at the latest. Any thread may call it.
    fn wake_at(&self, at: Nanos);

    /// A number that is incremented when a thread begins to run inside the driver and when it waits or leaves. So with
    /// one thread in the driver it is odd while that thread serves sockets and timers or runs tasks of `tokio::spawn`;
    /// tasks in the worker's queue wait meanwhile.
    fn run_seq(&self) -> u64 {
        0
    }

    /// How many tasks of `tokio::spawn` the driver has. They are not tasks of this runtime.
    fn foreign_tasks(&self) -> usize {
        0
    }

    /// CPU time of the worker's threads. Any thread may call it.
    fn used(&self) -> Used {
        Used::default()
    }

    /// Switches the counting of [`Used::own`] on or off. While it is on, it costs 0.5 µs each time that the driver is
    /// entered. Any thread may call this.
    fn count_own(&self, _is_wanted: bool) {}

    /// Closes the driver. Blocking operations that still run in it are detached.
    fn close(&self);
}

/// A driver for tests. It counts the calls of two methods, and a test can make `used` wait.
#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
pub(crate) mod mock {
    use super::{Driver, Used};
    use crate::runtime::{remote, shared};
    use crate::shared::Shared;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;
    use warmcore_sched::{PolicyKind, SchedDomains};
    use warmcore_topo::Topology;
    use warmcore_types::{CpuId, CpuSet, Nanos};

    #[derive(Default)]
    pub(crate) struct Mock {
        /// What `foreign_tasks` returns, and how often it was called.
        pub(crate) foreign: AtomicUsize,
        pub(crate) asked: AtomicUsize,
        /// How often `used` was called.
        pub(crate) used: AtomicUsize,
        /// `used` returns while no test holds this lock.
        pub(crate) gate: Mutex<()>,
    }

    impl Driver for Arc<Mock> {
        fn now(&self) -> Nanos {
            Nanos(1_000_000_000)
        }
        fn park(&self, _until: Option<Nanos>, _is_awake: &dyn Fn() -> bool) {}
        fn poll_events(&self) {}
        fn unpark(&self) {}
        fn with_context(&self, act: &mut dyn FnMut()) {
            act();
        }
        fn wake_at(&self, _at: Nanos) {}
        fn foreign_tasks(&self) -> usize {
            self.asked.fetch_add(1, Relaxed);
            self.foreign.load(Relaxed)
        }
        fn used(&self) -> Used {
            self.used.fetch_add(1, Relaxed);
            drop(self.gate.lock().expect("no test panics with it"));
            Used::default()
        }
        fn close(&self) {}
    }

    /// Creates workers that no thread runs, `per_llc` of them on each last-level cache.
    pub(crate) fn workers(workers: usize, per_llc: usize) -> (Vec<Arc<Mock>>, Shared) {
        let llcs = workers / per_llc;
        let text =
            format!("[drawn]\nsockets = 1\nl3_per_socket = {llcs}\ncores_per_l3 = {per_llc}\nsmt = 1\n");
        let topology = Topology::from_machine(&text, "drawn").expect("a machine");
        let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let machine = SchedDomains::new(&topology, &cpus);
        let mocks: Vec<Arc<Mock>> = (0..workers).map(|_| Arc::default()).collect();
        let virtual_times = Arc::default();
        let remotes = mocks.iter().map(|mock| remote(Box::new(mock.clone()), &virtual_times)).collect();
        let pin_to = vec![CpuSet::default(); workers];
        let shared =
            shared("mock".into(), remotes, machine, PolicyKind::Home, Duration::from_millis(1), pin_to);
        (mocks, shared)
    }
}
