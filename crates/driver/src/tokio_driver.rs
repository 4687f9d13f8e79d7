//! TokioDriver: a current-thread runtime of tokio's that serves the sockets and timers of one worker.
//!
//! The worker's thread enters the context of that tokio runtime once, by `Handle::block_on`, which serves nothing. Tokio
//! serves its sockets and timers only inside `Runtime::block_on`, so the worker parks there. `unpark` wakes the future
//! that `block_on` polls, which writes to tokio's event descriptor. Tokio's timers have a resolution of a millisecond, so a
//! timer descriptor ends a wait at the time that the worker sets.
//!
//! Tasks of `tokio::spawn` run inside the driver, between its waits. `run_seq` is incremented when a thread enters the
//! driver, waits there, stops waiting and leaves: an odd number that stays the same is a long run, which the watchdog
//! sees. A panic that unwinds through the driver ends the process, since tokio then drops its sockets and timers. Any
//! thread may call `unpark` and `wake_at`, and `poll_events` on the driver of a stuck worker.
//!
//! # Cost
//! Polling events without waiting: 450 ns. Parking and being unparked: 5 to 15 µs, mostly in the kernel. CPU time is
//! read from the thread's clock when `used` is called; the part outside of the driver is counted only while `count_own`
//! has switched it on.

use crate::driver::{Driver, Entered, Used};
use crate::op_budget::unconstrained;
use crate::unlisted::unlisted;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use warmcore_line::{Line, Padded};
use warmcore_sys::affinity;
use warmcore_sys::clock::{self, ThreadCpu};
use warmcore_sys::timer::Timer;
use warmcore_types::{Nanos, ignore_poison};

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

/// Settings of a [`TokioDriver`].
#[derive(Clone)]
pub struct TokioDriverConfig {
    /// The runtime's name, for messages.
    pub name: String,
    /// The largest number of threads of `spawn_blocking`; at least 1.
    pub max_blocking_threads: usize,
    /// Returns the name of a new thread of `spawn_blocking`.
    pub thread_name: Arc<dyn Fn() -> String + Send + Sync>,
    /// Stack size of these threads in bytes. `None`: the standard library's.
    pub thread_stack_size: Option<usize>,
    /// How long such a thread waits for the next closure before it ends. `None`: tokio's ten seconds.
    pub thread_keep_alive: Option<Duration>,
    /// Whether tokio's timers work in the driver's context. They panic if not.
    pub enable_time: bool,
    /// Whether [`Driver::close`] waits for blocking operations that are under way: closures of `spawn_blocking`, and
    /// operations of `tokio::fs`. If not, they go on in the background.
    pub close_waits: bool,
    /// Called on the thread in the driver each time that it stops waiting and is about to run sockets, timers and tasks
    /// of `tokio::spawn`, with the value of [`Driver::run_seq`] before. It must not panic.
    pub on_run: fn(u64),
    /// What [`Driver::now`] returns.
    pub clock: fn() -> Nanos,
}

impl TokioDriverConfig {
    /// The settings of a driver with timers and up to 512 blocking threads, whose names are `NAME-blocking`, on the
    /// system's clock.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let thread_name = format!("{name}-blocking");
        Self {
            name,
            max_blocking_threads: 512,
            thread_name: Arc::new(move || thread_name.clone()),
            thread_stack_size: None,
            thread_keep_alive: None,
            enable_time: true,
            close_waits: false,
            on_run: |_| {},
            clock: clock::now,
        }
    }
}

impl fmt::Debug for TokioDriverConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioDriverConfig")
            .field("name", &self.name)
            .field("max_blocking_threads", &self.max_blocking_threads)
            .field("enable_time", &self.enable_time)
            .finish_non_exhaustive()
    }
}

