//! Park: how a worker without tasks parks, and how it wakes.
//!
//! The worker first marks itself as parked, *then* looks for tasks of other workers, and sleeps if it finds none. A thread
//! that queues a task after that look sees the mark and unparks the worker. See `workers.rs`, "Protocol".
//!
//! | | when | does |
//! |---|---|---|
//! | `search` | `next` found no task | marks the worker as parked and looks for tasks elsewhere |
//! | `begin_park` | the search found none | `next` returns `Park`, and the host sleeps |
//! | `unparked` | the host does not sleep any more | reads the clock, counts the park |
//! | `resume` | after that, or after a search that found tasks | the worker counts as idle no more |
//! | `end_idle` | the first task after that | ends the park for the counter `park_seq`, tells the host |
//! | `recover` | after a panic outside of a task | `unparked` and `resume`, if they are due |

use super::steal::SearchOutcome;
use super::*;
use crate::View;
use crate::estimate::average;
use crate::policy::WAKEUP_COST;
use crate::sync::fence;

/// The most that a wakeup is taken to cost.
const WAKEUP_MAX: Nanos = Nanos(100_000);

impl<H: Host> Core<H> {
    /// Looks for tasks of other workers: the answer to [`Next::Search`]. [`next`](Self::next) says what comes of it.
    #[inline(never)]
    pub fn search(&self, host: &H) {
        let now = self.read_clock(host);
        self.charge_slice(host, false);
        if self.check_long_poll(host, now) || self.waits_for_task(host, now) {
            // The report of a long poll may have woken a task here.
            return;
        }
        let now = self.now();
        if !self.mark_parked(host, now) {
            // Another thread has pushed a task.
            return;
        }
        if host.is_shutdown() {
            return;
        }
        match self.steal_work(host, now) {
            SearchOutcome::Tasks { left_at, is_last } => {
                Counters::add(&self.remote.counters.steal_operations, 1);
                self.resume(host);
                // After `resume`: while this worker is marked as parked, it may be the one that the policy names.
                if host.workers().limits_searching() {
                    if is_last {
                        self.notify_next(host, now);
                    }
                } else if let Some(victim) = left_at {
                    host.workers().notify_parked(host, victim, now);
                }
            }
            SearchOutcome::Nothing(_) if !self.deferred.borrow().is_empty() => {
                // The tasks that yielded run after the driver was polled.
                self.resume(host);
                self.shorten_interval(0);
            }
            SearchOutcome::Nothing(until) => {
                self.mode.set(Mode::Parked { since: now, until });
                self.open_window(now);
            }
        }
    }

    /// Marks the worker as parked. False: its inbox has a task.
    #[doc(hidden)] // for models of hosts
    pub fn mark_parked(&self, host: &H, now: Nanos) -> bool {
        if !self.remote.inbox.try_park() {
            return false;
        }
        self.remote.forget_looks();
        // The worker is in no poll any more.
        if self.is_stuck() {
            host.workers().set_stuck(self.me, false);
        }
        // A backlog begins with the next push. Until the push has stored its time, none of its tasks is due.
        self.remote.status.backlog_since.store(u64::MAX, Relaxed);
        self.shard.idle.fetch_or(self.bit, Relaxed);
        self.end_service();
        self.mode.set(Mode::Parked { since: now, until: None });
        // ORDERING: SeqCst; that the worker is parked was written before, the other queues are read after.
        // `Workers::notify_parked` and `notify_for_inject` do both the other way round. One of the two sees the other.
        fence(SeqCst);
        true
    }

    /// Begins the sleep of a worker that is marked as parked.
    #[cold]
    pub(super) fn begin_park(&self, host: &H, since: Nanos, until: Option<Nanos>) -> Next<H::Task> {
        if host.is_shutdown() {
            return Next::Shutdown;
        }
        // Set before the host sleeps, so that a task that the driver wakes ends the park.
        self.set_in_driver(true);
        self.clock_is_stale.set(true);
        host.parks(self.me);
        let status = &self.remote.status;
        status.parked_since.store(since.0, Relaxed);
        if status.park_seq.load(Relaxed).is_multiple_of(2) {
            Counters::add(&status.park_seq, 1);
        }
        Next::Park(until)
    }

    /// Called when the worker does not sleep any more. The worker counts as idle until [`resume`](Self::resume).
    pub fn unparked(&self, host: &H) {
        let status = &self.remote.status;
        let since = status.parked_since.load(Relaxed);
        self.clock_is_stale.set(false);
        status.parked_since.store(0, Relaxed);
        self.set_in_driver(false);
        let woke = self.read_clock(host);
        self.learn_wakeup_cost(since, woke);
        Counters::add(&self.remote.counters.parks, 1);
        Counters::add(&self.remote.counters.parked_ns, woke.0.saturating_sub(since));
        self.update_notify_threshold(host);
        self.notify_of_backlog(host);
    }

