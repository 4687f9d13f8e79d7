//! The counts of a run, as they are written as JSON: one [`Report`] a run.
//!
//! A [`Report`] is summed from the counters that the BPF program keeps per CPU. Their names come from
//! `src/bpf/interface.h` through the generated types, so a counter that is renamed there fails the build here.
//! `README.md` has the definitions at length.
//!
//! Counts include user tasks only: no kernel threads, no idle tasks, and no threads of the probe itself. Unless the
//! doc comment has a unit, a count is a number of events.

use crate::bpf::types::{probe_counts, probe_distances, probe_integrals};
use crate::group::Group;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// The version of the JSON. It rises if a key changes its name or meaning.
pub const SCHEMA: u32 = 1;

/// The number of buckets of a histogram. Bucket 0 has waits below 1024 ns; bucket `b` has those from `512 << b` ns to
/// below `1024 << b` ns; the last one has all longer waits.
pub const BUCKETS: usize = 24;

/// A wait beside an idle CPU counts in [`Queued::over_slice`] if it is longer: 5 ms, one slice of the
/// scheduler `scx_warm`. The loader tells the BPF program.
pub const SLICE_NS: u64 = 5_000_000;

/// All counts of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command's exit status; 128 + the signal's number if a signal killed it.
    pub status: i32,
    /// From the start of the command to its end, in ns.
    pub elapsed_ns: u64,
    /// Online CPUs of the machine.
    pub cpus: u32,
    /// Last-level caches of the machine.
    pub llcs: u32,
    /// First runs after a sleep, against the CPU of the last run.
    pub wakes: Distances,
    /// First runs of new tasks, against the CPU on which the parent forked.
    pub new: Distances,
    /// First runs after a preemption or a yield, against the CPU of the last run.
    pub preempted: Distances,
    /// Waits although an allowed CPU idled.
    pub queued: Queued,
    /// Waits that started with a wake or a fork.
    pub wakeups: u64,
    /// Changes of a task's CPU.
    pub migrations: Migrations,
    /// Context switches to a user task.
    pub switches: u64,
    /// Context switches to the idle task, also from a kernel thread.
    pub to_idle: u64,
    /// Context switches away from a task that stays runnable: preemptions and yields.
    pub preemptions: u64,
    /// New tasks, that is processes and threads.
    pub forks: u64,
    /// Successful calls of `execve`.
    pub execs: u64,
    /// Times from a wake or a fork to the first run, in buckets; see [`BUCKETS`].
    pub histogram: [u64; BUCKETS],
    /// All waits that ended, also those after a preemption.
    pub waits: Waits,
    /// Integrals over time.
    pub time: Time,
    /// Events that are missing in the counts, because the kernel had no memory for the state of a task.
    pub lost: u64,
    /// The groups of `--group`, by name.
    pub groups: BTreeMap<String, GroupCounts>,
}

/// Runs by the distance of their CPU to an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distances {
    /// The same CPU.
    pub same: u64,
    /// Another CPU of the same last-level cache.
    pub llc: u64,
    /// A CPU of another last-level cache.
    pub other: u64,
}

impl Distances {
    /// Returns the number of runs.
    pub fn sum(&self) -> u64 {
        self.same + self.llc + self.other
    }
}

/// Waits although a CPU idled on which the task was allowed to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    /// Wakes and forks after which the task first ran on a CPU that was busy at the wake, though an allowed CPU idled.
    pub any: u64,
    /// Those of `any` where an allowed CPU idled in the last-level cache of the CPU that ran the task.
    pub llc: u64,
    /// Those of `any` that waited longer than 50 µs.
    pub over_50us: u64,
    /// Those of `any` that waited longer than 100 µs.
    pub over_100us: u64,
    /// The longest time of one wait, of any kind, during which an allowed CPU idled, in ns.
    pub longest_ns: u64,
    /// Waits, of any kind, during which an allowed CPU idled longer than [`SLICE_NS`].
    pub over_slice: u64,
}

/// Changes of the CPU to which a task belongs, whether the task ran on both CPUs or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrations {
    /// All of them.
    pub all: u64,
    /// Those to a CPU of another last-level cache.
    pub other_llc: u64,
}

