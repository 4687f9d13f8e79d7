//! Core: the decisions of one worker.
//!
//! A worker's loop is its host's: it calls [`Core::next`], does what that returns, reports that it is done, and repeats.
//!
//! | `next` returns | the host | then calls |
//! |---|---|---|
//! | [`Next::Run`] | polls the task | [`Core::begin_poll`] before, [`Core::end_poll`] after |
//! | [`Next::Maintain`] | serves timers and sockets that are due, without waiting | [`Core::maintained`] |
//! | [`Next::Search`] | nothing; a host in virtual time lets the time of a search pass | [`Core::search`] |
//! | [`Next::Park`] | sleeps until the given time, or until [`Host::unpark`] | [`Core::unparked`], [`Core::resume`] |
//! | [`Next::Shutdown`] | ends | [`Core::close`] |
//!
//! The files below this one each have one part: `schedule.rs` a task that is woken on the worker's thread,
//! `maintenance.rs` what a busy worker does now and then, `park.rs` how it parks and wakes, `steal.rs` how it takes tasks
//! from others, `serve.rs` how one worker takes what threads outside spawn, `sample.rs` which polls are measured, `slice.rs` what is charged to tenants.
//!
//! A core belongs to one thread. Its fields are cells, because a task that is polled wakes others through the same
//! core. What other workers may see is in [`Workers`](crate::Workers).
//!
//! Light tasks wait in the worker's [`Ring`], in order of arrival. All others are in its run queue, which has a lock: tasks
//! that may not run everywhere, or come while the ring is full; and every task of a worker whose tasks cost so
//! much to move that their order counts (`Policy::queue_order`), or once tasks of several tenants have run.
//!
//! # Cost
//! Around a poll of a light task: one locked instruction, and two stores on the worker's status line.

use crate::counters::Counters;
use crate::inject_queue::InjectQueue;
use crate::run_queue::{RunQueue, Share};
use crate::shares::Shares;
use crate::sync::{Locked, Ordering::*};
use crate::virtual_time::VirtualTimes;
use crate::workers::Remote;
use crate::{Distance, Host, Inbox, Policy, QueueOrder, Queued, Ring, STEAL_MAX, ShardMask, Task};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use warmcore_types::{CpuId, Nanos, ThreadUsage};

mod maintenance;
mod park;
mod sample;
mod schedule;
mod serve;
mod slice;
mod steal;

pub use sample::{RECENT, SAMPLE_MASK};

/// What maintenance is taken to cost at least, and until it is learned, in ns.
const MAINTENANCE_MIN: u64 = 1_600;

/// What a worker does next.
#[derive(Debug)]
pub enum Next<T> {
    /// It polls this task.
    Run(Queued<T>),
    /// It serves timers and sockets that are due.
    Maintain,
    /// It has no task, and looks for one.
    Search,
    /// It sleeps until it is unparked, or until this time, and then looks again.
    Park(Option<Nanos>),
    /// It ends, as no task is left.
    Shutdown,
}

/// What a worker is doing between two polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Awake,
    /// It is marked as parked since the time `since`, and sleeps until `until`, if that is a time.
    Parked {
        since: Nanos,
        until: Option<Nanos>,
    },
}

/// What is left of a round in which each task that waited at its begin runs once.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// Tasks of the run queue that pass.
    passing: u32,
    ring: u32,
    run_queue: u32,
}

/// The polls of one tenant's tasks that are not charged to it yet: `slice.rs`.
#[derive(Debug, Clone, Copy)]
struct Slice {
    share: Share,
    since: Nanos,
    /// [`Core::lost`] at that time.
    lost: u64,
}

