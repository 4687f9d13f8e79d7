//! TokioDriver: the driver of one worker, over a current-thread runtime of tokio's that workers may share.
//!
//! The [`TokioReactor`] has the sockets and timers of one or several workers. A worker's thread enters its context once, by
//! `Handle::block_on`, which serves nothing. Tokio serves its sockets and timers only inside `Runtime::block_on`, and one
//! thread at a time can be there. So one of the workers parks in the reactor, and the others park their threads beside it
//! (`attendance.rs`); a busy worker serves the reactor now and then (`poll_events`), if no other thread is inside.
//!
//! `unpark` wakes the future that `block_on` polls, which writes to tokio's event descriptor, or the thread, if it is parked
//! beside. Tokio's timers have a resolution of a millisecond, so a timer descriptor ends a wait inside at the time that the
//! worker sets.
//!
//! Tasks of `tokio::spawn` run inside the reactor, between its waits. `run_seq` is incremented when a thread enters the
//! reactor, waits there, stops waiting and leaves: an odd number that stays the same is a long run, which the watchdog
//! sees. A panic that unwinds through the reactor ends the process, since tokio then drops its sockets and timers. Any
//! thread may call `unpark` and `wake_at`, and `poll_events` on the driver of a stuck worker.
//!
//! # Cost
//! Polling events without waiting: 450 ns in a loop, 2 µs and more between polls of tasks. Parking and being unparked: 5 to
//! 15 µs, mostly in the kernel. CPU time is read from the thread's clock when `used` is called; the part outside of the driver is
//! counted only while `count_own` has switched it on.

use crate::driver::{Driver, Entered, Used};
use crate::op_budget::unconstrained;
use crate::unlisted::unlisted;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::Thread;
use std::time::Duration;
use warmcore_line::{Line, Padded};
use warmcore_sys::clock::{self, ThreadCpu};
use warmcore_types::{Nanos, ThreadUsage, ignore_poison};

mod config;
mod reactor;

pub use config::TokioDriverConfig;
pub use reactor::TokioReactor;

/// Whether the current thread is inside a runtime of tokio's.
pub fn is_inside_tokio() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

/// Calls `act` as outside of the [`Driver::block_on`] that the thread is in, and without its budget of operations: `act`
/// may block on a runtime of tokio's, and drop one. Costs a few thread-local accesses. Panics as tokio's `block_in_place`
/// does where blocking is not allowed: in a `LocalSet`, and inside a current-thread runtime of tokio's.
pub fn leave_block_on<R>(act: impl FnOnce() -> R) -> R {
    // Tokio's function does not restore the budget on this thread, so the outer one does.
    unconstrained(|| tokio::task::block_in_place(act))
}

/// Returns after `time`, to within tokio's resolution of a millisecond. Panics outside of a driver's context with
/// timers.
pub async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A driver over a current-thread runtime of tokio's.
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub struct TokioDriver {
    #[line(read_mostly)]
    reactor: Arc<TokioReactor>,
    /// The driver's number among those of the reactor.
    #[line(read_mostly)]
    me: u32,
    /// The thread that parks beside the reactor, or did so last.
    #[line(contended = "beside")]
    beside: Padded<Mutex<Option<Thread>>>,
    /// Until when the thread sleeps beside; 0: it does not. Written by it.
    #[line(contended = "beside")]
    beside_until_ns: Padded<AtomicU64>,
    /// Whether the worker's next park ends at once, since `wake_at` was called. Written by any thread.
    #[line(contended = "beside")]
    is_early: Padded<AtomicBool>,
    /// Whether the next park is inside: no thread served the reactor while this worker slept, or `attend` was called. Written by
    /// its thread.
    #[line(contended = "driving")]
    must_attend: Padded<AtomicBool>,
    /// Written by the worker's last thread.
    #[line(read_mostly)]
    is_closed: AtomicBool,
    #[line(contended = "driving")]
    used: Padded<Mutex<Threads>>,
    /// Whether `own_ns` is counted. Written by any thread.
    #[line(read_mostly)]
    is_own_counted: AtomicBool,
    /// CPU time outside of the driver until the driver was last entered, as far as it was counted. Written by the
    /// worker's thread.
    #[line(contended = "driving")]
    own_ns: Padded<AtomicU64>,
    /// CPU time of the worker's thread when it last left the driver. 0: the thread is inside the driver, or its leaving
    /// was not recorded. Written by the worker's thread.
    #[line(contended = "driving")]
    left_ns: Padded<AtomicU64>,
}

/// CPU time of the threads that ran the worker, one after the other.
#[derive(Default)]
struct Threads {
    before: u64,
    /// The worker's current thread, and that thread's CPU time when it became the worker's.
    now: Option<(ThreadCpu, u64)>,
}

