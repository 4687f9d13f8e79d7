//! Worker: one of the runtime's workers, and the loop that polls its tasks.
//!
//! The worker takes tasks from its inbox, then from the injection queue, then from its run queue. What it does besides has
//! a file each: `schedule.rs` a task that was woken here, `maintenance.rs` between polls, `park.rs` without tasks,
//! `long_poll.rs` what is measured, `thread.rs` the thread that runs all this. README.md has the protocols: "Notes on
//! parking" and "Notes on one run".
//!
//! # Cost
//! Around a poll: the run queue's lock, two stores, and an exchange if the future was woken.
//!
//! The fields of `Worker` are read and written by its thread alone.

use crate::header::{Header, QueuedTask, RunnableTask, cancel};
use crate::metrics::Stats;
use crate::shared::{InjectQueue, Remote, SchedulerRef, Shared};
use crate::sync::Ordering::*;
use crate::virtual_time::VirtualTimes;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use warmcore_driver::OpBudget;
use warmcore_sched::{Distance, Policy, Shares};
use warmcore_types::{CpuId, Nanos, ignore_poison};

mod long_poll;
mod maintenance;
mod park;
mod schedule;
pub(crate) mod thread;

#[cfg(all(test, warmcore_loom))]
pub(crate) use park::ParkGuard;

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests;

/// The driver is polled this often, if no poll takes longer. Seldom enough that it has several events each time.
const EVENT_INTERVAL: Nanos = Nanos(200_000);

/// One poll of 16 is measured, on average.
pub(crate) const SAMPLE_MASK: u32 = 31;

/// From which length on a tenant's poll is checked for time that other threads had on the CPU.
const LONG_CHARGE: Nanos = Nanos(500_000);

/// What the thread of a worker keeps for itself.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    /// This worker's, in `shared`.
    remote: NonNull<Remote>,
    pub(crate) me: CpuId,
    pub(crate) scheduler: Arc<SchedulerRef>,
    /// The clock as it was last read.
    now: Cell<Nanos>,
    /// Whether the worker may have parked since then.
    clock_is_stale: Cell<bool>,
    rand: Cell<u32>,
    /// Polls until the next maintenance, and polls of the whole event interval.
    ticks_left: Cell<u32>,
    event_interval: Cell<u32>,
    interval_start: Cell<Nanos>,
    /// Whether the thread is inside the driver, which makes the wakes of this moment.
    in_driver: Cell<bool>,
    /// Number of queued tasks at which a parked worker is notified.
    notify_threshold: Cell<u32>,
    /// Whether another thread runs this worker now.
    is_handed_off: Cell<bool>,
    /// Whether the worker has polled nothing since it was last idle.
    was_idle: Cell<bool>,
    /// Polls until the next one that is measured.
    until_sample: Cell<u32>,
    /// `SAMPLE_MASK`, or 0 while each poll is measured. The next measured poll is drawn with it.
    sample_mask: Cell<u32>,
    /// Number of half polls that the next measured one stands for, itself included.
    stands_for: Cell<u32>,
    /// Until when each poll is measured.
    all_measured_until: Cell<Nanos>,
    /// When the polls were last checked for a long one, and how many polls that were.
    checked_at: Cell<Nanos>,
    checked_polls: Cell<u64>,
    budget: Rc<OpBudget>,
    balance_at: Cell<Nanos>,
    /// What `balance` remembers of the neighbours.
    shares: RefCell<Shares>,
    /// How often in a row the LIFO slot may be polled.
    max_lifo_polls: Cell<u32>,
    /// How long the task that was polled last sleeps on average, in ns. 0: it did not fall asleep, or nothing is known.
    sleeper: Cell<u32>,
    /// The longest of those since the clock was read, in ns.
    longest_sleeper: Cell<u32>,
    /// Until when tasks that fell asleep before that usually sleep.
    window: Cell<Nanos>,
    virtual_times: Arc<VirtualTimes>,
    /// Time awake and CPU time, in ns, and how often the thread was preempted, when `lost_since` was last called.
    on_cpu: Cell<(u64, u64, u64)>,
    /// The shard's, in `shared`.
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
        // SAFETY: it is in a boxed slice of `shared`, which lives as long as `self`.
        unsafe { self.remote.as_ref() }
    }

    /// The clock as it was last read, which is late by up to an event interval.
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

    /// Whether this thread is inside the worker's driver.
    pub(crate) fn is_in_driver(&self) -> bool {
        self.in_driver.get()
    }

    /// Polls tasks until the runtime has shut down, or until another thread runs the worker.
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

    /// The next task, and whether several tenants have tasks, so that the time of each poll is charged.
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
            self.count_move(header);
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

    /// Returns how long other threads had this worker's CPU since the last call, in ns. The tenant that is polled does not
    /// pay for that. It pays for a poll that waits in a system call or for a lock: if the thread was not preempted, this
    /// returns 0.
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
    fn count_move(&self, header: &Header) {
        let stats = &self.remote().stats;
        let Some(home) = header.prev_worker() else { return Stats::add(&stats.first_polls, 1) };
        let number = match self.shared.machine.distance(home, self.me) {
            Distance::Same | Distance::Smt | Distance::Llc => &stats.same_llc,
            Distance::Node => &stats.other_llc,
            Distance::Socket | Distance::Other => &stats.other_node,
        };
        Stats::add(number, 1);
        self.shared.task_groups.record_move(self.me, header, !std::ptr::eq(number, &stats.same_llc));
    }

    #[inline]
    fn inject_queue(&self) -> &InjectQueue {
        // SAFETY: as `remote`.
        unsafe { self.inject_queue.as_ref() }
    }

    /// Moves a share of the injection queue to this worker. If tasks are left, notifies another worker of the shard.
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

    /// Called when the runtime has shut down and every task has ended.
    fn close(&self) {
        let remote = self.remote();
        self.end_park();
        if remote.status.park_seq.load(Relaxed) == 0 {
            // The thread started late: the worker's only look for tasks counts as a park.
            Stats::add(&remote.status.park_seq, 2);
            Stats::add(&remote.stats.parks, 1);
        }
        remote.status.is_closed.store(true, Relaxed);
        remote.inbox.close().for_each(cancel);
        while let Some(runnable) = self.pop_any() {
            cancel(runnable);
        }
        remote.driver.close();
        // What the driver dropped may have woken tasks here.
        while let Some(runnable) = self.pop_any() {
            cancel(runnable);
        }
    }

    /// Takes any task of the run queue.
    fn pop_any(&self) -> Option<RunnableTask> {
        let waiting =
            ignore_poison(self.remote().run_queue.lock()).pop(u32::MAX, || warmcore_sched::QueueOrder::Fifo);
        waiting.map(|waiting| waiting.runnable)
    }
}

/// What became of a worker without tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    Awake,
    Shutdown,
}
