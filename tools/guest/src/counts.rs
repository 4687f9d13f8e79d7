//! What the probe counts: the fields of its JSON (`scx/probe/README.md` defines each).

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the fields.
const SCHEMA: u32 = 1;

/// ProbeCounts of one run. Times are in ns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeCounts {
    /// The version of the fields.
    pub schema: u32,
    /// How long the workload ran.
    pub elapsed_ns: u64,
    /// CPUs of the guest.
    pub cpus: u64,
    /// Last-level caches of the guest.
    pub llcs: u64,
    /// Wakes, by where the task first ran against its last run.
    pub wakes: Places,
    /// First runs of new tasks, against the parent's CPU.
    pub new: Places,
    /// Runs after a preemption.
    pub preempted: Places,
    /// Tasks that waited for a busy CPU while an allowed one idled.
    pub queued: Queued,
    /// All wakes and new tasks.
    pub wakeups: u64,
    /// Moves of runnable tasks.
    pub migrations: Migrations,
    /// Context switches to a user task.
    pub switches: u64,
    /// Context switches to the idle task, which are not among `switches`.
    pub to_idle: u64,
    /// New tasks.
    pub forks: u64,
    /// Programs that were started.
    pub execs: u64,
    /// Times from wake to run: bucket `i` ends at 1024 ns × 2^i, and the last has no end.
    pub histogram: Vec<u64>,
    /// Waits for a CPU.
    pub waits: Waits,
    /// Integrals.
    pub time: Time,
    /// Groups of tasks that were asked for.
    #[serde(default)]
    pub groups: BTreeMap<String, GroupCounts>,
}

/// Runs by where they were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// On the same CPU.
    pub same: u64,
    /// On another CPU of the same last-level cache.
    pub llc: u64,
    /// In another last-level cache.
    pub other: u64,
}

impl Places {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.same + self.llc + self.other
    }
}

/// Tasks that waited for a busy CPU while an allowed one idled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    /// While one idled anywhere.
    pub any: u64,
    /// While one idled in the same last-level cache.
    pub llc: u64,
    /// For more than 50 µs.
    pub over_50us: u64,
    /// For more than 100 µs.
    pub over_100us: u64,
    /// The longest such wait.
    pub longest_ns: u64,
    /// For longer than a slice of 5 ms.
    pub over_slice: u64,
}

/// Moves of runnable tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrations {
    /// All of them.
    pub all: u64,
    /// To another last-level cache.
    pub other_llc: u64,
}

/// Waits for a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// How many.
    pub number: u64,
    /// How long together.
    pub ns: u64,
    /// Those longer than 1 ms.
    pub over_1ms: u64,
}

/// Integrals over the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// For how long the probe counted.
    pub observed_ns: u64,
    /// Idle time of all CPUs.
    pub idle_ns: u64,
    /// Waiting time of all tasks.
    pub waiting_ns: u64,
    /// Of the smaller of both at each moment.
    pub idle_while_waiting_ns: u64,
}

/// What a group of tasks did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// Their wakes.
    pub wakes: Places,
    /// Their times from wake to run.
    pub histogram: Vec<u64>,
}

impl ProbeCounts {
    /// Reads the probe's JSON.
    ///
    /// # Errors
    /// It is of another version, or has no wakes to speak of.
    pub fn read(json: &serde_json::Value) -> anyhow::Result<Self> {
        let counts: Self =
            serde_json::from_value(json.clone()).context("the probe's counts can't be read")?;
        ensure!(
            counts.schema == SCHEMA,
            "the probe's counts are of version {}, and {SCHEMA} was expected: `warmcore guest prepare` builds it anew",
            counts.schema
        );
        Ok(counts)
    }
}

/// The end of the bucket in which the quantile lies, in µs. `None`: no waits.
pub(crate) fn quantile_us(histogram: &[u64], per_mille: u64) -> Option<f64> {
    let all: u64 = histogram.iter().sum();
    let mut below = 0;
    let bucket = histogram.iter().position(|number| {
        below += number;
        below * 1000 >= all * per_mille
    });
    bucket.filter(|_| all > 0).map(|bucket| (1024_u64 << bucket) as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_end_of_its_bucket() {
        assert_eq!(quantile_us(&[0; 24], 500), None);
        assert_eq!(quantile_us(&[99, 1, 0], 990), Some(1.024));
        assert_eq!(quantile_us(&[98, 1, 1], 990), Some(2.048));
        assert_eq!(quantile_us(&[98, 1, 1], 1000), Some(4.096));
    }

    #[test]
    fn counts_of_another_version_are_refused() {
        let mut json =
            serde_json::to_value(ProbeCounts { schema: SCHEMA, ..ProbeCounts::default() }).unwrap();
        assert!(ProbeCounts::read(&json).is_ok());
        json["schema"] = 2.into();
        assert!(ProbeCounts::read(&json).unwrap_err().to_string().contains("version 2"));
    }
}