/// A driver over a current-thread runtime of tokio's.
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub struct TokioDriver {
    /// The runtime's name, for messages.
    #[line(read_mostly)]
    name: String,
    #[line(read_mostly)]
    clock: fn() -> Nanos,
    #[line(read_mostly)]
    close_waits: bool,
    #[line(read_mostly)]
    handle: tokio::runtime::Handle,
    #[line(read_mostly)]
    metrics: tokio::runtime::RuntimeMetrics,
    /// `None`: the driver is closed. Read-locked during each wait.
    #[line(contended = "driving")]
    runtime: Padded<RwLock<Option<Runtime>>>,
    /// Wakes the future in which the worker is parked. Tokio uses the same waker for each `block_on`, unless another
    /// thread is in the driver already.
    #[line(read_mostly)]
    waker: Waker,
    #[line(contended = "driving")]
    timer: Padded<RwLock<Option<AsyncFd<Timer>>>>,
    /// When the timer expires; 0: it is not set. The lock is held while the timer is set, so that this value and the
    /// timer agree.
    #[line(contended = "driving")]
    wake_at_ns: Padded<Mutex<Nanos>>,
    /// The waker of the worker's parked future while another thread is in the driver. Then it differs from `waker`.
    #[line(contended = "beside")]
    beside: Padded<Mutex<Option<Waker>>>,
    /// Whether `beside` is set. Read by each `unpark`; written by a `park` beside another thread, and by the `unpark`
    /// that takes the waker.
    #[line(read_mostly)]
    is_beside: AtomicBool,
    #[line(read_mostly)]
    run_seq: Arc<Padded<AtomicU64>>,
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

/// Ends the process if a panic unwinds out of tokio's runtime.
///
/// A task's panic is caught before. A panic that gets here came from a waker of the program that a socket or a timer
/// called. Tokio has dropped its epoll instance and its timers by then, so every task that waits for one would wait for
/// ever.
struct Whole<'a>(&'a str);

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        eprintln!(
            "a driver of {} is lost: a waker that a socket or a timer called panicked; its tasks would wait for ever, \
             so the process ends. A waker must not panic",
            self.0
        );
        std::process::abort();
    }
}

impl fmt::Debug for TokioDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioDriver").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for TokioDriver {
    fn drop(&mut self) {
        // If no worker was started, the thread that drops this may be inside another tokio runtime, where dropping a
        // tokio runtime panics.
        self.shut_down(false);
    }
}

/// Lets a thread that tokio starts run on all CPUs that the process's first thread may use, not only on the CPUs of the
/// worker that started it.
fn leave_the_workers_cpu() {
    // If the system refuses, the thread keeps the worker's CPUs.
    let _ = affinity::allowed_to_main().and_then(|cpus| affinity::set_allowed(&cpus));
}

impl TokioDriver {
    /// Makes a driver. Fails if the system refuses a descriptor or a thread; panics if `max_blocking_threads` is 0.
    ///
    /// **Cost**: four descriptors, and a thread that ends before this returns.
    pub fn new(config: TokioDriverConfig) -> io::Result<Self> {
        let run_seq = Arc::new(Padded::new(AtomicU64::new(0)));
        let (waits, runs) = (run_seq.clone(), run_seq.clone());
        let (on_run, thread_name) = (config.on_run, config.thread_name);
        let mut builder = Builder::new_current_thread();
        builder
            .enable_io()
            .thread_name_fn(move || thread_name())
            .max_blocking_threads(config.max_blocking_threads)
            .on_thread_start(leave_the_workers_cpu)
            .on_thread_park(move || _ = waits.fetch_add(1, Relaxed))
            .on_thread_unpark(move || on_run(runs.fetch_add(1, Relaxed)));
        if config.enable_time {
            builder.enable_time();
        }
        config.thread_stack_size.into_iter().for_each(|bytes| _ = builder.thread_stack_size(bytes));
        config.thread_keep_alive.into_iter().for_each(|time| _ = builder.thread_keep_alive(time));
        let runtime = builder.build()?;
        // No other thread is in the runtime, so this is the waker that `block_on` uses. A new thread reads it, since
        // the caller may be inside another tokio runtime, where `block_on` panics.
        let ask = || runtime.block_on(unlisted(poll_fn(|cx| Poll::Ready(cx.waker().clone()))));
        let waker = std::thread::scope(|scope| {
            let asks = std::thread::Builder::new().spawn_scoped(scope, ask)?;
            asks.join().map_err(|_| io::Error::other("tokio's runtime panicked"))
        })?;
        let handle = runtime.handle().clone();
        // The timer owns its descriptor and gives it to no other owner, as `AsyncFd::register` demands. Not all versions
        // that the driver is built with have that function: 1.52.4 and 1.51.3 don't.
        #[allow(deprecated, reason = "the function that replaces it is missing in older versions")]
        let timer = {
            let _context = handle.enter();
            AsyncFd::new(Timer::new()?)?
        };
        Ok(Self {
            name: config.name,
            clock: config.clock,
            close_waits: config.close_waits,
            metrics: handle.metrics(),
            handle,
            runtime: Padded::new(RwLock::new(Some(runtime))),
            waker,
            timer: Padded::new(RwLock::new(Some(timer))),
            wake_at_ns: Padded::new(Mutex::new(Nanos(0))),
            beside: Padded::new(Mutex::new(None)),
            is_beside: AtomicBool::new(false),
            run_seq,
            used: Padded::default(),
            is_own_counted: AtomicBool::new(false),
            own_ns: Padded::new(AtomicU64::new(0)),
            left_ns: Padded::new(AtomicU64::new(0)),
        })
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

    /// Makes the timer expire at this time at the latest. If the timer is still set to an earlier time, from a wait
    /// that ended early, it is kept, because setting it costs as much as a wake that comes too early. Returns false if
    /// the time has come already or the timer can't be set.
    fn set_timer(&self, timer: &Timer, at: Nanos) -> bool {
        let mut wake_at_ns = ignore_poison(self.wake_at_ns.lock());
        let now = self.now();
        if *wake_at_ns > now && *wake_at_ns <= at {
            return true;
        }
        let rest = at.0.saturating_sub(now.0);
        // A timer that can't be set counts as expired, so the caller does not wait.
        let is_set = rest > 0 && timer.set(Duration::from_nanos(rest)).is_ok();
        *wake_at_ns = if is_set { at } else { Nanos(0) };
        is_set
    }

    /// Takes the waker of a worker that is parked beside another thread. The lock is free again when the waker is called,
    /// because the worker may take it next.
    fn take_beside(&self) -> Option<Waker> {
        let mut beside = ignore_poison(self.beside.lock());
        self.is_beside.store(false, Relaxed);
        beside.take()
    }

    fn shut_down(&self, waits: bool) {
        ignore_poison(self.timer.write()).take();
        let runtime = ignore_poison(self.runtime.write()).take();
        match runtime {
            // On a thread that polls, tokio refuses to wait outside of `block_in_place`.
            Some(runtime) if waits => tokio::task::block_in_place(|| drop(runtime)),
            Some(runtime) => runtime.shutdown_background(),
            None => {}
        }
    }

    fn drive<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let runtime = ignore_poison(self.runtime.read());
        // `left_ns` was recorded when the thread left the driver. The time since is counted even if counting was
        // switched off meanwhile.
        if self.left_ns.load(Relaxed) > 0
            && let Some(now) = self.own_clock()
        {
            self.count_own_to(now);
        }
        self.run_seq.fetch_add(1, Relaxed);
        let whole = Whole(&self.name);
        let output = runtime.as_ref().map(|runtime| leave_block_on(|| runtime.block_on(unlisted(future))));
        std::mem::forget(whole);
        self.run_seq.fetch_add(1, Relaxed);
        if self.is_own_counted.load(Relaxed)
            && let Some(now) = self.own_clock()
        {
            self.left_ns.store(now, Relaxed);
        }
        output
    }
}

