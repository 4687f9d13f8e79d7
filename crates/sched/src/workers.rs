//! Workers: what the workers of one scheduler see of each other, and how a task that is woken reaches one of them.
//!
//! Each worker has a [`Remote`]: its inbox, its ring, its run queue under a lock, and its status. Each shard of a last-level cache
//! has an [`InjectQueue`]. The policy decides from this state, which it reads through [`View`]. `worker/steal.rs` is
//! how an idle worker takes tasks, `worker.rs` the loop of one worker.
//!
//! # Cost
//! A wake by another thread writes one line of the worker that gets the task, its inbox, and one more if it is parked.
//!
//! # Protocol
//! A worker that parks marks itself as parked, then looks for tasks. A thread that queues a task where a parked worker
//! does not see it (a ring, a run queue, an injection queue) queues it, then looks for parked workers. A SeqCst fence is between
//! the two steps of both, so one of the two sees the other: `Core::mark_parked`, [`Workers::notify_parked`],
//! `notify_for_inject`. Of other last-level caches it looks at the injection queues only, unless it was asked to look further. A task
//! in a worker's queue there is hardly due yet; that worker unparks another one for it at a later maintenance, or the watchdog finds it in a
//! long poll.
//!
//! A worker that took light tasks from an injection queue *serves* its shard until some time: threads outside push new light tasks to
//! its inbox meanwhile. That is a hint, as the inbox knows whether its worker parks.

use crate::counters::Counters;
use crate::first_polls::FirstPolls;
use crate::inject_queue::InjectQueue;
use crate::policy::{WAKEUP_COST, has_idle, origin};
use crate::refill::Refills;
use crate::run_queue::RunQueue;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Locked, Mutex, Ordering::*, fence};
use crate::virtual_time::VirtualTimes;
use crate::{
    Allowed, FarSearch, Host, Inbox, Pace, Policy, QueueOrder, Queued, Ring, SchedDomains, ShardMask,
    StealOrder, TargetQueue, Task, View, Wake, WakeDecision, WakeSource, Wakee,
};
use std::sync::Arc;
use warmcore_line::{Line, Padded};
use warmcore_types::{CpuId, Nanos};

/// What other workers see of one worker.
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub struct Remote<H: Host> {
    /// Written by all threads that hand a task to the worker.
    #[line(contended = "inbox")]
    pub inbox: Padded<H::Inbox>,
    /// Written by the worker, and by threads that steal.
    #[line(contended = "ring")]
    pub(crate) ring: Padded<H::Ring>,
    /// Under the lock: the worker's own accesses, and steals.
    #[line(contended = "run queue")]
    pub(crate) run_queue: Padded<Mutex<RunQueue<Queued<H::Task>>>>,
    /// Written by the worker.
    #[line(owner = "worker")]
    pub status: Padded<WorkerStatus>,
    /// Written by threads that unpark the worker, and by the worker.
    #[line(contended = "notice")]
    pub(crate) notice: Padded<Notice>,
    #[line(contended = "still")]
    pub(crate) still: Padded<Stillness>,
    /// Its writers are named in [`Counters`].
    #[line(contended = "counters")]
    pub counters: Padded<Counters>,
}

/// How other threads have unparked a worker.
#[derive(Debug, Default, Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub struct Notice {
    /// Whether the worker was notified and counts as searching until it has searched or has a task, under a policy that
    /// limits how many search.
    pub(crate) is_notified: AtomicBool,
    /// The number, plus 1, of another shard where tasks wait for it; 0: none; `u32::MAX`: several. A hint, taken when the worker looks for tasks.
    pub(crate) asked_by: AtomicU32,
    /// When it was unparked; 0: the worker has seen it.
    pub(crate) unparked_at: AtomicU64,
}

/// What other workers have seen of a worker: how many steps it had done, and since when it has done none. Written by workers
/// that look at it while tasks wait there, and by itself when it parks after such a look.
#[derive(Debug, Default, Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub struct Stillness {
    /// The number of steps, plus 1; 0: no worker has looked.
    steps: AtomicU64,
    pub(crate) since: AtomicU64,
}

