//! The plan of a guest, and what its console says.

use crate::work::Work;
use serde::{Deserialize, Serialize};

/// Where the plan lies in the guest.
pub const PLAN: &str = "/plan.json";

/// A line of the console that begins so is a [`Line`].
pub const MARK: &str = "warmcore-guest ";

/// What a guest does from its boot to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPlan {
    /// Each virtual CPU runs for about so long before the next one's turn, in µs.
    pub turn_us: u32,
    /// The seed of durations in workloads.
    pub seed: u64,
    /// The scheduler's program and its arguments. Empty: the kernel's own.
    pub scheduler: Vec<String>,
    /// The probe's program and its arguments, which come before `--` and the workload. Empty: the workload runs without one.
    pub probe: Vec<String>,
    /// What runs under them, in this order.
    pub runs: Vec<Run>,
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The scenario's name.
    pub name: String,
    /// Groups of tasks that the probe counts apart: `NAME=PREFIX`.
    #[serde(default)]
    pub groups: Vec<String>,
    /// What it does.
    pub work: Work,
}

/// What the guest says on its console, a JSON object in a line after [`MARK`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The kernel has started the first process.
    Booted {
        /// `uname -r`.
        kernel: String,
        /// CPUs that are online.
        cpus: usize,
    },
    /// A run has ended.
    Ran {
        /// Its scenario.
        name: String,
        /// Whether the scheduler that the plan names was in charge of all tasks for all of the run.
        is_scheduled: bool,
        /// The exit status of the probe, or of the workload without one.
        status: i32,
        /// What the probe counted. Null without a probe.
        counts: serde_json::Value,
        /// What the workload says. `None` if it is another program than this one.
        done: Option<serde_json::Value>,
        /// What else it wrote: the last lines.
        said: Vec<String>,
    },
    /// The scheduler has ended.
    Scheduler {
        /// Its exit status.
        status: i32,
        /// The last lines that it wrote.
        said: Vec<String>,
    },
    /// The plan has been done.
    Ended {
        /// Lines of the kernel's log that say that something is wrong.
        warnings: Vec<String>,
        /// Guest time since the boot, in ms.
        uptime_ms: u64,
    },
    /// The plan can't be done.
    Failed {
        /// Why.
        why: String,
    },
}
