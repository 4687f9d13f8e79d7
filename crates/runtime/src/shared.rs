//! Shared: the state of one runtime, which its workers, its handles and its tasks share.
//!
//! The scheduler core has most of it: [`Workers`] with each worker's inbox, run queue and status, and the injection
//! queues. `Shared` is the core's host. It adds, for each worker, a driver and a list of owned tasks, and, for the runtime,
//! the watchdog, the threads, and the numbers that `observe.rs` and `export.rs` report.

use crate::inbox::Inbox;
use crate::owned_tasks::{OwnedTasks, TaskCounts};
use crate::ring::Ring;
#[cfg(feature = "metrics")]
use crate::sync::Mutex;
use crate::sync::{AtomicBool, AtomicU32, Ordering::*};
use crate::task_cell::RunnableTask;
use crate::worker::Reports;
use std::sync::Arc;
use warmcore_driver::Driver;
use warmcore_line::{Line, Padded};
use warmcore_sched::{Allowed, Core, Host, PolicyKind, View, Workers};
use warmcore_types::{CpuId, Nanos, ThreadUsage};

/// A task's runtime. Each worker and each thread that spawns has one, so that counting references to the runtime writes no line that
/// all workers write.
pub(crate) struct SchedulerRef {
    pub(crate) shared: Arc<Shared>,
}

/// The runtime's part of one worker. The scheduler's part is [`warmcore_sched::Remote`].
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub(crate) struct Remote {
    /// Written when a task's first poll returns pending, and when its future is dropped.
    #[line(contended = "owned tasks")]
    pub(crate) owned_tasks: Padded<OwnedTasks>,
    #[line(owner = "worker")]
    pub(crate) task_counts: Padded<TaskCounts>,
    #[line(owner = "worker")]
    pub(crate) reports: Padded<Reports>,
    #[line(read_mostly)]
    pub(crate) driver: Box<dyn Driver>,
}

/// The state of one runtime: see the module's documentation.
#[derive(Line)]
#[line(pair, default = read_mostly)]
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) remotes: Box<[Remote]>,
    #[line(contended = "workers")]
    pub(crate) workers: Workers<Self>,
    /// The first worker on each of the kernel's CPUs.
    pub(crate) worker_on: Box<[Option<CpuId>]>,
    /// Whether tasks that were not polled yet end without a poll. Written by the begin of the shutdown.
    pub(crate) is_closing: AtomicBool,
    /// Whether the workers end when they find no task. Written by the shutdown.
    pub(crate) is_shutdown: AtomicBool,
    pub(crate) threads: crate::thread_config::ThreadConfig,
    #[line(contended = "watchdog")]
    pub(crate) watchdog: Padded<crate::watchdog::Watchdog>,
    #[line(contended = "spare CPUs")]
    pub(crate) spare_cpus: Padded<crate::spare_cpus::SpareCpus>,
    #[line(contended = "worker threads")]
    pub(crate) worker_threads: Padded<crate::worker_threads::WorkerThreads>,
    pub(crate) tenant_stats: crate::tenant_stats::TenantStats,
    pub(crate) task_groups: crate::task_groups::TaskGroups,
    #[cfg(feature = "metrics")]
    #[line(contended = "exported")]
    pub(crate) exported: Padded<Mutex<crate::export::exported::Exported>>,
    pub(crate) long_poll: Nanos,
    /// The first of the workers that `least_loaded` compares next.
    #[line(contended = "turn")]
    pub(crate) turn: Padded<AtomicU32>,
    /// Tasks of threads that are no workers. Written when they spawn, or end a task.
    #[line(contended = "outside")]
    pub(crate) outside: Padded<TaskCounts>,
    /// The CPUs that each worker's thread may use.
    pub(crate) pin_to: Box<[warmcore_types::CpuSet]>,
    /// [`Handle::attachment`](crate::Handle::attachment). Written once.
    pub(crate) attachment: std::sync::OnceLock<Box<dyn std::any::Any + Send + Sync>>,
}