/// What a worker publishes about itself. Written by the worker; `queued`, `stealable`, `backlog_since` and `oldest` under the
/// lock of its run queue, also by steals; `backlog_since` also without it, when a task enters an empty ring.
#[derive(Debug, Default, Line)]
#[line(pair, default = owner)]
#[repr(align(128))]
pub struct WorkerStatus {
    /// The number of tasks in its run queue.
    pub(crate) queued: AtomicU32,
    /// The number of tasks in its run queue that could run on another worker.
    pub(crate) stealable: AtomicU32,
    /// The number of tasks there that may run on this worker only, as of its last comparison with a neighbour.
    pub(crate) pinned: AtomicU32,
    /// Since when tasks wait here that could run on another worker, in the ring or in the run queue.
    pub(crate) backlog_since: AtomicU64,
    /// When the stealable task was queued that has waited longest. Kept only for policies that steal this one.
    pub(crate) oldest: AtomicU64,
    /// The number of polls, times 2; odd during a poll.
    pub poll_seq: AtomicU64,
    /// Average duration of a poll, in ns. 0: not known.
    pub mean_poll_ns: AtomicU32,
    /// How long it takes from an unpark until the worker's thread runs, on average, in ns. 0: not known.
    pub(crate) wakeup_ns: AtomicU32,
    /// Until when the idle worker is kept for a task that sleeps briefly.
    pub(crate) hot_until: AtomicU64,
    /// [`View::far_search`]: 0 for all, 1 for none, else a shard's number plus 2.
    pub(crate) far_search: AtomicU32,
    /// Since when the worker sleeps. 0: it does not.
    pub parked_since: AtomicU64,
    /// The number of parks, times 2; odd from a park until the next poll. A park ends at the first poll
    /// after it, or at the shutdown.
    pub park_seq: AtomicU64,
    /// The worker takes no more tasks.
    pub is_closed: AtomicBool,
}

/// The workers of one scheduler, and the queues that they share.
#[derive(Line)]
#[line(pair, default = read_mostly)]
#[repr(align(128))]
pub struct Workers<H: Host> {
    pub(crate) remotes: Box<[Arc<Remote<H>>]>,
    pub(crate) inject_queues: Box<[Arc<InjectQueue<H::Task>>]>,
    machine: SchedDomains,
    policy: H::Policy,
    /// Whether the policy steals the task that has waited longest, so that its time is published.
    takes_oldest: bool,
    /// Whether a policy other than the default one asks for more than the number of tasks that are not pinned. Under such a
    /// policy no task enters a ring.
    publishes_more: bool,
    /// [`Policy::max_searching`].
    pub(crate) max_searching: u32,
    pub(crate) virtual_times: Arc<VirtualTimes>,
    /// [`View::others_run`].
    others_run: AtomicBool,
    /// Written by first polls after moves.
    #[line(contended = "refills")]
    pub(crate) refills: Padded<Refills>,
    /// Written by measured polls of new tasks.
    #[line(contended = "refills")]
    pub(crate) first_polls: Padded<FirstPolls>,
    /// The number of workers that search for tasks. Counted only if the policy has a limit.
    #[line(contended = "searching")]
    pub(crate) searching: Padded<AtomicU32>,
    /// Wakes by threads that are no workers.
    #[line(contended = "remote schedules")]
    remote_schedules: Padded<AtomicU64>,
}

impl<H: Host> Remote<H> {
    pub(crate) fn lock_queue(&self) -> Locked<'_, RunQueue<Queued<H::Task>>> {
        Locked::lock(&self.run_queue)
    }

    /// The number of tasks in the ring and the run queue that could run on another worker.
    pub fn waiting(&self) -> u32 {
        self.ring.len() + self.status.stealable.load(Relaxed)
    }

    /// How long the worker was parked, the park that goes on included, in ns.
    pub fn parked_ns(&self, now: Nanos) -> u64 {
        // In this order a park that ends meanwhile is not counted twice.
        let parked_ns = self.counters.parked_ns.load(Relaxed);
        let since = self.status.parked_since.load(Relaxed);
        parked_ns + if since > 0 { now.0.saturating_sub(since) } else { 0 }
    }

    /// The number of its polls, times 2, and of its parks that a poll followed, plus 1. It grows with each poll's begin and end.
    fn steps(&self) -> u64 {
        self.status.poll_seq.load(Relaxed) + self.status.park_seq.load(Relaxed) + 1
    }

    /// Another worker looks whether this one has done a step since the look before.
    pub(crate) fn look(&self, now: Nanos) {
        let steps = self.steps();
        if self.still.steps.load(Relaxed) != steps {
            self.still.since.store(now.0, Relaxed);
            // ORDERING: Release; pairs with the Acquire of `still_for`.
            self.still.steps.store(steps, Release);
        }
    }

    /// The worker parks, so it will have slept when it is seen again.
    pub(crate) fn forget_looks(&self) {
        if self.still.steps.load(Relaxed) == self.steps() {
            self.still.steps.store(0, Relaxed);
        }
    }
}

