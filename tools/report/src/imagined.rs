//! The results of simulations, in the format that `warmcore sim tables --json` writes and a report reads.

use super::markup::amount;
use serde::{Deserialize, Serialize};
use warmcore_papers::sensitivity::Sensitivity;
use warmcore_papers::tolerance::Tolerance;

/// The simulations in a report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imagined {
    /// The tables, with simulated and published numbers.
    pub simulated: Option<Simulated>,
    /// How much the tables' results depend on each estimated number of the machine.
    pub sensitivities: Vec<Sensitivity>,
}

/// The parts of `warmcore sim --json` that a report shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// The version of the schema of `warmcore sim --json`.
    pub schema: u32,
    /// Which simulation this is: `sim tables`.
    pub what: String,
    /// The command that repeats it.
    pub command: String,
    /// When the simulation began, UTC, RFC 3339.
    pub when: String,
    /// What is missing because of a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// The tables that were finished.
    pub tables: Vec<Table>,
}

/// A table of the simulator.
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
    /// Remarks on the limits of the results.
    pub notes: Vec<String>,
}

/// A row: a simulated number, and the published one if there is one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulatedRow {
    /// The row's name.
    pub name: String,
    /// The unit of all numbers of the row.
    pub unit: String,
    /// The published measurement.
    pub published: Option<f64>,
    /// The median over the seeds.
    pub simulated: Option<f64>,
    /// The least and the most over the seeds.
    pub spread: (Option<f64>, Option<f64>),
    /// The tolerance that the simulated number has to meet.
    pub tolerance: Option<Tolerance>,
    /// The inputs that were chosen by looking at a published table.
    pub inputs: Vec<String>,
    /// `predicted`, `fitted`, `not_claimed`, `new`, `by_construction`.
    pub mark: String,
    /// Whether the simulated number is within its tolerance.
    pub met: Option<bool>,
    /// Whether a null model, in which the proposal has no effect, is within the tolerance.
    pub null_met: Option<bool>,
    /// If the model itself determines the result: why.
    pub by_construction: Option<String>,
    /// The number of seeds whose simulation ended before two successive windows of time agreed.
    pub transient: usize,
}

impl Table {
    /// A text: how many rows with a claim are within their tolerance, and how many of them a null model meets.
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
    /// A text of one or two sentences on all tables.
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

/// A line for each table, and a line for each row that is missed, so that a miss is as visible as a row that is met.
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