impl Shared {
    /// Moves the current thread to the CPUs of a worker. If the system refuses that, because the process's CPUs were
    /// changed meanwhile, the thread stays where the system puts it.
    pub(crate) fn pin(&self, cpu: CpuId) {
        if let Some(cpus) = self.pin_to.get(cpu.index())
            && let Err(error) = warmcore_sys::affinity::set_allowed(cpus)
        {
            tracing::debug!(worker = cpu.0, %cpus, %error, "a worker is not pinned");
        }
    }

    /// The less loaded of two workers that are `allowed` and `among` these: the next one in turn, and a random one. Tasks
    /// of the worker's driver count as load. The other workers are read only if both are in a long poll, or have ended.
    ///
    /// Reading a worker's load misses the cache four times. With two workers compared, and not all of them, no worker of
    /// many gets more than two or three tasks above the average ("the power of two choices").
    pub(crate) fn least_loaded(&self, allowed: Allowed, among: Allowed) -> Option<CpuId> {
        let machine = self.workers.machine();
        let may = |cpu: &CpuId| machine.allows(allowed, *cpu) && machine.allows(among, *cpu);
        // No worker writes what this reads.
        let all = || (0..self.remotes.len() as u32).map(CpuId).filter(may);
        let n = all().count();
        let turn = self.turn.fetch_add(1, Relaxed);
        let first = turn as usize % n.max(1);
        let chance = (turn.wrapping_mul(0x9E37_79B9) >> 8) as usize % n.saturating_sub(1).max(1);
        let second = first + 1 + chance;
        let load = |at: usize| {
            let cpu = all().nth(at % n).filter(|cpu| !self.workers.is_offline(*cpu))?;
            let remote = self.remote(cpu);
            let tasks = remote.owned_tasks.count() as usize + remote.driver.foreign_tasks();
            Some((self.workers.is_stuck(cpu), tasks, cpu))
        };
        // Of several CPUs with the same load the first one.
        let by_load = |(is_stuck, tasks, _): &(bool, usize, CpuId)| (*is_stuck, *tasks);
        let two = [first, second].into_iter().take(n).filter_map(load).min_by_key(by_load);
        let lightest = match two {
            Some((false, ..)) => two,
            busy => busy.into_iter().chain((first + 1..first + n).filter_map(load)).min_by_key(by_load),
        };
        lightest.map(|(_, _, cpu)| cpu)
    }

    #[inline]
    pub(crate) fn remote(&self, cpu: CpuId) -> &Remote {
        &self.remotes[cpu.index()]
    }

    pub(crate) fn num_alive_tasks(&self) -> usize {
        TaskCounts::alive(self.remotes.iter().map(|remote| &*remote.task_counts).chain([&*self.outside]))
    }

    /// Cancels every task, and lets new ones end without a poll.
    pub(crate) fn close_tasks(&self) {
        self.is_closing.store(true, Relaxed);
        self.remotes.iter().for_each(|remote| remote.owned_tasks.close());
    }

    /// The worker of the CPU that the current thread runs on, if there is one.
    pub(crate) fn worker_here(&self) -> Option<CpuId> {
        *self.worker_on.get(warmcore_sys::rseq::cpu_hint()? as usize)?
    }
}

impl Host for Shared {
    type Task = RunnableTask;
    type Inbox = Inbox<RunnableTask>;
    type Ring = Ring<RunnableTask>;
    type Policy = PolicyKind;

    #[inline]
    fn workers(&self) -> &Workers<Self> {
        &self.workers
    }

    fn now(&self, worker: CpuId) -> Nanos {
        self.remote(worker).driver.now()
    }

    fn unpark(&self, worker: CpuId) {
        let driver = &self.remote(worker).driver;
        driver.unpark();
        if driver.run_seq() % 2 == 1 {
            // The worker's thread is not in a wait: it runs tasks of `tokio::spawn`, which may take long, so it must be
            // watched. `assign` calls no `Host::unpark`, so this is no recursion.
            self.watchdog.assign(self, worker, driver.now());
        }
    }

    fn interrupt_park(&self, worker: CpuId) {
        self.remote(worker).driver.unpark();
    }

