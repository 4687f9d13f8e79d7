//! Record: the state that the kernel keeps from one decision to the next, updated by its rules. The simulation stores
//! it.
//!
//! Per CPU, the average time for which it is idle ([`AverageIdle`]), updated by the CPU that wakes a task on it. Per
//! CPU and domain, the highest cost of a search ([`NewidleCost`]), updated by that CPU. Per task, how often it wakes
//! another task than the one that it woke before ([`Flips`]), updated by that task. Per shard, how much its CPUs ran
//! lately (`Usage`).
//!
//! A new idle time has weight 1/8 in the average. The average is at most twice what a search of all domains costs, or
//! twice the migration cost if that is more: 1 ms with Linux's 500 µs. So one long idle time raises it to that at most.
//!
//! For `Usage`, the time in which the CPUs ran tasks is summed per window of about a millisecond, and added to an
//! average whose older part halves in 32 windows. A CPU that is leaving its idle state does not count as running. Four
//! CPUs that always run give 4096. One CPU that begins to run gives 512 after 32 windows, 34 ms.
//!
//! # Source
//! Linux 6.6: `ttwu_do_activate`, `update_avg`, `update_newidle_cost`, `record_wakee`, `wake_wide`; `util_avg`: windows
//! of 2²⁰ ns, y³² = 1/2, and 1024 for a CPU that always runs.

use crate::policy::SYSCTL_MIGRATION_COST;
use warmcore_types::Nanos;

/// At most once in this many ns a recorded cost fades, and half of a task's flips are forgotten.
const SECOND: u64 = 1_000_000_000;

/// How long a CPU is usually idle: the kernel's `avg_idle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AverageIdle {
    since: Option<Nanos>,
    average: Nanos,
}

impl Default for AverageIdle {
    /// With Linux's default migration cost.
    fn default() -> Self {
        Self::new(SYSCTL_MIGRATION_COST)
    }
}

impl AverageIdle {
    /// For a CPU that has not been idle yet: the average is twice the migration cost.
    pub fn new(migration_cost: Nanos) -> Self {
        Self { since: None, average: Nanos(migration_cost.0.saturating_mul(2)) }
    }

    /// The CPU has run out of tasks. The search that follows counts as idle time.
    pub fn idle(&mut self, now: Nanos) {
        self.since = Some(now);
    }

    /// The CPU has found a task by itself: it was not idle.
    pub fn found_task(&mut self) {
        self.since = None;
    }

    /// A task is woken on the CPU, which is idle or searches. `costliest`: the sum over the CPU's domains of the most
    /// that searching each has cost it.
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

    /// The average idle time.
    pub fn average(&self) -> Nanos {
        self.average
    }
}

/// The most that searching a domain has cost, faded with time: the kernel's `max_newidle_lb_cost`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewidleCost {
    most: Nanos,
    faded: Nanos,
}

impl NewidleCost {
    /// A search has cost this much. A highest cost that is not exceeded fades by 3/256, at most once a second.
    pub fn searched(&mut self, cost: Nanos, now: Nanos) {
        if cost > self.most {
            (self.most, self.faded) = (cost, now);
        } else if now.0 > self.faded.0.saturating_add(SECOND) {
            (self.most, self.faded) = (Nanos(self.most.0 * 253 / 256), now);
        }
    }

    /// The most that a search has cost, as it has faded.
    pub fn most(&self) -> Nanos {
        self.most
    }
}

/// How often a task wakes another task than the one that it woke before: the kernel's `wakee_flips`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flips {
    last: Option<u64>,
    flips: u32,
    halved: Nanos,
}

impl Flips {
    /// Records that the task wakes the task with this number, which the simulation assigns.
    pub fn wakes(&mut self, wakee: u64, now: Nanos) {
        if now.0 > self.halved.0.saturating_add(SECOND) {
            (self.flips, self.halved) = (self.flips / 2, now);
        }
        if self.last != Some(wakee) {
            (self.last, self.flips) = (Some(wakee), self.flips.saturating_add(1));
        }
    }

    /// Whether the task with fewer flips has at least as many as an LLC has CPUs, and the other one at least `llc_cpus`
    /// times as many. Then the other one wakes more tasks than can run in its LLC.
    pub fn is_wide(waker: &Self, wakee: &Self, llc_cpus: u32) -> bool {
        let (master, slave) = (waker.flips.max(wakee.flips), waker.flips.min(wakee.flips));
        slave >= llc_cpus && u64::from(master) >= u64::from(slave) * u64::from(llc_cpus)
    }
}

/// The length of a window, in ns.
const WINDOW: u64 = 1 << 20;

/// The part of the older average that remains after a window, in 65536ths: 0.5^(1/32).
const KEPT: u64 = 64_132;

/// After this many windows less than a thousandth is left of the older average.
const WINDOWS_MAX: u64 = 320;

/// How much a group of CPUs ran lately.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// CPUs that run a task.
    running: u64,
    /// The time up to which everything is counted.
    at: u64,
    /// The run time in the current window, in CPU × ns.
    ran: u64,
    /// The average, in 65536ths of 1/1024 CPU.
    average: u64,
}

impl Usage {
    /// A CPU begins to run tasks, or stops.
    pub(crate) fn set_running(&mut self, now: u64, runs: bool) {
        self.count(now);
        self.running = if runs { self.running + 1 } else { self.running - 1 };
    }

    /// Counts up to `now`.
    fn count(&mut self, now: u64) {
        let windows = (now / WINDOW).saturating_sub(self.at / WINDOW);
        for _ in 0..windows.min(WINDOWS_MAX) {
            let end = (self.at / WINDOW + 1) * WINDOW;
            self.ran += self.running * (end - self.at);
            // A window's share: 1024 × 65536 for a CPU that ran during all of it.
            self.average = (self.average * KEPT + self.ran * 64 * (65_536 - KEPT)) >> 16;
            (self.at, self.ran) = (end, 0);
        }
        let begin = self.at.max(now / WINDOW * WINDOW);
        self.ran += self.running * (now - begin);
        self.at = now;
    }

    /// The average at `now`, in 1/1024 CPU.
    pub(crate) fn now(&self, now: u64) -> u64 {
        let mut copy = Self { ..*self };
        copy.count(now);
        copy.average >> 16
    }
}
