//! Worker: the loop that polls tasks, looks for more, and sleeps.
//!
//! Model.   Its inbox first, then the injection queue, then its queue; every so many polls (as many as take 200 µs) it reads
//!          the clock, asks its driver and looks at a neighbour. Without work it falls asleep *first*, then looks everywhere, and
//!          takes the sleep back if it finds something: who makes work after that look sees it asleep.
//! Number.  Around a poll: the queue's lock, two stores, an exchange where the future was woken.
//! Protocol. README.md, "Notes on parking" and "Notes on one run".
//! Writers. `Worker`: its thread.

use crate::header::{Header, QueuedTask, RunnableTask, cancel};
use crate::metrics::Stats;
use crate::shared::{InjectQueue, Remote, SchedulerRef, Shared, StealOutcome};
use crate::sync::{Ordering::*, fence};
use crate::thread_config;
use crate::virtual_time::{LAG_MIN, VirtualTimes};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use warmcore_driver::OpBudget;
use warmcore_sched::shares::NEIGHBOURS;
use warmcore_sched::{Distance, Policy, Shares, TargetQueue, WakeSource};
use warmcore_types::{CpuId, Nanos, ignore_poison};

/// The driver is asked this often, if no poll takes longer. Seldom enough that it has several answers each time.
const EVENT_INTERVAL: Nanos = Nanos(200_000);

/// However short polls are, the driver is asked after so many. To ask it takes 0.5 µs, as long as six polls of tasks
/// that only wake each other.
const POLLS_MAX: u32 = 512;

/// After so many polls of a task that yields while no other task waits here, the driver is asked: what the task waits
/// for may come from there.
const LONE_YIELDS_MAX: u32 = 4;

/// A poll of a tenant's that took longer is looked at: other threads may have had the CPU meanwhile.
const LONG_CHARGE: Nanos = Nanos(500_000);

/// One poll of 16 is measured, on average.
pub(crate) const SAMPLE_MASK: u32 = 31;

/// So long after a long poll each poll is measured, so that the next one is known by its task.
const MEASURED_FOR: Nanos = Nanos(1_000_000_000);

/// A worker names a task whose poll was long at most this often: each event may be a line of a log.
const NAMED_EVERY: Nanos = Nanos(1_000_000_000);

/// Polls that nobody measured took so many times as long as polls take on average: one of them was longer.
const UNUSUAL: u64 = 4;

/// Between two looks at a neighbour whose tasks may get fewer polls.
const BALANCE_EVERY: Nanos = Nanos(1_000_000);

/// What is a worker's own.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    /// Its own, in `shared`.
    remote: NonNull<Remote>,
    pub(crate) me: CpuId,
    pub(crate) scheduler: Arc<SchedulerRef>,
    /// The clock as it was last read.
    now: Cell<Nanos>,
    /// It may have slept since then.
    clock_is_stale: Cell<bool>,
    rand: Cell<u32>,
    /// Polls until the clock is read again, and how many that were.
    ticks_left: Cell<u32>,
    event_interval: Cell<u32>,
    interval_start: Cell<Nanos>,
    /// What wakes now comes from the driver.
    in_driver: Cell<bool>,
    /// From how many on that wait help is called.
    notify_threshold: Cell<u32>,
    /// Another thread is this worker now.
    is_handed_off: Cell<bool>,
    /// It comes from a sleep, and has not polled since.
    was_idle: Cell<bool>,
    /// Polls until one is measured.
    until_sample: Cell<u32>,
    /// From one to the next it is a random number below this, and one: `SAMPLE_MASK`, or 0 after a long poll.
    sample_mask: Cell<u32>,
    /// So many half polls the next one that is measured stands for, itself and those before it.
    stands_for: Cell<u32>,
    /// Until when it is 0.
    all_measured_until: Cell<Nanos>,
    /// Long polls until then are counted, of so many polls.
    checked_at: Cell<Nanos>,
    checked_polls: Cell<u64>,
    budget: Rc<OpBudget>,
    balance_at: Cell<Nanos>,
    /// What it remembers of its neighbours.
    shares: RefCell<Shares>,
    /// How often in a row a woken task may be the next.
    max_lifo_polls: Cell<u32>,
    /// How long the task usually sleeps that was polled last, if it fell asleep. 0: it did not, or nothing is known.
    sleeper: Cell<u32>,
    /// The longest of those since the clock was read.
    longest_sleeper: Cell<u32>,
    /// Until when tasks that went to sleep before that usually do, by the clock as it was last read then.
    window: Cell<Nanos>,
    virtual_times: Arc<VirtualTimes>,
    /// Time awake and time on its CPU, in ns, and how often it was taken off it, when they were compared last.
    on_cpu: Cell<(u64, u64, u64)>,
    /// Its shard's, in `shared`.
    inject_queue: NonNull<InjectQueue>,
}

