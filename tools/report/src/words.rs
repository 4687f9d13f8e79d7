//! Texts about rows: what was compared, the interval, the promise (the bound that a row should meet), and whether other
//! processes disturbed the run.

use super::markup::amount;
use warmcore_results::{Bound, OTHERS_MAX, Results, Row, Target};

/// `Not quiet: other processes used 46 % of the CPUs during budget; …`, if other processes disturbed a run.
pub(super) fn disturbed(runs: &[Results]) -> Option<String> {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let parts: Vec<String> = runs
        .iter()
        .filter(|run| run.load.is_disturbed())
        .map(|run| format!("{} of the CPUs during {}", percent(run.load.others_share), run.what))
        .collect();
    (!parts.is_empty()).then(|| {
        format!(
            "Not quiet: other processes used {}; above {} a number is no measurement: run it again on a quiet machine.",
            parts.join(", "),
            percent(OTHERS_MAX)
        )
    })
}

/// Formats a promise: `at least 10×`.
pub(super) fn bound(row: &Row, target: &Target) -> String {
    let kind = match target.kind {
        Bound::AtLeast => "at least",
        Bound::AtMost => "at most",
    };
    // The value as it was written: 8×, not 8.00×.
    match &*row.unit {
        "x" => format!("{kind} {}×", target.value),
        unit => format!("{kind} {} {unit}", target.value),
    }
}

/// Formats what was compared: `relaxed atomic ÷ warmcore`, or only the variant.
pub(super) fn compared(row: &Row) -> String {
    match &row.over {
        Some(over) => format!("{} ÷ {over}", row.variant),
        None => row.variant.clone(),
    }
}

/// The 95 % interval of the median, as text. If both ends have the same unit as a separate word, it is written once.
pub(super) fn interval(row: &Row) -> Option<String> {
    let [lo, hi] = row.ci95?.map(|v| amount(v, &row.unit));
    let (lo_unit, hi_unit) = (lo.rsplit_once(' '), hi.rsplit_once(' '));
    Some(match (lo_unit, hi_unit) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number} … {hi}"),
        _ => format!("{lo} … {hi}"),
    })
}

/// As [`compared`], with the metric unless it is the usual one: `warmcore atomic, over the limit`.
pub(super) fn measured(row: &Row) -> String {
    match &*row.metric {
        "time" | "ratio" => compared(row),
        metric => format!("{}, {metric}", compared(row)),
    }
}
