//! Driver: what a worker needs of its environment: a clock, a place to park that also serves sockets and timers, and
//! a way for other threads to end the park.
//!
//! `TokioDriver` implements it with tokio. The models and the tests of `warmcore-runtime` implement it without sockets.
//! A poll calls `now` if it is measured, or if the runtime knows several tenants and another one's turn comes; in the second case
//! `thread_usage` is called if the tenant before had 200 µs or more. It is also called after a poll that seems to be long,
//! and about once in 400 µs while polls are short or there are several tenants. A poll without a reading of the clock calls none of these methods.

use crate::park;
use std::fmt;
use std::marker::PhantomData;
use std::task::{Context, Poll};
use warmcore_types::{Nanos, ThreadUsage};

/// The CPU time of a worker.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// CPU time of all the worker's threads together.
    pub all: Nanos,
    /// The part outside of the driver, which runs sockets, timers and tasks of `tokio::spawn`. Counted only while
    /// [`Driver::count_own`] is on.
    pub own: Nanos,
}

/// The driver's context on the current thread, until it is dropped: [`Driver::enter`].
///
/// Two of one thread must be dropped in the reverse order of their creation; tokio panics otherwise.
#[must_use = "the thread leaves the driver's context when this is dropped"]
pub struct Entered<'a> {
    #[cfg(feature = "tokio")]
    tokio: Option<tokio::runtime::EnterGuard<'a>>,
    /// Not `Send`: the context belongs to the thread that entered it.
    of: PhantomData<(&'a (), std::sync::MutexGuard<'static, ()>)>,
}

impl Entered<'_> {
    /// What a driver without a context returns.
    pub const fn none() -> Self {
        Self {
            #[cfg(feature = "tokio")]
            tokio: None,
            of: PhantomData,
        }
    }
}

#[cfg(feature = "tokio")]
impl<'a> From<tokio::runtime::EnterGuard<'a>> for Entered<'a> {
    fn from(guard: tokio::runtime::EnterGuard<'a>) -> Self {
        Self { tokio: Some(guard), of: PhantomData }
    }
}

impl fmt::Debug for Entered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Entered");
        #[cfg(feature = "tokio")]
        debug.field("is_in_tokio", &self.tokio.is_some());
        debug.finish_non_exhaustive()
    }
}

/// What a worker needs of its environment. Each worker has a driver of its own.
///
/// A driver that polls nothing parks a thread, and takes an unpark that comes before the park as well:
///
/// ```
/// use std::sync::{Condvar, Mutex};
/// use std::time::{Duration, Instant};
/// use warmcore_driver::{Driver, Entered};
/// use warmcore_types::{Nanos, ThreadUsage};
///
/// struct Parker {
///     began: Instant,
///     is_unparked: Mutex<bool>,
///     condvar: Condvar,
/// }
///
/// impl Driver for Parker {
///     fn now(&self) -> Nanos {
///         Nanos(self.began.elapsed().as_nanos() as u64)
///     }
///     fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
///         let mut is_unparked = self.is_unparked.lock().unwrap();
///         while !*is_unparked && !is_awake() {
///             let rest = until.map_or(1_000_000_000, |until| until.0.saturating_sub(self.now().0));
///             if rest == 0 {
///                 break;
///             }
///             is_unparked = self.condvar.wait_timeout(is_unparked, Duration::from_nanos(rest)).unwrap().0;
///         }
///         *is_unparked = false;
///     }
///     fn poll_events(&self) {}
///     fn unpark(&self) {
///         *self.is_unparked.lock().unwrap() = true;
///         self.condvar.notify_one();
///     }
///     fn wake_at(&self, _at: Nanos) {
///         self.unpark(); // too early, which the worker expects
///     }
///     fn enter(&self) -> Entered<'_> {
///         Entered::none()
///     }
///     fn close(&self) {}
/// }
///
/// let parker = Parker { began: Instant::now(), is_unparked: Mutex::default(), condvar: Condvar::new() };
/// parker.unpark();
/// parker.park(None, &|| false);
/// ```
pub trait Driver: Send + Sync {
    /// The current time, which never goes back. The times of the other methods are on this clock.
    fn now(&self) -> Nanos;

    /// What the kernel has counted of the calling thread. `None`: not known.
    fn thread_usage(&self) -> Option<ThreadUsage> {
        None
    }

    /// Parks the worker's thread until `is_awake` returns true, or until the given time, and serves sockets and timers
    /// meanwhile. Calls `is_awake` before it waits, and after each [`unpark`](Self::unpark). May return early. Only the
    /// worker's own thread calls it.
    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool);

    /// Of drivers that share their sockets: the worker's next park serves them, if no other worker's does at that time. Only
    /// the worker's own thread calls it.
    fn attend(&self) {}

    /// Serves sockets and timers without waiting. Any thread may call it. If another thread is in the driver it returns
    /// at once, and serves nothing.
    fn poll_events(&self);

    /// Makes a thread that is in `park`, or about to enter it, call `is_awake` once more. That call must see what the
    /// unparking thread wrote before. Any thread may call it.
    fn unpark(&self);

    /// The current thread becomes the worker's thread, in place of the previous one.
    fn begin(&self) {}

    /// The current thread is no longer the worker's thread, unless another thread has replaced it already.
    fn end(&self) {}

    /// Enters the driver's context on the current thread, until the returned value is dropped: sockets and timers that
    /// are made meanwhile belong to this driver. Workers, and threads that entered the runtime, are in that context.
    fn enter(&self) -> Entered<'_>;

    /// Calls `poll` on the current thread, inside the driver's context, until it returns ready, and parks the thread until
    /// the waker is called in between. Workers poll their tasks inside one call of `poll`; other threads poll the future
    /// that they block on. A driver may refuse, by a panic, a call inside another one, since the inner one would block the
    /// outer one's tasks; [`leave_block_on`](crate::leave_block_on) allows it.
    fn block_on(&self, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        let _entered = self.enter();
        park::block_on(poll);
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

    /// Closes the driver: later calls return at once. The worker's thread calls it last, and it may wait for operations
    /// that the driver has under way.
    fn close(&self);
}