/// The decisions of one worker: see the module's documentation.
pub struct Core<H: Host> {
    me: CpuId,
    /// Its place in its shard.
    bit: ShardMask,
    remote: Arc<Remote<H>>,
    /// The injection queue of the worker's shard, which also knows who of the shard is parked and who is stuck.
    shard: Arc<InjectQueue<H::Task>>,
    /// The injection queue that the worker takes from: its shard's, unless the policy says otherwise.
    inject_queue: Arc<InjectQueue<H::Task>>,
    virtual_times: Arc<VirtualTimes>,
    mode: Cell<Mode>,
    /// The clock as it was last read.
    now: Cell<Nanos>,
    /// Whether the worker may have slept since the clock was read.
    clock_is_stale: Cell<bool>,
    rand: Cell<u32>,
    /// Polls until the next maintenance, and polls of the whole event interval.
    ticks_left: Cell<u32>,
    event_interval: Cell<u32>,
    interval_start: Cell<Nanos>,
    /// What maintenance costs, in ns, if the driver has no event: learned.
    maintenance_ns: Cell<u64>,
    /// When maintenance began. `None`: it is not under way, or the driver had an event.
    maintenance_began: Cell<Option<Nanos>>,
    /// Whether the thread is inside the driver, which makes the wakes of this moment.
    in_driver: Cell<bool>,
    /// The number of queued tasks at which a parked worker is notified.
    notify_threshold: Cell<u32>,
    /// Whether the worker has polled nothing since it was last idle.
    was_idle: Cell<bool>,
    /// When a search looks at workers of other last-level caches again without having been asked to.
    searches_far_at: Cell<Nanos>,
    /// As `Notice::asked_by`, which was taken, and until when that holds.
    asked_by: Cell<u32>,
    asked_until: Cell<Nanos>,
    /// Whether the worker serves its shard alone, as the tasks that it took there last were light. It stays so while the
    /// worker sleeps, until it takes others: `serve.rs`.
    took_light: Cell<bool>,
    /// Since when the worker has had no task.
    idle_since: Cell<Nanos>,
    /// When another thread ended its last park; 0: none did.
    unparked_at: Cell<Nanos>,
    /// In how many of 256 cases another thread handed the worker, which had run out of tasks, the next one sooner than a wakeup takes, on
    /// average.
    soon: Cell<u32>,
    /// For how long the worker has waited awake in this event interval, in ns.
    waited: Cell<u64>,
    /// Whether light tasks go into the ring.
    uses_ring: Cell<bool>,
    /// Whether a light task that is woken now goes there: `uses_ring`, the thread is not inside the driver, and `may_pass` is 0.
    pushes_ring: Cell<bool>,
    /// Whether a task that yields lets others pass. Where polls are short, that would cost more than the wait.
    lets_pass: Cell<bool>,
    /// Whether the task that is polled has woken itself. `has_yielded`: one has in this event interval.
    yields: Cell<bool>,
    has_yielded: Cell<bool>,
    /// How many more tasks that are woken run before those that wait, because some of these have yielded.
    may_pass: Cell<u32>,
    /// Tasks that the present round still takes from the ring and from the run queue, while tasks wait in the run queue.
    round: Cell<Round>,
    /// How often in a row the LIFO slot may be served, and the order of the next round of the run queue.
    max_lifo_polls: Cell<u32>,
    order: Cell<QueueOrder>,
    /// Polls until the next one that is measured.
    until_sample: Cell<u32>,
    /// [`SAMPLE_MASK`], or 0 while each poll is measured. The next measured poll is drawn with it.
    sample_mask: Cell<u32>,
    /// The number of half polls that the next measured poll stands for, itself included.
    stands_for: Cell<u32>,
    /// While the poll after a move is measured: polls until the next one that is measured at random. `None`: this poll
    /// is none.
    after_move: Cell<Option<u32>>,
    /// Until when each poll is measured.
    all_measured_until: Cell<Nanos>,
    /// From when on that may begin again where polls are short.
    measured_again_at: Cell<Nanos>,
    /// When the polls were last checked for a long one, and how many polls that were.
    checked_at: Cell<Nanos>,
    checked_polls: Cell<u64>,
    /// `lost` at that time.
    checked_lost: Cell<u64>,
    /// The answer of [`Host::thread_usage`], and when that was. `None`: not asked for since the worker parked or polls were short.
    usage: Cell<Option<(ThreadUsage, Nanos)>>,
    /// The limit above which a poll is long.
    long_poll: Nanos,
    balance_at: Cell<Nanos>,
    /// What the worker knows of its neighbours' polls.
    shares: RefCell<Shares>,
    slice: Cell<Option<Slice>>,
    /// What other threads had of the CPU, as far as it was asked for, in ns.
    lost: Cell<u64>,
    /// How long the task that was polled last sleeps on average, in ns. 0: it did not fall asleep, or nothing is known.
    sleeper: Cell<u32>,
    /// The longest of those since the clock was read, in ns.
    longest_sleeper: Cell<u32>,
    /// Until when tasks that fell asleep before that usually sleep.
    window: Cell<Nanos>,
    /// Tasks that were woken in their own poll, under a policy that defers them. Empty under the product's policies.
    deferred: RefCell<VecDeque<Queued<H::Task>>>,
    /// Tasks on their way from another queue to this worker's. Empty between two calls.
    taken: RefCell<Vec<Queued<H::Task>>>,
}

