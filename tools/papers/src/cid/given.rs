//! Given: what the table is compared with, and what was chosen by looking at it.
//!
//! Model.   `fixtures/published.toml` is read for printing and comparing alone. `fixtures/fitted.toml` has what an own
//!          area costs after a sleep, by a formula that was fitted to the two columns in which no area moves.
//!          The two fault costs here were fitted to the column in which areas do. `predictions.toml` has what the
//!          parameter-free form said first, and stays as it is.
//! Number.  8 rows of three columns.

use serde::Deserialize;

const FITTED: &str = include_str!("../../../../fixtures/fitted.toml");
const PREDICTIONS: &str = include_str!("../../predictions.toml");

/// The machine that was measured.
pub const MACHINE: &str = "epyc9654_2p";

/// A fault of a page that is copied, in ns, where one thread has a last-level cache to itself or all have one.
/// Fitted to 8 and 24 threads, 200 ms. No mechanism is known to us that makes it four times the other one.
pub const FAULT_FEW_NS: u64 = 43_000;
/// The same where several caches have several threads each. Fitted to 192 and 384 threads, 200 ms.
pub const FAULT_MANY_NS: u64 = 11_000;

#[derive(Deserialize)]
struct Half {
    #[serde(rename = "where")]
    machine: String,
    delay_ms: u64,
    rows: Vec<Measured>,
}

/// One published row: ns per burst.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Measured {
    /// Threads.
    pub threads: u32,
    llcs: u32,
    /// By the CPU's number.
    pub per_cpu_ns: f64,
    /// By ids as Linux 6.4 to 6.12 has them.
    pub kept_ns: f64,
    /// As 6.13 has them.
    pub cachelocal_ns: f64,
}

/// The published row of a machine, if there is one.
pub fn published(machine: &str, threads: u32, llcs: u32, delay_ms: u64) -> Option<Measured> {
    let halves: Vec<Half> = crate::published("cid");
    let half = halves.into_iter().find(|half| half.machine == machine && half.delay_ms == delay_ms)?;
    half.rows.into_iter().find(|row| row.threads == threads && row.llcs == llcs)
}

/// What a pass over an own 16 kB costs after so long a sleep, in ns, by fitted.toml. None: not for this machine.
pub fn own_after_sleep_ns(machine: &str, sleep_ms: u64) -> Option<f64> {
    let all: toml::Table = FITTED.parse().unwrap_or_else(|e| panic!("fitted.toml: {e}"));
    let formula = all.get(machine)?.get("own_16k_after_sleep")?.as_str()?;
    let parts = parse(formula);
    let (at, by_decade, unit_ms) =
        parts.unwrap_or_else(|| panic!("fitted.toml: {formula:?} is no \"a + b*log10(sleep/cms)\""));
    Some(at + by_decade * (sleep_ms as f64 / unit_ms).log10())
}

/// `a + b*log10(sleep/cms)`.
fn parse(formula: &str) -> Option<(f64, f64, f64)> {
    let (at, rest) = formula.split_once('+')?;
    let (by_decade, rest) = rest.split_once("*log10(sleep/")?;
    let unit = rest.strip_suffix("ms)")?;
    Some((at.trim().parse().ok()?, by_decade.trim().parse().ok()?, unit.parse().ok()?))
}

#[derive(Deserialize)]
struct Predictions {
    cid: Option<Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    rows: Vec<Prediction>,
}

/// What was said first.
#[derive(Debug, Clone, Deserialize)]
pub struct Prediction {
    /// The row's name.
    pub name: String,
    /// What was said.
    pub ns: f64,
}

/// What the form without a number that was chosen by the table said first.
pub fn predictions() -> Vec<Prediction> {
    let all: Predictions = toml::from_str(PREDICTIONS).unwrap_or_else(|e| panic!("predictions.toml: {e}"));
    all.cid.map_or_else(Vec::new, |recorded| recorded.rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_is_what_fitted_toml_says() {
        assert_eq!(parse("842 + 616*log10(sleep/80ms)"), Some((842.0, 616.0, 80.0)));
        assert_eq!(parse("842"), None);
        assert_eq!(own_after_sleep_ns(MACHINE, 800).map(f64::round), Some(1458.0));
        assert_eq!(own_after_sleep_ns("ryzen7950x", 800), None);
    }

    #[test]
    fn the_published_rows_are_found_by_what_was_run() {
        assert_eq!(published(MACHINE, 8, 1, 200).map(|row| row.kept_ns), Some(19289.0));
        assert!(published(MACHINE, 9, 1, 200).is_none() && published("ryzen7950x", 8, 1, 200).is_none());
    }
}
