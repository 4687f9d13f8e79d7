//! Maintenance: what a busy worker does once in an event interval.
//!
//! An event interval is as many polls as take 200 µs. After it the worker reads the clock, polls its driver, notifies a
//! parked worker if tasks are queued here, and now and then compares itself with a neighbour.

use super::*;
use crate::virtual_time::LAG_MIN;
use warmcore_sched::shares::NEIGHBOURS;

/// The largest number of polls between two polls of the driver. Polling it takes 0.5 µs, as long as six polls of tasks
/// that only wake each other.
const POLLS_MAX: u32 = 512;

/// Time between two looks at a neighbour whose tasks may get fewer polls.
const BALANCE_EVERY: Nanos = Nanos(1_000_000);

impl Worker {
    /// Ends an event interval.
    #[cold]
    pub(super) fn maintenance(&self) {
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

    /// Updates how long a poll takes on average, after an interval that took `took` ns, and with it the length of the next
    /// interval.
    pub(super) fn tune_interval(&self, took: u64) {
        let status = &self.remote().status;
        let polls = self.event_interval.get();
        let average = (took / u64::from(polls)).clamp(1, 1 << 30);
        let old = u64::from(status.mean_poll_ns.load(Relaxed));
        // An interval in which the thread was preempted says little.
        let average = if old == 0 { average } else { average.min(old * 4) };
        let average = if old == 0 { average } else { old - old / 4 + average / 4 }.max(1);
        status.mean_poll_ns.store(average as u32, Relaxed);
        // One poll more or not, at random. With the same number each time, of three tasks on two workers the same one could
        // be queued whenever this worker looks. An interval of one poll stays one: its driver waits for long enough.
        let polls = match (EVENT_INTERVAL.0 / average).clamp(1, POLLS_MAX.into()) as u32 {
            1 => 1,
            polls => polls + self.next_rand() % 2,
        };
        self.event_interval.set(polls);
        self.ticks_left.set(polls);
        self.notify_threshold.set(self.shared.policy.notify_threshold(Nanos(average)));
        self.max_lifo_polls.set(self.shared.policy.max_lifo_polls(Nanos(average)));
    }

    /// Ends the interval after this many polls at most, the one under way included.
    pub(super) fn shorten_interval(&self, polls: u32) {
        let rest = self.ticks_left.get().saturating_sub(polls);
        self.ticks_left.set(self.ticks_left.get() - rest);
        self.event_interval.set(self.event_interval.get() - rest);
    }

    fn poll_driver(&self) {
        let remote = self.remote();
        self.in_driver.set(true);
        remote.driver.poll_events();
        self.in_driver.set(false);
        Stats::add(&remote.stats.event_polls, 1);
        self.clear_stuck();
    }

    /// Compares itself with a random neighbour: if the tasks there get fewer polls than those here, takes some.
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

    /// Takes a task from a random neighbour if its tenant is behind all those whose tasks are queued here.
    #[cold]
    fn migrate_lagging(&self, now: Nanos) {
        let (remote, shared) = (self.remote(), &self.shared);
        let Some((_, other)) = self.random_neighbour() else { return };
        let least = ignore_poison(remote.run_queue.lock()).min_vtime();
        // A worker without queued tasks steals one before it parks.
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

    pub(super) fn next_rand(&self) -> u32 {
        let mut rand = self.rand.get();
        rand ^= rand << 13;
        rand ^= rand >> 17;
        rand ^= rand << 5;
        self.rand.set(rand);
        rand
    }
}
