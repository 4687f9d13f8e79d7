//! Shared: what the workers of one runtime see of each other, and what everybody else sees of them.
//!
//! Model.   A `Remote` per worker: its inbox, its queue, what it says of itself. An injection queue per shard of an LLC: tasks
//!          that have no home yet, for whoever of the shard is free first. Placement asks through `View`.
//! Number.  A remote is 9 pairs of cache lines. A wake from another thread writes one of them, the inbox, and if the worker
//!          is parked another, its statistics.
//! Writers. Of each field: said there.

use crate::header::{Header, QueuedTask, RunnableTask, cancel};
use crate::inbox::Inbox;
use crate::metrics::Stats;
use crate::owned_tasks::OwnedTasks;
use crate::run_queue::{Entry, RunQueue};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering::*, fence};
use std::collections::VecDeque;
use std::sync::Arc;
use warmcore_budget::process::unaccounted;
use warmcore_driver::Driver;
use warmcore_line::{Line, Padded};
use warmcore_sched::{
    Allowed, Pace, Policy, PolicyKind, QueueOrder, SchedDomains, StealDecision, TargetQueue, View, Wake,
    WakeDecision, WakeSource,
};
use warmcore_types::{CpuId, Nanos, ignore_poison};

/// What a task is found by: the runtime, and the worker that spawned it. One per worker, so that counting
/// references writes no line that all share.
pub(crate) struct SchedulerRef {
    pub(crate) shared: Arc<Shared>,
    /// Whose list of owned tasks.
    pub(crate) worker: CpuId,
}

/// One worker, as others see it.
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub(crate) struct Remote {
    /// Written by all who hand it something.
    #[line(contended = "inbox")]
    pub(crate) inbox: Padded<Inbox<RunnableTask>>,
    /// Under the lock: the worker's own, and who pulls.
    #[line(contended = "run queue")]
    pub(crate) run_queue: Padded<Mutex<RunQueue<QueuedTask>>>,
    #[line(owner = "worker")]
    pub(crate) status: Padded<WorkerStatus>,
    /// Written by who finds it in a long poll, and by the worker, which clears it.
    #[line(contended = "watchdog")]
    pub(crate) is_stuck: Padded<AtomicBool>,
    /// Its groups are said there.
    #[line(contended = "stats")]
    pub(crate) stats: Padded<Stats>,
    #[line(contended = "owned tasks")]
    pub(crate) owned_tasks: Padded<OwnedTasks>,
    #[line(read_mostly)]
    pub(crate) driver: Box<dyn Driver>,
}

/// What a worker says of itself. Written by the worker; `stealable`, `backlog_since` and `oldest` under its
/// queue's lock.
#[derive(Debug, Default, Line)]
#[line(pair, default = owner)]
#[repr(align(128))]
pub(crate) struct WorkerStatus {
    /// How many wait in its queue that could run elsewhere.
    pub(crate) stealable: AtomicU32,
    /// How many wait in its queue that may not, as of its last look at a neighbour.
    pub(crate) pinned: AtomicU32,
    /// Since when always somebody has.
    pub(crate) backlog_since: AtomicU64,
    /// Since when the one of them waits that has waited longest. Kept only where the policy takes that one.
    pub(crate) oldest: AtomicU64,
    /// Odd: in a poll. A poll is counted twice.
    pub(crate) poll_seq: AtomicU64,
    /// What its tasks run for at a time.
    pub(crate) mean_poll_ns: AtomicU32,
    /// Until when it is kept for a task that sleeps shortly.
    pub(crate) hot_until: AtomicU64,
    /// Since when it sleeps; 0: it does not.
    pub(crate) parked_since: AtomicU64,
    /// Odd: parked, and no task polled since. A park is counted twice: when it begins, and at the first poll after it or at
    /// the shutdown.
    pub(crate) park_seq: AtomicU64,
    /// It takes no more work.
    pub(crate) is_closed: AtomicBool,
    /// Until when no long poll is told with its task, and how many were not since the last one that was. Kept here: they
    /// outlive the thread that is the worker.
    pub(crate) unreported_until: AtomicU64,
    pub(crate) unreported: AtomicU64,
}