impl<H: Host> Workers<H> {
    /// Workers without tasks, one for each CPU of `machine`.
    pub fn new(machine: SchedDomains, policy: H::Policy) -> Self {
        let virtual_times = Arc::<VirtualTimes>::default();
        let remote = |_| {
            Arc::new(Remote {
                inbox: Padded::new(H::Inbox::default()),
                ring: Padded::new(H::Ring::default()),
                run_queue: Padded::new(Mutex::new(RunQueue::new(
                    virtual_times.clone(),
                    policy.steals_lifo_slot(),
                ))),
                status: Padded::new(WorkerStatus::default()),
                notice: Padded::default(),
                still: Padded::default(),
                counters: Padded::new(Counters::default()),
            })
        };
        let takes_oldest = policy.steal_order() == StealOrder::Oldest;
        Self {
            remotes: (0..machine.cpus()).map(remote).collect(),
            inject_queues: (0..machine.shards()).map(|_| Arc::new(InjectQueue::new())).collect(),
            takes_oldest,
            publishes_more: takes_oldest || !policy.steals_lifo_slot(),
            max_searching: policy.max_searching(machine.cpus() as u32),
            machine,
            policy,
            virtual_times,
            others_run: AtomicBool::new(true),
            refills: Padded::new(Refills::new()),
            first_polls: Padded::new(FirstPolls::new()),
            searching: Padded::new(AtomicU32::new(0)),
            remote_schedules: Padded::new(AtomicU64::new(0)),
        }
    }

    /// What the workers' CPUs share.
    pub fn machine(&self) -> &SchedDomains {
        &self.machine
    }

    /// The rules.
    pub fn policy(&self) -> &H::Policy {
        &self.policy
    }

    /// One worker.
    #[inline]
    pub fn remote(&self, worker: CpuId) -> &Remote<H> {
        &self.remotes[worker.index()]
    }

    /// All workers, in the order of their numbers.
    pub fn remotes(&self) -> impl ExactSizeIterator<Item = &Remote<H>> {
        self.remotes.iter().map(|remote| &**remote)
    }

    fn shard_of(&self, worker: CpuId) -> &InjectQueue<H::Task> {
        &self.inject_queues[self.machine.shard_of(worker)]
    }

    /// The injection queues, by shard.
    pub fn inject_queues(&self) -> impl ExactSizeIterator<Item = &InjectQueue<H::Task>> {
        self.inject_queues.iter().map(|queue| &**queue)
    }

    /// Wakes by threads that are no workers.
    pub fn remote_schedules(&self) -> u64 {
        self.remote_schedules.load(Relaxed)
    }

    /// Whether at least so many workers besides `me` are marked as parked. One that was unparked counts until it runs.
    pub(crate) fn has_idle(&self, me: CpuId, workers: u32) -> bool {
        has_idle(&self.machine, self, me, workers)
    }

    /// Tells how long the CPUs were idle, and how long workers were parked, both lately and all together, in ns. Other threads may need
    /// the CPUs of parked workers if these are idle for less than two thirds of that time: on two CPUs that HTTP's clients share with the
    /// server they were for 0.53 of it at most (`reports/2026-11-27-intel-xeon-2cpu`).
    pub fn compare_idle(&self, idle_ns: u64, parked_ns: u64) {
        self.set_others_run(3 * idle_ns < 2 * parked_ns);
    }

    /// Tells whether other threads may need the CPUs of parked workers. True until it is told.
    pub fn set_others_run(&self, others_run: bool) {
        // Most calls change nothing, and each worker that parks reads it.
        if self.others_run() != others_run {
            self.others_run.store(others_run, Relaxed);
        }
    }

    /// The number of workers that are marked as parked.
    pub fn count_idle(&self) -> usize {
        self.inject_queues().map(|queue| queue.idle().count_ones() as usize).sum()
    }

