//! Reactor: the sockets and timers of one or several workers: a current-thread runtime of tokio's.
//!
//! A thread that is inside (`attendance.rs`) may call `run`, which tokio's `block_on` is.

use super::config::TokioDriverConfig;
use crate::attendance::Attendance;
use crate::unlisted::unlisted;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Poll, Waker};
use std::thread::Thread;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeMetrics};
use warmcore_line::{Line, Padded};
use warmcore_sys::affinity;
use warmcore_sys::timer::Timer;
use warmcore_types::{Nanos, ignore_poison};

/// A current-thread runtime of tokio's, for the drivers of one or several workers.
#[derive(Line)]
#[line(pair, default = read_mostly)]
#[repr(align(128))]
pub struct TokioReactor {
    /// The runtime's name, for messages.
    name: String,
    pub(super) clock: fn() -> Nanos,
    close_waits: bool,
    pub(super) handle: Handle,
    pub(super) metrics: RuntimeMetrics,
    /// `None`: the reactor is closed. Read-locked while a thread is inside.
    #[line(contended = "inside")]
    runtime: Padded<RwLock<Option<Runtime>>>,
    /// Wakes the future in which a thread inside is parked. Tokio uses the same waker for each `block_on`, since no two
    /// threads are inside.
    pub(super) waker: Waker,
    #[line(contended = "inside")]
    pub(super) timer: Padded<RwLock<Option<AsyncFd<Timer>>>>,
    /// When the timer expires; 0: it is not set. The lock is held while the timer is set, so that this value and the
    /// timer agree.
    #[line(contended = "inside")]
    wake_at_ns: Padded<Mutex<Nanos>>,
    pub(super) run_seq: Arc<Padded<AtomicU64>>,
    /// Written by threads that enter and leave.
    #[line(contended = "inside")]
    pub(super) attendance: Padded<Attendance<Thread>>,
    /// Drivers that were made, and drivers that are not closed.
    #[line(contended = "inside")]
    made: Padded<AtomicU32>,
    #[line(contended = "inside")]
    open: Padded<AtomicU32>,
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

/// Lets a thread that tokio starts run on all CPUs that the process's first thread may use, not only on the CPUs of the
/// worker that started it.
fn leave_the_workers_cpu() {
    // If the system refuses, the thread keeps the worker's CPUs.
    let _ = affinity::allowed_to_main().and_then(|cpus| affinity::set_allowed(&cpus));
}

impl TokioReactor {
    /// Makes a reactor. Fails if the system refuses a descriptor or a thread; panics if `max_blocking_threads` is 0.
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
            .on_thread_unpark(move || {
                runs.fetch_add(1, Relaxed);
                on_run();
            });
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
            run_seq,
            attendance: Padded::new(Attendance::default()),
            made: Padded::default(),
            open: Padded::default(),
        })
    }

    /// Counts one more driver. Returns its number.
    pub(super) fn add_driver(&self) -> u32 {
        self.open.fetch_add(1, Relaxed);
        self.made.fetch_add(1, Relaxed) + 1
    }

    /// Runs a future, and all that is due, on the thread that is inside. `None`: the reactor is closed.
    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let runtime = ignore_poison(self.runtime.read());
        self.run_seq.fetch_add(1, Relaxed);
        let whole = Whole(&self.name);
        let output =
            runtime.as_ref().map(|runtime| super::leave_block_on(|| runtime.block_on(unlisted(future))));
        std::mem::forget(whole);
        self.run_seq.fetch_add(1, Relaxed);
        output
    }

    /// Makes the timer expire at this time at the latest. If the timer is still set to an earlier time, from a wait
    /// that ended early, it is kept, because setting it costs as much as a wake that comes too early. Returns false if
    /// the time has come already or the timer can't be set.
    pub(super) fn set_timer(&self, timer: &Timer, at: Nanos) -> bool {
        let mut wake_at_ns = ignore_poison(self.wake_at_ns.lock());
        let now = (self.clock)();
        if *wake_at_ns > now && *wake_at_ns <= at {
            return true;
        }
        let rest = at.0.saturating_sub(now.0);
        // A timer that can't be set counts as expired, so the caller does not wait.
        let is_set = rest > 0 && timer.set(Duration::from_nanos(rest)).is_ok();
        *wake_at_ns = if is_set { at } else { Nanos(0) };
        is_set
    }

    /// The timer expired.
    pub(super) fn expired(&self) {
        // The clock here may differ a little from the kernel's and be still before that time.
        *ignore_poison(self.wake_at_ns.lock()) = Nanos(0);
    }

    /// Closes one driver; with the last one the reactor closes.
    pub(super) fn close_driver(&self, me: u32) {
        self.attendance.close(me);
        // ORDERING: AcqRel; the last driver sees what the others did before.
        if self.open.fetch_sub(1, AcqRel) == 1 {
            self.shut_down(self.close_waits);
        }
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
}

impl fmt::Debug for TokioReactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioReactor").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for TokioReactor {
    fn drop(&mut self) {
        // If no worker was started, the thread that drops this may be inside another tokio runtime, where dropping a
        // tokio runtime panics.
        self.shut_down(false);
    }
}
