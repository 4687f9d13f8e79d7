//! Maintenance: what a busy worker does once in an event interval.
//!
//! An event interval is as many polls as take 160 times as long as maintenance, 80 times while tasks yield. That cost is learned: 0.5 µs in a loop, which counts as
//! 1.6, and 2 to 5 µs between polls of tasks, whose code and data are in the cache instead. After it the worker reads the clock, its host polls the
//! driver, and the worker looks whether a neighbour stands still, notifies a parked worker if tasks are queued here, and now and then
//! compares itself with a neighbour.

use super::schedule::DRIVER_POLL;
use super::steal::LOOK_AGAIN_AFTER;
use super::*;
use crate::View;
use crate::estimate::{SAMPLE_MAX, UPKEEP_SHARE, average};
use crate::policy::{INTERVAL_MAX, MIGRATION_COST_MAX, MIGRATION_COST_PER_POLL, WAKEUP_COST, kick_price};
use crate::refill::SHORT_POLL_NS;
use crate::shares::NEIGHBOURS;
use crate::virtual_time::LAG_MIN;

/// The largest number of polls between two polls of the driver.
const POLLS_MAX: u32 = UPKEEP_SHARE as u32 * DRIVER_POLL;

impl<H: Host> Core<H> {
    /// Ends an event interval. The host polls the driver next.
    #[cold]
    pub(super) fn begin_maintenance(&self, host: &H) {
        let now = self.read_clock(host);
        self.charge_slice(host, true);
        self.check_long_poll(host, now);
        let took = now.0.saturating_sub(self.interval_start.get().0);
        self.tune_interval(host, took.saturating_sub(self.waited.replace(0)));
        self.maintenance_began.set(Some(now));
        self.set_in_driver(true);
    }

    /// Called after the driver was polled: the answer to [`Next::Maintain`].
    #[inline]
    pub fn maintained(&self, host: &H) {
        self.set_in_driver(false);
        Counters::add(&self.remote.counters.event_polls, 1);
        let (now, workers) = (self.now(), host.workers());
        if workers.policy().defers_yields() {
            self.queue_deferred(host);
        }
        let near = workers.machine().cpus().saturating_sub(1).min(NEIGHBOURS);
        if near > 0 && workers.policy().shares() {
            self.look_at_neighbours(host, near, now);
        }
        if self.remote.waiting() > 0 && workers.has_idle(self.me, 1) {
            workers.notify_parked(host, self.me, now);
        }
        let now = self.read_clock(host);
        // Maintenance is charged to no tenant.
        self.slice.set(self.slice.get().map(|slice| self.slice_of(slice.share)));
        self.learn_maintenance_cost(now);
        self.interval_start.set(now);
        self.restart_long_poll_check(now);
        self.record_usage(host);
    }

    /// If the driver had no event: learns what maintenance costs. Where a clock stands still, nothing is learned.
    fn learn_maintenance_cost(&self, now: Nanos) {
        let Some(began) = self.maintenance_began.take().filter(|began| now > *began) else { return };
        let learned = average(self.maintenance_ns.get(), now.0 - began.0);
        self.maintenance_ns.set(learned.max(MAINTENANCE_MIN));
    }

    /// How long polls run until maintenance is due. The more rarely, the more events the driver has each time.
    pub(super) fn event_interval_ns(&self) -> u64 {
        (self.maintenance_ns.get() * UPKEEP_SHARE).min(INTERVAL_MAX.0)
    }

    /// Updates how long a poll takes on average, after an interval that took `took` ns, and with it the length of the next
    /// interval.
    fn tune_interval(&self, host: &H, took: u64) {
        let (status, policy) = (&self.remote.status, host.workers().policy());
        let old = u64::from(status.mean_poll_ns.load(Relaxed));
        // An interval without a poll, in which the worker waited for tasks, says nothing.
        let poll = took.checked_div(self.event_interval.get().into()).unwrap_or(old).clamp(1, 1 << 30);
        // An interval in which the thread was preempted says little.
        let poll = if old == 0 { poll } else { poll.min(old * SAMPLE_MAX) };
        let average = if old == 0 { poll } else { old - old / 4 + poll / 4 }.max(1);
        status.mean_poll_ns.store(average as u32, Relaxed);
        self.lets_pass.set(average >= SHORT_POLL_NS.into());
        // One poll more or not, at random. With the same number each time, of three tasks on two workers the same one could
        // be queued whenever this worker looks. An interval of one poll stays one: its driver waits for long enough.
        // A task that yields lets those pass that the driver would wake. So the driver is polled twice as often, which costs 0.6 % more.
        let interval = self.event_interval_ns() / if self.has_yielded.take() { 2 } else { 1 };
        let polls = match (interval / average).clamp(1, POLLS_MAX.into()) as u32 {
            1 => 1,
            polls => polls + self.next_rand() % 2,
        };
        let polls = policy.event_interval().map_or(polls, |polls| polls.max(1));
        self.event_interval.set(polls);
        self.ticks_left.set(polls);
        let learned = host.workers().migration_cost(average as u32);
        self.set_notify_threshold(host, Nanos(average), learned);
        // Where tasks find their data evicted at each poll, a move is learned to cost nothing more. So long polls count as heavy.
        let least = Nanos((average / MIGRATION_COST_PER_POLL).min(MIGRATION_COST_MAX.0));
        let migration_cost = learned.max(least);
        self.max_lifo_polls.set(policy.max_lifo_polls(Nanos(average), migration_cost));
        self.order.set(policy.queue_order(migration_cost));
        self.choose_queue(host);
    }