    /// How long polls of a task take, in ns; if that is not known, as long as those of the worker `near`.
    fn poll_of(&self, poll_ns: Option<u32>, near: Option<CpuId>) -> u32 {
        let average = || near.map_or(0, |cpu| self.remote(cpu).status.mean_poll_ns.load(Relaxed));
        poll_ns.unwrap_or_else(average)
    }

    /// What it was learned to cost to move a task within its last-level cache whose polls take `poll_ns`.
    pub(crate) fn migration_cost(&self, poll_ns: u32) -> Nanos {
        self.policy.migration_cost(self.refills.scale(poll_ns))
    }

    /// How long the first poll of a task takes, at most, if the task is new and that is known.
    pub(crate) fn first_poll(&self, task: &H::Task) -> Option<Nanos> {
        if task.state().prev_worker().is_some() { None } else { self.first_polls.of(task.kind()) }
    }

    /// Records that a worker is in a long poll, or in a long run inside its driver, or is not any more. Returns whether that was
    /// recorded before. Other workers take the tasks that wait there, and those that were handed to it.
    pub fn set_stuck(&self, worker: CpuId, is_stuck: bool) -> bool {
        let (bit, stuck) = (self.machine.bit(worker), &self.shard_of(worker).stuck);
        let before = if is_stuck { stuck.fetch_or(bit, Relaxed) } else { stuck.fetch_and(!bit, Relaxed) };
        before & bit != 0
    }

    /// Decides where a task goes that is woken or new.
    pub(crate) fn place_task(&self, host: &H, task: &H::Task, now: Nanos, waker: WakeSource) -> WakeDecision {
        let first_poll = match waker {
            WakeSource::Cpu(spawner) if task.state().prev_worker().is_none() && self.has_idle(spawner, 1) => {
                self.first_poll(task).unwrap_or_default()
            }
            _ => Nanos(0),
        };
        let task = task.state();
        let (cost, far_cost) = match self.poll_of(task.poll_ns(), task.prev_worker()) {
            // A new task has no data yet.
            0 => (Nanos(0), Nanos(0)),
            poll_ns => (self.migration_cost(poll_ns), self.policy.migration_cost(Nanos(poll_ns.into()))),
        };
        let wakee = Wakee { first_poll, ..task.wakee(cost, far_cost) };
        let mut placed = self.policy.wake(&self.machine, self, &Wake { now, wakee, waker });
        if placed.hot_kept > 0 || placed.hot_broken {
            // The hot window was open by the caller's clock, which may be late. It may be closed by now.
            let now = host.now(CpuId(0));
            placed = self.policy.wake(&self.machine, self, &Wake { now, wakee, waker });
        }
        let woken_from = match waker {
            WakeSource::Cpu(cpu) | WakeSource::Outside(Some(cpu)) => Some(cpu),
            WakeSource::Outside(None) => None,
        };
        task.set_accrued_cost(placed.accrued_cost, woken_from);
        if placed.hot_kept > 0 || placed.hot_broken {
            let counters = &self.remote(placed.kick.unwrap_or(CpuId(0))).counters;
            counters.hot_kept.fetch_add(placed.hot_kept.into(), Relaxed);
            counters.hot_broken.fetch_add(placed.hot_broken.into(), Relaxed);
        }
        placed
    }

    /// Queues a task that a thread woke which is no worker. `near`: the worker of the CPU that the thread runs on, if there
    /// is one.
    #[cold]
    pub fn schedule_external(&self, host: &H, task: H::Task, near: Option<CpuId>) {
        let now = host.now(CpuId(0));
        task.state().wake(|| now);
        self.remote_schedules.fetch_add(1, Relaxed);
        let waker = WakeSource::Outside(near);
        match self.server_for(&task, now, waker) {
            Some(server) => self.push_inbox(host, task, server),
            None => self.enqueue(host, self.place_task(host, &task, now, waker), task),
        }
    }

    /// Puts a task where it was placed, unless that is the calling worker's own run queue.
    pub(crate) fn enqueue(&self, host: &H, placed: WakeDecision, task: H::Task) {
        match placed.to {
            TargetQueue::Cpu(cpu) => self.push_inbox(host, task, cpu),
            TargetQueue::Shard(shard) => match self.inject_queues[shard].push(task) {
                Ok(()) => self.notify_for_inject(host, shard, placed.kick),
                Err(task) => host.cancel(task),
            },
        }
    }

