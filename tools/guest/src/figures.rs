//! What is compared: shares and quantiles of a run's counts.

use crate::counts::{ProbeCounts, quantile_us};
use serde::Serialize;
use warmcore_guest_init::Done;

/// Figures of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Wakes.
    pub wakes: u64,
    /// Of these on the CPU of the task's last run, in percent.
    pub same: f64,
    /// Of these in another last-level cache than the task's last run.
    pub other_llc: f64,
    /// Of all wakes and new tasks those that waited for a busy CPU while an allowed one idled, in percent.
    pub queued: f64,
    /// Of these those that waited longer than 50 µs, and than 100 µs, in percent of all.
    pub over_50us: f64,
    /// As above.
    pub over_100us: f64,
    /// The longest such wait, in µs.
    pub longest_us: f64,
    /// From wake to run, in µs: the ends of the buckets.
    pub p50_us: f64,
    /// As above.
    pub p99_us: f64,
    /// CPUs that were busy, in the mean.
    pub busy: f64,
    /// Bubbles: the integral of the smaller of idle CPUs and waiting tasks, in percent of the CPUs' time.
    pub bubbles: f64,
    /// Migrations.
    pub migrations: u64,
    /// Context switches.
    pub switches: u64,
    /// The largest share of a hog by the smallest. `None`: no hogs.
    pub unequal: Option<f64>,
    /// What part of the work was done, in percent.
    pub done: f64,
    /// By group.
    pub groups: Vec<(String, GroupFigures)>,
}

/// Figures of the tasks of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct GroupFigures {
    /// From wake to run, the end of the bucket of the 99th percentile, in µs.
    pub p99_us: f64,
    /// The wakes on another CPU than that of the task's last run, in percent.
    pub moved: f64,
}

impl Figures {
    /// Of the counts, and of what the workload says.
    pub fn of(counts: &ProbeCounts, done: Option<&Done>) -> Self {
        let percent = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
        let wakes = counts.wakes.all();
        let quantile = |per_mille| quantile_us(&counts.histogram, per_mille).unwrap_or(0.0);
        let shares = done.map(|done| &done.shares_us[..]).unwrap_or_default();
        let unequal = shares.iter().max().zip(shares.iter().min());
        let idle = counts.time.idle_ns as f64 / counts.time.observed_ns.max(1) as f64;
        let group = |(name, group): (&String, &crate::counts::GroupCounts)| {
            let wakes = group.wakes.all();
            let figures = GroupFigures {
                p99_us: quantile_us(&group.histogram, 990).unwrap_or(0.0),
                moved: percent(wakes - group.wakes.same, wakes),
            };
            (name.clone(), figures)
        };
        Self {
            wakes,
            same: percent(counts.wakes.same, wakes),
            other_llc: percent(counts.wakes.other, wakes),
            queued: percent(counts.queued.any, counts.wakeups),
            over_50us: percent(counts.queued.over_50us, counts.wakeups),
            over_100us: percent(counts.queued.over_100us, counts.wakeups),
            longest_us: counts.queued.longest_ns as f64 / 1000.0,
            p50_us: quantile(500),
            p99_us: quantile(990),
            busy: counts.cpus as f64 - idle,
            bubbles: percent(counts.time.idle_while_waiting_ns, counts.cpus * counts.time.observed_ns),
            migrations: counts.migrations.all,
            switches: counts.switches,
            unequal: unequal.map(|(largest, smallest)| *largest as f64 / (*smallest).max(1) as f64),
            done: done.map_or(0.0, |done| percent(done.done, done.of)),
            groups: counts.groups.iter().map(group).collect(),
        }
    }
}
