//! Papers: published tables, simulated, row by row, with the tolerances that were written down beforehand.
//!
//! A table is a list of rows; each public module that has a function `table` makes one, and `by_load` makes three. A
//! row that claims something names its tolerance. Such a row with inputs (`inputs`) beyond the machine's own numbers
//! counts as fitted, even if its tolerance is that of a prediction. A row that cannot fail gives the reason
//! (`by_construction`), and is not counted. A claimed row may also have the number of a null model, in which the
//! proposal has no effect. A row's number is the median over the seeds, or the mean if its name says so. The row is met
//! if the median and the mean are within the tolerance, and the simulation of each seed settled (two successive
//! counting windows agreed: `hot_windows`). With fewer than five seeds whose numbers differ it claims nothing.

#![forbid(unsafe_code)]

use crate::tolerance::{Claim, Tolerance};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub mod by_load;
pub mod cid;
pub mod drain;
pub mod false_sharing;
pub mod hot_windows;
mod options;
pub mod runtime;
pub mod sensitivity;
pub mod tolerance;
pub mod wake_queue;

pub use options::{Numbers, Options, Progress, Record, Shard, Sweep};

/// A section of the published tables. Their results are only compared and printed; a simulation may take a row's load
/// from them (a number of CPUs, threads or clients).
///
/// # Panics
///
/// If the embedded file has no such section, which a test would find.
fn published<T: DeserializeOwned>(name: &str) -> T {
    section("published.toml", include_str!("../../../fixtures/published.toml"), name)
}

/// A section of the predictions from before the first run.
///
/// # Panics
///
/// If the embedded file has no such section, which a test would find.
fn predictions<T: DeserializeOwned>(name: &str) -> T {
    section("predictions.toml", include_str!("../predictions.toml"), name)
}

fn section<T: DeserializeOwned>(file: &str, text: &str, name: &str) -> T {
    let mut all: toml::Table = text.parse().unwrap_or_else(|e| panic!("{file}: {e}"));
    let found = all.remove(name).unwrap_or_else(|| panic!("{file} has no {name}"));
    found.try_into().unwrap_or_else(|e| panic!("{file}, {name}: {e}"))
}

/// The first prediction of a row's number.
#[derive(Debug, Clone, Deserialize)]
pub struct Prediction {
    /// The row's name.
    pub name: String,
    /// The number, in the row's unit.
    #[serde(alias = "ns", alias = "cycles")]
    pub number: f64,
}

/// The first predictions of a table's rows.
///
/// # Panics
///
/// If `predictions.toml` has no rows for this table.
pub fn first_predictions(table: &str) -> Vec<Prediction> {
    #[derive(Deserialize)]
    struct Rows {
        rows: Vec<Prediction>,
    }
    predictions::<Rows>(table).rows
}

/// Notes on the rows of a table that differ from their first predictions by more than this share.
fn changed(table: &str, rows: &[Row], share: f64) -> Vec<String> {
    let note = |said: Prediction| {
        let row =
            row_named(rows, &said.name).filter(|row| (row.simulated / said.number - 1.0).abs() > share)?;
        let Row { name, unit, simulated, .. } = row;
        Some(format!("{name}: first predicted as {:.0} {unit}, now {simulated:.0}", said.number))
    };
    first_predictions(table).into_iter().filter_map(note).collect()
}

/// The row of this name.
fn row_named<'a>(rows: &'a [Row], name: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.name == name)
}

/// What a row claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// No input was chosen with knowledge of the table.
    Predicted,
    /// Some input was chosen with knowledge of the table; `inputs` names it.
    Fitted,
    /// The tolerance claims nothing.
    NotClaimed,
    /// Nothing was published and there is no tolerance: the row is a result of the simulation alone.
    New,
    /// The row cannot fail, whatever the machine's numbers are.
    ByConstruction,
}

impl Mark {
    /// The mark's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Fitted => "fitted",
            Self::NotClaimed => "not_claimed",
            Self::New => "new",
            Self::ByConstruction => "by_construction",
        }
    }
}

/// The least number of seeds for a claim, if the seeds differ.
pub const SEEDS_MIN: usize = 5;

