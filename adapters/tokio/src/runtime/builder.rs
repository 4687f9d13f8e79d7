//! Builder: the settings of a runtime, for tokio's builder and for Warmcore's.
//!
//! Each setting goes to a builder of tokio's at once, which also refuses what is invalid. That builder makes the runtime if
//! it is to be tokio's. Those settings that mean something to Warmcore's scheduler are kept beside it.

#[cfg(tokio_unstable)]
use super::hooks;
use super::scheduler::Attached;
use super::{Handle, LocalOptions, LocalRuntime, Runtime, Scheduler, Warm};
use crate::count;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, fmt, io};
use warmcore_runtime::BuildError;

type Hook = Arc<dyn Fn() + Send + Sync>;

/// Configures and starts a runtime.
///
/// Settings that tune tokio's own scheduler, such as `event_interval`, have no effect on a multi-thread runtime of
/// Warmcore's.
pub struct Builder {
    /// Has all settings, and makes the runtimes that are tokio's.
    tokio: real::runtime::Builder,
    is_multi_thread: bool,
    name: Option<String>,
    worker_threads: Option<usize>,
    max_blocking_threads: usize,
    thread_name: Arc<dyn Fn() -> String + Send + Sync>,
    thread_stack_size: Option<usize>,
    thread_keep_alive: Option<Duration>,
    on_thread_start: Option<Hook>,
    on_thread_stop: Option<Hook>,
    on_thread_park: Option<Hook>,
    on_thread_unpark: Option<Hook>,
    enable_time: bool,
    start_paused: bool,
    #[cfg(tokio_unstable)]
    hooks: hooks::TaskHooks,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tokio.fmt(f)
    }
}

/// Whether the environment had `WARMCORE=0` when the first multi-thread runtime was built.
fn is_off() -> bool {
    static IS_OFF: OnceLock<bool> = OnceLock::new();
    *IS_OFF.get_or_init(|| env::var_os("WARMCORE").is_some_and(|value| value == "0"))
}

/// The number of workers that the environment sets.
#[track_caller]
fn env_worker_threads() -> Option<usize> {
    const NAME: &str = "TOKIO_WORKER_THREADS";
    let value = env::var_os(NAME)?;
    let threads = value.to_str().and_then(|value| value.parse().ok()).filter(|threads| *threads > 0);
    match threads {
        Some(threads) => Some(threads),
        None => panic!("\"{NAME}\" must be a number of at least 1, and is {value:?}"),
    }
}

fn io_error(error: BuildError) -> io::Error {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
    io::Error::new(source.map_or(io::ErrorKind::Other, io::Error::kind), error)
}

/// Settings that only tokio's scheduler has.
macro_rules! tokios {
    ($($(#[$meta:meta])* $name:ident($($argument:ident: $of:ty)?);)*) => {$(
        $(#[$meta])*
        #[allow(deprecated, reason = "it calls tokio's function of the same name")]
        #[track_caller]
        pub fn $name(&mut self $(, $argument: $of)?) -> &mut Self {
            self.tokio.$name($($argument)?);
            self
        }
    )*};
}

/// Settings of functions that the runtime's threads call.
macro_rules! hooks {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        pub fn $name<F>(&mut self, f: F) -> &mut Self
        where
            F: Fn() + Send + Sync + 'static,
        {
            let hook: Hook = Arc::new(f);
            self.$name = Some(hook.clone());
            self.tokio.$name(move || hook());
            self
        }
    )*};
}