impl Worker {
    fn new(shared: Arc<Shared>, me: CpuId, budget: Rc<OpBudget>) -> Self {
        let scheduler = Arc::new(SchedulerRef { shared: shared.clone(), worker: me });
        let now = shared.remote(me).driver.now();
        let polls = shared.remote(me).status.poll_seq.load(Relaxed);
        let max_lifo_polls = Cell::new(shared.policy.max_lifo_polls(Nanos(0)));
        let virtual_times = ignore_poison(shared.remote(me).run_queue.lock()).virtual_times().clone();
        let inject_queue = NonNull::from(&shared.inject_queues[shared.machine.shard_of(me)]);
        Self {
            remote: NonNull::from(shared.remote(me)),
            shared,
            me,
            scheduler,
            now: Cell::new(now),
            clock_is_stale: Cell::new(false),
            rand: Cell::new(me.0.wrapping_mul(0x9E37_79B9) | 1),
            ticks_left: Cell::new(8),
            event_interval: Cell::new(8),
            interval_start: Cell::new(now),
            in_driver: Cell::new(false),
            notify_threshold: Cell::new(2),
            is_handed_off: Cell::new(false),
            was_idle: Cell::new(true),
            until_sample: Cell::new(0),
            sample_mask: Cell::new(SAMPLE_MASK),
            stands_for: Cell::new(2),
            all_measured_until: Cell::new(now),
            checked_at: Cell::new(now),
            checked_polls: Cell::new(polls / 2),
            budget,
            balance_at: Cell::new(now),
            shares: RefCell::default(),
            virtual_times,
            on_cpu: Cell::new((u64::MAX, 0, 0)),
            sleeper: Cell::new(0),
            longest_sleeper: Cell::new(0),
            window: Cell::new(Nanos(0)),
            max_lifo_polls,
            inject_queue,
        }
    }

    #[inline]
    pub(crate) fn remote(&self) -> &Remote {
        // SAFETY: it is in `shared`, which keeps it, and is never moved there.
        unsafe { self.remote.as_ref() }
    }

