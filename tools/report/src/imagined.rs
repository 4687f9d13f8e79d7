//! Imagined: the part of a report about machines that aren't here: what was simulated, in the shape in which it is
//! kept and read again.
//!
//! Model.   Tables as `warmcore sim --json` writes them, what moves the answers, and CPU lanes. [`html`] puts them in
//!          order: what was claimed and whether it is met, lanes, what moves the answers.
//! Number.  Eight tables of some 430 rows: 260 KB of the page, most of it folded.
//! Writers. `survey` simulates, or reads a file of `warmcore sim tables --json`.

use serde::{Deserialize, Serialize};
use warmcore_papers::sensitivity::Sensitivity;
use warmcore_papers::tolerance::Tolerance;

/// The command that adds the tables, run in the folder of the page.
pub(super) const COMMAND: &str = "warmcore sim tables --json sim.json";

/// What was simulated for a report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imagined {
    /// Simulated beside published.
    pub simulated: Option<Simulated>,
    /// What else was simulated for the pictures.
    pub pictures: Option<Pictures>,
}

/// What `warmcore sim --json` writes, as far as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// The schema of `warmcore sim --json`.
    pub schema: u32,
    /// What ran.
    pub what: String,
    /// The command that repeats it.
    pub command: String,
    /// When it began, UTC, RFC 3339.
    pub when: String,
    /// What a signal left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// The tables that were finished.
    pub tables: Vec<Table>,
}

/// Rows that belong together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// `cid`, `drain`, …
    pub name: String,
    /// The machine's name.
    pub machine: String,
    /// Where the published numbers come from.
    pub source: String,
    /// The rows.
    pub rows: Vec<Row>,
    /// What to know before one believes it.
    pub notes: Vec<String>,
}

/// One number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which.
    pub name: String,
    /// Of all its numbers.
    pub unit: String,
    /// What others measured.
    pub published: Option<f64>,
    /// The median over the seeds.
    pub simulated: Option<f64>,
    /// The least and the most over the seeds.
    pub spread: (Option<f64>, Option<f64>),
    /// What it had to meet.
    pub tolerance: Option<Tolerance>,
    /// What was chosen by looking at a published table.
    pub inputs: Vec<String>,
    /// `predicted`, `fitted`, `not_claimed`, `new`, `by_construction`.
    pub mark: String,
    /// Whether it is within its tolerance.
    pub met: Option<bool>,
    /// Whether a model is in which the proposal has no effect.
    pub null_met: Option<bool>,
    /// Why it can't come out otherwise.
    pub by_construction: Option<String>,
    /// So many seeds ended before two successive windows agreed.
    pub transient: usize,
}

/// What was simulated only to be drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pictures {
    /// The schema of `warmcore sim --json`.
    pub schema: u32,
    /// What moves the answers.
    pub sensitivities: Vec<Sensitivity>,
    /// CPU lanes: a panel per policy, all of the same tasks and the same time.
    pub lanes: Option<Lanes>,
}

/// Who ran where, for each policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lanes {
    /// The machine, in words.
    pub machine: String,
    /// What ran, in words.
    pub load: String,
    /// What is drawn begins there on the virtual clock, in ns.
    pub from_ns: u64,
    /// Where it ends.
    pub to_ns: u64,
    /// One per policy.
    pub panels: Vec<Panel>,
}

/// One policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Panel {
    /// The policy.
    pub policy: String,
    /// Round trips per second, in and after what is drawn.
    pub trips_per_second: u64,
    /// By CPU.
    pub lanes: Vec<Lane>,
}

/// One CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// Its number.
    pub cpu: u32,
    /// Its last-level cache's number.
    pub llc: u32,
    /// Who ran on it when.
    pub runs: Vec<Run>,
    /// When somebody was woken from it, in ns.
    pub wakes_ns: Vec<u64>,
}

/// A task on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The task's pair: a client and its server have one number.
    pub pair: u32,
    /// Its beginning.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// The last-level cache of the CPU that the task ran on before, if that was another CPU.
    pub came_from_llc: Option<u32>,
}