/// A number of a table. In JSON it also has its mark and whether it is met.
#[derive(Debug, Clone, Serialize)]
#[serde(into = "JsonRow")]
pub struct Row {
    /// Its name: `8 threads, 200 ms, kept`.
    pub name: String,
    /// `ns`, `cycles`, `percent`, `x`.
    pub unit: &'static str,
    /// The published number.
    pub published: Option<f64>,
    /// The simulated number: the median over the seeds; the mean if the row's name says so.
    pub simulated: f64,
    /// The least and the largest over the seeds; in a row of the mean, one standard error to each side of it.
    pub spread: (f64, f64),
    /// The numbers by seed. A single one if the row does not depend on the seed.
    pub numbers: Vec<f64>,
    /// The tolerance that it must meet; `None` for a row that is only shown.
    pub tolerance: Option<Tolerance>,
    /// Inputs that were chosen with knowledge of a published table, or read from `fitted.toml`.
    pub inputs: Vec<&'static str>,
    /// The number of a model in which the proposal has no effect.
    pub null: Option<f64>,
    /// Why the row cannot fail, if it cannot.
    pub by_construction: Option<&'static str>,
    /// The number of seeds whose simulation ended before two successive counting windows agreed ([`hot_windows`]).
    pub transient: usize,
}

/// A row in JSON. `warmcore sim --json` writes it, and a report reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JsonRow {
    /// The row's name.
    pub name: String,
    /// The unit of all numbers of the row.
    pub unit: String,
    /// The published measurement.
    pub published: Option<f64>,
    /// [`Row::simulated`]. JSON has no infinite numbers and no NaN: such a number here, in `mean`, `spread` or `null`
    /// is read as `None`.
    pub simulated: Option<f64>,
    /// The mean over the seeds.
    pub mean: Option<f64>,
    /// [`Row::spread`].
    pub spread: (Option<f64>, Option<f64>),
    /// The number of seeds; 1 for a row that does not depend on the seed.
    pub seeds: usize,
    /// The tolerance that the simulated number has to meet.
    pub tolerance: Option<Tolerance>,
    /// [`Row::inputs`].
    pub inputs: Vec<String>,
    /// [`Mark::name`].
    pub mark: String,
    /// [`Row::is_met`].
    pub met: Option<bool>,
    /// The number of a model in which the proposal has no effect.
    pub null: Option<f64>,
    /// [`Row::is_null_met`].
    pub null_met: Option<bool>,
    /// Why the row cannot fail, if it cannot.
    pub by_construction: Option<String>,
    /// The number of seeds whose simulation ended before two successive counting windows agreed.
    pub transient: usize,
}

impl From<Row> for JsonRow {
    fn from(row: Row) -> Self {
        let [simulated, mean, least, most] =
            [row.simulated, row.mean(), row.spread.0, row.spread.1].map(Some);
        Self {
            mark: row.mark().name().to_owned(),
            met: row.is_met(),
            null_met: row.is_null_met(),
            name: row.name,
            unit: row.unit.to_owned(),
            published: row.published,
            simulated,
            mean,
            spread: (least, most),
            seeds: row.numbers.len(),
            tolerance: row.tolerance,
            inputs: row.inputs.into_iter().map(str::to_owned).collect(),
            null: row.null,
            by_construction: row.by_construction.map(str::to_owned),
            transient: row.transient,
        }
    }
}

/// A published table, simulated. A report reads it from JSON, with [`JsonRow`] for its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table<R = Row> {
    /// `cid`, `drain`, …
    pub name: String,
    /// The machine's name.
    pub machine: String,
    /// The source of the published numbers, in a sentence.
    pub source: String,
    /// The rows; those of published numbers are in the published order.
    pub rows: Vec<R>,
    /// Notes that a reader needs.
    pub notes: Vec<String>,
}

impl Row {
    /// A row from one number per seed. A row without numbers, of a run that was stopped before its first seed, is
    /// removed by [`Table::concluded`].
    pub fn of(name: impl Into<String>, unit: &'static str, numbers: Vec<f64>) -> Self {
        let row = Self {
            name: name.into(),
            unit,
            published: None,
            simulated: f64::NAN,
            spread: (f64::NAN, f64::NAN),
            numbers,
            tolerance: None,
            inputs: Vec::new(),
            null: None,
            by_construction: None,
            transient: 0,
        };
        row.counted()
    }

