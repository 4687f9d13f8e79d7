//! What the table is compared with, and the values that were chosen after looking at it.
//!
//! `fixtures/published.toml` is only read to print and compare. `fixtures/fitted.toml` has the cost of a pass over the
//! CPU's own area (its 16 KiB of data) after a sleep, by a formula that was fitted to the columns `per_cpu` and
//! `cachelocal`, in which no area moves. The two costs of a page fault in this file were fitted to the column `kept`,
//! in which areas move.

use serde::Deserialize;

const FITTED: &str = include_str!("../../../../fixtures/fitted.toml");

/// The machine of the publication.
pub const MACHINE: &str = "epyc9654_2p";

/// A page fault that copies a page, in ns, if each thread has a last-level cache to itself or all threads share one.
/// Fitted to 8 and 24 threads, 200 ms. No known mechanism explains why it is four times [`FAULT_MANY_NS`].
pub const FAULT_FEW_NS: u64 = 43_000;
/// A page fault that copies a page, in ns, if several caches have several threads each. Fitted to 192 and 384
/// threads, 200 ms.
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
    /// The number of threads.
    pub threads: u32,
    llcs: u32,
    /// By the CPU's number.
    pub per_cpu_ns: f64,
    /// With the ids of Linux 6.4 to 6.12.
    pub kept_ns: f64,
    /// With the ids of Linux 6.13.
    pub cachelocal_ns: f64,
}

/// The published row of a machine, if there is one.
pub fn published(machine: &str, threads: u32, llcs: u32, delay_ms: u64) -> Option<Measured> {
    let halves: Vec<Half> = crate::published("cid");
    let half = halves.into_iter().find(|half| half.machine == machine && half.delay_ms == delay_ms)?;
    half.rows.into_iter().find(|row| row.threads == threads && row.llcs == llcs)
}

/// The time in ns of a pass over 16 KiB of the CPU's own area after a sleep, by fitted.toml. `None` if the file has no
/// formula for this machine.
pub fn own_after_sleep_ns(machine: &str, sleep_ms: u64) -> Option<f64> {
    let all: toml::Table = FITTED.parse().unwrap_or_else(|e| panic!("fitted.toml: {e}"));
    let formula = all.get(machine)?.get("own_16k_after_sleep")?.as_str()?;
    let parts = parse(formula);
    let (at, by_decade, unit_ms) =
        parts.unwrap_or_else(|| panic!("fitted.toml: {formula:?} is no \"a + b*log10(sleep/cms)\""));
    Some(at + by_decade * (sleep_ms as f64 / unit_ms).log10())
}

/// Parses `a + b*log10(sleep/cms)`. Returns (a, b, c).
fn parse(formula: &str) -> Option<(f64, f64, f64)> {
    let (at, rest) = formula.split_once('+')?;
    let (by_decade, rest) = rest.split_once("*log10(sleep/")?;
    let unit = rest.strip_suffix("ms)")?;
    Some((at.trim().parse().ok()?, by_decade.trim().parse().ok()?, unit.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_of_fitted_toml_is_read() {
        assert_eq!(parse("842 + 616*log10(sleep/80ms)"), Some((842.0, 616.0, 80.0)));
        assert_eq!(parse("842"), None);
        assert_eq!(own_after_sleep_ns(MACHINE, 800).map(f64::round), Some(1458.0));
        assert_eq!(own_after_sleep_ns("ryzen7950x", 800), None);
    }

    #[test]
    fn published_rows_are_found_by_threads_caches_and_delay() {
        assert_eq!(published(MACHINE, 8, 1, 200).map(|row| row.kept_ns), Some(19289.0));
        assert!(published(MACHINE, 9, 1, 200).is_none() && published("ryzen7950x", 8, 1, 200).is_none());
    }
}