    /// Whether this worker, which is going to park, waits for sockets that it shares with others, although one of these is to do that
    /// and is awake. The last idle one does not if other threads may need its CPU.
    pub fn attends(&self, host: &H) -> bool {
        host.workers().has_idle(self.me, u32::from(host.workers().others_run()))
    }

    /// If another thread has ended the park: learns how long it took until this thread ran.
    fn learn_wakeup_cost(&self, parked_since: u64, woke: Nanos) {
        let unparked_at = &self.remote.notice.unparked_at;
        let at = unparked_at.load(Relaxed);
        self.unparked_at.set(Nanos(at));
        if at == 0 {
            return;
        }
        unparked_at.store(0, Relaxed);
        if at < parked_since {
            // The worker woke by itself at that time, and ended another park.
            return;
        }
        let status = &self.remote.status;
        let old = match status.wakeup_ns.load(Relaxed) {
            0 => WAKEUP_COST.0,
            old => u64::from(old),
        };
        let learned = average(old, woke.0.saturating_sub(at)).clamp(1, WAKEUP_MAX.0);
        status.wakeup_ns.store(learned as u32, Relaxed);
    }

    /// Ends the park: the worker is not marked as parked any more.
    pub fn resume(&self, host: &H) {
        let Mode::Parked { since, .. } = self.mode.replace(Mode::Awake) else { return };
        self.leave_idle();
        self.remote.inbox.try_unpark();
        // ORDERING: SeqCst; that the worker is awake was written before, whether a wakeup is pending and what the injection
        // queue holds is read after. `Workers::notify_for_inject` does both the other way round.
        fence(SeqCst);
        if self.shard.wakeup_pending.load(Relaxed) {
            if self.took_light.get() && self.may_serve(host, Nanos(0)) {
                // The tasks that it was unparked for are probably light too.
                self.extend_service(host);
            }
            self.shard.wakeup_pending.store(false, SeqCst);
            // ORDERING: SeqCst; the mark was cleared before, the injection queue is read after, by `next`. A thread that
            // pushes there does both the other way round, so a push that found the mark set is seen.
            fence(SeqCst);
        }
        self.restart_long_poll_check(self.now());
        self.usage.set(None);
        if self.virtual_times.has_several_tenants() {
            self.record_usage(host);
        }
        // The time of the park counts for no poll.
        let slept = self.now().0.saturating_sub(since.0);
        self.interval_start.set(Nanos(self.interval_start.get().0 + slept));
        self.was_idle.set(true);
    }

    /// The worker is not among the parked ones of its shard any more, whose queues are empty. Called before it queues a task.
    pub(super) fn leave_idle(&self) {
        if self.shard.idle.load(Relaxed) & self.bit != 0 {
            self.shard.idle.fetch_and(!self.bit, Relaxed);
        }
    }

    /// Makes the worker ready to go on after a panic outside of a task, for example of a waker in the driver.
    pub fn recover(&self, host: &H) {
        let polls = &self.remote.status.poll_seq;
        if polls.load(Relaxed) % 2 == 1 {
            // The panic was between the begin and the end of a poll.
            polls.store(polls.load(Relaxed) + 1, Relaxed);
        }
        if self.in_driver.get() && self.remote.status.parked_since.load(Relaxed) > 0 {
            self.unparked(host);
        }
        self.set_in_driver(false);
        self.resume(host);
    }

    /// The worker runs a task for the first time after it was idle.
    #[cold]
    pub(super) fn end_idle(&self, host: &H) {
        self.was_idle.set(false);
        self.end_park();
        self.learn_if_soon(host, self.unparked_at.get());
        if host.workers().limits_searching() && host.workers().end_notified(self.me) {
            self.notify_next(host, self.now());
        }
        host.resumed(self.me, self.now());
    }

    /// Ends the park that `park_seq` counts, if there is one. A worker that wakes to look, and parks again without a poll,
    /// does not call this.
    pub(super) fn end_park(&self) {
        let park_seq = &self.remote.status.park_seq;
        if park_seq.load(Relaxed) % 2 == 1 {
            Counters::add(park_seq, 1);
        }
    }

    /// Called when the poll of a task returns pending; `usually` is how long the task sleeps on average, in ns. The task
    /// may have been woken meanwhile, which is known when its poll has ended.
    #[inline]
    pub fn fell_asleep(&self, usually: u32) {
        self.sleeper.set(usually);
    }

    /// Until when the tasks that fell asleep before the clock was last read usually sleep.
    pub(super) fn window(&self) -> Nanos {
        match self.longest_sleeper.get() {
            0 => self.window.get(),
            longest => self.window.get().max(Nanos(self.now().0 + u64::from(longest))),
        }
    }

    /// Publishes until when this worker, which is about to park, is kept for those of its tasks that sleep briefly.
    fn open_window(&self, now: Nanos) {
        let status = &self.remote.status;
        let until = match self.sleeper.get() {
            0 => self.window().0,
            // The task of the last poll fell asleep just now.
            usually => self.window().0.max(now.0 + u64::from(usually)),
        };
        if until > status.hot_until.load(Relaxed) {
            status.hot_until.store(until, Relaxed);
        }
    }
}