/// From an injection queue so many are taken at once, at most.
const SHARE_MAX: usize = 32;

/// Tasks without a home. They may run anywhere: what may not is on no inject_queue.
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub(crate) struct InjectQueue {
    /// Written under the lock. Each worker of the shard reads it before each poll, so that nothing else may be on its
    /// line that is written more often.
    #[line(read_mostly)]
    len: Padded<AtomicU32>,
    /// `None`: closed.
    #[line(contended = "tasks")]
    tasks: Padded<Mutex<Option<VecDeque<RunnableTask>>>>,
    /// Written by workers that fall asleep or wake.
    #[line(contended = "sleepers")]
    pub(crate) idle: Padded<AtomicU32>,
    /// One of the shard's workers was woken for what lies here, and has not looked yet: one at a time. Written by
    /// who wakes it, and by workers that wake.
    #[line(contended = "sleepers")]
    pub(crate) wakeup_pending: Padded<AtomicBool>,
}

#[derive(Line)]
#[line(pair, default = read_mostly)]
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) remotes: Box<[Remote]>,
    pub(crate) inject_queues: Box<[InjectQueue]>,
    pub(crate) machine: SchedDomains,
    pub(crate) policy: PolicyKind,
    /// What the policy says of [`Policy::steal_order`]: asked twice a poll.
    pub(crate) takes_oldest: bool,
    /// The first worker on each of the kernel's CPUs.
    pub(crate) worker_on: Box<[Option<CpuId>]>,
    /// Nobody waits for tasks any more.
    pub(crate) is_shutdown: AtomicBool,
    pub(crate) threads: crate::thread_config::ThreadConfig,
    #[line(contended = "watchdog")]
    pub(crate) watchdog: Padded<crate::watchdog::Watchdog>,
    #[line(contended = "foreign")]
    pub(crate) foreign: Padded<crate::foreign::Foreign>,
    #[line(contended = "worker threads")]
    pub(crate) worker_threads: Padded<crate::worker_threads::WorkerThreads>,
    pub(crate) tenant_stats: crate::tenant_stats::TenantStats,
    pub(crate) task_groups: crate::task_groups::TaskGroups,
    #[cfg(feature = "metrics")]
    #[line(contended = "exported")]
    pub(crate) exported: Padded<Mutex<crate::export::exported::Exported>>,
    pub(crate) long_poll: Nanos,
    /// Which worker's list the next task from outside is on.
    #[line(contended = "outside")]
    pub(crate) outside: Padded<AtomicU32>,
    #[line(contended = "remote schedules")]
    pub(crate) remote_schedules: Padded<AtomicU64>,
    /// Which CPUs each worker's thread may use.
    pub(crate) pin_to: Box<[warmcore_types::CpuSet]>,
    /// [`Handle::attachment`](crate::Handle::attachment). Written once.
    pub(crate) attachment: std::sync::OnceLock<Box<dyn std::any::Any + Send + Sync>>,
}

impl Shared {
    /// The current thread goes where a worker belongs. Where that is refused (the process's CPUs were changed
    /// meanwhile) it stays where the system puts it.
    pub(crate) fn pin(&self, cpu: CpuId) {
        if let Some(cpus) = self.pin_to.get(cpu.index())
            && let Err(error) = warmcore_sys::affinity::set_allowed(cpus)
        {
            tracing::debug!(worker = cpu.0, %cpus, %error, "a worker is not pinned");
        }
    }