    /// The clock as it was last read: late by up to a round.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.now.get()
    }

    fn read_clock(&self) -> Nanos {
        self.window.set(self.window());
        self.longest_sleeper.set(0);
        self.now.set(self.remote().driver.now());
        self.now.get()
    }

    /// A task was woken on this thread.
    #[inline]
    pub(crate) fn schedule(&self, runnable: RunnableTask, is_yield: bool) {
        let header = runnable.metadata();
        if self.clock_is_stale.get() {
            // Who is woken by the driver waits since now, and not since the worker fell asleep; and it sleeps on
            // where those that it wakes are at home elsewhere.
            self.read_clock();
            self.clock_is_stale.set(self.remote().inbox.is_parked());
        }
        if is_yield {
            header.stay_awake();
        } else {
            // Not the clock as it was last read: that is late by as much as a sleep is long.
            header.wake(|| self.read_clock());
        }
        if !header.is_prev_worker(self.me) {
            return self.schedule_remote(runnable, is_yield);
        }
        if !is_yield {
            header.clear_accrued_cost();
        }
        if self.in_driver.get() && self.remote().inbox.is_parked() {
            // It sleeps in the driver that woke the task: what goes into the queue would not end that.
            return self.push_own_inbox(runnable);
        }
        self.schedule_local(runnable, is_yield);
    }

    fn push_own_inbox(&self, runnable: RunnableTask) {
        match self.remote().inbox.push(runnable) {
            Ok(false) => {}
            Ok(true) => self.remote().driver.unpark(),
            Err(runnable) => cancel(runnable),
        }
    }

    fn schedule_remote(&self, runnable: RunnableTask, is_yield: bool) {
        let placed = self.shared.place_task(runnable.metadata(), self.now(), WakeSource::Cpu(self.me));
        match placed.to {
            TargetQueue::Cpu(cpu) if cpu == self.me && !self.in_driver.get() => {
                self.schedule_local(runnable, is_yield)
            }
            _ => {
                Stats::add(&self.remote().stats.remote_wakes, 1);
                self.shared.enqueue(runnable, placed);
            }
        }
    }

    /// Into this worker's queue.
    #[inline]
    fn schedule_local(&self, runnable: RunnableTask, is_yield: bool) {
        let remote = self.remote();
        let waiting = QueuedTask { runnable, since: self.now() };
        let mut queue = ignore_poison(remote.run_queue.lock());
        if is_yield || self.in_driver.get() || self.max_lifo_polls.get() == 0 {
            queue.push(waiting)
        } else {
            queue.push_lifo(waiting)
        }
        self.shared.publish_status(remote, &mut queue, self.now());
        let waiting = queue.len();
        drop(queue);
        if is_yield && waiting == 1 {
            self.shorten_interval(LONE_YIELDS_MAX);
        }
        // Once on the way up; after that it is asked every round.
        if waiting == self.notify_threshold.get() {
            self.notify_parked();
        }
    }

    #[cold]
    fn notify_parked(&self) {
        self.shared.notify_parked(self.me, self.now());
    }

    /// Whether this poll is measured. If so, [`draw_sample`](Self::draw_sample) says when the next one is.
    #[inline]
    pub(crate) fn is_sampled(&self) -> bool {
        let left = self.until_sample.get();
        if left > 0 {
            self.until_sample.set(left - 1);
        }
        left == 0
    }

    /// Which poll is measured after this one. Returns how many half polls this one stands for, on average: from one
    /// that is measured by chance to the next it is half the mask and one.
    pub(crate) fn draw_sample(&self) -> u32 {
        // By chance: tasks that take turns are not to be measured in turn, too.
        let mask = self.sample_mask.get();
        self.until_sample.set(self.next_rand() & mask);
        self.stands_for.replace(mask + 2)
    }

    /// Whether this thread is inside the worker's driver.
    pub(crate) fn is_in_driver(&self) -> bool {
        self.in_driver.get()
    }

    /// What a measured poll took.
    pub(crate) fn end_sample(&self, since: Nanos) -> u64 {
        let now = self.read_clock();
        // The polls before this one; this one is measured.
        self.check_long_poll(since);
        self.restart_long_poll_check(now);
        if now.0 > self.interval_start.get().0 + 2 * EVENT_INTERVAL.0 {
            // Polls are longer than they were in the round before: the driver is not to wait for the rest of them.
            self.shorten_interval(1);
        }
        now.0.saturating_sub(since.0)
    }

    /// Ends the round after so many polls at most, the one under way included.
    fn shorten_interval(&self, polls: u32) {
        let rest = self.ticks_left.get().saturating_sub(polls);
        self.ticks_left.set(self.ticks_left.get() - rest);
        self.event_interval.set(self.event_interval.get() - rest);
    }

    /// Whether a poll that took so long is a long one.
    pub(crate) fn is_long(&self, ran: u64) -> bool {
        ran > self.shared.long_poll.0
    }

    /// Polls that ended before are judged, and what the time until now was spent with was no poll.
    fn restart_long_poll_check(&self, now: Nanos) {
        self.checked_at.set(now);
        self.checked_polls.set(self.remote().status.poll_seq.load(Relaxed) / 2);
    }

    /// The clock was read: counts a long poll among those that ended since that was last asked. Nobody measured them,
    /// so it is not known which it was, and several count as one; from then on each poll is measured. True: there was one.
    fn check_long_poll(&self, now: Nanos) -> bool {
        let status = &self.remote().status;
        let took = now.0.saturating_sub(self.checked_at.get().0);
        let polls = (status.poll_seq.load(Relaxed) / 2).wrapping_sub(self.checked_polls.get());
        self.restart_long_poll_check(now);
        let is_one_long = is_one_long(took, polls, status.mean_poll_ns.load(Relaxed), self.shared.long_poll);
        if is_one_long {
            self.count_long_poll(None);
        } else if now >= self.all_measured_until.get() {
            self.sample_mask.set(SAMPLE_MASK);
        }
        is_one_long
    }

    /// A poll was long: this task's, if that is known. Each is counted; with their tasks they are told once in
    /// [`NAMED_EVERY`].
    #[cold]
    pub(crate) fn count_long_poll(&self, header: Option<&Header>) {
        let remote = self.remote();
        Stats::add(&remote.stats.long_polls, 1);
        remote.is_stuck.store(false, Relaxed);
        let now = self.read_clock();
        self.restart_long_poll_check(now);
        self.all_measured_until.set(Nanos(now.0 + MEASURED_FOR.0));
        self.sample_mask.set(0);
        self.until_sample.set(0);
        self.stands_for.set(2);
        if header.is_some() {
            if now.0 < remote.status.unreported_until.load(Relaxed) {
                return Stats::add(&remote.status.unreported, 1);
            }
            remote.status.unreported_until.store(now.0 + NAMED_EVERY.0, Relaxed);
        }
        let worker = self.me.0;
        let limit_ms = self.shared.long_poll.0 / 1_000_000;
        let unreported = if header.is_some() { remote.status.unreported.swap(0, Relaxed) } else { 0 };
        // What listens to traces may panic; the task that ran is not to die of it, nor is the worker's round.
        let _ = catch_unwind(AssertUnwindSafe(|| match header.map(Header::name) {
            Some(Some(task)) => {
                tracing::warn!(worker, %task, limit_ms, unreported, "long poll: the tasks behind it waited")
            }
            Some(None) => {
                tracing::warn!(
                    worker,
                    limit_ms,
                    unreported,
                    "long poll of a task without a name: the tasks behind it waited"
                )
            }
            None => tracing::warn!(
                worker,
                limit_ms,
                "long poll: the tasks behind it waited; the next one within a second is reported with its task"
            ),
        }));
    }

    /// Until the runtime is over, or another thread takes the worker.
    fn run(&self) {
        while !self.is_handed_off.get() {
            let remote = self.remote();
            if remote.inbox.has_tasks() {
                self.drain_inbox();
            }
            if self.inject_queue().len() > 0 {
                self.pop_inject();
            }
            match self.next_task() {
                Some((waiting, is_shared)) => {
                    if self.was_idle.get() {
                        self.was_idle.set(false);
                        self.end_park();
                        // This worker polls now, so another parked worker becomes the watchdog.
                        self.shared.watchdog.assign(&self.shared, self.me, self.now());
                    }
                    self.poll(waiting, is_shared);
                }
                None => {
                    if self.idle() == Idle::Shutdown {
                        return self.close();
                    }
                }
            }
        }
    }

    fn drain_inbox(&self) {
        let remote = self.remote();
        let mut queue = ignore_poison(remote.run_queue.lock());
        remote.inbox.take().for_each(|runnable| queue.push(QueuedTask { runnable, since: self.now() }));
        self.shared.publish_status(remote, &mut queue, self.now());
        let waiting = queue.len();
        drop(queue);
        if waiting > self.notify_threshold.get() {
            self.notify_parked();
        }
    }

    /// The next task; and whether tasks of several tenants are about, so that what each uses is to be measured.
    #[inline]
    fn next_task(&self) -> Option<(QueuedTask, bool)> {
        let remote = self.remote();
        let mut queue = ignore_poison(remote.run_queue.lock());
        let is_shared = self.virtual_times.has_several_tenants();
        let waiting = queue.pop(self.max_lifo_polls.get(), || self.shared.queue_order(remote))?;
        self.shared.publish_status(remote, &mut queue, self.now());
        Some((waiting, is_shared))
    }

    #[inline]
    fn poll(&self, waiting: QueuedTask, is_shared: bool) {
        let remote = self.remote();
        let header = waiting.runnable.metadata();
        if !header.is_prev_worker(self.me) {
            self.count_move(header.prev_worker());
            header.set_prev_worker(self.me);
        }
        let share = is_shared.then(|| (crate::run_queue::Entry::share(&waiting), remote.driver.now()));
        let polls = remote.status.poll_seq.load(Relaxed);
        remote.status.poll_seq.store(polls + 1, Relaxed);
        self.budget.begin_poll();
        self.sleeper.set(0);
        let is_awake = waiting.runnable.run();
        if self.is_handed_off.get() {
            return;
        }
        remote.status.poll_seq.store(polls + 2, Relaxed);
        if is_awake {
            self.sleeper.set(0);
            self.budget.was_woken_in_poll();
        } else if self.sleeper.get() > self.longest_sleeper.get() {
            self.longest_sleeper.set(self.sleeper.get());
        }
        if let Some((share, since)) = share {
            let mut ran = self.read_clock().0.saturating_sub(since.0);
            if ran >= LONG_CHARGE.0 {
                ran = ran.saturating_sub(self.lost_since()).max(1);
            }
            ignore_poison(remote.run_queue.lock()).charge(share, ran);
        }
        let left = self.ticks_left.get() - 1;
        self.ticks_left.set(left);
        if left == 0 {
            self.maintenance();
        }
    }

    /// The task that this worker polls is not ready. It sleeps, unless it was woken meanwhile: that is known when
    /// its poll has ended.
    #[inline]
    pub(crate) fn fell_asleep(&self, usually: u32) {
        self.sleeper.set(usually);
    }

    /// Until when tasks that went to sleep usually do, by the clock as it was last read then.
    fn window(&self) -> Nanos {
        match self.longest_sleeper.get() {
            0 => self.window.get(),
            longest => self.window.get().max(Nanos(self.now().0 + u64::from(longest))),
        }
    }

    /// The worker has nothing to do: it is kept for those of its tasks that sleep shortly.
    fn open_window(&self, now: Nanos) {
        let status = &self.remote().status;
        let until = match self.sleeper.get() {
            0 => self.window().0,
            // That was its last poll: the task has just gone to sleep.
            usually => self.window().0.max(now.0 + u64::from(usually)),
        };
        if until > status.hot_until.load(Relaxed) {
            status.hot_until.store(until, Relaxed);
        }
    }

    /// What other threads had of this worker's CPU since this was asked last. A tenant is not to pay for that: after
    /// such a pause the CPU is the worker's for a while, so that those that run then would pay for none. A poll that
    /// waits by itself, in a system call or for a lock, pays: where nothing was taken from the thread nothing is lost.
    #[cold]
    fn lost_since(&self) -> u64 {
        let remote = self.remote();
        let Some((cpu, taken_off)) = remote.driver.thread_cpu() else { return 0 };
        let now = (self.now().0.saturating_sub(remote.stats.parked_ns.load(Relaxed)), cpu.0, taken_off);
        let before = self.on_cpu.replace(now);
        if now.2 == before.2 {
            return 0;
        }
        now.0.saturating_sub(before.0).saturating_sub(now.1.saturating_sub(before.1))
    }

    #[cold]
    fn count_move(&self, home: Option<CpuId>) {
        let stats = &self.remote().stats;
        let number = match home.map(|home| self.shared.machine.distance(home, self.me)) {
            None => &stats.first_polls,
            Some(Distance::Same | Distance::Smt | Distance::Llc) => &stats.same_llc,
            Some(Distance::Node) => &stats.other_llc,
            Some(Distance::Socket | Distance::Other) => &stats.other_node,
        };
        Stats::add(number, 1);
    }

    #[inline]
    fn inject_queue(&self) -> &InjectQueue {
        // SAFETY: as `remote`.
        unsafe { self.inject_queue.as_ref() }
    }

    /// Some that belong to nobody. If more are left somebody else is to come for them.
    #[cold]
    fn pop_inject(&self) {
        let machine = &self.shared.machine;
        let shard = machine.shard_of(self.me);
        let popped = self.inject_queue().pop(machine.cpus_of(shard).len());
        if popped.is_empty() {
            return;
        }
        self.shared.push_popped(self.me, popped, self.now());
        if self.inject_queue().len() > 0 && self.inject_queue().idle.load(Relaxed) > 0 {
            self.shared.notify_for_inject(shard, None);
        }
    }

    /// A round is over: the clock and the driver.
    #[cold]
    fn maintenance(&self) {
        let now = self.read_clock();
        self.check_long_poll(now);
        self.tune_interval(now.0.saturating_sub(self.interval_start.get().0));
        self.poll_driver();
        self.interval_start.set(self.read_clock());
        self.restart_long_poll_check(self.now());
        if self.remote().status.stealable.load(Relaxed) > 0 && self.shared.count_idle() > 0 {
            self.shared.notify_parked(self.me, now);
        }
        if now >= self.balance_at.get() {
            self.balance(now);
        }
        if self.virtual_times.has_several_tenants() {
            self.migrate_lagging(now);
        }
    }

    /// Looks at one of its neighbours, by chance: if the tasks there get fewer polls than those here, some come.
    fn balance(&self, now: Nanos) {
        self.balance_at.set(Nanos(now.0 + BALANCE_EVERY.0));
        let (remote, shared) = (self.remote(), &self.shared);
        let Some((which, other)) = self.random_neighbour() else { return };
        remote.status.pinned.store(ignore_poison(remote.run_queue.lock()).pinned(), Relaxed);
        let distance = shared.machine.distance(self.me, other);
        let mut shares = self.shares.borrow_mut();
        let come = shares.look(which, shared.pace(self.me), shared.pace(other), distance);
        if come > 0 {
            let (came, had_run) = shared.migrate(self.me, other, come, now, || self.next_rand());
            shares.moved(had_run);
            Stats::add(&remote.stats.balanced, came.into());
        }
    }

    /// Looks at one of its neighbours, by chance: if a task waits there of a tenant that is behind all those whose tasks
    /// wait here, it comes.
    #[cold]
    fn migrate_lagging(&self, now: Nanos) {
        let (remote, shared) = (self.remote(), &self.shared);
        let Some((_, other)) = self.random_neighbour() else { return };
        let least = ignore_poison(remote.run_queue.lock()).min_vtime();
        // A worker where no task waits takes one by itself before it sleeps.
        let Some(below) = least.checked_sub(LAG_MIN).filter(|_| least < u64::MAX) else { return };
        if shared.migrate_lagging(self.me, other, below, now) {
            Stats::add(&remote.stats.balanced, 1);
        }
    }

    /// One of the nearest other workers and its index among them, at random. `None`: there is none, or the policy moves
    /// no task between workers that are busy.
    fn random_neighbour(&self) -> Option<(usize, CpuId)> {
        let machine = &self.shared.machine;
        let near = machine.cpus().saturating_sub(1).min(NEIGHBOURS);
        if near == 0 || !self.shared.policy.shares() {
            return None;
        }
        let which = self.next_rand() as usize % near;
        Some((which, machine.others(self.me).nth(which)?))
    }

    fn next_rand(&self) -> u32 {
        let mut rand = self.rand.get();
        rand ^= rand << 13;
        rand ^= rand >> 17;
        rand ^= rand << 5;
        self.rand.set(rand);
        rand
    }

    /// What a poll takes on average, and how many make a round.
    fn tune_interval(&self, took: u64) {
        let status = &self.remote().status;
        let round = self.event_interval.get();
        let average = (took / u64::from(round)).clamp(1, 1 << 30);
        let old = u64::from(status.mean_poll_ns.load(Relaxed));
        // A round in which the system gave the CPU to somebody else says little.
        let average = if old == 0 { average } else { average.min(old * 4) };
        let average = if old == 0 { average } else { old - old / 4 + average / 4 }.max(1);
        status.mean_poll_ns.store(average as u32, Relaxed);
        // One more or not, by lot. With the same number each time, of three tasks on two workers the same one could be
        // found waiting whenever this worker looks. A round of one poll stays one: its driver waits for long enough.
        let round = match (EVENT_INTERVAL.0 / average).clamp(1, POLLS_MAX.into()) as u32 {
            1 => 1,
            polls => polls + self.next_rand() % 2,
        };
        self.event_interval.set(round);
        self.ticks_left.set(round);
        self.notify_threshold.set(self.shared.policy.notify_threshold(Nanos(average)));
        self.max_lifo_polls.set(self.shared.policy.max_lifo_polls(Nanos(average)));
    }

    fn poll_driver(&self) {
        let remote = self.remote();
        self.in_driver.set(true);
        remote.driver.poll_events();
        self.in_driver.set(false);
        Stats::add(&remote.stats.event_polls, 1);
        self.clear_stuck();
    }

    /// What ran in the driver for long has ended.
    fn clear_stuck(&self) {
        let remote = self.remote();
        if remote.is_stuck.load(Relaxed) {
            remote.is_stuck.store(false, Relaxed);
            Stats::add(&remote.stats.long_polls, 1);
            tracing::warn!(
                worker = self.me.0,
                "long poll of a task of tokio::spawn: the tasks behind it waited"
            );
        }
    }

    /// Nothing waits here.
    fn idle(&self) -> Idle {
        let remote = self.remote();
        let now = self.read_clock();
        if self.check_long_poll(now) {
            // What was told of it may have woken a task, here.
            return Idle::Awake;
        }
        let Some(guard) = ParkGuard::new(remote, self.inject_queue()) else { return Idle::Awake };
        let outcome = self.park(now);
        drop(guard);
        self.restart_long_poll_check(self.now());
        // What it slept is not what its polls took.
        let slept = self.now().0 - now.0;
        self.interval_start.set(Nanos(self.interval_start.get().0 + slept));
        self.was_idle.set(true);
        outcome
    }

    /// Looks for work once more, and without any parks in the driver: until a push or an unpark, or until a task may be
    /// stolen or a check is due. May return without having parked. [`Self::idle`] has marked the worker as parked.
    fn park(&self, now: Nanos) -> Idle {
        let (remote, me) = (self.remote(), self.me);
        if self.shared.is_shutdown.load(Acquire) {
            return Idle::Shutdown;
        }
        let until = match self.shared.steal_work(me, now) {
            StealOutcome::Some => {
                Stats::add(&remote.stats.steal_operations, 1);
                return Idle::Awake;
            }
            StealOutcome::Until(at) => Some(at),
            StealOutcome::Nothing => None,
        };
        self.open_window(now);
        let watch = self.shared.watchdog.begin(&self.shared, me, now);
        let foreign = self.shared.foreign.due(me, now);
        if !self.was_idle.get() {
            // What it polled may have spawned tasks on its driver. One that only woke to look appoints no other, or two
            // that idle would wake each other for ever.
            self.shared.foreign.begin(&self.shared, me, 0);
        }
        let until = [until, watch, foreign].into_iter().flatten().min();
        self.in_driver.set(true);
        remote.status.parked_since.store(now.0, Relaxed);
        self.clock_is_stale.set(true);
        let threads = &self.shared.threads;
        // With `in_driver` set, so that a task that the function spawns or wakes goes into the inbox, which ends the park.
        thread_config::call(&threads.on_park);
        if remote.status.park_seq.load(Relaxed) % 2 == 0 {
            Stats::add(&remote.status.park_seq, 1);
        }
        remote.driver.park(until, &|| !remote.inbox.is_parked());
        thread_config::call(&threads.on_unpark);
        self.clock_is_stale.set(false);
        remote.status.parked_since.store(0, Relaxed);
        self.in_driver.set(false);
        let woke = self.read_clock();
        Stats::add(&remote.stats.parks, 1);
        Stats::add(&remote.stats.parked_ns, woke.0.saturating_sub(now.0));
        self.clear_stuck();
        if self.shared.watchdog.is_due(me, woke) {
            self.in_driver.set(true);
            self.shared.watchdog.check(&self.shared, me, woke);
            self.in_driver.set(false);
            self.read_clock();
        }
        self.shared.foreign.check(&self.shared, me, woke);
        Idle::Awake
    }

    /// Ends the park that `park_seq` counts, if there is one. A worker that wakes to look, and parks again without a poll,
    /// does not call this.
    fn end_park(&self) {
        let park_seq = &self.remote().status.park_seq;
        if park_seq.load(Relaxed) % 2 == 1 {
            Stats::add(park_seq, 1);
        }
    }

    /// The driver comes back from a wait, its `n`th.
    pub(crate) fn driver_runs(&self, n: u64) {
        self.shared.foreign.begin(&self.shared, self.me, n);
    }

    /// The runtime is over, and every task has ended.
    fn close(&self) {
        let remote = self.remote();
        self.end_park();
        if remote.status.park_seq.load(Relaxed) == 0 {
            // A thread that started late: the worker's only look for tasks counts as a park.
            Stats::add(&remote.status.park_seq, 2);
            Stats::add(&remote.stats.parks, 1);
        }
        remote.status.is_closed.store(true, Relaxed);
        remote.inbox.close().for_each(cancel);
        while let Some(runnable) = self.pop_any() {
            cancel(runnable);
        }
        remote.driver.close();
        // What the driver dropped may have woken others, here.
        while let Some(runnable) = self.pop_any() {
            cancel(runnable);
        }
    }

    /// Whatever is left.
    fn pop_any(&self) -> Option<RunnableTask> {
        let waiting =
            ignore_poison(self.remote().run_queue.lock()).pop(u32::MAX, || warmcore_sched::QueueOrder::Fifo);
        waiting.map(|waiting| waiting.runnable)
    }
}

