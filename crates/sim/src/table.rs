//! Table: simulated beside published, row by row, with what was claimed beforehand.
//!
//! Model.   A table is a list of rows. A row names its tolerance; what is in it beyond the machine's own numbers
//!          (`inputs`) makes it fitted, whatever its tolerance hoped for. One file per published table.
//! Number.  A row's number is the median over the seeds.

use crate::tolerance::{Claim, Tolerance};
use serde::Serialize;

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

/// One number.
#[derive(Debug, Clone, Serialize)]
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