    /// The worker that new light tasks from outside are left to, if this is one: `worker/serve.rs`.
    fn server_for(&self, task: &H::Task, now: Nanos, waker: WakeSource) -> Option<CpuId> {
        if task.state().prev_worker().is_some() || task.state().allowed() != Allowed::Anywhere {
            return None;
        }
        let shard = self.machine.shard_of(origin(&self.machine, self, waker));
        let cpu = *self.machine.cpus_of(shard).get(self.inject_queues[shard].server(now)?)?;
        let is_light = |poll: &Nanos| self.policy.serves_alone(*poll, 0, self.wakeup_cost(cpu));
        self.first_poll(task).filter(is_light).map(|_| cpu)
    }

    /// Puts a task into a worker's inbox, and unparks the worker if it is parked. If the worker takes no more tasks, the
    /// nearest one that does gets the task.
    pub fn push_inbox(&self, host: &H, task: H::Task, worker: CpuId) {
        match self.remote(worker).inbox.push(task) {
            Ok(false) => {}
            Ok(true) => self.unpark(host, worker),
            Err(task) => self.push_any_inbox(host, task, worker),
        }
    }

    #[cold]
    fn push_any_inbox(&self, host: &H, mut task: H::Task, closed: CpuId) {
        if host.is_shutdown() {
            return host.cancel(task);
        }
        for other in self.machine.others(closed) {
            match self.remote(other).inbox.push(task) {
                Ok(false) => return,
                Ok(true) => return self.unpark(host, other),
                Err(back) => task = back,
            }
        }
        host.cancel(task);
    }

    /// Unparks a worker whose inbox the caller has changed from *parked*.
    fn unpark(&self, host: &H, worker: CpuId) {
        let remote = self.remote(worker);
        remote.counters.unparks.fetch_add(1, Relaxed);
        remote.notice.unparked_at.store(host.now(worker).0, Relaxed);
        host.unpark(worker);
    }

    /// Unparks a worker if it is parked, so that it looks for tasks. Returns whether it was parked.
    pub fn try_unpark(&self, host: &H, worker: CpuId) -> bool {
        let was_parked = self.remote(worker).inbox.try_unpark();
        if was_parked {
            self.unpark(host, worker);
        }
        was_parked
    }

    /// Unparks a worker if it is parked, to search: it counts as searching from now on. Returns whether it was parked.
    fn notify(&self, host: &H, worker: CpuId) -> bool {
        let is_notified = &self.remote(worker).notice.is_notified;
        // A worker that is awake is not counted, not even for a moment: another one that ends its search or wants to begin one
        // would rely on it.
        if !self.limits_searching() || self.max_searching == 0 || !self.remote(worker).inbox.is_parked() {
            return self.try_unpark(host, worker);
        }
        // ORDERING: SeqCst; counted first, as the worker may begin to search as soon as it is unparked. For `searching` see
        // `Core::steal_work`.
        self.searching.fetch_add(1, SeqCst);
        let was_counted = is_notified.swap(true, SeqCst);
        let was_parked = self.try_unpark(host, worker);
        if was_counted {
            self.searching.fetch_sub(1, SeqCst);
        } else if !was_parked {
            self.end_notified(worker);
        }
        was_parked
    }

    /// The worker does not count as searching any more because it was notified. Returns whether it did, and was the last
    /// one that searched.
    pub(crate) fn end_notified(&self, worker: CpuId) -> bool {
        // ORDERING: SeqCst; as in `notify`.
        self.remote(worker).notice.is_notified.swap(false, SeqCst) && self.searching.fetch_sub(1, SeqCst) == 1
    }