impl<H: Host> Core<H> {
    /// The core of the worker `me`, whose polls are long above `long_poll`. A worker may get a new core, when it is handed
    /// to another thread, but has one at a time.
    pub fn new(host: &H, me: CpuId, long_poll: Nanos) -> Self {
        let workers = host.workers();
        let now = host.now(me);
        let remote = workers.remotes[me.index()].clone();
        let polls = remote.status.poll_seq.load(Relaxed);
        let policy = workers.policy();
        let (max_lifo_polls, order) =
            (policy.max_lifo_polls(Nanos(0), Nanos(0)), policy.queue_order(Nanos(0)));
        let uses_ring = workers.uses_rings(order, max_lifo_polls);
        // A thread that has handed the worker over had a slice.
        remote.lock_queue().rest();
        Self {
            me,
            bit: workers.machine().bit(me),
            shard: workers.inject_queues[workers.machine().shard_of(me)].clone(),
            inject_queue: workers.inject_queues[policy.inject_queue_of(workers.machine(), me)].clone(),
            virtual_times: workers.virtual_times.clone(),
            mode: Cell::new(Mode::Awake),
            now: Cell::new(now),
            clock_is_stale: Cell::new(false),
            rand: Cell::new(me.0.wrapping_mul(0x9E37_79B9) | 1),
            ticks_left: Cell::new(8),
            event_interval: Cell::new(8),
            interval_start: Cell::new(now),
            maintenance_ns: Cell::new(MAINTENANCE_MIN),
            maintenance_began: Cell::default(),
            in_driver: Cell::new(false),
            notify_threshold: Cell::new(2),
            was_idle: Cell::new(true),
            searches_far_at: Cell::default(),
            asked_by: Cell::default(),
            asked_until: Cell::default(),
            took_light: Cell::new(false),
            idle_since: Cell::new(now),
            unparked_at: Cell::default(),
            soon: Cell::new(0),
            waited: Cell::new(0),
            uses_ring: Cell::new(uses_ring),
            pushes_ring: Cell::new(uses_ring),
            lets_pass: Cell::new(false),
            yields: Cell::new(false),
            has_yielded: Cell::new(false),
            may_pass: Cell::new(0),
            round: Cell::default(),
            max_lifo_polls: Cell::new(max_lifo_polls),
            order: Cell::new(order),
            until_sample: Cell::new(0),
            sample_mask: Cell::new(SAMPLE_MASK),
            stands_for: Cell::new(2),
            after_move: Cell::new(None),
            all_measured_until: Cell::new(now),
            measured_again_at: Cell::new(now),
            checked_at: Cell::new(now),
            checked_polls: Cell::new(polls / 2),
            checked_lost: Cell::new(0),
            usage: Cell::new(None),
            long_poll,
            balance_at: Cell::new(now),
            shares: RefCell::default(),
            slice: Cell::new(None),
            lost: Cell::new(0),
            sleeper: Cell::new(0),
            longest_sleeper: Cell::new(0),
            window: Cell::new(Nanos(0)),
            deferred: RefCell::default(),
            taken: RefCell::new(Vec::with_capacity(STEAL_MAX as usize)),
            remote,
        }
    }

