//! Runtime: the builder, the handle, and the shutdown.
//!
//! By default a runtime has a worker for each allowed CPU, pinned to it, or fewer workers, not pinned, if a cgroup's
//! quota allows less. `Runtime` owns the threads: dropping it cancels every task, then ends the workers. A `Handle`
//! spawns from any thread; it does not keep the workers running. README.md, "Notes on the end", has the order of the
//! shutdown and its reasons.
//!
//! A worker costs a thread and four descriptors, among them an epoll instance, an event descriptor and a timer.

use crate::block::{self, EnterGuard};
use crate::context;
use crate::error::BuildError;
use crate::header;
use crate::inbox::Inbox;
use crate::join::JoinHandle;
use crate::metrics::Stats;
use crate::observe;
use crate::owned_tasks::OwnedTasks;
use crate::run_queue::RunQueue;
use crate::runtime_metrics::{self, RuntimeMetrics};
use crate::shared::{InjectQueue, Remote, Shared, WorkerStatus};
use crate::spawn::TaskBuilder;
use crate::sync::threads::sleep;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering::*, fence};
use crate::task_groups::TaskGroups;
use crate::tenant_stats::TenantStats;
use crate::thread_config::ThreadConfig;
use crate::virtual_time::VirtualTimes;
use crate::watchdog::Watchdog;
use crate::worker;
use std::any::Any;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use warmcore_driver::Driver;
#[cfg(feature = "tokio")]
use warmcore_driver::{TokioDriver, TokioDriverConfig};
use warmcore_line::Padded;
use warmcore_sched::{Policy, PolicyKind, SchedDomains, StealOrder};
use warmcore_sys::affinity;
use warmcore_tenant::Tenant;
use warmcore_topo::Topology;
use warmcore_types::{CpuId, CpuSet, Nanos, ignore_poison};

#[cfg(all(test, shuttle))]
mod shuttle;

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
type MakeDriver = Arc<dyn Fn(usize) -> io::Result<Box<dyn Driver>> + Send + Sync>;

