//! The results of simulations, in the format that `warmcore sim tables --json` writes and a report reads.

use super::markup::amount;
use serde::{Deserialize, Serialize};
use warmcore_layout::culprit::Culprit;
use warmcore_papers::sensitivity::Sensitivity;
use warmcore_papers::{JsonRow, Sweep, Table, count_met};
use warmcore_sim::simulation::Report;

/// The simulations in a report.
#[derive(Debug, Clone, Default)]
pub struct Imagined {
    /// The tables, with simulated and published numbers.
    pub simulated: Option<Simulated>,
    /// Warmcore's runtime beside other ways to place tasks, by `warmcore sim runtime`.
    pub runtime: Option<Simulated>,
    /// How much the tables' results depend on each estimated number of the machine.
    pub sensitivities: Vec<Sensitivity>,
}

/// What `warmcore sim --json` writes. A report reads its tables.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Simulated<R = JsonRow> {
    /// The version of the schema.
    pub schema: u32,
    /// What was simulated: `sim cid`, `sim tables`, `sim culprit`.
    pub what: String,
    /// The command that repeats the simulation.
    pub command: String,
    /// When the simulation began, UTC, RFC 3339.
    pub when: String,
    /// What is missing because of a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// Of a shard: which part of a command's seeds it is, and what was simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// The tables for which at least one seed was finished.
    pub tables: Vec<Table<R>>,
    /// For a load: the results under each policy, seed by seed.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<SimulatedLoad>,
    /// For a layout: the costs of its fields, and which fields make touches of other fields miss.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub culprit: Option<Culprit>,
}

/// A part of a command's seeds, as `warmcore sim --shard` writes it and `warmcore sim merge` reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Which shard it is, counted from 1.
    pub number: u64,
    /// How many shards there are.
    pub of: u64,
    /// The machines that were named.
    pub machines: Vec<String>,
    /// The first seed of the whole command, and the number of its seeds.
    pub seed: u64,
    /// How many seeds the whole command has.
    pub seeds: u64,
    /// Whether the command has `--quick`.
    pub quick: bool,
    /// A number for the CPUs and the costs of each machine that was named. Two machines that differ have two numbers.
    pub costs: Vec<String>,
    /// By table: the results of its simulations.
    pub sweeps: Vec<Vec<Sweep>>,
}

/// The results of a load under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct SimulatedLoad {
    /// The policy.
    pub policy: String,
    /// The machine's name.
    pub machine: String,
    /// The reports in the order of the seeds.
    pub reports: Vec<Report>,
}

/// A text: how many rows of the table with a claim are within their tolerance, and how many a null model (in which the
/// proposal has no effect) meets, of those that have one.
pub(super) fn tally(table: &Table<JsonRow>) -> String {
    match count_met(table.rows.iter().map(|row| row.met)) {
        (_, 0) => "nothing is claimed".to_owned(),
        (met, of) => {
            let null = null_model(count_met(table.rows.iter().map(|row| row.null_met)));
            format!("{met} of {of} claimed rows are within what was allowed{null}")
        }
    }
}

/// `met` or `missed`: whether a row, or a null model, is within the tolerance. Empty if nothing is claimed.
pub(super) fn word(is_met: Option<bool>, met: &'static str, missed: &'static str) -> &'static str {
    match is_met {
        Some(true) => met,
        Some(false) => missed,
        None => "",
    }
}

/// The end of a sentence: how many rows a null model meets, of how many for which there is one; empty if there is none.
pub(super) fn null_model((met, of): (usize, usize)) -> String {
    if of == 0 { String::new() } else { format!("; a model without any effect meets {met} of {of}") }
}

impl Simulated {
    /// A text of one or two sentences on all tables.
    pub(super) fn tally(&self) -> String {
        let rows = || self.tables.iter().flat_map(|table| &table.rows);
        let count = |mark: &str| count_met(rows().filter(|row| row.mark == mark).map(|row| row.met));
        let ((predicted, of_predicted), (fitted, of_fitted)) = (count("predicted"), count("fitted"));
        let beside = match count_met(rows().map(|row| row.null_met)) {
            (_, 0) => String::new(),
            (met, of) => format!(" A model in which no proposal has any effect meets {met} of {of}."),
        };
        format!(
            "{predicted} of {of_predicted} predicted numbers and {fitted} of {of_fitted} fitted ones are within what was \
             allowed beforehand.{beside}"
        )
    }
}

/// A line on all tables, a line for each table, and a line for each row that is missed, so that a missed row is as
/// visible as one that is met.
pub(super) fn text(simulated: &Simulated) -> Vec<String> {
    let mut lines = vec![format!("{} ({})", simulated.tally(), simulated.command)];
    for table in &simulated.tables {
        lines.push(format!("{}: {}", table.name, tally(table)));
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
