//! RuntimeMetrics: the numbers of all workers and tenants of a runtime at one moment.
//!
//! A worker and a tenant write their numbers where they count; a snapshot reads them. Each number is as it was at some
//! moment during the read.

use crate::metrics::WorkerStats;
use crate::shared::Shared;
use crate::sync::Ordering::*;
use crate::tenant_stats::TenantMetrics;
use warmcore_sched::View;
use warmcore_types::CpuId;

/// What the workers of a runtime have done so far: [`Runtime::metrics`](crate::Runtime::metrics).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RuntimeMetrics {
    /// By worker.
    pub workers: Vec<WorkerMetrics>,
    /// Tasks that are not gone yet.
    pub num_alive_tasks: usize,
    /// Tasks that wait for whoever is free first, by shard of a last-level cache.
    pub injection_queue_depths: Vec<u32>,
    /// Wakes by threads that are no workers.
    pub remote_schedules: u64,
    /// By tenant: those that live and had a task here, the oldest first.
    pub tenants: Vec<TenantMetrics>,
}

/// One worker, at this moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// What it did so far.
    pub stats: WorkerStats,
    /// The kernel's number of its CPU.
    pub cpu: u32,
    /// Its last-level cache.
    pub llc: u32,
    /// Its NUMA node.
    pub node: u32,
    /// The shard of its last-level cache.
    pub shard: usize,
    /// It sleeps.
    pub is_idle: bool,
    /// It is in a long poll.
    pub is_stuck: bool,
    /// Tasks that wait in its queue.
    pub local_queue_depth: u32,
    /// What its tasks run for at a time.
    pub mean_poll_ns: u32,
    /// Tasks on its driver that were spawned by `tokio::spawn`, and don't move.
    pub foreign_tasks: usize,
    /// Nanoseconds of CPU time that its thread has used, tasks of `tokio::spawn` included.
    pub busy_ns: u64,
    /// Nanoseconds of these outside of its driver: its own tasks, and finding them. Counted only while `warmcore top`
    /// looks; the rest went into sockets, timers and tasks of `tokio::spawn`.
    pub own_ns: u64,
}

impl RuntimeMetrics {
    /// All workers together.
    pub fn total(&self) -> WorkerStats {
        let mut total = WorkerStats::default();
        self.workers.iter().for_each(|worker| total += worker.stats);
        total
    }
}

/// Reads the numbers of a runtime.
pub(crate) fn read(shared: &Shared) -> RuntimeMetrics {
    let workers = shared.remotes.iter().enumerate().map(|(i, remote)| {
        let cpu = CpuId(i as u32);
        let mut stats = remote.stats.read();
        stats.polls = remote.status.poll_seq.load(Relaxed) / 2;
        let moved = stats.same_llc + stats.other_llc + stats.other_node + stats.first_polls;
        stats.same_worker = stats.polls.saturating_sub(moved);
        let asleep_since = remote.status.parked_since.load(Relaxed);
        if asleep_since > 0 {
            stats.parked_ns += remote.driver.now().0.saturating_sub(asleep_since);
        }
        let used = remote.driver.used();
        WorkerMetrics {
            stats,
            cpu: shared.machine.kernel_cpu(cpu).0,
            llc: shared.machine.llc_of(cpu).0,
            node: shared.machine.node_of(cpu).0,
            shard: shared.machine.shard_of(cpu),
            is_idle: shared.is_idle(cpu),
            is_stuck: shared.is_stuck(cpu),
            local_queue_depth: remote.status.stealable.load(Relaxed),
            mean_poll_ns: remote.status.mean_poll_ns.load(Relaxed),
            foreign_tasks: remote.driver.foreign_tasks(),
            busy_ns: used.all.0,
            own_ns: used.own.0,
        }
    });
    RuntimeMetrics {
        workers: workers.collect(),
        num_alive_tasks: shared.num_alive_tasks(),
        injection_queue_depths: shared.inject_queues.iter().map(|inject_queue| inject_queue.len()).collect(),
        remote_schedules: shared.remote_schedules.load(Relaxed),
        tenants: shared.tenant_stats.read(),
    }
}
