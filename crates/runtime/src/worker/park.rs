//! Park: what a worker without tasks does.
//!
//! The worker first marks itself parked, *then* looks for tasks on the other workers, and parks in its driver if it finds
//! none. A thread that queues a task after that look sees the mark and unparks the worker. README.md, "Notes on parking".

use super::*;
use crate::shared::StealOutcome;
use crate::sync::fence;
use crate::thread_config;

impl Worker {
    /// Called if no task is queued here.
    pub(super) fn idle(&self) -> Idle {
        let now = self.read_clock();
        if self.check_long_poll(now) {
            // The subscriber that got the report may have woken a task here.
            return Idle::Awake;
        }
        let Some(guard) = ParkGuard::new(self.remote(), self.inject_queue()) else { return Idle::Awake };
        let outcome = self.park(now);
        drop(guard);
        self.restart_long_poll_check(self.now());
        // The time of the park counts for no poll.
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
        let foreign = self.shared.foreign.due(&self.shared, me, now);
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
    pub(super) fn end_park(&self) {
        let park_seq = &self.remote().status.park_seq;
        if park_seq.load(Relaxed) % 2 == 1 {
            Stats::add(park_seq, 1);
        }
    }

    /// Called when the driver returns from a wait; `n` is its `run_seq`.
    pub(crate) fn driver_runs(&self, n: u64) {
        self.shared.foreign.begin(&self.shared, self.me, n);
    }

    /// Called when the poll of a task returns pending; `usually` is how long the task sleeps on average, in ns. The task
    /// may have been woken meanwhile, which is known when its poll has ended.
    #[inline]
    pub(crate) fn fell_asleep(&self, usually: u32) {
        self.sleeper.set(usually);
    }

    /// Until when the tasks that fell asleep before the clock was last read usually sleep.
    pub(super) fn window(&self) -> Nanos {
        match self.longest_sleeper.get() {
            0 => self.window.get(),
            longest => self.window.get().max(Nanos(self.now().0 + u64::from(longest))),
        }
    }

    /// Publishes until when this worker, which is about to park, is kept for those of its tasks that sleep shortly.
    pub(super) fn open_window(&self, now: Nanos) {
        let status = &self.remote().status;
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
        // ORDERING: SeqCst; that the worker is awake was written before, whether a wake-up is pending and what the injection
        // queue holds is read after. `Shared::notify_for_inject` does both the other way round.
        fence(SeqCst);
        if self.inject_queue.wakeup_pending.load(Relaxed) {
            self.inject_queue.wakeup_pending.store(false, SeqCst);
            fence(SeqCst);
        }
    }
}
