//! Host: what a worker needs of the world. Real threads with tokio's driver here, a model's there.
//!
//! Model.   The time, a place to sleep in that also serves sockets and timers, and a kick that ends the sleep.
//! Number.  None of it is called per poll.

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
pub(crate) mod mock;

use warmcore_types::Nanos;

/// The CPU time of a worker.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Used {
    /// In all.
    pub(crate) all: Nanos,
    /// Outside of its driver, which runs sockets, timers and tasks that were spawned on it; while it is counted.
    pub(crate) own: Nanos,
}

/// What a worker needs of the world.
pub(crate) trait Driver: Send + Sync {
    /// The time.
    fn now(&self) -> Nanos;

    /// What the calling thread has run so far, without what other threads had of its CPU; and how often it was taken off
    /// its CPU though it could have run on. `None`: not known.
    fn thread_cpu(&self) -> Option<(Nanos, u64)> {
        None
    }

    /// Sleeps until `is_awake`, or until the time given; serves what the worker's driver drives meanwhile.
    /// May come back early. Only the worker's own thread sleeps here.
    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool);

    /// Serves the driver without waiting; any thread may. One that finds another there leaves it to that one.
    fn poll_events(&self);

    /// Who is about to sleep in `park`, or does, looks at `is_awake` once more. From any thread.
    fn unpark(&self);

    /// The current thread is the worker from here on, in the place of the one before.
    fn begin(&self) {}

    /// The current thread is the worker no more, if no other one has taken its place.
    fn end(&self) {}

    /// What runs around everything a worker does, and around what other threads do as inside the runtime: the driver's
    /// context is entered meanwhile.
    fn with_context(&self, act: &mut dyn FnMut());

    /// The tokio runtime whose context [`within`](Self::within) enters, for a guard. `None`: it enters none.
    fn tokio(&self) -> Option<&tokio::runtime::Handle> {
        None
    }

    /// Who sleeps in `park` comes back at this time at the latest. From any thread.
    fn wake_at(&self, at: Nanos);

    /// How often the driver began or ended to run what is its own; odd: it does. What waits there waits for that.
    fn run_seq(&self) -> u64 {
        0
    }

    /// Tasks that somebody spawned on the driver itself, not on this runtime.
    fn foreign_tasks(&self) -> usize {
        0
    }

    /// What the worker's threads used of their CPUs. From any thread.
    fn used(&self) -> Used {
        Used::default()
    }

    /// Whether `Used::own` is to be counted: it costs 0.5 µs each time that the driver is asked. From any thread.
    fn count_own(&self, _is_wanted: bool) {}

    /// No more of the driver: it is closed, and what still blocks in it is left behind.
    fn close(&self);
}