    /// Of two workers that are allowed and among these, the one with fewer tasks: the next one in turn, and one by
    /// chance. Its driver's own tasks count. Further ones are looked at only if both are in a long poll, or take no more.
    ///
    /// To look at a worker misses the cache four times. With two looks instead of one at each, no worker of many gets
    /// more than two or three tasks above the average ("the power of two choices").
    pub(crate) fn least_loaded(&self, allowed: Allowed, among: Allowed) -> Option<CpuId> {
        let may = |cpu: &CpuId| self.machine.allows(allowed, *cpu) && self.machine.allows(among, *cpu);
        // What this reads no worker writes.
        let all = || (0..self.remotes.len() as u32).map(CpuId).filter(may);
        let n = all().count();
        let turn = self.outside.fetch_add(1, Relaxed);
        let first = turn as usize % n.max(1);
        let chance = (turn.wrapping_mul(0x9E37_79B9) >> 8) as usize % n.saturating_sub(1).max(1);
        let second = first + 1 + chance;
        let load = |at: usize| {
            let cpu = all().nth(at % n).filter(|cpu| !self.is_offline(*cpu))?;
            let remote = self.remote(cpu);
            let tasks = remote.owned_tasks.count() as usize + remote.driver.foreign_tasks();
            Some((self.is_stuck(cpu), tasks, cpu))
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

    pub(crate) fn remote(&self, cpu: CpuId) -> &Remote {
        &self.remotes[cpu.index()]
    }

    pub(crate) fn num_alive_tasks(&self) -> usize {
        self.remotes.iter().map(|remote| remote.owned_tasks.count() as usize).sum()
    }

    /// How many workers sleep.
    pub(crate) fn count_idle(&self) -> usize {
        self.inject_queues.iter().map(|inject_queue| inject_queue.idle.load(Relaxed) as usize).sum()
    }

    /// What a move costs a task that runs for so long at a time; for as long as those of `near` do, if nobody
    /// knows.
    pub(crate) fn migration_cost(&self, poll_ns: Option<u32>, near: Option<CpuId>) -> Nanos {
        let average = || near.map_or(0, |cpu| self.remote(cpu).status.mean_poll_ns.load(Relaxed));
        self.policy.migration_cost(Nanos(poll_ns.unwrap_or_else(average).into()))
    }

    /// Decides where a wakee goes.
    pub(crate) fn place_task(&self, header: &Header, now: Nanos, waker: WakeSource) -> WakeDecision {
        let wakee = header.wakee(self.migration_cost(header.poll_ns(), header.prev_worker()));
        let mut placed = self.policy.wake(&self.machine, self, &Wake { now, wakee, waker });
        if placed.hot_kept > 0 || placed.hot_broken {
            // A window that was open by the caller's clock, which may be late, and may be closed by now.
            let now = self.remotes[0].driver.now();
            placed = self.policy.wake(&self.machine, self, &Wake { now, wakee, waker });
        }
        let woken_from = match waker {
            WakeSource::Cpu(cpu) | WakeSource::Outside(Some(cpu)) => Some(cpu),
            WakeSource::Outside(None) => None,
        };
        header.set_accrued_cost(placed.accrued_cost, woken_from);
        if placed.hot_kept > 0 || placed.hot_broken {
            let at = placed.kick.unwrap_or(CpuId(0));
            let stats = &self.remote(at).stats;
            stats.hot_kept.fetch_add(placed.hot_kept.into(), Relaxed);
            stats.hot_broken.fetch_add(placed.hot_broken.into(), Relaxed);
        }
        placed
    }

    /// The worker of the CPU that the current thread runs on, if there is one.
    pub(crate) fn worker_here(&self) -> Option<CpuId> {
        *self.worker_on.get(warmcore_sys::rseq::cpu_hint()? as usize)?
    }

    /// A wake by a thread that is no worker of this runtime.
    #[cold]
    pub(crate) fn schedule_external(&self, runnable: RunnableTask) {
        let now = self.remotes[0].driver.now();
        runnable.metadata().wake(|| now);
        let placed = self.place_task(runnable.metadata(), now, WakeSource::Outside(self.worker_here()));
        self.remote_schedules.fetch_add(1, Relaxed);
        self.enqueue(runnable, placed);
    }

    /// Puts a task where it was placed, unless that is the caller's own queue.
    pub(crate) fn enqueue(&self, runnable: RunnableTask, placed: WakeDecision) {
        match placed.to {
            TargetQueue::Cpu(cpu) => self.push_inbox(runnable, cpu),
            TargetQueue::Shard(shard) => match self.inject_queues[shard].push(runnable) {
                Ok(()) => self.notify_for_inject(shard, placed.kick),
                Err(runnable) => cancel(runnable),
            },
        }
    }

    /// Into a worker's inbox; wakes it if it sleeps.
    pub(crate) fn push_inbox(&self, runnable: RunnableTask, cpu: CpuId) {
        let remote = self.remote(cpu);
        match remote.inbox.push(runnable) {
            Ok(false) => {}
            Ok(true) => self.unpark(cpu),
            Err(runnable) => self.push_any_inbox(runnable, cpu),
        }
    }

    /// A worker took no more.
    #[cold]
    fn push_any_inbox(&self, mut runnable: RunnableTask, cpu: CpuId) {
        if self.is_shutdown.load(Acquire) {
            return cancel(runnable);
        }
        for other in self.machine.others(cpu) {
            match self.remote(other).inbox.push(runnable) {
                Ok(false) => return,
                Ok(true) => return self.unpark(other),
                Err(back) => runnable = back,
            }
        }
        cancel(runnable);
    }

    /// Unparks a worker. The caller has marked its inbox as not parked. Makes a system call, and writes the worker's
    /// statistics and its driver's flag.
    pub(crate) fn unpark(&self, cpu: CpuId) {
        let remote = self.remote(cpu);
        remote.stats.unparks.fetch_add(1, Relaxed);
        remote.driver.unpark();
        if remote.driver.run_seq() % 2 == 1 {
            // It sleeps no more, but runs what somebody spawned on its driver: nobody knows for how long. Who is
            // appointed is not kicked by this function, so this does not come back here.
            self.watchdog.assign(self, cpu, remote.driver.now());
        }
    }

    /// Rouses a worker, to look for work.
    pub(crate) fn try_unpark(&self, cpu: CpuId) -> bool {
        let slept = self.remote(cpu).inbox.try_unpark();
        if slept {
            self.unpark(cpu);
        }
        slept
    }

    /// Something lies on an injection queue: one of those that sleep is to look, its own first.
    pub(crate) fn notify_for_inject(&self, shard: usize, first: Option<CpuId>) {
        // ORDERING: SeqCst; the injection queue's length was written before, who sleeps, and whether one was called, is read
        // after: `ParkGuard::new` does both the other way round. One of the two sees the other.
        fence(SeqCst);
        let inject_queue = &self.inject_queues[shard];
        let cpus = self.machine.cpus_of(shard);
        let near = first.or(cpus.first().copied()).unwrap_or(CpuId(0));
        if inject_queue.idle.load(Relaxed) > 0 {
            if inject_queue.wakeup_pending.swap(true, SeqCst) {
                return;
            }
            // Only the shard's own: who wakes takes back the call of its own injection queue, and of no other.
            let own = first.filter(|cpu| self.machine.shard_of(*cpu) == shard);
            if own.into_iter().chain(cpus.iter().copied()).any(|cpu| self.try_unpark(cpu)) {
                return;
            }
            inject_queue.wakeup_pending.store(false, SeqCst);
        }
        let _ = std::iter::once(near).chain(self.machine.others(near)).find(|cpu| self.try_unpark(*cpu));
    }

    /// More wait at `at` than it will get to soon: somebody who sleeps is to look.
    pub(crate) fn notify_parked(&self, at: CpuId, now: Nanos) {
        // ORDERING: SeqCst; as in `notify_for_inject`, with how many wait in the place of the injection queue's length.
        fence(SeqCst);
        if self.count_idle() == 0 {
            return;
        }
        // Who woke meanwhile sleeps no more, so this ends.
        while let Some(cpu) = self.policy.cpu_to_notify(&self.machine, self, at, now) {
            if self.try_unpark(cpu) {
                break;
            }
        }
    }

    /// Under the lock of its queue: how many wait, and since when.
    #[inline]
    pub(crate) fn publish_status(&self, remote: &Remote, queue: &mut RunQueue<QueuedTask>, now: Nanos) {
        let (before, waiting) = (remote.status.stealable.load(Relaxed), queue.stealable());
        if before == 0 && waiting > 0 {
            remote.status.backlog_since.store(now.0, Relaxed);
        }
        remote.status.stealable.store(waiting, Relaxed);
        if self.takes_oldest {
            self.publish_oldest(remote, queue);
        }
    }

    #[inline(never)]
    fn publish_oldest(&self, remote: &Remote, queue: &mut RunQueue<QueuedTask>) {
        if let Some(oldest) = queue.oldest_since()
            && oldest.0 != remote.status.oldest.load(Relaxed)
        {
            remote.status.oldest.store(oldest.0, Relaxed);
        }
    }

    /// Looks for work for a worker that has none; what it may take comes into its own queue.
    pub(crate) fn steal_work(&self, me: CpuId, now: Nanos) -> StealOutcome {
        for _ in 0..self.remotes.len().min(64) + 1 {
            match self.policy.steal(&self.machine, self, me, now) {
                StealDecision::Shard(shard) => {
                    let popped = self.inject_queues[shard].pop(self.machine.cpus_of(shard).len());
                    if !popped.is_empty() {
                        self.push_popped(me, popped, now);
                        return StealOutcome::Some;
                    }
                }
                StealDecision::From { cpu, at_most } => {
                    let taken = self.steal_from(me, cpu, at_most.clamp(1, 256), now);
                    if !taken.is_empty() {
                        self.push_own_queue(me, taken, now);
                        // Who waits there still is to be seen by the next one.
                        self.notify_parked(cpu, now);
                        return StealOutcome::Some;
                    }
                    // Those that wait there may not come here.
                    return StealOutcome::Until(Nanos(now.0 + 1_000_000));
                }
                StealDecision::Until(at) => return StealOutcome::Until(at),
                StealDecision::Nothing => return StealOutcome::Nothing,
            }
        }
        // Others were faster each time; something may wait all the same.
        StealOutcome::Until(now)
    }

    /// Puts tasks from an injection queue into the caller's own queue.
    pub(crate) fn push_popped(&self, me: CpuId, popped: Vec<RunnableTask>, now: Nanos) {
        self.push_own_queue(me, popped.into_iter().map(|runnable| QueuedTask { runnable, since: now }), now);
    }

    /// Puts tasks into the caller's own queue.
    fn push_own_queue(&self, me: CpuId, tasks: impl IntoIterator<Item = QueuedTask>, now: Nanos) {
        let remote = self.remote(me);
        let mut queue = ignore_poison(remote.run_queue.lock());
        tasks.into_iter().for_each(|waiting| queue.push(waiting));
        self.publish_status(remote, &mut queue, now);
    }

    /// Takes tasks away from `from`, for `me`.
    fn steal_from(&self, me: CpuId, from: CpuId, at_most: u32, now: Nanos) -> Vec<QueuedTask> {
        let remote = self.remote(from);
        let is_stuck = remote.is_stuck.load(Relaxed);
        let steal_order = self.policy.steal_order();
        let may = |runnable: &RunnableTask| self.machine.allows(runnable.metadata().allowed, me);
        let mut taken = Vec::new();
        let mut queue = ignore_poison(remote.run_queue.lock());
        while taken.len() < at_most as usize
            && let Some(waiting) = queue.steal(steal_order, |waiting| may(&waiting.runnable))
        {
            taken.push(waiting);
        }
        let mut back = Vec::new();
        if is_stuck {
            // What was handed to it lies in its inbox until it comes back.
            for runnable in remote.inbox.take() {
                if may(&runnable) {
                    taken.push(QueuedTask { runnable, since: now })
                } else {
                    back.push(runnable)
                }
            }
        }
        self.publish_status(remote, &mut queue, Nanos(remote.status.backlog_since.load(Relaxed)));
        drop(queue);
        // Not into its queue: it may have come back and fallen asleep meanwhile, which its inbox knows.
        back.into_iter().for_each(|runnable| self.push_inbox(runnable, from));
        remote.stats.stolen_tasks.fetch_add(taken.len() as u64, Relaxed);
        taken
    }

    /// Takes so many of the tasks that wait at `from` and may come, each by lot. Returns how many came, and
    /// how many of them had run.
    ///
    /// Not those that would run last, as [`steal_from`](Self::steal_from) does for an idle worker: those are the same ones again
    /// and again, and what is evened out here is which task gets the shorter round.
    pub(crate) fn migrate(
        &self,
        me: CpuId,
        from: CpuId,
        at_most: u32,
        now: Nanos,
        random: impl Fn() -> u32,
    ) -> (u32, u32) {
        let remote = self.remote(from);
        let may = |waiting: &QueuedTask| self.machine.allows(waiting.runnable.metadata().allowed, me);
        let mut queue = ignore_poison(remote.run_queue.lock());
        let taken: Vec<QueuedTask> = (0..at_most).map_while(|_| queue.steal_random(random(), may)).collect();
        self.publish_status(remote, &mut queue, Nanos(remote.status.backlog_since.load(Relaxed)));
        drop(queue);
        let came = taken.len() as u32;
        let had_run =
            taken.iter().filter(|waiting| waiting.runnable.metadata().prev_worker().is_some()).count() as u32;
        remote.stats.stolen_tasks.fetch_add(came.into(), Relaxed);
        self.push_own_queue(me, taken, now);
        (came, had_run)
    }

    /// Takes one task of a tenant that had less than `below`, in virtual time, of those that wait at `from`. Returns
    /// whether one came.
    pub(crate) fn migrate_lagging(&self, me: CpuId, from: CpuId, below: u64, now: Nanos) -> bool {
        let remote = self.remote(from);
        let mut queue = ignore_poison(remote.run_queue.lock());
        let lagging = queue.lagging(below);
        if lagging.is_empty() {
            return false;
        }
        let may = |waiting: &QueuedTask| {
            lagging.contains(&Entry::share(waiting).tenant)
                && self.machine.allows(waiting.runnable.metadata().allowed, me)
        };
        let taken = queue.steal(self.policy.steal_order(), may);
        self.publish_status(remote, &mut queue, Nanos(remote.status.backlog_since.load(Relaxed)));
        drop(queue);
        let came = taken.is_some();
        remote.stats.stolen_tasks.fetch_add(came.into(), Relaxed);
        self.push_own_queue(me, taken, now);
        came
    }

    /// What a worker has done so far. Late by what it did since its last stores.
    pub(crate) fn pace(&self, cpu: CpuId) -> Pace {
        let remote = self.remote(cpu);
        let waiting = remote.status.stealable.load(Relaxed) + remote.status.pinned.load(Relaxed);
        let polls = remote.status.poll_seq.load(Relaxed);
        // It is odd during a poll: that task waits nowhere.
        let queued = waiting + (polls % 2) as u32;
        let parks = remote.stats.parks.load(Relaxed) + remote.stats.steal_operations.load(Relaxed);
        Pace { polls: polls / 2, parks, queued }
    }

    pub(crate) fn queue_order(&self, remote: &Remote) -> QueueOrder {
        self.policy.queue_order(Nanos(remote.status.mean_poll_ns.load(Relaxed).into()))
    }
}

/// What came of looking for work.
pub(crate) enum StealOutcome {
    /// It is in the worker's queue.
    Some,
    /// Look again then.
    Until(Nanos),
    Nothing,
}

impl InjectQueue {
    pub(crate) fn new() -> Self {
        Self {
            len: Padded::new(AtomicU32::new(0)),
            tasks: Padded::new(Mutex::new(Some(VecDeque::new()))),
            idle: Padded::new(AtomicU32::new(0)),
            wakeup_pending: Padded::new(AtomicBool::new(false)),
        }
    }

    /// `Err`: closed.
    fn push(&self, runnable: RunnableTask) -> Result<(), RunnableTask> {
        let mut tasks = ignore_poison(self.tasks.lock());
        let Some(tasks) = tasks.as_mut() else { return Err(runnable) };
        if tasks.len() == tasks.capacity() {
            // As in a worker's queue: it is nobody's, whoever spawns.
            unaccounted(|| tasks.reserve(1));
        }
        tasks.push_back(runnable);
        self.len.store(tasks.len() as u32, Relaxed);
        Ok(())
    }

    /// Nothing comes in any more; what was there is handed out.
    pub(crate) fn close(&self) -> VecDeque<RunnableTask> {
        let tasks = ignore_poison(self.tasks.lock()).take();
        self.len.store(0, Relaxed);
        tasks.unwrap_or_default()
    }

    /// Those that wait longest: a share for one of so many workers.
    pub(crate) fn pop(&self, workers: usize) -> Vec<RunnableTask> {
        if self.len.load(Relaxed) == 0 {
            return Vec::new();
        }
        let mut tasks = ignore_poison(self.tasks.lock());
        let Some(tasks) = tasks.as_mut() else { return Vec::new() };
        let share = tasks.len().div_ceil(workers.max(1)).min(SHARE_MAX);
        let popped = tasks.drain(..share).collect();
        self.len.store(tasks.len() as u32, Relaxed);
        popped
    }

    pub(crate) fn len(&self) -> u32 {
        self.len.load(Relaxed)
    }
}

impl View for Shared {
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.remote(cpu).inbox.is_parked()
    }

    fn is_offline(&self, cpu: CpuId) -> bool {
        self.remote(cpu).status.is_closed.load(Relaxed)
    }

    fn is_stuck(&self, cpu: CpuId) -> bool {
        self.remote(cpu).is_stuck.load(Relaxed)
    }

    fn backlog(&self, cpu: CpuId) -> u32 {
        let remote = self.remote(cpu);
        let waiting = remote.status.stealable.load(Relaxed);
        waiting + u32::from(remote.is_stuck.load(Relaxed) && remote.inbox.has_tasks())
    }

    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        Nanos(self.remote(cpu).status.backlog_since.load(Relaxed))
    }

