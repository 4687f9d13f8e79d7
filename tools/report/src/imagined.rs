//! What was simulated, in the shape in which `warmcore sim tables --json` writes it and a report reads it.

use super::markup::amount;
use serde::{Deserialize, Serialize};
use warmcore_papers::sensitivity::Sensitivity;
use warmcore_papers::tolerance::Tolerance;

/// What was simulated for a report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imagined {
    /// Simulated beside published.
    pub simulated: Option<Simulated>,
    /// Which estimated numbers of a machine move the answers.
    pub sensitivities: Vec<Sensitivity>,
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
    pub rows: Vec<SimulatedRow>,
    /// What to know before one believes it.
    pub notes: Vec<String>,
}

/// One number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulatedRow {
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

impl Table {
    /// How many rows that were claimed are within what was allowed, and how many a model without any effect meets.
    pub(super) fn tally(&self) -> String {
        let count = |of: &dyn Fn(&SimulatedRow) -> Option<bool>| {
            let known: Vec<bool> = self.rows.iter().filter_map(of).collect();
            (known.iter().filter(|met| **met).count(), known.len())
        };
        let null = match count(&|row| row.null_met) {
            (_, 0) => String::new(),
            (met, of) => format!("; a model without any effect meets {met} of {of}"),
        };
        match count(&|row| row.met) {
            (_, 0) => "nothing is claimed".to_owned(),
            (met, of) => format!("{met} of {of} claimed rows are within what was allowed{null}"),
        }
    }
}

impl Simulated {
    /// All tables in a sentence or two.
    pub(super) fn tally(&self) -> String {
        let rows = || self.tables.iter().flat_map(|table| &table.rows);
        let count = |mark: &str| {
            let met: Vec<bool> = rows().filter(|row| row.mark == mark).filter_map(|row| row.met).collect();
            (met.iter().filter(|met| **met).count(), met.len())
        };
        let ((predicted, of_predicted), (fitted, of_fitted)) = (count("predicted"), count("fitted"));
        let nulls: Vec<bool> = rows().filter_map(|row| row.null_met).collect();
        let beside = match nulls.len() {
            0 => String::new(),
            of => format!(
                " A model in which no proposal has any effect meets {} of {of}.",
                nulls.iter().filter(|met| **met).count()
            ),
        };
        format!(
            "{predicted} of {of_predicted} predicted numbers and {fitted} of {of_fitted} fitted ones are within what was \
             allowed beforehand.{beside}"
        )
    }
}

/// The tables in a line each, and what was missed by name: a miss is told as loud as what is met.
pub(super) fn text(simulated: &Simulated) -> Vec<String> {
    let mut lines = vec![format!("{} ({})", simulated.tally(), simulated.command)];
    for table in &simulated.tables {
        lines.push(format!("{}: {}", table.name, table.tally()));
        let missed = table.rows.iter().filter(|row| row.met == Some(false));
        lines.extend(missed.map(|row| {
            let number = |number: Option<f64>| number.map_or("–".to_owned(), |n| amount(n, &row.unit));
            let (simulated, published) = (number(row.simulated), number(row.published));
            format!(
                "missed, {}: {}: {simulated}, published {published}",
                row.mark.replace('_', " "),
                row.name
            )
        }));
    }
    lines
}