/// Waits from runnable to running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Waits that ended.
    pub number: u64,
    /// Their sum, in ns.
    pub ns: u64,
    /// Those longer than 1 ms.
    pub over_1ms: u64,
}

/// Integrals over the time while the probe counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// The length of that time, in ns.
    pub observed_ns: u64,
    /// Idle time, summed over CPUs, in ns: 8 idle CPUs for 1 s are 8 s.
    pub idle_ns: u64,
    /// Waiting time, summed over tasks, in ns.
    pub waiting_ns: u64,
    /// The integral of the smaller of both numbers, idle CPUs and waiting tasks, in ns. An upper bound of the idle time
    /// that waiting tasks could have used, as it does not ask which CPUs the tasks are allowed.
    pub idle_while_waiting_ns: u64,
}

/// The wakes of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// As [`Report::wakes`].
    pub wakes: Distances,
    /// Times from a wake to the first run, in buckets; see [`BUCKETS`]. Forks are not among them.
    pub histogram: [u64; BUCKETS],
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// [`Report::status`].
    pub status: i32,
    /// [`Report::elapsed_ns`].
    pub elapsed_ns: u64,
}

/// What the counters are counted on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    pub cpus: u32,
    pub llcs: u32,
}

impl Report {
    /// Sums the counters of all CPUs. `longest_ns` has the longest wait beside an idle CPU of each CPU.
    pub(crate) fn sum(
        counts: &[probe_counts],
        longest_ns: &[u64],
        time: &probe_integrals,
        machine: Machine,
        groups: &[Group],
        outcome: Outcome,
    ) -> Self {
        let sum = |field: &dyn Fn(&probe_counts) -> u64| counts.iter().map(field).sum::<u64>();
        let distances = |field: &dyn Fn(&probe_counts) -> &probe_distances| Distances {
            same: sum(&|c| field(c).same),
            llc: sum(&|c| field(c).llc),
            other: sum(&|c| field(c).other),
        };
        let buckets = |field: &dyn Fn(&probe_counts) -> &[u64; BUCKETS]| -> [u64; BUCKETS] {
            std::array::from_fn(|bucket| sum(&|c| field(c)[bucket]))
        };
        let group = |index: usize| GroupCounts {
            wakes: distances(&|c| &c.groups[index].wakes),
            histogram: buckets(&|c| &c.groups[index].histogram),
        };
        Self {
            schema: SCHEMA,
            status: outcome.status,
            elapsed_ns: outcome.elapsed_ns,
            cpus: machine.cpus,
            llcs: machine.llcs,
            wakes: distances(&|c| &c.wakes),
            new: distances(&|c| &c.forked),
            preempted: distances(&|c| &c.preempted),
            queued: Queued {
                any: sum(&|c| c.queued_any),
                llc: sum(&|c| c.queued_llc),
                over_50us: sum(&|c| c.queued_over_50us),
                over_100us: sum(&|c| c.queued_over_100us),
                longest_ns: longest_ns.iter().copied().max().unwrap_or(0),
                over_slice: sum(&|c| c.over_slice),
            },
            wakeups: sum(&|c| c.wakeups),
            migrations: Migrations {
                all: sum(&|c| c.migrations),
                other_llc: sum(&|c| c.migrations_other_llc),
            },
            switches: sum(&|c| c.switches),
            to_idle: sum(&|c| c.to_idle),
            preemptions: sum(&|c| c.preemptions),
            forks: sum(&|c| c.forks),
            execs: sum(&|c| c.execs),
            histogram: buckets(&|c| &c.histogram),
            waits: Waits {
                number: sum(&|c| c.waits),
                ns: sum(&|c| c.waits_ns),
                over_1ms: sum(&|c| c.waits_over_1ms),
            },
            time: Time {
                observed_ns: time.observed_ns,
                idle_ns: time.idle_ns,
                waiting_ns: time.waiting_ns,
                idle_while_waiting_ns: time.idle_while_waiting_ns,
            },
            lost: sum(&|c| c.lost),
            groups: groups.iter().enumerate().map(|(i, g)| (g.name.clone(), group(i))).collect(),
        }
    }
}