/// Whether one of so many polls, which took so long together, was longer than `limit`, where a poll takes `average` ns.
///
/// A round of polls is as many as take 200 µs on average, so a poll that is longer than the limit by 0.8 ms and
/// eight average polls is always found; and polls that are all five times as long as those before may pass for a long one among shorter ones, once.
fn is_one_long(took: u64, polls: u64, average: u32, limit: Nanos) -> bool {
    // Not known yet: only what so many polls can't have taken together if none of them was long.
    let usual = if average == 0 { limit.0 } else { UNUSUAL * u64::from(average) };
    polls > 0 && took > limit.0.saturating_add(polls.saturating_mul(usual))
}

/// A worker that is marked as parked, until this is dropped.
pub(crate) struct ParkGuard<'a> {
    remote: &'a Remote,
    inject_queue: &'a InjectQueue,
}

impl<'a> ParkGuard<'a> {
    /// Marks the worker as parked. `None`: its inbox has a task.
    pub(crate) fn new(remote: &'a Remote, inject_queue: &'a InjectQueue) -> Option<Self> {
        if !remote.inbox.try_park() {
            return None;
        }
        if remote.is_stuck.load(Relaxed) {
            remote.is_stuck.store(false, Relaxed);
        }
        inject_queue.idle.fetch_add(1, Relaxed);
        // ORDERING: SeqCst; that the worker is parked was written before, what waits elsewhere is read after.
        // `Shared::notify_parked`, `notify_for_inject` and `Foreign::begin` do both the other way round. One of the two
        // sees the other.
        fence(SeqCst);
        Some(Self { remote, inject_queue })
    }
}

impl Drop for ParkGuard<'_> {
    fn drop(&mut self) {
        self.inject_queue.idle.fetch_sub(1, Relaxed);
        self.remote.inbox.try_unpark();
        // ORDERING: SeqCst; that it is awake was written before, whether it was called, and what lies on the injection queue,
        // is read after: `Shared::notify_for_inject` does both the other way round.
        fence(SeqCst);
        if self.inject_queue.wakeup_pending.load(Relaxed) {
            self.inject_queue.wakeup_pending.store(false, SeqCst);
            fence(SeqCst);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    Awake,
    Shutdown,
}

pub(crate) mod thread;

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests;
