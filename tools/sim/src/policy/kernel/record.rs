//! Record: what the kernel remembers from one question to the next, by its rules. The host keeps it.
//!
//! Model.   Per CPU: for how long it idles, on average; per CPU and domain: what a search has cost at most; per
//!          task: how often it wakes another task than the last time.
//! Number.  Weight 1/8; an average of at most twice what a search costs, which counts as the cost of a migration at
//!          least: 1 ms with Linux's 500 µs. One long night says no more than that.
//! Writers. The host: a CPU's average by whoever ends its idling; a CPU's costs by that CPU; a task's flips by
//!          that task.
//! Source.  Linux 6.6: `ttwu_do_activate`, `update_avg`, `update_newidle_cost`, `record_wakee`, `wake_wide`.

use warmcore_sched::SYSCTL_MIGRATION_COST;
use warmcore_types::Nanos;

/// A second, after which the costs seen fade and half of the flips are forgotten.
const SECOND: u64 = 1_000_000_000;

/// For how long a CPU stays idle, usually: the kernel's `avg_idle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AverageIdle {
    since: Option<Nanos>,
    average: Nanos,
}

impl Default for AverageIdle {
    /// With Linux's default cost of a migration.
    fn default() -> Self {
        Self::new(SYSCTL_MIGRATION_COST)
    }
}

impl AverageIdle {
    /// A CPU of which nothing is known idles for as long as the average can say.
    pub fn new(migration_cost: Nanos) -> Self {
        Self { since: None, average: Nanos(migration_cost.0.saturating_mul(2)) }
    }

    /// It has run out of work. The search counts as idling.
    pub fn idle(&mut self, now: Nanos) {
        self.since = Some(now);
    }

    /// It has found work by itself: that was no idling.
    pub fn pulled(&mut self) {
        self.since = None;
    }

    /// A task is woken there. `costliest`: what searching all domains cost the CPU at most.
    pub fn wake(&mut self, now: Nanos, costliest: Nanos, migration_cost: Nanos) {
        if let Some(since) = self.since.take() {
            let (idled, average) = (now.0.saturating_sub(since.0), self.average.0);
            let average = if idled < average {
                average - (average - idled) / 8
            } else {
                average + (idled - average) / 8
            };
            self.average = Nanos(average.min(costliest.max(migration_cost).0.saturating_mul(2)));
        }
    }

    /// For so long.
    pub fn average(&self) -> Nanos {
        self.average
    }
}

/// What searching a domain has cost at most: the kernel's `max_newidle_lb_cost`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewidleCost {
    most: Nanos,
    faded: Nanos,
}

impl NewidleCost {
    /// A search has cost so much. Seldom ones fade by a hundredth a second.
    pub fn searched(&mut self, cost: Nanos, now: Nanos) {
        if cost > self.most {
            (self.most, self.faded) = (cost, now);
        } else if now.0 > self.faded.0.saturating_add(SECOND) {
            (self.most, self.faded) = (Nanos(self.most.0 * 253 / 256), now);
        }
    }

    /// So much.
    pub fn most(&self) -> Nanos {
        self.most
    }
}

/// How often a task wakes another one than the last time: the kernel's `wakee_flips`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flips {
    last: Option<u64>,
    flips: u32,
    halved: Nanos,
}

impl Flips {
    /// It wakes that task, which the host has numbered.
    pub fn wakes(&mut self, wakee: u64, now: Nanos) {
        if now.0 > self.halved.0.saturating_add(SECOND) {
            (self.flips, self.halved) = (self.flips / 2, now);
        }
        if self.last != Some(wakee) {
            (self.last, self.flips) = (Some(wakee), self.flips.saturating_add(1));
        }
    }

    /// One of the two flips more than an LLC has CPUs, and the other so many times more: a master of many slaves,
    /// who had better not all come to it.
    pub fn is_wide(waker: &Self, wakee: &Self, llc_cpus: u32) -> bool {
        let (master, slave) = (waker.flips.max(wakee.flips), waker.flips.min(wakee.flips));
        slave >= llc_cpus && u64::from(master) >= u64::from(slave) * u64::from(llc_cpus)
    }
}