/// Configures and starts a runtime. [`Runtime::builder`] returns one.
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
    name: String,
    worker_threads: Option<usize>,
    cpus: Option<CpuSet>,
    smt: Smt,
    pin: Option<bool>,
    policy: PolicyKind,
    topology: Option<Topology>,
    max_blocking_threads: usize,
    long_poll_threshold: Duration,
    observe: Option<bool>,
    threads: ThreadConfig,
    wait_for_blocking: bool,
    thread_keep_alive: Option<Duration>,
    enable_time: bool,
    /// `None`: tokio's drivers.
    make_driver: Option<MakeDriver>,
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

    /// Sets whether each worker is pinned to one CPU. Default: yes if there is a worker for every CPU that the runtime
    /// may use. With fewer workers each worker may run on all of these CPUs, so that two processes don't pin their
    /// workers to the same CPUs.
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

    /// Sets the largest number of threads that `spawn_blocking` may use, over all workers. The workers get equal parts,
    /// rounded down, and at least one thread each. Default: 512. [`build`](Self::build) fails at 0.
    pub fn max_blocking_threads(self, threads: usize) -> Self {
        Self { max_blocking_threads: threads, ..self }
    }

    /// Sets the duration above which a poll counts as long. Default: 1 ms. A long poll is counted and reported through
    /// `tracing`; while it lasts, an idle worker, if there is one, takes over tasks that wait behind it and may run
    /// elsewhere.
    ///
    /// On average about one poll of sixteen is measured, and for a second after a long poll all of them. A measured
    /// long poll is reported with its task's name, by each worker at most once a second, with the number of measured
    /// long polls that the worker has not reported since. A poll that is not measured is counted at the worker's next
    /// reading of its clock if it exceeds the threshold by at least 0.8 ms plus eight times the average poll. Several
    /// such polls between two readings count as one. A thread that was preempted for that long can't be told from a
    /// long poll.
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
    /// take, and [`shutdown_timeout`](Runtime::shutdown_timeout) until its time is over. Default: they go on in the
    /// background, and end with the process.
    pub fn wait_for_blocking(self, is_wanted: bool) -> Self {
        Self { wait_for_blocking: is_wanted, ..self }
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

    /// Starts the workers. Fails if a setting is invalid, if there is no CPU to use, if the topology or the allowed
    /// CPUs can't be read, or if the system refuses a thread or a descriptor.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |source| BuildError { what, source: Some(source) }
        };
        let error = |what: String| BuildError { what, source: None };
        if self.name.contains('\0') {
            return Err(error(format!(
                "the name {:?} has a NUL in it, and names of threads have none",
                self.name
            )));
        }
        if self.max_blocking_threads == 0 {
            let what =
                "0 threads for spawn_blocking: its closures would never run; 1 for each worker is the least";
            return Err(error(what.to_owned()));
        }
        let topology = match self.topology.clone() {
            Some(topology) => topology,
            None => Topology::this_machine()
                .map_err(|source| error(format!("can't read what the machine is: {source}")))?,
        };
        let allowed = affinity::allowed().map_err(io("can't read which CPUs are allowed"))?;
        let cpus = self.cpus_to_use(&topology, &allowed);
        if cpus.is_empty() {
            let wanted = self.cpus.clone().unwrap_or_default();
            return Err(error(format!("no CPU to run on: wanted {wanted}, allowed are {allowed}")));
        }
        let count = self.worker_threads.unwrap_or_else(|| match topology.quota {
            Some(ref quota) if self.cpus.is_none() => cpus.len().min(quota_cpus(quota.cpus)),
            _ => cpus.len(),
        });
        if !(1..=4096).contains(&count) {
            return Err(error(format!("{count} workers; 1 to 4096 are possible")));
        }
        let is_pinned = self.pin.unwrap_or(count >= cpus.len());
        let kernel_cpus: Vec<CpuId> = (0..count).map(|i| cpus[i % cpus.len()]).collect();
        let machine = SchedDomains::new(&topology, &kernel_cpus);
        let make_driver = match self.make_driver.clone().or_else(|| self.tokio_drivers(count)) {
            Some(make_driver) => make_driver,
            None => {
                let what =
                    "no driver: the crate was built without its feature `tokio`; set `Builder::driver`";
                return Err(error(what.to_owned()));
            }
        };
        let (mut remotes, virtual_times) = (Vec::new(), Arc::default());
        for worker in 0..count {
            let driver = make_driver(worker).map_err(io("can't make a worker's driver"))?;
            remotes.push(remote(driver, &virtual_times));
        }
        let pin_to = match is_pinned {
            true => kernel_cpus.iter().map(|cpu| CpuSet::from_iter([*cpu])).collect(),
            false => vec![cpus.iter().copied().collect(); count],
        };
        let mut shared = shared(self.name, remotes, machine, self.policy, self.long_poll_threshold, pin_to);
        shared.threads = self.threads;
        let mut runtime = Runtime { shared: Arc::new(shared), observer: None };
        for worker in 0..count {
            // If this fails, `runtime` is dropped, which ends the workers that were started before.
            worker::thread::start_worker(&runtime.shared, CpuId(worker as u32))
                .map_err(io("can't start a thread"))?;
        }
        runtime.observer = observe::open(&runtime.shared, self.observe);
        Ok(runtime)
    }

    /// Makes tokio's drivers for `count` workers.
    #[cfg(feature = "tokio")]
    fn tokio_drivers(&self, count: usize) -> Option<MakeDriver> {
        let mut config = TokioDriverConfig {
            max_blocking_threads: (self.max_blocking_threads / count).max(1),
            close_waits: self.wait_for_blocking,
            thread_stack_size: self.threads.stack_size,
            thread_keep_alive: self.thread_keep_alive,
            enable_time: self.enable_time,
            on_run: context::driver_runs,
            clock: crate::clock::now,
            ..TokioDriverConfig::new(&self.name)
        };
        if let Some(name) = &self.threads.name {
            config.thread_name = name.clone();
        }
        Some(Arc::new(move |_| Ok(Box::new(TokioDriver::new(config.clone())?))))
    }

    #[cfg(not(feature = "tokio"))]
    fn tokio_drivers(&self, _count: usize) -> Option<MakeDriver> {
        None
    }

    fn cpus_to_use(&self, topology: &Topology, allowed: &CpuSet) -> Vec<CpuId> {
        let wanted = |cpu: &CpuId| self.cpus.as_ref().is_none_or(|cpus| cpus.contains(*cpu));
        let online = topology.cpus.iter().filter(|cpu| allowed.contains(cpu.id) && wanted(&cpu.id));
        let mut cores = std::collections::BTreeSet::new();
        online.filter(|cpu| self.smt == Smt::EveryCpu || cores.insert(cpu.core)).map(|cpu| cpu.id).collect()
    }
}