    /// Sets the median and the spread, after a change of the numbers.
    fn counted(self) -> Self {
        let mut sorted = self.numbers.clone();
        sorted.sort_by(f64::total_cmp);
        let [least, most] = [sorted.first(), sorted.last()].map(|end| end.copied().unwrap_or(f64::NAN));
        Self { simulated: median(&sorted), spread: (least, most), ..self }
    }

    /// Sets the published number. Without a tolerance the row only shows it.
    pub fn beside(self, published: Option<f64>) -> Self {
        Self { published, ..self }
    }

    /// Sets the tolerance to the one of this name in `tolerances.toml`.
    ///
    /// # Panics
    ///
    /// If the file has none of this name.
    pub fn within(self, tolerance: &str) -> Self {
        Self { tolerance: Some(crate::tolerance::named(tolerance)), ..self }
    }

    /// Sets the published number and the tolerance, as [`Row::beside`] and [`Row::within`] do.
    pub fn against(self, published: Option<f64>, tolerance: &str) -> Self {
        self.beside(published).within(tolerance)
    }

    /// Sets the published number and the tolerance if there is a published number.
    fn against_known(self, published: Option<f64>, tolerance: &str) -> Self {
        if published.is_some() { self.against(published, tolerance) } else { self }
    }

    /// Adds inputs that were chosen with knowledge of a published table.
    pub fn with_inputs(mut self, inputs: &[&'static str]) -> Self {
        self.inputs.extend_from_slice(inputs);
        self
    }

    /// Sets the number of a model in which the proposal has no effect.
    pub fn beside_null(self, number: f64) -> Self {
        Self { null: Some(number), ..self }
    }

    /// Sets why the row cannot fail.
    pub fn by_construction(self, why: &'static str) -> Self {
        Self { by_construction: Some(why), ..self }
    }

    /// Sets how many seeds ended before two successive counting windows agreed.
    pub fn transient(self, seeds: usize) -> Self {
        Self { transient: seeds, ..self }
    }

    /// The mean over the seeds.
    pub fn mean(&self) -> f64 {
        self.numbers.iter().sum::<f64>() / self.numbers.len() as f64
    }

    /// What the row claims.
    pub fn mark(&self) -> Mark {
        match &self.tolerance {
            _ if self.by_construction.is_some() => Mark::ByConstruction,
            Some(tolerance) if tolerance.claim == Claim::None => Mark::NotClaimed,
            _ if !self.inputs.is_empty() => Mark::Fitted,
            None if self.published.is_none() => Mark::New,
            _ => Mark::Predicted,
        }
    }

    /// Whether the median and the mean are within the tolerance and no seed is transient (`transient` is 0). `None`:
    /// nothing is claimed, nothing was published to compare with, or the row cannot fail.
    pub fn is_met(&self) -> Option<bool> {
        let tolerance = self.tolerance.as_ref().filter(|_| self.by_construction.is_none())?;
        let [median, mean] =
            [self.simulated, self.mean()].map(|number| tolerance.allows(number, self.published));
        Some(median? && mean? && self.transient == 0)
    }

    /// Whether the null model's number is within the tolerance. `None`: as for [`Row::is_met`], or if the row has no
    /// null model.
    pub fn is_null_met(&self) -> Option<bool> {
        self.is_met()?;
        self.tolerance.as_ref()?.allows(self.null?, self.published)
    }
}

/// The median of sorted numbers: the mean of the two in the middle if their count is even, NaN if there are none.
pub fn median(sorted: &[f64]) -> f64 {
    match (sorted.len() / 2, sorted.len() % 2) {
        (0, 0) => f64::NAN,
        (middle, 0) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        (middle, _) => sorted[middle],
    }
}

/// Why the rows of a machine without published numbers claim nothing.
pub const UNPUBLISHED: &str = "nothing published for this machine";

/// Why a row of one to four seeds claims nothing.
pub const FEW_SEEDS: &str = "fewer than five seeds";

/// (met, claimed): how many rows are met (`Some(true)`), and how many claim something (`Some`).
pub fn count_met(rows: impl Iterator<Item = Option<bool>>) -> (usize, usize) {
    rows.flatten().fold((0, 0), |(met, claimed), is_met| (met + usize::from(is_met), claimed + 1))
}

impl From<Table> for Table<JsonRow> {
    fn from(table: Table) -> Self {
        let Table { name, machine, source, rows, notes } = table;
        Self { name, machine, source, rows: rows.into_iter().map(JsonRow::from).collect(), notes }
    }
}

impl Table {
    /// (met, claimed) of the rows, then (met, all) of the null models of those rows.
    pub fn tally(&self) -> [(usize, usize); 2] {
        [Row::is_met, Row::is_null_met].map(|met| count_met(self.rows.iter().map(met)))
    }