impl Threads {
    /// The current thread and its CPU time. That thread can't end meanwhile: before it ends it calls `end`, which locks
    /// `used`, as the caller of this function has.
    fn read(&self) -> Option<(ThreadCpu, u64)> {
        self.now.map(|(clock, _)| (clock, clock.read().0))
    }

    fn all(&self, now: Option<u64>) -> u64 {
        self.before + self.now.zip(now).map_or(0, |((_, since), now)| now.saturating_sub(since))
    }
}

impl fmt::Debug for TokioDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioDriver")
            .field("reactor", &self.reactor)
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl TokioDriver {
    /// Makes a driver with a reactor of its own: [`TokioReactor::new`].
    pub fn new(config: TokioDriverConfig) -> io::Result<Self> {
        Ok(Self::on(&Arc::new(TokioReactor::new(config)?)))
    }

    /// Makes one more driver over a reactor. The reactor closes when all its drivers are closed.
    pub fn on(reactor: &Arc<TokioReactor>) -> Self {
        Self {
            reactor: reactor.clone(),
            me: reactor.add_driver(),
            beside: Padded::default(),
            beside_until_ns: Padded::default(),
            is_early: Padded::default(),
            must_attend: Padded::default(),
            is_closed: AtomicBool::new(false),
            used: Padded::default(),
            is_own_counted: AtomicBool::new(false),
            own_ns: Padded::new(AtomicU64::new(0)),
            left_ns: Padded::new(AtomicU64::new(0)),
        }
    }

    fn change_thread(&self, used: &mut Threads, to: Option<ThreadCpu>) {
        if let Some((_, now)) = used.read() {
            used.before = used.all(Some(now));
            self.count_own_to(now);
        }
        used.now = to.map(|clock| (clock, clock.read().0));
    }

    /// Adds the CPU time since the thread left the driver.
    fn count_own_to(&self, now: u64) {
        match self.left_ns.swap(0, Relaxed) {
            0 => {}
            left => _ = self.own_ns.fetch_add(now.saturating_sub(left), Relaxed),
        }
    }

    /// The CPU time of the current thread. `None`: it is not the worker's thread, and only serves the driver.
    fn own_clock(&self) -> Option<u64> {
        let used = ignore_poison(self.used.lock());
        used.read().filter(|(clock, _)| *clock == ThreadCpu::current()).map(|(_, now)| now)
    }

    /// The thread enters the driver.
    fn begin_inside(&self) {
        // `left_ns` was recorded when the thread left the driver. The time since is counted even if counting was
        // switched off meanwhile.
        if self.left_ns.load(Relaxed) > 0
            && let Some(now) = self.own_clock()
        {
            self.count_own_to(now);
        }
    }

    /// The thread leaves the driver.
    fn end_inside(&self) {
        if self.is_own_counted.load(Relaxed)
            && let Some(now) = self.own_clock()
        {
            self.left_ns.store(now, Relaxed);
        }
    }

    /// Serves what is due, on the thread that is inside the reactor.
    fn serve(&self) {
        let mut asked = false;
        self.reactor.run(poll_fn(|cx| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    /// Parks the thread, which is inside the reactor.
    fn park_inside(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
        let reactor = &*self.reactor;
        let timer = ignore_poison(reactor.timer.read());
        if let Some((timer, until)) = timer.as_ref().zip(until)
            && !reactor.set_timer(timer.get_ref(), until)
        {
            return self.serve();
        }
        self.reactor.run(poll_fn(|cx| {
            if is_awake() || self.is_early.load(Relaxed) {
                return Poll::Ready(());
            }
            // The timer is polled even if this park has no end time, because another thread may set the timer
            // meanwhile.
            match timer.as_ref().map(|timer| timer.poll_read_ready(cx)) {
                None | Some(Poll::Pending) => Poll::Pending,
                Some(Poll::Ready(rang)) => {
                    if let Ok(mut rang) = rang {
                        rang.clear_ready();
                    }
                    reactor.expired();
                    Poll::Ready(())
                }
            }
        }));
    }

    /// Parks the thread outside of the reactor, because another worker attends that.
    fn park_beside(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
        let here = std::thread::current();
        {
            let mut beside = ignore_poison(self.beside.lock());
            if beside.as_ref().is_none_or(|thread| thread.id() != here.id()) {
                *beside = Some(here);
            }
        }
        let ends = until.map_or(u64::MAX, |until| until.0);
        self.beside_until_ns.store(ends, Relaxed);
        // ORDERING: SeqCst; `beside` and its time are written before, whether the worker was unparked is read after. A thread that
        // unparks it does both the other way round, with the fence of `is_inside`. An unpark that comes after the look ends
        // `park`, since a thread keeps one that comes before it parks.
        fence(SeqCst);
        if !is_awake() && !self.is_early.load(Relaxed) {
            match until.map(|until| until.0.saturating_sub(self.now().0)) {
                None => std::thread::park(),
                Some(0) => {}
                Some(rest) => std::thread::park_timeout(Duration::from_nanos(rest)),
            }
        }
        self.beside_until_ns.store(0, Relaxed);
    }

    fn unpark_beside(&self) {
        if let Some(thread) = &*ignore_poison(self.beside.lock()) {
            thread.unpark();
        }
    }
}

impl Driver for TokioDriver {
    fn now(&self) -> Nanos {
        (self.reactor.clock)()
    }

    fn thread_usage(&self) -> Option<ThreadUsage> {
        Some(clock::thread_usage())
    }

    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
        self.begin_inside();
        let must_attend = self.must_attend.swap(false, Relaxed);
        if self.reactor.attendance.enter(self.me, must_attend, std::thread::current) {
            self.park_inside(until, is_awake);
            self.reactor.attendance.leave();
        } else {
            let before = self.reactor.run_seq.load(Relaxed);
            self.park_beside(until, is_awake);
            // The attendant neither slept inside nor looked there for as long as this worker slept: its poll is long.
            let is_over = until.is_some_and(|until| until <= self.now());
            self.must_attend.store(is_over && before == self.reactor.run_seq.load(Relaxed), Relaxed);
        }
        self.end_inside();
        // The worker looks at all its times before the next park.
        if self.is_early.load(Relaxed) {
            // ORDERING: Acquire; pairs with the Release in `wake_at`: the worker sees the time that the caller has set.
            self.is_early.swap(false, Acquire);
        }
    }

    fn attend(&self) {
        self.must_attend.store(true, Relaxed);
    }

    fn poll_events(&self) {
        if self.reactor.attendance.visit(self.me) {
            self.begin_inside();
            self.serve();
            self.end_inside();
            self.reactor.attendance.leave_visit(|attendant| attendant.unpark());
        }
    }

    fn unpark(&self) {
        if self.reactor.attendance.is_inside(self.me) {
            self.reactor.waker.wake_by_ref();
        } else {
            self.unpark_beside();
        }
    }

    fn wake_at(&self, at: Nanos) {
        // ORDERING: Release; pairs with the Acquire in `park`.
        self.is_early.store(true, Release);
        if !self.reactor.attendance.is_inside(self.me) {
            // A worker that sleeps beside for no longer than that is left alone. The fence of `is_inside` is between `is_early`
            // and this, and that of `park_beside` between this and `is_early`.
            let ends = self.beside_until_ns.load(Relaxed);
            if ends == 0 || ends > at.0 {
                self.unpark_beside();
            }
            return;
        }
        let timer = ignore_poison(self.reactor.timer.read());
        if let Some(timer) = timer.as_ref()
            && !self.reactor.set_timer(timer.get_ref(), at)
        {
            self.reactor.waker.wake_by_ref();
        }
    }

    /// The reactor's number while a thread is inside through this driver, else an even one.
    fn run_seq(&self) -> u64 {
        let run_seq = self.reactor.run_seq.load(Relaxed);
        if self.reactor.attendance.is_entered(self.me) { run_seq } else { run_seq & !1 }
    }

    fn begin(&self) {
        let mut used = ignore_poison(self.used.lock());
        self.change_thread(&mut used, Some(ThreadCpu::current()));
    }

    fn end(&self) {
        let mut used = ignore_poison(self.used.lock());
        if used.now.is_some_and(|(clock, _)| clock == ThreadCpu::current()) {
            self.change_thread(&mut used, None);
        }
    }

    fn enter(&self) -> Entered<'_> {
        self.reactor.handle.enter().into()
    }

    /// Tokio knows then that the thread polls: `block_on`, `blocking_recv` and dropping a runtime of tokio's panic. The polls
    /// of a thread that is no worker each have a budget of operations.
    fn block_on(&self, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        self.reactor.handle.block_on(unlisted(poll_fn(poll)));
    }

    fn foreign_tasks(&self) -> usize {
        // They run on the attendant's thread.
        match self.reactor.attendance.is_attendant(self.me) {
            true => self.reactor.metrics.num_alive_tasks(),
            false => 0,
        }
    }

    fn used(&self) -> Used {
        let used = ignore_poison(self.used.lock());
        loop {
            let own = self.own_ns.load(Relaxed);
            let now = used.read().map(|(_, now)| now);
            let left = self.left_ns.load(Relaxed);
            // If `own_ns` changed, the worker entered the driver in between and added the time since `left_ns` itself.
            if own == self.own_ns.load(Relaxed) {
                let since = now.filter(|_| left > 0).map_or(0, |now| now.saturating_sub(left));
                return Used { all: Nanos(used.all(now)), own: Nanos(own + since) };
            }
        }
    }

    fn count_own(&self, is_wanted: bool) {
        self.is_own_counted.store(is_wanted, Relaxed);
    }

    fn close(&self) {
        if !self.is_closed.swap(true, Relaxed) {
            self.reactor.close_driver(self.me);
        }
    }
}

#[cfg(test)]
mod tests;