    /// Unparks a worker because a task is in the injection queue of `shard`: the worker `first`, else one of the shard,
    /// else any.
    pub(crate) fn notify_for_inject(&self, host: &H, shard: usize, first: Option<CpuId>) {
        // ORDERING: SeqCst; the queue's length was written before; who is parked and whether a wakeup is pending is read after.
        // `Core::mark_parked` and `Core::resume` do both the other way round. One of the two sees the other.
        fence(SeqCst);
        if self.has_enough_searching() {
            return;
        }
        let queue = &self.inject_queues[shard];
        let cpus = self.machine.cpus_of(shard);
        let near = first.or(cpus.first().copied()).unwrap_or(CpuId(0));
        if queue.idle() != 0 {
            // A burst of tasks finds the mark set, and writes nothing.
            if queue.wakeup_pending.load(Relaxed) || queue.wakeup_pending.swap(true, SeqCst) {
                return;
            }
            // A worker that wakes clears the mark of its own shard only, so only the shard's workers are unparked here.
            let own = first.filter(|cpu| self.machine.shard_of(*cpu) == shard);
            if own.into_iter().chain(cpus.iter().copied()).any(|cpu| self.notify(host, cpu)) {
                return;
            }
            queue.wakeup_pending.store(false, SeqCst);
            // ORDERING: SeqCst; the mark was cleared before, who is parked is read after. A thread that pushes and finds the mark
            // set relies on that.
            fence(SeqCst);
        }
        let all = std::iter::once(near).chain(self.machine.others(near));
        all.take_while(|cpu| !self.notify(host, *cpu)).for_each(drop);
    }

    /// Tasks wait at the worker `at`: unparks the worker that the policy names, if it names one. Returns whether it did.
    pub fn notify_parked(&self, host: &H, at: CpuId, now: Nanos) -> bool {
        // ORDERING: SeqCst; as in `notify_for_inject`, with the worker's backlog in the place of the queue's length.
        fence(SeqCst);
        if !self.has_idle(at, 1) || self.has_enough_searching() {
            return false;
        }
        // A worker that another thread unparked meanwhile is not parked any more, so this ends.
        let mut named = std::iter::from_fn(|| self.policy.cpu_to_notify(&self.machine, self, at, now));
        named.any(|cpu| {
            self.point_to(at, cpu);
            self.notify(host, cpu)
        })
    }

    /// When `worker` looks for tasks, it looks in the shard of the worker `at` too, where some wait.
    pub fn point_to(&self, at: CpuId, worker: CpuId) {
        let (shard, own) = (self.machine.shard_of(at), self.machine.shard_of(worker));
        // Under a limit of searches each looks everywhere.
        if shard != own && !self.limits_searching() {
            // ORDERING: Relaxed; the worker is unparked afterwards, or looks by itself.
            let (asked_by, number) = (&self.remote(worker).notice.asked_by, shard as u32 + 1);
            let before = asked_by.swap(number, Relaxed);
            if before > 0 && before != number {
                asked_by.store(u32::MAX, Relaxed);
            }
        }
    }

    /// Whether a worker searches, under a policy that limits how many search. That worker notifies the next one when it
    /// has found a task.
    fn has_enough_searching(&self) -> bool {
        self.limits_searching() && self.searching.load(SeqCst) > 0
    }

    /// Whether the policy limits the number of workers that search.
    pub(crate) fn limits_searching(&self) -> bool {
        self.max_searching < self.remotes.len() as u32
    }

    /// Whether the light tasks of a worker with this order of its queue, and this limit of LIFO polls, go into its ring, where
    /// they run in order of arrival.
    pub(crate) fn uses_rings(&self, order: QueueOrder, max_lifo_polls: u32) -> bool {
        !self.publishes_more
            && max_lifo_polls == 0
            && order == QueueOrder::Fifo
            && !self.policy.defers_yields()
            && !self.virtual_times.has_several_tenants()
    }

    /// Publishes how many tasks wait in a run queue, and since when. The caller holds the queue's lock.
    #[inline]
    pub(crate) fn publish_status(
        &self,
        remote: &Remote<H>,
        queue: &mut RunQueue<Queued<H::Task>>,
        now: Nanos,
    ) {
        remote.status.queued.store(queue.len(), Relaxed);
        if self.publishes_more {
            return self.publish_more(remote, queue, now);
        }
        Self::publish_backlog(remote, queue.len() - queue.pinned(), now);
    }

    #[inline]
    fn publish_backlog(remote: &Remote<H>, stealable: u32, now: Nanos) {
        let before = remote.status.stealable.load(Relaxed);
        if before == 0 && stealable > 0 && remote.ring.is_empty() {
            remote.status.backlog_since.store(now.0, Relaxed);
        }
        remote.status.stealable.store(stealable, Relaxed);
    }