impl Driver for TokioDriver {
    fn now(&self) -> Nanos {
        (self.clock)()
    }

    fn thread_cpu(&self) -> Option<(Nanos, u64)> {
        Some((ThreadCpu::current().read(), clock::involuntary_switches()))
    }

    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
        let timer = ignore_poison(self.timer.read());
        if let Some((timer, until)) = timer.as_ref().zip(until)
            && !self.set_timer(timer.get_ref(), until)
        {
            return self.poll_events();
        }
        self.drive(poll_fn(|cx| {
            // `will_wake` would also compare the vtables. One vtable may have several addresses, so it may deny the same waker.
            if cx.waker().data() != self.waker.data() {
                *ignore_poison(self.beside.lock()) = Some(cx.waker().clone());
                self.is_beside.store(true, Relaxed);
                // ORDERING: SeqCst; `beside` is written before `is_awake` is read. A thread that unparks this one writes the worker's
                // state first and reads `beside` second: `unpark`.
                fence(SeqCst);
            }
            if is_awake() {
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
                    // The kernel reports that the timer expired. The clock here may differ a little from the kernel's
                    // and be still before that time.
                    *ignore_poison(self.wake_at_ns.lock()) = Nanos(0);
                    Poll::Ready(())
                }
            }
        }));
    }

    fn poll_events(&self) {
        let mut asked = false;
        self.drive(poll_fn(|cx| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    fn unpark(&self) {
        self.waker.wake_by_ref();
        // ORDERING: SeqCst; see `park`.
        fence(SeqCst);
        if self.is_beside.load(Relaxed)
            && let Some(waker) = self.take_beside()
        {
            waker.wake();
        }
    }

    fn wake_at(&self, at: Nanos) {
        let timer = ignore_poison(self.timer.read());
        if let Some(timer) = timer.as_ref()
            && !self.set_timer(timer.get_ref(), at)
        {
            self.unpark();
        }
    }

    fn run_seq(&self) -> u64 {
        self.run_seq.load(Relaxed)
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
        self.handle.enter().into()
    }

    /// Tokio knows then that the thread polls: `block_on`, `blocking_recv` and dropping a runtime of tokio's panic. The polls
    /// of a thread that is no worker each have a budget of operations.
    fn block_on(&self, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        self.handle.block_on(unlisted(poll_fn(poll)));
    }

    fn foreign_tasks(&self) -> usize {
        self.metrics.num_alive_tasks()
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
        self.shut_down(self.close_waits);
    }
}

#[cfg(test)]
mod tests;