    /// The worker.
    #[inline]
    pub fn me(&self) -> CpuId {
        self.me
    }

    /// What other workers see of this one.
    #[inline]
    pub fn remote(&self) -> &Remote<H> {
        &self.remote
    }

    /// The clock as it was last read, which is late by up to an event interval.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.now.get()
    }

    /// Reads the clock.
    pub fn read_clock(&self, host: &H) -> Nanos {
        self.window.set(self.window());
        self.longest_sleeper.set(0);
        self.now.set(host.now(self.me));
        self.now.get()
    }

    /// Whether the worker's thread is inside its driver.
    #[inline]
    pub fn is_in_driver(&self) -> bool {
        self.in_driver.get()
    }

    /// Tells that the worker's thread enters or leaves its driver. Tasks that wake meanwhile are woken by the driver. `next`
    /// does this before `Maintain` and `Park`; a host calls it when it has left the driver earlier than `maintained` or
    /// `unparked`, and for other uses of its driver.
    pub fn set_in_driver(&self, is_in_driver: bool) {
        self.in_driver.set(is_in_driver);
        self.update_pushes_ring();
    }

    /// Tells that the task that is polled wakes itself. [`schedule`](Self::schedule) follows, or [`forget_yield`](Self::forget_yield).
    #[inline]
    pub fn note_yield(&self) {
        self.yields.set(self.lets_pass.get());
    }

    /// Tells that the task that was polled has ended, and so is not queued again.
    #[inline]
    pub fn forget_yield(&self) {
        self.yields.set(false);
    }

    fn update_pushes_ring(&self) {
        self.pushes_ring.set(self.uses_ring.get() && !self.in_driver.get() && self.may_pass.get() == 0);
    }

    /// Whether another thread has found the worker in a long poll, or in a long run inside its driver.
    #[inline]
    pub fn is_stuck(&self) -> bool {
        self.shard.stuck.load(Relaxed) & self.bit != 0
    }

    /// Whether the worker has polled nothing since it was last idle.
    pub fn was_idle(&self) -> bool {
        self.was_idle.get()
    }

    /// What the worker does next: see the module's documentation.
    #[inline]
    pub fn next(&self, host: &H) -> Next<H::Task> {
        if let Mode::Parked { since, until } = self.mode.get() {
            return self.begin_park(host, since, until);
        }
        if self.ticks_left.get() == 0 {
            self.begin_maintenance(host);
            return Next::Maintain;
        }
        if self.remote.inbox.has_tasks() {
            self.drain_inbox(host);
        }
        let mut injected = None;
        if !self.inject_queue.is_empty() {
            injected = self.look_at_inject_queue(host);
        }
        let Some(queued) = injected.or_else(|| self.pop(host)) else { return Next::Search };
        if self.was_idle.get() {
            self.end_idle(host);
        }
        Next::Run(queued)
    }

    /// Removes the task that runs next.
    #[inline]
    fn pop(&self, host: &H) -> Option<Queued<H::Task>> {
        if self.remote.status.queued.load(Relaxed) == 0 {
            let queued = self.pop_ring();
            // Without a ring there may be a LIFO slot, and an empty run queue ends the count of its polls.
            if queued.is_some() || self.uses_ring.get() {
                return queued;
            }
        }
        self.pop_in_round(host)
    }

    #[inline]
    fn pop_ring(&self) -> Option<Queued<H::Task>> {
        self.remote.ring.pop().map(|task| Queued { task, since: self.now() })
    }

    /// Removes the task that runs next while tasks wait in the run queue: those that pass; then in each round first the tasks that
    /// waited in the ring at its begin, then as many of the run queue as waited there.
    #[inline(never)]
    fn pop_in_round(&self, host: &H) -> Option<Queued<H::Task>> {
        let mut round = self.round.get();
        let queued = self.remote.status.queued.load(Relaxed);
        // Other workers may have taken tasks of this round.
        (round.passing, round.run_queue) = (round.passing.min(queued), round.run_queue.min(queued));
        if round.passing > 0 {
            self.round.set(Round { passing: round.passing - 1, ..round });
            return self.pop_run_queue(host).or_else(|| self.pop_ring());
        }
        if round.ring == 0 && round.run_queue == 0 {
            round = Round { passing: 0, ring: self.remote.ring.len(), run_queue: queued };
        }
        if round.ring > 0 {
            if let Some(queued) = self.pop_ring() {
                self.round.set(Round { ring: round.ring - 1, ..round });
                return Some(queued);
            }
            // Other workers took the rest.
            round.ring = 0;
        }
        self.round.set(Round { run_queue: round.run_queue.saturating_sub(1), ..round });
        self.pop_run_queue(host).or_else(|| self.pop_ring())
    }

    fn pop_run_queue(&self, host: &H) -> Option<Queued<H::Task>> {
        let remote = &*self.remote;
        let mut queue = remote.lock_queue();
        let ends_slice = queue.take_came() && self.slice.get().is_some();
        if ends_slice {
            drop(queue);
            self.read_clock(host);
            self.charge_slice(host, true);
            queue = remote.lock_queue();
        }
        let queued = queue.pop(self.max_lifo_polls.get(), || self.order.get())?;
        if ends_slice {
            self.slice.set(Some(self.slice_of(queued.task.share())));
        }
        host.workers().publish_status(remote, &mut queue, self.now());
        Some(queued)
    }

    /// Called before the task is polled.
    #[inline]
    pub fn begin_poll(&self, host: &H, task: &H::Task) {
        if !task.state().is_prev_worker(self.me) {
            self.count_move(host, task);
            task.state().set_prev_worker(self.me);
        }
        if self.virtual_times.has_several_tenants() {
            self.serve_tenant(host, task.share());
        }
        let polls = &self.remote.status.poll_seq;
        polls.store(polls.load(Relaxed) + 1, Relaxed);
        self.sleeper.set(0);
    }

    /// Called after the poll. `is_awake`: the task was woken during its poll.
    #[inline]
    pub fn end_poll(&self, is_awake: bool) {
        let polls = &self.remote.status.poll_seq;
        polls.store(polls.load(Relaxed) + 1, Relaxed);
        if !is_awake && self.sleeper.get() > self.longest_sleeper.get() {
            self.longest_sleeper.set(self.sleeper.get());
        }
        if is_awake {
            self.sleeper.set(0);
        }
        self.ticks_left.set(self.ticks_left.get() - 1);
    }

    #[cold]
    fn count_move(&self, host: &H, task: &H::Task) {
        self.virtual_times.know(task.share().tenant);
        let counters = &self.remote.counters;
        let Some(home) = task.state().prev_worker() else { return Counters::add(&counters.first_polls, 1) };
        let counter = match host.workers().machine().distance(home, self.me) {
            Distance::Same | Distance::Smt | Distance::Llc => &counters.same_llc,
            Distance::Node => &counters.other_llc,
            Distance::Socket | Distance::Other => &counters.other_node,
        };
        Counters::add(counter, 1);
        if std::ptr::eq(counter, &counters.same_llc) && task.state().poll_ns().is_some() {
            self.measure_after_move();
        }
        host.moved(self.me, task, !std::ptr::eq(counter, &counters.same_llc));
    }

    /// Moves the tasks of the inbox to the ring and the run queue.
    #[inline(never)]
    fn drain_inbox(&self, host: &H) {
        let remote = &*self.remote;
        let (mut run_queue, now, serves) = (None, self.now(), self.took_light.get());
        let (mut came_new, mut longest) = (false, Some(Nanos(0)));
        remote.inbox.take(|task| {
            if serves && task.state().prev_worker().is_none() {
                (came_new, longest) = (true, self.longest_first_poll(host, longest, &task));
            }
            self.queue_here(&mut run_queue, Queued { task, since: now }, now, true);
        });
        self.publish_queued(host, run_queue, self.now());
        if came_new {
            self.decide_service(host, longest);
        }
        if !came_new || !self.took_light.get() {
            self.notify_of_backlog(host);
        }
    }

    /// After several tasks may have come at once: notifies a parked worker, if they are worth it.
    fn notify_of_backlog(&self, host: &H) {
        if self.num_queued() > self.notify_threshold.get() {
            host.workers().notify_parked(host, self.me, self.now());
        }
    }

    /// Takes tasks from the injection queue, if it is time for that or no task waits here. Returns the one that runs next,
    /// under a policy that looks rarely: that takes one task per look, as tasks wait here too.
    #[cold]
    fn look_at_inject_queue(&self, host: &H) -> Option<Queued<H::Task>> {
        let polls = self.remote.status.poll_seq.load(Relaxed) / 2;
        let average = Nanos(self.remote.status.mean_poll_ns.load(Relaxed).into());
        let interval = host.workers().policy().inject_interval(average);
        if interval > 1 && polls.is_multiple_of(interval.into()) {
            let mut next = None;
            self.inject_queue.pop(1, 1, |task| next = Some(Queued { task, since: self.now() }));
            return next;
        }
        if interval <= 1 || self.num_queued() == 0 {
            self.pop_inject(host);
        }
        None
    }

    /// Moves a share of the injection queue to this worker. If tasks are left, notifies another worker of the shard, unless this one
    /// serves the queue alone.
    fn pop_inject(&self, host: &H) {
        let queue = host.workers().policy().inject_queue_of(host.workers().machine(), self.me);
        let is_left = self.take_injected(host, queue) && !self.inject_queue.is_empty();
        if is_left && self.inject_queue.idle() != 0 && !self.took_light.get() {
            host.workers().notify_for_inject(host, queue, None);
        }
    }

    /// Cancels all tasks of this worker, which takes no more from now on.
    pub fn close(&self, host: &H) {
        let remote = &*self.remote;
        self.recover(host);
        self.end_park();
        if remote.status.park_seq.load(Relaxed) == 0 {
            // The thread started late: the worker's only look for tasks counts as a park.
            Counters::add(&remote.status.park_seq, 2);
            Counters::add(&remote.counters.parks, 1);
        }
        remote.status.is_closed.store(true, Relaxed);
        remote.inbox.close(|task| host.cancel(task));
        self.deferred.take().into_iter().for_each(|queued| host.cancel(queued.task));
        self.cancel_queued(host);
    }

    /// Cancels the tasks of the ring and the run queue.
    pub fn cancel_queued(&self, host: &H) {
        loop {
            // The lock is not held while a task is dropped, which may wake others, in either queue.
            let pop = || self.remote.lock_queue().pop(u32::MAX, || QueueOrder::Fifo);
            let task = self.remote.ring.pop().or_else(|| pop().map(|queued| queued.task));
            match task {
                Some(task) => host.cancel(task),
                None => return,
            }
        }
    }

    /// A random number, for choices that must not follow a pattern.
    pub(crate) fn next_rand(&self) -> u32 {
        let mut rand = self.rand.get();
        rand ^= rand << 13;
        rand ^= rand >> 17;
        rand ^= rand << 5;
        self.rand.set(rand);
        rand
    }
}
