//! Inputs: everything that a report shows, gathered by whoever ran it.
//!
//! Model.   A machine, its hand-over times if they were probed, the results of each run and what
//!          the doctor found. The report adds no measurement and no opinion of its own.
//! Number.  A probe of 384 CPUs is a matrix of 147 456 pairs; the diagonal is `None`.
//! Writers. `warmcore report` fills it; `topo --probe` makes a [`Probe`], `doctor` the findings.

use super::imagined::Imagined;
use serde::{Deserialize, Serialize};
use warmcore_results::Results;
use warmcore_topo::Topology;

/// What a report is made of.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// How long a cache line takes between its CPUs, if that was measured.
    pub probe: Option<&'a Probe>,
    /// One per run: percpu, false-sharing, cid, budget, wake, http, peers.
    pub runs: &'a [Results],
    /// What the doctor found.
    pub doctor: &'a [Finding],
    /// What was simulated, if anything was.
    pub imagined: Option<&'a Imagined>,
}

/// How long one cache line takes from CPU to CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The CPUs, by the kernel's numbers: row and column `i` below are `cpus[i]`.
    pub cpus: Vec<u32>,
    /// The median one-way hand-over from `cpus[i]` to `cpus[j]`, in ns, shape `[n][n]`. `None`
    /// where no pair was timed.
    pub hand_over_ns: Vec<Vec<Option<f64>>>,
    /// The lowest and the highest slice of each pair, in ns, in the same shape.
    pub spread_ns: Vec<Vec<Option<(f64, f64)>>>,
    /// How long a CPU takes over a working set that another CPU used last, for one pair of each distance. Empty in files
    /// of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub working_sets: Vec<WorkingSet>,
    /// What the times say about the topology, in a sentence.
    pub verdict: String,
    /// The times spread too far to trust the verdict.
    pub noisy: bool,
}

/// What a move of a working set costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkingSet {
    /// The CPU that used it last.
    pub from: u32,
    /// The CPU that walks it; the same CPU where nothing moved.
    pub to: u32,
    /// Its size.
    pub kib: u32,
    /// The median time of a walk over its lines in random order, in ns.
    pub ns: f64,
}

/// One thing the doctor looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at: `rseq`, `membarrier`, `affinity`.
    pub what: String,
    /// How it is.
    pub state: State,
    /// What was found.
    pub fact: String,
    /// The next step, if there is one.
    pub advice: Option<String>,
}

/// How a thing is that Warmcore would like to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All of it works.
    Ok,
    /// It works with less than it could.
    Limited,
    /// It isn't there.
    Missing,
}

/// What a whole report holds: the run, its title, and the command that adds it.
pub(super) const EXPECTED: [(&str, &str, &str); 7] = [
    ("percpu", "Per-CPU data", "warmcore bench percpu"),
    ("false-sharing", "False sharing", "warmcore bench false-sharing"),
    ("cid", "Concurrency ids", "warmcore bench cid"),
    ("budget", "Budgets", "warmcore bench budget"),
    ("wake", "The runtime", "warmcore bench wake --json wake.json"),
    ("http", "The runtime, serving HTTP", "warmcore bench http --json http.json"),
    ("peers", "Beside named peers", "cargo xtask peers"),
];

/// The command that measures the hand-over times.
pub(super) const PROBE_COMMAND: &str = "warmcore topo --probe";
