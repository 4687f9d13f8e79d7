//! Inputs: everything that a report shows.
//!
//! The inputs are a machine, its hand-over times if they were probed, the results of each run, the findings of
//! `warmcore doctor` and the simulated tables. `warmcore report` collects them; `topo --probe` makes a [`Probe`],
//! `doctor` the findings.
//!
//! A probe of 384 CPUs has matrices of 147 456 cells. The cells of the diagonal, and of pairs that were not timed, are
//! `None`.

use super::imagined::{Imagined, Simulated};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use warmcore_results::Results;
use warmcore_topo::{Distance, Topology};
use warmcore_types::CpuId;

/// The inputs of a report.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// The times of a cache line between the machine's CPUs, if they were measured.
    pub probe: Option<&'a Probe>,
    /// One per run: percpu, false-sharing, cid, budget, wake, http, peers.
    pub runs: &'a [Results],
    /// The findings of `warmcore doctor`.
    pub doctor: &'a [Finding],
    /// What was simulated, if there is a simulation.
    pub imagined: Option<&'a Imagined>,
}

impl<'a> Inputs<'a> {
    /// The simulated tables, if there are any.
    pub(super) fn simulated(&self) -> Option<&'a Simulated> {
        self.imagined.and_then(|imagined| imagined.simulated.as_ref())
    }

    /// The [`EXPECTED`] runs that are missing.
    pub(super) fn absent(&self) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
        EXPECTED.iter().filter(|(what, ..)| self.runs.iter().all(|run| run.what != *what))
    }
}

/// The times that one cache line takes from CPU to CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The CPUs, by the kernel's numbers: row and column `i` below are `cpus[i]`.
    pub cpus: Vec<u32>,
    /// The median one-way hand-over from `cpus[i]` to `cpus[j]`, in ns, shape `[n][n]`. `None` for a pair that was not
    /// timed.
    pub hand_over_ns: Vec<Vec<Option<f64>>>,
    /// The lowest and the highest slice (a measurement of 0.3 to 3 ms) of each pair, in ns, in the same shape.
    pub spread_ns: Vec<Vec<Option<(f64, f64)>>>,
    /// The times that a CPU takes to walk over a working set that another CPU used last, for one pair of each distance,
    /// and over one that it used last itself. Empty in files of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub working_sets: Vec<WorkingSet>,
    /// Whether the times agree with the topology, as text.
    pub verdict: String,
    /// Whether the times spread too far to trust the verdict.
    pub noisy: bool,
}

impl Probe {
    /// The times from each CPU to each other CPU, sorted, by the distance of the two CPUs. CPUs that `t` does not have
    /// are left out.
    pub fn times(&self, t: &Topology) -> BTreeMap<Distance, Vec<f64>> {
        let mut times = BTreeMap::<Distance, Vec<f64>>::new();
        for (from, row) in self.cpus.iter().zip(&self.hand_over_ns) {
            for (to, ns) in self.cpus.iter().zip(row) {
                let distance = t.distance(CpuId(*from), CpuId(*to)).filter(|it| *it != Distance::Same);
                if let (Some(ns), Some(distance)) = (ns, distance) {
                    times.entry(distance).or_default().push(*ns);
                }
            }
        }
        times.values_mut().for_each(|times| times.sort_by(f64::total_cmp));
        times
    }
}

/// The time of a walk over a working set that another CPU, or the same one, used last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkingSet {
    /// The CPU that used the set last.
    pub from: u32,
    /// The CPU that walks over the set; equal to `from` if the set did not move.
    pub to: u32,
    /// The size of the set in KiB.
    pub kib: u32,
    /// The median time of a walk over the set's lines in random order, in ns.
    pub ns: f64,
}

/// A finding of `warmcore doctor` about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The thing: `rseq`, `membarrier`, `pinning`.
    pub what: String,
    /// Its state.
    pub state: State,
    /// The fact, as text.
    pub fact: String,
    /// What the user can do about it, if anything.
    pub advice: Option<String>,
}

/// The state of a thing that Warmcore uses if it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All of it works.
    Ok,
    /// It works with less than it could.
    Limited,
    /// It is not available.
    Missing,
}

impl State {
    /// A word for the state.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// The runs of a complete report: each run's name, its title, and the command that adds it.
pub const EXPECTED: [(&str, &str, &str); 7] = [
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
