//! Builder: the settings of a runtime.

use crate::thread_config::ThreadConfig;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use warmcore_driver::Driver;
use warmcore_sched::PolicyKind;
use warmcore_topo::Topology;
use warmcore_types::CpuSet;

/// Whether SMT siblings get a worker each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Smt {
    /// A worker on every CPU that the runtime may use.
    #[default]
    EveryCpu,
    /// A worker on one CPU of every physical core that has such a CPU. Two workers on one core would share its
    /// caches.
    OnePerCore,
}

/// Makes the driver of a worker, whose number is the argument.
pub(super) type MakeDriver = Arc<dyn Fn(usize) -> io::Result<Box<dyn Driver>> + Send + Sync>;

/// Configures and starts a runtime. [`Runtime::builder`](crate::Runtime::builder) returns one.
///
/// A server that leaves the other CPUs to a database, with threads that `top` shows as `web-0` and `web-1`:
///
/// ```
/// use warmcore_runtime::Runtime;
///
/// let runtime = Runtime::builder().name("web").worker_threads(2).max_blocking_threads(16).build()?;
/// assert_eq!(runtime.metrics().workers.len(), 2);
///
/// let task = runtime.spawn(async { std::thread::current().name().map(str::to_owned) });
/// let thread = runtime.block_on(task)?;
/// assert!(thread.is_some_and(|name| name.starts_with("web-")));
///
/// let error = Runtime::builder().worker_threads(0).build().unwrap_err();
/// assert_eq!(error.to_string(), "0 workers; 1 to 4096 are possible");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "`build` makes the runtime"]
pub struct Builder {
    pub(super) name: String,
    pub(super) worker_threads: Option<usize>,
    pub(super) cpus: Option<CpuSet>,
    pub(super) smt: Smt,
    pub(super) pin: Option<bool>,
    pub(super) policy: PolicyKind,
    pub(super) topology: Option<Topology>,
    pub(super) max_blocking_threads: usize,
    pub(super) long_poll_threshold: Duration,
    pub(super) observe: Option<bool>,
    pub(super) threads: ThreadConfig,
    pub(super) wait_for_blocking: bool,
    pub(super) thread_keep_alive: Option<Duration>,
    pub(super) enable_time: bool,
    pub(super) share_drivers: bool,
    /// `None`: tokio's drivers.
    pub(super) make_driver: Option<MakeDriver>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            name: "warmcore".to_owned(),
            worker_threads: None,
            cpus: None,
            smt: Smt::EveryCpu,
            pin: None,
            policy: PolicyKind::default(),
            topology: None,
            max_blocking_threads: 512,
            long_poll_threshold: Duration::from_millis(1),
            observe: None,
            threads: ThreadConfig::default(),
            wait_for_blocking: false,
            thread_keep_alive: None,
            enable_time: true,
            share_drivers: false,
            make_driver: None,
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("worker_threads", &self.worker_threads)
            .field("cpus", &self.cpus)
            .field("policy", &self.policy)
            .field("enable_time", &self.enable_time)
            .field("thread_keep_alive", &self.thread_keep_alive)
            .field("wait_for_blocking", &self.wait_for_blocking)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets the name of the runtime. Its workers' threads are called `NAME-0` and so on. [`build`](Self::build) fails
    /// if the name contains a NUL.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets a function that returns the name of each thread that runs workers, and of each thread of tokio's
    /// `spawn_blocking`. The thread that starts another one calls it: in [`build`](Self::build), and in
    /// [`block_in_place`](crate::block_in_place) and `spawn_blocking` if no thread waits. A panic of the function unwinds
    /// out of these calls. Default: the runtime's name, a dash, and the worker's number or `blocking`.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    ///
    /// let started = AtomicU32::new(0);
    /// let name = move || format!("crawler {}", started.fetch_add(1, Relaxed));
    /// let runtime = warmcore_runtime::Runtime::builder().worker_threads(1).thread_name_fn(name).build()?;
    /// let task = runtime.spawn(async { std::thread::current().name().map(str::to_owned) });
    /// assert_eq!(runtime.block_on(task)?.as_deref(), Some("crawler 0"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn thread_name_fn(mut self, name: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.threads.name = Some(Arc::new(name));
        self
    }

    /// Sets the size of the stack of each thread that runs workers, and of each thread of tokio's `spawn_blocking`, in
    /// bytes. The system may round it up. Default: that of `std::thread`, 2 MiB unless the environment has
    /// `RUST_MIN_STACK`.
    pub fn thread_stack_size(mut self, bytes: usize) -> Self {
        self.threads.stack_size = Some(bytes);
        self
    }

    /// Sets how long a thread of tokio's `spawn_blocking` waits for the next closure before it ends. Default: 10 s.
    pub fn thread_keep_alive(self, time: Duration) -> Self {
        Self { thread_keep_alive: Some(time), ..self }
    }

    /// Sets whether tokio's timers work inside the runtime. If not, they panic. Default: they work.
    pub fn enable_time(self, is_enabled: bool) -> Self {
        Self { enable_time: is_enabled, ..self }
    }

    /// Sets a function that each thread that runs workers calls once, before it polls the first task. The function runs
    /// inside the runtime. A later call replaces it.
    ///
    /// A panic of this function, or of one that the next three methods set, is printed and otherwise ignored.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    ///
    /// let threads = Arc::new(AtomicU32::new(0));
    /// let (starts, stops) = (threads.clone(), threads.clone());
    /// let runtime = warmcore_runtime::Runtime::builder()
    ///     .worker_threads(2)
    ///     .on_thread_start(move || _ = starts.fetch_add(1, Relaxed))
    ///     .on_thread_stop(move || _ = stops.fetch_sub(1, Relaxed))
    ///     .build()?;
    /// assert!(threads.load(Relaxed) <= 2);
    /// drop(runtime);
    /// assert_eq!(threads.load(Relaxed), 0);
    /// # Ok::<(), warmcore_runtime::BuildError>(())
    /// ```
    pub fn on_thread_start(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.threads.on_start = Some(Arc::new(act));
        self
    }

    /// Sets a function that each thread that runs workers calls once, before it ends. The function runs inside the
    /// runtime; what it spawns is cancelled. A later call replaces it.
    pub fn on_thread_stop(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.threads.on_stop = Some(Arc::new(act));
        self
    }

    /// Sets a function that a worker's thread calls each time before it parks because it found no task. A task that the
    /// function spawns or wakes ends the park. A later call replaces it.
    pub fn on_thread_park(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.threads.on_park = Some(Arc::new(act));
        self
    }

    /// Sets a function that a worker's thread calls each time after a park, before it polls the next task, so that the
    /// task waits for the function. A later call replaces it.
    pub fn on_thread_unpark(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.threads.on_unpark = Some(Arc::new(act));
        self
    }

    /// Sets the number of workers. Default: one for each CPU that [`cpus`](Self::cpus) and [`smt`](Self::smt) leave,
    /// but, if `cpus` was not called, no more than the cgroup's quota, rounded up. [`build`](Self::build) fails at 0
    /// and above 4096.
    pub fn worker_threads(self, threads: usize) -> Self {
        Self { worker_threads: Some(threads), ..self }
    }

    /// Restricts the workers to those allowed CPUs that are in `cpus`.
    pub fn cpus(self, cpus: CpuSet) -> Self {
        Self { cpus: Some(cpus), ..self }
    }

    /// Sets whether SMT siblings get a worker each. Default: [`Smt::EveryCpu`].
    pub fn smt(self, smt: Smt) -> Self {
        Self { smt, ..self }
    }

    /// Sets whether each worker is pinned to one CPU, or may run on all that the runtime may use. Default: on those of its
    /// last-level cache, if there is a worker for every CPU; with fewer workers on all, so that two processes don't keep their
    /// workers on the same ones.
    pub fn pin(self, pin: bool) -> Self {
        Self { pin: Some(pin), ..self }
    }

    /// Sets where woken tasks go and what idle workers steal. Default: [`PolicyKind::Home`].
    pub fn policy(self, policy: PolicyKind) -> Self {
        Self { policy, ..self }
    }

    /// Sets the machine's topology. Default: what the kernel reports.
    pub fn topology(self, topology: Topology) -> Self {
        Self { topology: Some(topology), ..self }
    }

    /// Sets the largest number of threads that `spawn_blocking` may use, over all workers. The workers get equal parts, or
    /// the groups that share drivers if [`share_drivers`](Self::share_drivers) is set, rounded down, and at least one
    /// thread each. Default: 512. [`build`](Self::build) fails at 0.
    pub fn max_blocking_threads(self, threads: usize) -> Self {
        Self { max_blocking_threads: threads, ..self }
    }

    /// Sets the duration above which a poll counts as long. Default: 1 ms. A long poll is counted and reported through
    /// `tracing`; while it lasts, an idle worker, if there is one, takes over tasks that wait behind it and may run
    /// elsewhere.
    ///
    /// On average about one poll of sixteen is measured, and for a second after a long poll all of them; where polls take less than
    /// 4 µs on average, that second begins once in 160 seconds at most. A measured
    /// long poll is reported with its task's name, one that is not measured without; by each worker at most once a second, with the number of
    /// long polls that it has not reported since. A poll that is not measured is counted at the worker's next
    /// reading of its clock if it exceeds the threshold by at least 0.8 ms plus eight times the average poll. Several
    /// such polls between two readings count as one. Where polls take less than 4 µs on average, or tenants share the worker,
    /// time that other threads had the CPU is taken off, unless the poll waited in the kernel too; elsewhere it can't be told from a long
    /// poll.
    pub fn long_poll_threshold(self, limit: Duration) -> Self {
        Self { long_poll_threshold: limit, ..self }
    }

    /// Sets whether `warmcore top` can look at the runtime. If so, the runtime opens a local socket for the current user, and
    /// a thread answers there. Default: yes if the environment has `WARMCORE_TOP=1`. If no socket can be opened the runtime
    /// starts without one.
    pub fn observe(self, observe: bool) -> Self {
        Self { observe: Some(observe), ..self }
    }

    /// Sets whether a shutdown waits for tokio's blocking operations that are under way: closures of `spawn_blocking`, and
    /// operations of `tokio::fs`, such as a write that was not flushed. Dropping the runtime then waits for as long as they
    /// take, and [`shutdown_timeout`](crate::Runtime::shutdown_timeout) until its time is over. Default: they go on in the
    /// background, and end with the process.
    pub fn wait_for_blocking(self, is_wanted: bool) -> Self {
        Self { wait_for_blocking: is_wanted, ..self }
    }

    /// Sets whether the workers of a last-level cache, in groups of at most 16, share tokio's sockets and timers. Then a
    /// socket costs the same on each worker where its task runs. But tasks of `tokio::spawn` run on the thread that serves the sockets, one for all these
    /// workers; without sharing, on the worker that spawned them. Default: each worker has its own, since tasks of
    /// `tokio::spawn` are common. An adopted program, whose `tokio::spawn` spawns tasks of this runtime, shares.
    ///
    /// ```
    /// let runtime = warmcore_runtime::Runtime::builder().worker_threads(2).share_drivers(true).build()?;
    /// runtime.block_on(async { tokio::time::sleep(std::time::Duration::from_millis(1)).await });
    /// # Ok::<(), warmcore_runtime::BuildError>(())
    /// ```
    pub fn share_drivers(self, is_wanted: bool) -> Self {
        Self { share_drivers: is_wanted, ..self }
    }

    /// Sets what makes the workers' drivers: `make` is called for each worker, with the worker's number. Default: tokio's
    /// drivers, if this crate has its feature `tokio`. Without that feature [`build`](Self::build) fails if no `make` is
    /// set. With drivers that are not tokio's, its sockets, timers and `spawn_blocking` panic in tasks, and
    /// [`max_blocking_threads`](Self::max_blocking_threads) has no effect.
    pub fn driver<F>(self, make: F) -> Self
    where
        F: Fn(usize) -> io::Result<Box<dyn Driver>> + Send + Sync + 'static,
    {
        Self { make_driver: Some(Arc::new(make)), ..self }
    }
}