/// A quota in whole CPUs, rounded up, because a part of a CPU needs a worker too. At least 1.
fn quota_cpus(cpus: f64) -> usize {
    (cpus.ceil() as usize).max(1)
}

/// The shared part of a new worker. `virtual_times` belongs to all workers of the runtime.
pub(crate) fn remote(driver: Box<dyn Driver>, virtual_times: &Arc<VirtualTimes>) -> Remote {
    Remote {
        inbox: Padded::new(Inbox::new()),
        run_queue: Padded::new(Mutex::new(RunQueue::new(virtual_times.clone()))),
        status: Padded::new(WorkerStatus::default()),
        is_stuck: Padded::new(AtomicBool::new(false)),
        stats: Padded::new(Stats::default()),
        owned_tasks: Padded::new(OwnedTasks::new()),
        driver,
    }
}

pub(crate) fn shared(
    name: String,
    remotes: Vec<Remote>,
    machine: SchedDomains,
    policy: PolicyKind,
    long_poll: Duration,
    pin_to: Vec<CpuSet>,
) -> Shared {
    let kernel = |worker: CpuId| machine.kernel_cpu(worker).index();
    let workers = || (0..remotes.len() as u32).map(CpuId);
    let mut worker_on = vec![None; workers().map(kernel).max().map_or(0, |last| last + 1)];
    // Of several workers on a CPU the first one remains.
    workers().rev().for_each(|worker| worker_on[kernel(worker)] = Some(worker));
    Shared {
        name,
        inject_queues: (0..machine.shards()).map(|_| InjectQueue::new()).collect(),
        watchdog: Padded::new(Watchdog::new(remotes.len())),
        task_groups: TaskGroups::new(remotes.len()),
        foreign: Padded::new(crate::foreign::Foreign::new(remotes.len())),
        remotes: remotes.into(),
        machine,
        policy,
        takes_oldest: policy.steal_order() == StealOrder::Oldest,
        worker_on: worker_on.into(),
        is_shutdown: AtomicBool::new(false),
        threads: ThreadConfig::default(),
        worker_threads: Padded::default(),
        tenant_stats: TenantStats::default(),
        #[cfg(feature = "metrics")]
        exported: Padded::default(),
        long_poll: Nanos(u64::try_from(long_poll.as_nanos()).unwrap_or(u64::MAX)),
        outside: Padded::new(AtomicU32::new(0)),
        remote_schedules: Padded::new(AtomicU64::new(0)),
        pin_to: pin_to.into(),
        attachment: OnceLock::new(),
    }
}

/// Workers, and the tasks that run on them.
///
/// Dropping it shuts down the runtime, and waits for the polls that are under way. Dropping it on a worker's thread, of
/// this runtime or of another, does not wait: the shutdown goes on in the background.
///
/// A program makes one at its start, or `#[warmcore::main]` does:
///
/// ```
/// use warmcore_runtime::{JoinError, Runtime, spawn};
///
/// let runtime = Runtime::new()?;
/// let lengths = runtime.block_on(async {
///     let short = spawn(async { "warm".len() });
///     let long = spawn(async { "warmer".len() }); // on another worker, if one is idle
///     Ok::<_, JoinError>((short.await?, long.await?))
/// })?;
/// assert_eq!(lengths, (4, 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    /// Dropped after `end` has returned. The workers have ended by then, unless the runtime was dropped on a worker's
    /// thread or the timeout of the shutdown was over.
    observer: Option<observe::Observer>,
}

