//! Table: simulated beside published, row by row, with what was claimed beforehand.
//!
//! Model.   A table is a list of rows. A row names its tolerance; what is in it beyond the machine's own numbers
//!          (`inputs`) makes it fitted, whatever its tolerance hoped for. One file per published table.
//! Number.  A row's number is the median over the seeds.

use crate::tolerance::{Claim, Tolerance};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

pub mod cid;
pub mod drain;
pub mod false_sharing;
pub mod hot_windows;
pub mod wake_queue;

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

/// What is run for a table.
#[derive(Debug, Clone)]
pub struct Options {
    /// The machine, by its name in the machine file. `None`: the one that the table was published for.
    pub machine: Option<String>,
    /// One simulation for each.
    pub seeds: Range<u64>,
    /// Fewer configurations, and shorter: for a report within minutes.
    pub quick: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { machine: None, seeds: 0..10, quick: false }
    }
}

impl Options {
    /// One result per seed, in the seeds' order, on as many threads as there are CPUs. A simulation knows nothing of
    /// the others.
    pub fn per_seed<T: Send>(&self, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
        let seeds: Vec<u64> = self.seeds.clone().collect();
        each(&seeds, |seed| run(*seed))
    }
}

/// One result for each of `all`, in their order, on as many threads as there are CPUs.
pub fn each<I: Sync, T: Send>(all: &[I], run: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(all.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            // ORDERING: Relaxed; who takes a number needs to see nothing of who took the one before.
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = all.get(at) else { break done };
            done.push((at, run(item)));
        }
    };
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
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
    tolerance: Option<Tolerance>,
    inputs: Vec<&'static str>,
    mark: Mark,
    met: Option<bool>,
}

impl From<Row> for Told {
    fn from(row: Row) -> Self {
        let (mark, met) = (row.mark(), row.is_met());
        let Row { name, unit, published, simulated, spread, tolerance, inputs } = row;
        Self { name, unit, published, simulated, spread, tolerance, inputs, mark, met }
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
    /// From one number per seed.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn of(name: impl Into<String>, unit: &'static str, mut numbers: Vec<f64>) -> Self {
        assert!(!numbers.is_empty(), "a row without a single seed");
        numbers.sort_by(f64::total_cmp);
        let (simulated, last) = (numbers[numbers.len() / 2], numbers[numbers.len() - 1]);
        let spread = (numbers[0], last);
        Self {
            name: name.into(),
            unit,
            published: None,
            simulated,
            spread,
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
