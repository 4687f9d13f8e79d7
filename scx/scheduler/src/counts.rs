//! The program's counts: reading them, and printing them as a table, as JSON and as Prometheus text.

use crate::tables::{COUNTS, SETTINGS};
use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// Reads the counts, summed over the CPUs, in the order of [`COUNTS`].
///
/// # Errors
/// Returns an error if the map cannot be read.
pub fn read(map: &impl MapCore) -> Result<Vec<u64>> {
    let sum = |values: Vec<Vec<u8>>| {
        let words = values.iter().filter_map(|v| v.first_chunk().copied().map(u64::from_ne_bytes));
        words.fold(0, u64::wrapping_add)
    };
    (0..COUNTS.len() as u32)
        .map(|i| {
            let values =
                map.lookup_percpu(&i.to_ne_bytes(), MapFlags::ANY).context("the counts cannot be read")?;
            Ok(values.map_or(0, sum))
        })
        .collect()
}

/// Returns the difference of two readings: what happened between them.
pub fn since(now: &[u64], before: &[u64]) -> Vec<u64> {
    now.iter().zip(before).map(|(n, b)| n - b).collect()
}

/// Returns the counts as a JSON object.
pub fn json(counts: &[u64]) -> Value {
    COUNTS
        .iter()
        .zip(counts)
        .map(|(c, n)| (c.name.to_string(), Value::from(*n)))
        .collect::<Map<_, _>>()
        .into()
}

/// Returns the counts above 0 in one line.
pub fn line(counts: &[u64]) -> String {
    let parts = COUNTS.iter().zip(counts).filter(|(_, n)| **n > 0).map(|(c, n)| format!("{} {n}", c.name));
    parts.collect::<Vec<_>>().join("  ")
}

/// Returns the counts and settings in Prometheus' text format.
pub fn prometheus(counts: &[u64], settings: &[u64]) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    for (c, n) in COUNTS.iter().zip(counts) {
        let name = c.name;
        let _ = writeln!(
            text,
            "# HELP scx_warm_{name}_total {}\n# TYPE scx_warm_{name}_total counter\nscx_warm_{name}_total {n}",
            c.what
        );
    }
    let _ = writeln!(text, "# HELP scx_warm_setting Value of a setting\n# TYPE scx_warm_setting gauge");
    for (s, value) in SETTINGS.iter().zip(settings) {
        let _ = writeln!(text, "scx_warm_setting{{name=\"{}\"}} {value}", s.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_text_has_each_count_and_setting_once() {
        let text = prometheus(&vec![7; COUNTS.len()], &vec![1; SETTINGS.len()]);
        assert_eq!(text.matches("\nscx_warm_").count(), COUNTS.len() + SETTINGS.len());
        assert!(text.contains("scx_warm_hand_over_total 7\n"), "{text}");
        assert!(text.contains("scx_warm_setting{name=\"hand_us\"} 1\n"), "{text}");
    }

    #[test]
    fn json_has_each_count_by_name() {
        let value = json(&vec![3; COUNTS.len()]);
        assert_eq!(value["steal_llc"], 3);
        assert_eq!(value.as_object().map(|o| o.len()), Some(COUNTS.len()));
    }
}
