//! Table: simulated beside published, row by row, with what was claimed beforehand.
//!
//! Model.   A table is a list of rows. A row names its tolerance; what is in it beyond the machine's own numbers
//!          (`inputs`) makes it fitted, whatever its tolerance hoped for. One file per published table.
//! Number.  A row's number is the median over the seeds.

use crate::tolerance::{Claim, Tolerance};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub mod cid;
pub mod drain;
pub mod false_sharing;
pub mod hot_windows;
mod options;
pub mod sensitivity;
pub mod wake_queue;

pub use options::{Options, Watch};

/// What others measured: compared with, printed beside, and never read by what is simulated.
///
/// # Panics
///
/// If the embedded file has no such section, which a test would have said.
fn published<T: DeserializeOwned>(section: &str) -> T {
    const FILE: &str = include_str!("../../../fixtures/published.toml");
    let mut all: toml::Table = FILE.parse().unwrap_or_else(|e| panic!("published.toml: {e}"));
    let found = all.remove(section).unwrap_or_else(|| panic!("published.toml has no {section}"));
    found.try_into().unwrap_or_else(|e| panic!("published.toml, {section}: {e}"))
}

/// What a row is, once it was simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// Nothing in it was chosen by looking at the table.
    Predicted,
    /// Something was; `inputs` says what.
    Fitted,
    /// Nothing is claimed.
    NotClaimed,
    /// Nobody has published it: an answer of ours.
    New,
}

/// One number. It is written with its mark and with whether it is met.
#[derive(Debug, Clone, Serialize)]
#[serde(into = "Told")]
pub struct Row {
    /// Which: `8 threads, 200 ms, kept`.
    pub name: String,
    /// `ns`, `cycles`, `percent`, `x`.
    pub unit: &'static str,
    /// What others measured.
    pub published: Option<f64>,
    /// What came out: the median over the seeds.
    pub simulated: f64,
    /// The least and the most over the seeds.
    pub spread: (f64, f64),
    /// What each seed gave, in their order. One number: it was asked once.
    pub numbers: Vec<f64>,
    /// The tolerance it must meet. `None` for a row that stands there for information.
    pub tolerance: Option<Tolerance>,
    /// What was chosen by looking at a published table, or read from `fitted.toml`.
    pub inputs: Vec<&'static str>,
}

/// A row as it is written.
#[derive(Serialize)]
struct Told {
    name: String,
    unit: &'static str,
    published: Option<f64>,
    simulated: f64,
    spread: (f64, f64),
    seeds: usize,
    tolerance: Option<Tolerance>,
    inputs: Vec<&'static str>,
    mark: Mark,
    met: Option<bool>,
}

impl From<Row> for Told {
    fn from(row: Row) -> Self {
        let (mark, met) = (row.mark(), row.is_met());
        let Row { name, unit, published, simulated, spread, numbers, tolerance, inputs } = row;
        let seeds = numbers.len();
        Self { name, unit, published, simulated, spread, seeds, tolerance, inputs, mark, met }
    }
}

/// Rows that belong together.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// `cid`, `drain`, …
    pub name: &'static str,
    /// The machine's name.
    pub machine: String,
    /// Where the published numbers come from, in a sentence.
    pub source: &'static str,
    /// The rows, in the published order.
    pub rows: Vec<Row>,
    /// What to know before one believes it.
    pub notes: Vec<String>,
}

impl Row {
    /// From one number per seed. Without any, as when it was stopped before the first, it says nothing, and
    /// [`Table::concluded`] leaves it out.
    pub fn of(name: impl Into<String>, unit: &'static str, numbers: Vec<f64>) -> Self {
        let mut sorted = numbers.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        Self {
            name: name.into(),
            unit,
            published: None,
            simulated: at(sorted.len() / 2),
            spread: (at(0), at(sorted.len().saturating_sub(1))),
            numbers,
            tolerance: None,
            inputs: Vec::new(),
        }
    }

    /// What others measured, and how far from it is good.
    pub fn against(mut self, published: Option<f64>, tolerance: &str) -> Self {
        self.published = published;
        self.tolerance = Some(crate::tolerance::named(tolerance));
        self
    }

    /// What is in it that was chosen by looking at a published table.
    pub fn with_inputs(mut self, inputs: &[&'static str]) -> Self {
        self.inputs.extend_from_slice(inputs);
        self
    }

    /// What it is.
    pub fn mark(&self) -> Mark {
        match &self.tolerance {
            Some(tolerance) if tolerance.claim == Claim::None => Mark::NotClaimed,
            _ if !self.inputs.is_empty() => Mark::Fitted,
            None if self.published.is_none() => Mark::New,
            _ => Mark::Predicted,
        }
    }

    /// Whether it is within its tolerance. `None`: nothing is claimed.
    pub fn is_met(&self) -> Option<bool> {
        self.tolerance.as_ref()?.allows(self.simulated, self.published)
    }
}

/// Why nothing is claimed of a machine that nobody has measured.
pub const UNPUBLISHED: &str = "nothing published for this machine";

impl Table {
    /// What is told of it in the end. Rows without a seed go. On a machine that was asked for and has nothing published
    /// nothing is claimed. One that was asked for says which of its costs are estimates.
    pub fn concluded(mut self, options: &Options) -> Self {
        let is_published = self.rows.iter().any(|row| row.published.is_some());
        self.rows.retain(|row| !row.numbers.is_empty());
        let Some(machine) = &options.machine else { return self };
        if !is_published {
            for row in &mut self.rows {
                row.tolerance = Some(Tolerance::unclaimed(UNPUBLISHED));
            }
        }
        self.notes.extend(machine.notes());
        self
    }
}