    /// The table as it is reported. Rows without a seed are removed. A row with fewer than [`SEEDS_MIN`] numbers claims
    /// nothing if they differ, or if it has one number and fewer than [`SEEDS_MIN`] seeds were requested. On a
    /// requested machine without published numbers no row claims anything. Notes say which costs of a requested machine
    /// are estimates.
    pub fn concluded(mut self, options: &Options) -> Self {
        let is_published = self.rows.iter().any(|row| row.published.is_some());
        self.rows.retain(|row| !row.numbers.is_empty());
        for row in &mut self.rows {
            let differs = row.numbers.iter().any(|number| *number != row.numbers[0]);
            let is_one = row.numbers.len() == 1 && options.seeds.end - options.seeds.start < SEEDS_MIN as u64;
            let is_claimed = row.tolerance.as_ref().is_some_and(|tolerance| tolerance.claim != Claim::None);
            if is_claimed && row.numbers.len() < SEEDS_MIN && (differs || is_one) {
                row.tolerance = Some(Tolerance::unclaimed(FEW_SEEDS));
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(numbers: &[f64], tolerance: &str) -> Row {
        Row::of("a", "percent", numbers.to_vec()).against(None, tolerance)
    }

    #[test]
    fn the_median_of_an_even_number_of_seeds_is_between_the_two_in_the_middle() {
        let row = |numbers: &[f64]| Row::of("a", "percent", numbers.to_vec()).simulated;
        assert!((row(&[-6.59, 4.53]) - -1.03).abs() < 1e-9);
        assert_eq!(row(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(row(&[3.0, 1.0, 2.0]), 2.0);
        assert!(row(&[]).is_nan());
    }

    #[test]
    fn a_row_is_met_only_if_its_median_and_its_mean_are_within_the_bounds() {
        // -0.6 to 0 is allowed.
        assert_eq!(claimed(&[-0.3, -0.2, -0.1], "wake_queue.time").is_met(), Some(true));
        assert_eq!(claimed(&[-0.3, -0.2, 5.0], "wake_queue.time").is_met(), Some(false));
        assert_eq!(claimed(&[-9.0, 0.1, 0.2], "wake_queue.time").is_met(), Some(false));
        assert_eq!(claimed(&[-0.2; 5], "wake_queue.time").transient(1).is_met(), Some(false));
    }

    #[test]
    fn a_row_that_cannot_fail_is_marked_and_not_counted() {
        let row = claimed(&[0.0; 5], "drain.contended").by_construction("it is 0").beside_null(0.0);
        assert_eq!((row.mark(), row.is_met(), row.is_null_met()), (Mark::ByConstruction, None, None));
        let other = claimed(&[0.0; 5], "wake_queue.time").beside_null(0.0);
        let table = Table {
            name: "t".into(),
            machine: "m".into(),
            source: "s".into(),
            rows: vec![row, other],
            notes: Vec::new(),
        };
        assert_eq!(table.tally(), [(1, 1), (1, 1)]);
    }

    #[test]
    fn fewer_than_five_seeds_claim_nothing() {
        let met = |seeds: u64| {
            let numbers: Vec<f64> = (0..seeds).map(|seed| -0.1 * (1.0 + seed as f64 / 10.0)).collect();
            let rows = vec![claimed(&numbers, "wake_queue.time")];
            let table =
                Table { name: "t".into(), machine: "m".into(), source: "s".into(), rows, notes: Vec::new() };
            let options = Options { seeds: 0..seeds, ..Options::default() };
            table.concluded(&options).rows[0].is_met()
        };
        assert_eq!([1, 2, 4, 5].map(met), [None, None, None, Some(true)]);
    }
}