    /// As [`publish_status`](Self::publish_status), with what some policies ask for besides.
    #[inline(never)]
    fn publish_more(&self, remote: &Remote<H>, queue: &mut RunQueue<Queued<H::Task>>, now: Nanos) {
        Self::publish_backlog(remote, queue.stealable(), now);
        if self.takes_oldest
            && let Some(oldest) = queue.oldest_since()
            && oldest.0 != remote.status.oldest.load(Relaxed)
        {
            remote.status.oldest.store(oldest.0, Relaxed);
        }
    }

    /// What a worker has done so far. Late by what it did since its last stores.
    pub(crate) fn pace(&self, worker: CpuId) -> Pace {
        let remote = self.remote(worker);
        let waiting = remote.waiting() + remote.status.pinned.load(Relaxed);
        let polls = remote.status.poll_seq.load(Relaxed);
        // It is odd during a poll, and the task that is polled is not in the queue.
        let queued = waiting + (polls % 2) as u32;
        let parks = remote.counters.parks.load(Relaxed) + remote.counters.steal_operations.load(Relaxed);
        Pace { polls: polls / 2, parks, queued }
    }
}

impl<H: Host> View for Workers<H> {
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.remote(cpu).inbox.is_parked()
    }

    fn is_offline(&self, cpu: CpuId) -> bool {
        self.remote(cpu).status.is_closed.load(Relaxed)
    }

    fn is_stuck(&self, cpu: CpuId) -> bool {
        self.shard_of(cpu).stuck.load(Relaxed) & self.machine.bit(cpu) != 0
    }

    fn backlog(&self, cpu: CpuId) -> u32 {
        let remote = self.remote(cpu);
        let waiting = remote.waiting();
        waiting + u32::from(self.is_stuck(cpu) && remote.inbox.has_tasks())
    }

    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        Nanos(self.remote(cpu).status.backlog_since.load(Relaxed))
    }

    fn still_for(&self, cpu: CpuId, now: Nanos) -> Nanos {
        let remote = self.remote(cpu);
        // ORDERING: Acquire; pairs with the Release of `look`: the time is at least as new as the steps.
        let is_still = remote.still.steps.load(Acquire) == remote.steps() && !remote.inbox.is_parked();
        let since = || remote.still.since.load(Relaxed);
        Nanos(if is_still { now.0.saturating_sub(since()) } else { 0 })
    }

    fn waits_since(&self, _me: CpuId, cpu: CpuId) -> Nanos {
        Nanos(self.remote(cpu).status.oldest.load(Relaxed))
    }

    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        self.migration_cost(self.poll_of(None, Some(cpu)))
    }

    fn far_cost_at(&self, cpu: CpuId) -> Nanos {
        self.policy.migration_cost(self.mean_poll_at(cpu))
    }

    fn mean_poll_at(&self, cpu: CpuId) -> Nanos {
        Nanos(self.remote(cpu).status.mean_poll_ns.load(Relaxed).into())
    }

    fn wakeup_cost(&self, cpu: CpuId) -> Nanos {
        match self.remote(cpu).status.wakeup_ns.load(Relaxed) {
            0 => WAKEUP_COST,
            learned => Nanos(learned.into()),
        }
    }

    fn hot_until(&self, cpu: CpuId) -> Nanos {
        Nanos(self.remote(cpu).status.hot_until.load(Relaxed))
    }

    fn shared_queue_len(&self, shard: usize) -> u32 {
        self.inject_queues[shard].len()
    }

    fn far_search(&self, me: CpuId) -> FarSearch {
        match self.remote(me).status.far_search.load(Relaxed) {
            0 => FarSearch::All,
            1 => FarSearch::None,
            number => FarSearch::Shard(number as usize - 2),
        }
    }

    fn idle_in(&self, shard: usize) -> ShardMask {
        self.inject_queues[shard].idle()
    }

    fn others_run(&self) -> bool {
        // ORDERING: Relaxed; it only says what pays.
        self.others_run.load(Relaxed)
    }

    /// A worker that is marked as parked has an empty ring and run queue, and its inbox is its own unless it is stuck.
    fn backlogs_in(&self, shard: usize) -> ShardMask {
        let queue = &self.inject_queues[shard];
        !queue.idle() | queue.stuck.load(Relaxed)
    }
}

impl<H: Host> std::fmt::Debug for Workers<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").field("workers", &self.remotes.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, warmcore_loom))]
mod loom;