    #[cfg(not(any(shuttle, warmcore_loom)))]
    fn wait_awake(&self, time: Nanos, is_over: &dyn Fn() -> bool) {
        // Not the driver's clock, which a test may stop.
        let until = warmcore_sys::clock::now().0 + time.0;
        while !is_over() && warmcore_sys::clock::now().0 < until {
            std::hint::spin_loop();
        }
    }

    fn cancel(&self, task: RunnableTask) {
        task.cancel();
    }

    fn is_shutdown(&self) -> bool {
        // ORDERING: Acquire; pairs with the SeqCst store of `Runtime::end`.
        self.is_shutdown.load(Acquire)
    }

    fn parks(&self, _worker: CpuId) {
        crate::thread_config::call(&self.threads.on_park);
    }

    fn resumed(&self, worker: CpuId, now: Nanos) {
        // This worker polls now, so another parked worker becomes the watchdog.
        self.watchdog.assign(self, worker, now);
    }

    fn thread_usage(&self, worker: CpuId) -> Option<ThreadUsage> {
        self.remote(worker).driver.thread_usage()
    }

    fn found_long_poll(&self, core: &Core<Self>) {
        let are_measured = core.count_long_poll(self);
        self.report_long_poll(core.me(), core.now(), None, are_measured);
    }

    fn moved(&self, worker: CpuId, task: &RunnableTask, is_other_llc: bool) {
        self.task_groups.record_move(worker, task.header(), is_other_llc);
    }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;
    use crate::mock::{Mock, workers};
    use warmcore_types::LlcId;

    /// Where so many connections begin that all stay, and how often a worker was looked at.
    fn place(mocks: &[Arc<Mock>], shared: &Shared, many: usize, among: Allowed) -> (Vec<usize>, usize) {
        for _ in 0..many {
            let cpu = shared.least_loaded(Allowed::Anywhere, among).expect("a worker");
            mocks[cpu.index()].foreign.fetch_add(1, Relaxed);
        }
        let of = |count: fn(&Mock) -> &std::sync::atomic::AtomicUsize| {
            mocks.iter().map(|mock| count(mock).load(Relaxed)).collect::<Vec<_>>()
        };
        (of(|mock| &mock.foreign), of(|mock| &mock.asked).iter().sum())
    }

    #[test]
    fn a_connection_looks_at_two_workers_and_all_get_about_as_many() {
        for (n, most_apart) in [(1, 0), (2, 1), (3, 2), (64, 4), (384, 4)] {
            let (mocks, shared) = workers(n, n);
            let (counts, looks) = place(&mocks, &shared, n * 100, Allowed::Anywhere);
            assert_eq!(looks, n * 100 * n.min(2));
            let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
            assert!(most - least <= most_apart, "{n} workers: {counts:?}");
        }
    }

    #[test]
    fn connections_of_one_cache_begin_on_its_workers_evenly() {
        let (mocks, shared) = workers(64, 8);
        let (counts, _) = place(&mocks, &shared, 800, Allowed::Llc(LlcId(3)));
        let own: Vec<usize> = counts.iter().copied().filter(|count| *count > 0).collect();
        assert_eq!((own.len(), own.iter().sum()), (8, 800), "{counts:?}");
        assert!(own.iter().all(|count| (97..=103).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_connection_begins_on_no_worker_in_a_long_poll_if_there_is_another() {
        let (mocks, shared) = workers(16, 16);
        (2..16).for_each(|stuck| _ = shared.workers.set_stuck(CpuId(stuck), true));
        let (counts, _) = place(&mocks, &shared, 100, Allowed::Anywhere);
        assert_eq!((counts[0] + counts[1], counts[0].abs_diff(counts[1])), (100, 0), "{counts:?}");
        (0..2).for_each(|stuck| _ = shared.workers.set_stuck(CpuId(stuck), true));
        assert!(shared.least_loaded(Allowed::Anywhere, Allowed::Anywhere).is_some());
        shared.workers.remotes().for_each(|remote| remote.status.is_closed.store(true, Relaxed));
        assert!(shared.least_loaded(Allowed::Anywhere, Allowed::Anywhere).is_none());
    }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod script;