/// Settings of functions that are called for a task.
#[cfg(tokio_unstable)]
macro_rules! task_hooks {
    ($($(#[$meta:meta])* $name:ident: $field:ident;)*) => {$(
        $(#[$meta])*
        pub fn $name<F>(&mut self, f: F) -> &mut Self
        where
            F: Fn(&super::TaskMeta<'_>) + Send + Sync + 'static,
        {
            self.hooks.$field = Some(Arc::new(f));
            self
        }
    )*};
}

impl Builder {
    fn of(tokio: real::runtime::Builder, is_multi_thread: bool) -> Self {
        Self {
            tokio,
            is_multi_thread,
            name: None,
            worker_threads: None,
            max_blocking_threads: 512,
            thread_name: Arc::new(|| "tokio-rt-worker".to_owned()),
            thread_stack_size: None,
            thread_keep_alive: None,
            on_thread_start: None,
            on_thread_stop: None,
            on_thread_park: None,
            on_thread_unpark: None,
            enable_time: false,
            start_paused: false,
            #[cfg(tokio_unstable)]
            hooks: hooks::TaskHooks::default(),
        }
    }

    /// A builder of a current-thread runtime, which is tokio's.
    pub fn new_current_thread() -> Self {
        Self::of(real::runtime::Builder::new_current_thread(), false)
    }

    /// A builder of a multi-thread runtime, which is Warmcore's, or tokio's if the environment has `WARMCORE=0`.
    pub fn new_multi_thread() -> Self {
        Self::of(real::runtime::Builder::new_multi_thread(), true)
    }

    /// Enables sockets and timers. Runtimes of Warmcore's always have sockets.
    pub fn enable_all(&mut self) -> &mut Self {
        self.tokio.enable_all();
        self.enable_time = true;
        self
    }

    /// Sets the number of workers. Default: `TOKIO_WORKER_THREADS` of the environment, else one for each CPU that the
    /// process may use, but no more than a cgroup's quota.
    ///
    /// # Panics
    /// If it is 0.
    #[track_caller]
    pub fn worker_threads(&mut self, val: usize) -> &mut Self {
        self.tokio.worker_threads(val);
        self.worker_threads = Some(val);
        self
    }

    /// Sets how many threads `spawn_blocking` may use. Default: 512.
    ///
    /// # Panics
    /// If it is 0.
    #[track_caller]
    pub fn max_blocking_threads(&mut self, val: usize) -> &mut Self {
        self.tokio.max_blocking_threads(val);
        self.max_blocking_threads = val;
        self
    }

    /// Sets the name of the runtime's threads. Default: `tokio-rt-worker`.
    pub fn thread_name(&mut self, val: impl Into<String>) -> &mut Self {
        let name = val.into();
        self.thread_name_fn(move || name.clone())
    }

    /// Sets a function that names each of the runtime's threads.
    pub fn thread_name_fn<F>(&mut self, f: F) -> &mut Self
    where
        F: Fn() -> String + Send + Sync + 'static,
    {
        self.thread_name = Arc::new(f);
        let name = self.thread_name.clone();
        self.tokio.thread_name_fn(move || name());
        self
    }

    /// Sets the name of the runtime, which [`Handle::name`] returns and `warmcore top` shows.
    ///
    /// # Panics
    /// If it is blank.
    #[track_caller]
    pub fn name(&mut self, val: impl Into<String>) -> &mut Self {
        let name = val.into();
        self.tokio.name(name.clone());
        self.name = Some(name);
        self
    }

    /// Sets the size of each thread's stack in bytes.
    pub fn thread_stack_size(&mut self, val: usize) -> &mut Self {
        self.tokio.thread_stack_size(val);
        self.thread_stack_size = Some(val);
        self
    }

    /// Sets how long a thread for `spawn_blocking` waits for its next closure before it ends. Default: 10 s.
    pub fn thread_keep_alive(&mut self, duration: Duration) -> &mut Self {
        self.tokio.thread_keep_alive(duration);
        self.thread_keep_alive = Some(duration);
        self
    }

    hooks! {
        /// Sets a function that each of the runtime's threads calls first.
        on_thread_start;
        /// Sets a function that each of the runtime's threads calls last.
        on_thread_stop;
        /// Sets a function that a worker calls before it parks.
        on_thread_park;
        /// Sets a function that a worker calls after it was unparked.
        on_thread_unpark;
    }

    tokios! {
        /// Sets after how many polls tokio's scheduler looks into its global queue. No effect on Warmcore's.
        global_queue_interval(val: u32);
        /// Sets after how many polls tokio's scheduler polls its driver. No effect on Warmcore's.
        event_interval(val: u32);
    }

    /// Starts the runtime.
    ///
    /// # Errors
    /// If the system refuses a thread or a descriptor.
    ///
    /// # Panics
    /// If the clock of a multi-thread runtime is to start paused, and if `TOKIO_WORKER_THREADS` is no number.
    #[track_caller]
    pub fn build(&mut self) -> io::Result<Runtime> {
        if self.is_multi_thread {
            count::count_runtime();
            // Tokio refuses to pause the clock of a multi-thread runtime.
            if !is_off() && !self.start_paused {
                return self.build_warm();
            }
        }
        warmcore_record::start();
        let runtime = Runtime::tokio(self.tokio.build()?);
        #[cfg(tokio_unstable)]
        self.set_hooks(runtime.handle());
        Ok(runtime)
    }

    /// Starts a current-thread runtime that stays on this thread.
    ///
    /// # Errors
    /// If the system refuses a descriptor.
    ///
    /// # Panics
    /// If this is a builder of a multi-thread runtime.
    #[track_caller]
    pub fn build_local(&mut self, options: LocalOptions) -> io::Result<LocalRuntime> {
        warmcore_record::start();
        let runtime = LocalRuntime::of(self.tokio.build_local(options)?);
        #[cfg(tokio_unstable)]
        self.set_hooks(runtime.handle());
        Ok(runtime)
    }

    #[cfg(tokio_unstable)]
    fn set_hooks(&self, handle: &Handle) {
        if !self.hooks.is_empty() {
            hooks::set(handle.id(), self.hooks.clone());
        }
    }

    #[track_caller]
    fn build_warm(&self) -> io::Result<Runtime> {
        let blocking = self.build_blocking()?;
        let thread_name = self.thread_name.clone();
        let mut builder = warmcore_runtime::Runtime::builder()
            .name(self.name.as_deref().unwrap_or("tokio"))
            .thread_name_fn(move || thread_name())
            // A thread has the CPUs of the thread that starts it, and `available_parallelism` counts those. A pool that a
            // task starts, such as rayon's, would have one thread on the worker's one CPU.
            .pin(false)
            // `tokio::spawn` spawns tasks of Warmcore's here, so no driver has tasks of its own.
            .share_drivers(true)
            .max_blocking_threads(self.max_blocking_threads)
            // As tokio: a write of `tokio::fs` that is under way is not lost at the end of `main`.
            .wait_for_blocking(true)
            .enable_time(self.enable_time);
        if let Some(threads) = self.worker_threads.or_else(env_worker_threads) {
            builder = builder.worker_threads(threads);
        }
        if let Some(size) = self.thread_stack_size {
            builder = builder.thread_stack_size(size);
        }
        if let Some(duration) = self.thread_keep_alive {
            builder = builder.thread_keep_alive(duration);
        }
        if let Some(hook) = self.on_thread_start.clone() {
            builder = builder.on_thread_start(move || hook());
        }
        if let Some(hook) = self.on_thread_stop.clone() {
            builder = builder.on_thread_stop(move || hook());
        }
        if let Some(hook) = self.on_thread_park.clone() {
            builder = builder.on_thread_park(move || hook());
        }
        if let Some(hook) = self.on_thread_unpark.clone() {
            builder = builder.on_thread_unpark(move || hook());
        }
        let runtime = builder.build().map_err(io_error)?;
        let handle = runtime.handle();
        handle.attachment(|| Attached {
            blocking: blocking.handle().clone(),
            name: self.name.clone(),
            #[cfg(tokio_unstable)]
            hooks: (!self.hooks.is_empty()).then(|| Arc::new(self.hooks.clone())),
            _owned: None,
        });
        Ok(Runtime::warm(Handle::of(Scheduler::Warm(Warm { handle })), runtime, blocking))
    }

    /// The pool for `spawn_blocking`: a runtime of tokio's that is used for nothing else.
    fn build_blocking(&self) -> io::Result<real::runtime::Runtime> {
        let mut pool = real::runtime::Builder::new_current_thread();
        let thread_name = self.thread_name.clone();
        pool.max_blocking_threads(self.max_blocking_threads).thread_name_fn(move || thread_name());
        if let Some(size) = self.thread_stack_size {
            pool.thread_stack_size(size);
        }
        if let Some(duration) = self.thread_keep_alive {
            pool.thread_keep_alive(duration);
        }
        if let Some(hook) = self.on_thread_start.clone() {
            pool.on_thread_start(move || hook());
        }
        if let Some(hook) = self.on_thread_stop.clone() {
            pool.on_thread_stop(move || hook());
        }
        pool.build()
    }
}

#[cfg(feature = "time")]
impl Builder {
    /// Enables timers.
    pub fn enable_time(&mut self) -> &mut Self {
        self.tokio.enable_time();
        self.enable_time = true;
        self
    }
}

#[cfg(feature = "test-util")]
impl Builder {
    /// Sets whether the clock of a current-thread runtime starts paused.
    pub fn start_paused(&mut self, start_paused: bool) -> &mut Self {
        self.tokio.start_paused(start_paused);
        self.start_paused = start_paused;
        self
    }
}

#[cfg(any(feature = "net", feature = "process", feature = "signal"))]
impl Builder {
    tokios! {
        /// Enables sockets. Runtimes of Warmcore's always have them.
        enable_io();
        /// Sets how many events tokio's driver reads at once. No effect on Warmcore's runtimes.
        max_io_events_per_tick(capacity: usize);
        /// As `max_io_events_per_tick`, while the driver is busy.
        #[cfg(tokio_1_54)]
        max_io_events_per_busy_tick(capacity: usize);
    }
}

/// What tokio does not promise to keep. Each function that says nothing else sets what tokio's own runtimes do, and has
/// no effect on Warmcore's.
#[cfg(tokio_unstable)]
impl Builder {
    task_hooks! {
        /// Sets a function that is called before a task is spawned.
        on_task_spawn: spawn;
        /// Sets a function that is called before each poll of a task.
        on_before_task_poll: before_poll;
        /// Sets a function that is called after each poll of a task.
        on_after_task_poll: after_poll;
        /// Sets a function that is called when a task has ended.
        on_task_terminate: terminate;
    }

    tokios! {
        /// Sets what a panic of a task does. Only current-thread runtimes can shut down.
        unhandled_panic(behavior: super::UnhandledPanic);
        /// Switches the LIFO slot off.
        disable_lifo_slot();
        /// Sets the seed of random numbers.
        rng_seed(seed: super::RngSeed);
        /// Enables the histogram of polls.
        enable_metrics_poll_time_histogram();
        /// As `enable_metrics_poll_time_histogram`.
        #[deprecated = "use `enable_metrics_poll_time_histogram`"]
        enable_metrics_poll_count_histogram();
        /// Sets the scale of the histogram.
        #[deprecated = "use `metrics_poll_time_histogram_configuration`"]
        metrics_poll_count_histogram_scale(histogram_scale: super::HistogramScale);
        /// Sets the histogram's buckets.
        metrics_poll_time_histogram_configuration(configuration: super::HistogramConfiguration);
        /// Sets the width of the histogram's first bucket.
        #[deprecated = "use `metrics_poll_time_histogram_configuration`"]
        metrics_poll_count_histogram_resolution(resolution: Duration);
        /// Sets the number of the histogram's buckets.
        #[deprecated = "use `metrics_poll_time_histogram_configuration`"]
        metrics_poll_count_histogram_buckets(buckets: usize);
        /// Lets a worker hand the driver to another worker early.
        #[cfg(tokio_1_52)]
        enable_eager_driver_handoff();
        /// Splits the queue of `spawn_blocking`.
        #[cfg(tokio_1_54)]
        enable_sharded_blocking_queue();
        /// Uses tokio's other timer.
        #[cfg(feature = "time")]
        enable_alt_timer();
        /// Measures how long tasks wait between wake and poll.
        #[cfg(all(tokio_1_54, feature = "schedule-latency"))]
        track_task_schedule_latency();
        /// Enables the histogram of these times.
        #[cfg(all(tokio_1_53, feature = "schedule-latency"))]
        enable_metrics_schedule_latency_histogram();
        /// Sets that histogram's buckets.
        #[cfg(all(tokio_1_53, feature = "schedule-latency"))]
        metrics_schedule_latency_histogram_configuration(configuration: super::HistogramConfiguration);
    }
}