impl Runtime {
    /// A runtime with the builder's defaults: a worker for every CPU that the process may use, or fewer if a cgroup's
    /// quota allows less.
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// A builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Runs a future on this thread until it is ready. Tasks that the future spawns with [`spawn`](crate::spawn())
    /// run on the workers, and a worker drives the sockets and timers that the future creates.
    ///
    /// Panics on a worker's thread, because the worker's other tasks would wait. Inside
    /// [`block_in_place`](crate::block_in_place) the thread runs no worker, if the worker could be handed to another
    /// thread.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        block::on(&self.shared, future)
    }

    /// Spawns a task.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        TaskBuilder::of(&self.shared).spawn(future)
    }

    /// Spawns a task of a tenant. It runs with the tenant's ids, account and weight.
    #[track_caller]
    pub fn spawn_in<F>(&self, tenant: &Tenant, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        TaskBuilder::of(&self.shared).tenant(tenant).spawn(future)
    }

    /// A builder of tasks with a name, a tenant or a placement.
    pub fn task_builder(&self) -> TaskBuilder {
        TaskBuilder::of(&self.shared)
    }

    /// A handle that spawns from any thread. It may outlive the runtime.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Numbers of the workers and the tenants, and their state now.
    ///
    /// **Touches** nine cache lines of each worker and, of each tenant, one for each CPU: 2 µs a tenant on two CPUs. It
    /// takes a lock of each worker's driver and of each tenant's counters.
    pub fn metrics(&self) -> RuntimeMetrics {
        runtime_metrics::read(&self.shared)
    }

    /// Enters the runtime on this thread until the guard is dropped: [`spawn`](crate::spawn()) and tokio's sockets work.
    ///
    /// ```
    /// let runtime = warmcore_runtime::Runtime::new()?;
    /// let guard = runtime.enter();
    /// let task = warmcore_runtime::spawn(async { 42 });
    /// drop(guard);
    /// assert_eq!(runtime.block_on(task).expect("it does not panic"), 42);
    /// # Ok::<(), warmcore_runtime::BuildError>(())
    /// ```
    pub fn enter(&self) -> EnterGuard<'_> {
        block::enter(&self.shared)
    }

    /// Calls `act` on this thread as inside the runtime. In contrast to [`enter`](Self::enter), no guard can be dropped in
    /// the wrong order.
    pub fn with_context<R>(&self, act: impl FnOnce() -> R) -> R {
        block::with_context(&self.shared, act)
    }

    /// Cancels every task, then ends the workers, as tokio's method of this name. Returns whether all workers ended
    /// within `timeout`. A poll that takes longer than that goes on in the background, and its task and thread end
    /// after it. Returns false at once in a task of the same runtime. If a task of each of two runtimes shuts the other
    /// runtime down, both wait until the shorter timeout is over.
    pub fn shutdown_timeout(self, timeout: Duration) -> bool {
        self.end(Some(timeout))
    }

    /// As [`shutdown_timeout`](Self::shutdown_timeout) with a timeout of zero: cancels every task and returns without
    /// waiting for the polls that are under way. A task may call it.
    pub fn shutdown_background(self) {
        self.shutdown_timeout(Duration::ZERO);
    }

    /// Cancels every task, refuses new ones, and returns. The workers end when the runtime is dropped or shut down.
    pub fn begin_shutdown(&self) {
        self.shared.remotes.iter().for_each(|remote| remote.owned_tasks.close());
    }

    fn end(&self, deadline: Option<Duration>) -> bool {
        let (shared, began) = (&self.shared, Instant::now());
        // ORDERING: SeqCst; `ParkGuard::new` marks the worker parked before `Worker::park` reads `is_shutdown`; this
        // writes `is_shutdown` and then reads whether the worker is parked. So at least one of the two sees the other's
        // write.
        let give_notice = || {
            shared.is_shutdown.store(true, SeqCst);
            shared.worker_threads.end();
            fence(SeqCst);
            (0..shared.remotes.len()).for_each(|worker| _ = shared.try_unpark(CpuId(worker as u32)));
        };
        let close_inject_queues = || {
            shared.inject_queues.iter().flat_map(|inject_queue| inject_queue.close()).for_each(header::cancel)
        };
        self.begin_shutdown();
        // A task that drops its own runtime can't wait for itself. A task that drops another runtime without a timeout does not
        // wait either, because a task of that runtime may be dropping this one.
        if shared.worker_threads.is_mine() || deadline.is_none() && context::is_a_runtimes() {
            // The rest happens in the background.
            give_notice();
            close_inject_queues();
            return false;
        }
        let is_late = || deadline.is_some_and(|deadline| began.elapsed() >= deadline);
        let mut pause = Duration::from_micros(20);
        while shared.num_alive_tasks() > 0 && !is_late() {
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        give_notice();
        let mut all_ended = true;
        // A task that blocks in place during the shutdown may start another thread, so the loop reads the list until it
        // is empty.
        loop {
            let threads = std::mem::take(&mut *ignore_poison(shared.worker_threads.threads.lock()));
            if threads.is_empty() {
                break;
            }
            for thread in threads {
                while !thread.is_finished() && deadline.is_some() && !is_late() {
                    std::thread::sleep(Duration::from_micros(100));
                }
                // A worker's thread panics only because of a bug in the runtime. The panic hook has printed it already.
                all_ended &= (deadline.is_none() || thread.is_finished()) && thread.join().is_ok();
            }
        }
        close_inject_queues();
        all_ended
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.shared.is_shutdown.load(Relaxed) {
            self.end(None);
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("name", &self.shared.name)
            .field("workers", &self.shared.remotes.len())
            .field("policy", &self.shared.policy)
            .finish_non_exhaustive()
    }
}

/// Spawns on a runtime from any thread. A task that is spawned after the runtime's shutdown began is cancelled before
/// its first poll.
///
/// A thread outside of the runtime, such as one that reads from a device, passes its work to the workers:
///
/// ```
/// use warmcore_runtime::Runtime;
///
/// let runtime = Runtime::new()?;
/// let handle = runtime.handle();
/// let reader = std::thread::spawn(move || {
///     let samples = vec![3u64, 4, 5];
///     handle.spawn(async move { samples.iter().sum::<u64>() })
/// });
/// let task = reader.join().expect("it does not panic");
/// assert_eq!(runtime.block_on(task)?, 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// The handle of the current thread's runtime. Panics if the thread is inside none.
    #[track_caller]
    pub fn current() -> Self {
        match Self::try_current() {
            Some(handle) => handle,
            None => crate::spawn::no_runtime(),
        }
    }

    /// The handle of the current thread's runtime, if it is inside one.
    pub fn try_current() -> Option<Self> {
        context::current().map(|shared| Self { shared })
    }

    /// As [`Runtime::spawn`].
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        TaskBuilder::of(&self.shared).spawn(future)
    }

    /// Returns the value that is attached to the runtime, and attaches the one of `init` if there is none. A layer over the
    /// runtime keeps there what belongs to it, and finds it from each thread inside the runtime. The value is dropped with
    /// the last handle or task.
    ///
    /// # Panics
    /// If the attached value has another type: a runtime has room for one.
    ///
    /// ```
    /// use warmcore_runtime::{Handle, Runtime};
    ///
    /// struct Cluster(&'static str);
    ///
    /// let runtime = Runtime::new()?;
    /// runtime.handle().attachment(|| Cluster("west"));
    /// let name = runtime.block_on(async { Handle::current().attachment(|| Cluster("none")).0 });
    /// assert_eq!(name, "west");
    /// # Ok::<(), warmcore_runtime::BuildError>(())
    /// ```
    #[track_caller]
    pub fn attachment<T: Any + Send + Sync>(&self, init: impl FnOnce() -> T) -> &T {
        let attached = &**self.shared.attachment.get_or_init(|| Box::new(init()));
        match attached.downcast_ref() {
            Some(attached) => attached,
            None => panic!("the runtime's attachment is no {}", std::any::type_name::<T>()),
        }
    }

    /// As [`Runtime::task_builder`].
    pub fn task_builder(&self) -> TaskBuilder {
        TaskBuilder::of(&self.shared)
    }

    /// As [`Runtime::metrics`].
    pub fn metrics(&self) -> RuntimeMetrics {
        runtime_metrics::read(&self.shared)
    }

    /// Number of workers.
    pub fn num_workers(&self) -> usize {
        self.shared.remotes.len()
    }

    /// Number of tasks that are alive. Touches a cache line of each worker.
    pub fn num_alive_tasks(&self) -> usize {
        self.shared.num_alive_tasks()
    }

    /// Number of tasks in all injection queues, the sum of [`RuntimeMetrics::injection_queue_depths`]. Touches a cache
    /// line of each queue.
    pub fn injection_queue_depth(&self) -> usize {
        self.shared.inject_queues.iter().map(|inject_queue| inject_queue.len() as usize).sum()
    }

    /// As [`Runtime::block_on`].
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        block::on(&self.shared, future)
    }

    /// As [`Runtime::enter`].
    pub fn enter(&self) -> EnterGuard<'_> {
        block::enter(&self.shared)
    }

    /// As [`Runtime::with_context`].
    pub fn with_context<R>(&self, act: impl FnOnce() -> R) -> R {
        block::with_context(&self.shared, act)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("runtime", &self.shared.name).finish_non_exhaustive()
    }
}