    fn waits_since(&self, _me: CpuId, cpu: CpuId) -> Nanos {
        Nanos(self.remote(cpu).status.oldest.load(Relaxed))
    }

    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        self.migration_cost(None, Some(cpu))
    }

    fn hot_until(&self, cpu: CpuId) -> Nanos {
        Nanos(self.remote(cpu).status.hot_until.load(Relaxed))
    }

    fn shared_queue_len(&self, shard: usize) -> u32 {
        self.inject_queues[shard].len()
    }

    fn idle_in(&self, shard: usize) -> u32 {
        self.inject_queues[shard].idle.load(Relaxed)
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
        for stuck in shared.remotes.iter().skip(1) {
            stuck.is_stuck.store(true, Relaxed);
        }
        shared.remotes[1].is_stuck.store(false, Relaxed);
        let (counts, _) = place(&mocks, &shared, 100, Allowed::Anywhere);
        assert_eq!((counts[0] + counts[1], counts[0].abs_diff(counts[1])), (100, 0), "{counts:?}");
        shared.remotes.iter().for_each(|remote| remote.is_stuck.store(true, Relaxed));
        assert!(shared.least_loaded(Allowed::Anywhere, Allowed::Anywhere).is_some());
        shared.remotes.iter().for_each(|remote| remote.status.is_closed.store(true, Relaxed));
        assert!(shared.least_loaded(Allowed::Anywhere, Allowed::Anywhere).is_none());
    }
}