    /// Decides how many tasks wait until another worker is notified.
    fn set_notify_threshold(&self, host: &H, average: Nanos, migration_cost: Nanos) {
        let workers = host.workers();
        let spare = kick_price(workers.machine(), workers, self.me, workers.wakeup_cost(self.me));
        self.notify_threshold.set(workers.policy().notify_threshold(average, migration_cost, spare));
    }

    /// As [`set_notify_threshold`](Self::set_notify_threshold), once the length of a poll is known, because others may be idle now.
    pub(super) fn update_notify_threshold(&self, host: &H) {
        let average = self.remote.status.mean_poll_ns.load(Relaxed);
        if average > 0 {
            self.set_notify_threshold(host, Nanos(average.into()), host.workers().migration_cost(average));
        }
    }

    /// Decides whether light tasks go into the ring from now on.
    fn choose_queue(&self, host: &H) {
        let workers = host.workers();
        let uses_ring = workers.uses_rings(self.order.get(), self.max_lifo_polls.get());
        let left_ring = self.uses_ring.replace(uses_ring) && !uses_ring;
        self.limit_may_pass();
        if left_ring {
            self.leave_ring(host);
        }
    }

    /// For tests of hosts: the event interval has this many polls.
    #[doc(hidden)]
    pub fn set_event_interval(&self, polls: u32) {
        self.event_interval.set(polls);
        self.ticks_left.set(polls);
    }

    /// Ends the interval after this many polls at most, the one under way included.
    pub(super) fn shorten_interval(&self, polls: u32) {
        let rest = self.ticks_left.get().saturating_sub(polls);
        self.ticks_left.set(self.ticks_left.get() - rest);
        self.event_interval.set(self.event_interval.get() - rest);
    }

    /// Looks at the `near` nearest other workers, each in its turn: if one stands still, takes tasks over. If the tasks of one at random
    /// get fewer polls, or those of a tenant there less time, takes some of them.
    fn look_at_neighbours(&self, host: &H, near: usize, now: Nanos) {
        let neighbour = |which| host.workers().machine().others(self.me).nth(which).unwrap_or(self.me);
        let turn = self.remote.counters.event_polls.load(Relaxed) as usize % near;
        let mut came = self.take_over(host, neighbour(turn), now);
        let at_random = self.next_rand() as usize % near;
        if now >= self.balance_at.get() {
            came += self.balance(host, at_random, neighbour(at_random), now);
        }
        if self.virtual_times.has_several_tenants() {
            came += self.migrate_lagging(host, neighbour(at_random), now);
        }
        Counters::add(&self.remote.counters.balanced, came.into());
    }

    /// If a worker stands still while tasks wait there, takes half of those in its queues and all that were handed to it, if the policy
    /// says so.
    fn take_over(&self, host: &H, other: CpuId, now: Nanos) -> u32 {
        let (workers, remote) = (host.workers(), host.workers().remote(other));
        // A lone task that yields cuts an interval short.
        let is_short = now.0.saturating_sub(self.interval_start.get().0) < WAKEUP_COST.0;
        if is_short || (remote.waiting() == 0 && !remote.inbox.has_tasks()) {
            return 0;
        }
        remote.look(now);
        if !workers.policy().takes_over(workers.machine(), workers, self.me, other, now) {
            return 0;
        }
        let half = remote.waiting().div_ceil(2).min(STEAL_MAX);
        let came = self.steal_from(host, other, half, now, true);
        if came == 0 {
            // What waits there may not run here.
            remote.still.since.store(now.0 + LOOK_AGAIN_AFTER.0, Relaxed);
        }
        came
    }

    /// Compares itself with a neighbour: if the tasks there get fewer polls than those here, takes some.
    #[cold]
    fn balance(&self, host: &H, which: usize, other: CpuId, now: Nanos) -> u32 {
        self.balance_at.set(Nanos(now.0 + LOOK_AGAIN_AFTER.0));
        let workers = host.workers();
        let pinned = self.remote.lock_queue().pinned();
        self.remote.status.pinned.store(pinned, Relaxed);
        let distance = workers.machine().distance(self.me, other);
        let mut shares = self.shares.borrow_mut();
        let come = shares.look(which, workers.pace(self.me), workers.pace(other), distance);
        let (came, had_run) = if come > 0 { self.migrate(host, other, come, now) } else { (0, 0) };
        shares.moved(had_run);
        came
    }

    /// Takes a task from a neighbour if its tenant is behind all those whose tasks are queued here.
    #[cold]
    fn migrate_lagging(&self, host: &H, other: CpuId, now: Nanos) -> u32 {
        let least = self.remote.lock_queue().min_vtime();
        // A worker without queued tasks steals one before it parks.
        let below = least.checked_sub(LAG_MIN).filter(|_| least < u64::MAX);
        below.map_or(0, |below| self.steal_lagging(host, other, below, now))
    }
}
