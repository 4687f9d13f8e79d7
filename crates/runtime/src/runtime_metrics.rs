//! RuntimeMetrics: the numbers of all workers and tenants of a runtime.
//!
//! Workers and CPUs count separately; [`read`] collects their numbers. It stops no worker, so each number is as it was
//! at some moment during the call.

use crate::shared::Shared;
use crate::sync::Ordering::*;
use crate::tenant_stats::TenantMetrics;
use warmcore_sched::{View, WorkerStats};
use warmcore_types::CpuId;

/// Numbers of a runtime: [`Runtime::metrics`](crate::Runtime::metrics).
///
/// A page that shows whether a server keeps up:
///
/// ```
/// let runtime = warmcore_runtime::Runtime::builder().worker_threads(2).build()?;
/// let waiting = [(); 3].map(|()| runtime.spawn(std::future::pending::<()>()));
///
/// let metrics = runtime.metrics();
/// assert_eq!((metrics.workers.len(), metrics.num_alive_tasks), (2, 3));
/// let queued: u32 = metrics.workers.iter().map(|worker| worker.local_queue_depth).sum();
/// println!("{queued} tasks in run queues, {} long polls so far", metrics.total().long_polls);
/// # drop(waiting);
/// # Ok::<(), warmcore_runtime::BuildError>(())
/// ```
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct RuntimeMetrics {
    /// The workers, by index.
    pub workers: Vec<WorkerMetrics>,
    /// Tasks that are alive.
    pub num_alive_tasks: usize,
    /// Tasks in the injection queue of each shard of a last-level cache, which the shard's workers share.
    pub injection_queue_depths: Vec<u32>,
    /// Wakes and spawns by threads that are not workers of the runtime.
    pub remote_schedules: u64,
    /// The tenants that are alive and had a task in this runtime, sorted by serial number.
    #[cfg_attr(feature = "serde", serde(default))] // an older version reports none
    pub tenants: Vec<TenantMetrics>,
}

/// Numbers and state of one worker.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// The worker's counters.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub stats: WorkerStats,
    /// The kernel's number of the worker's CPU.
    pub cpu: u32,
    /// The CPU's last-level cache.
    pub llc: u32,
    /// The CPU's NUMA node.
    pub node: u32,
    /// The shard of the last-level cache; an index into [`RuntimeMetrics::injection_queue_depths`].
    pub shard: usize,
    /// Whether the worker is parked, or about to park.
    pub is_idle: bool,
    /// Whether the worker is in a long poll.
    pub is_stuck: bool,
    /// Tasks in the worker's run queue that other workers may steal.
    pub local_queue_depth: u32,
    /// Tasks that are alive and began on this worker, wherever they are polled now: their first poll was here and has ended, or they
    /// were spawned to begin here. [`RuntimeMetrics::num_alive_tasks`] counts the others too.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub num_alive_tasks: usize,
    /// Times that the worker parked plus times that it went on to poll a task, or to shut down: odd while it is parked. A
    /// worker that wakes to look for tasks or to check on other workers, and parks again, is not counted in between.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub park_unpark_count: u64,
    /// Running average of the duration of a poll on this worker, in ns. 0: not known yet.
    pub mean_poll_ns: u32,
    /// Tasks of `tokio::spawn` on the worker's driver. They never move to another worker.
    pub foreign_tasks: usize,
    /// CPU time of the worker's threads in ns, tasks of `tokio::spawn` included.
    pub busy_ns: u64,
    /// The part of `busy_ns` outside of the driver, in ns: polling the runtime's tasks and searching for them. The rest
    /// is for sockets, timers and tasks of `tokio::spawn`. Counted only while `warmcore top` observes the runtime and
    /// up to five seconds after that; else it keeps its last value.
    pub own_ns: u64,
}

impl RuntimeMetrics {
    /// The sum over all workers.
    pub fn total(&self) -> WorkerStats {
        let mut total = WorkerStats::default();
        self.workers.iter().for_each(|worker| total += worker.stats);
        total
    }
}

/// Reads the numbers of a runtime.
pub(crate) fn read(shared: &Shared) -> RuntimeMetrics {
    let (workers, machine) = (&shared.workers, shared.workers.machine());
    let all = shared.remotes.iter().enumerate().map(|(i, remote)| {
        let cpu = CpuId(i as u32);
        let scheduled = workers.remote(cpu);
        let (status, mut stats) = (&scheduled.status, scheduled.counters.read());
        stats.polls = status.poll_seq.load(Relaxed) / 2;
        let moved = stats.same_llc + stats.other_llc + stats.other_node + stats.first_polls;
        stats.same_worker = stats.polls.saturating_sub(moved);
        stats.parked_ns = scheduled.parked_ns(remote.driver.now());
        let used = remote.driver.used();
        WorkerMetrics {
            stats,
            cpu: machine.kernel_cpu(cpu).0,
            llc: machine.llc_of(cpu).0,
            node: machine.node_of(cpu).0,
            shard: machine.shard_of(cpu),
            is_idle: workers.is_idle(cpu),
            is_stuck: workers.is_stuck(cpu),
            local_queue_depth: scheduled.waiting(),
            num_alive_tasks: remote.owned_tasks.count() as usize,
            park_unpark_count: status.park_seq.load(Relaxed),
            mean_poll_ns: status.mean_poll_ns.load(Relaxed),
            foreign_tasks: remote.driver.foreign_tasks(),
            busy_ns: used.all.0,
            own_ns: used.own.0,
        }
    });
    RuntimeMetrics {
        workers: all.collect(),
        num_alive_tasks: shared.num_alive_tasks(),
        injection_queue_depths: workers.inject_queues().map(|queue| queue.len()).collect(),
        remote_schedules: workers.remote_schedules(),
        tenants: shared.tenant_stats.read(),
    }
}
