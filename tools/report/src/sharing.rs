//! Sharing: the false-sharing run, so that one sees the cost rise with the write rate.
//!
//! Model.   A case is a write rate: `false-sharing.10us` writes once per 10 µs,
//!          `false-sharing.full` without a pause. One chart per metric, rates from slow to fast,
//!          over one axis; in each rate the layouts in the same order.
//! Number.  4 rates × 4 layouts: 16 lines per chart.

use super::chart::{Chart, distinct, is_time};
use super::markup::{slug, tick};
use warmcore_results::{Results, Row};

/// The cases' common prefix.
pub(super) const CASE: &str = "false-sharing";
/// The layout that the others are compared with.
pub(super) const SAME_LINE: &str = "same line";
/// The layout that cures it.
pub(super) const OWN_LINE: &str = "own line";

const LAYOUTS: [&str; 4] = [SAME_LINE, "padding on the wrong side", OWN_LINE, "own pair of lines"];

/// The charts of a false-sharing run.
pub(super) fn charts(run: &Results) -> Vec<Chart<'_>> {
    let rows: Vec<&Row> = run.rows.iter().filter(|r| r.case.starts_with(CASE) && is_time(r)).collect();
    let mut cases = distinct(&rows, |r| &r.case);
    cases.sort_by(|a, b| period_ns(b).total_cmp(&period_ns(a)));
    let of_metric = |metric: &str| {
        let group = |case: &&str| {
            let mut group: Vec<&Row> =
                rows.iter().copied().filter(|r| r.case == *case && r.metric == metric).collect();
            group.sort_by_key(|r| LAYOUTS.iter().position(|l| *l == r.variant).unwrap_or(LAYOUTS.len()));
            (Some(rate(case)), group)
        };
        let what = if metric == "time" { "time of a read".to_owned() } else { metric.to_owned() };
        let suffix = if metric == "time" { String::new() } else { format!("-{}", slug(metric)) };
        let how = "How to read: a group is a write rate, slowest first; follow the bold layout, same line, to the \
                   right as the writer writes more often. Dot: median; thick bar: 95 % interval; thin line: \
                   lowest to highest slice; hollow: noisy.";
        Chart::grouped(
            format!("{CASE}{suffix}"),
            format!("False sharing, {what}"),
            how.into(),
            cases.iter().map(group).filter(|(_, rows)| !rows.is_empty()).collect(),
            |row| row.variant == SAME_LINE,
        )
    };
    distinct(&rows, |r| &r.metric).into_iter().map(of_metric).collect()
}

/// The time between two writes; infinite if the case's name doesn't say.
fn period_ns(case: &str) -> f64 {
    let rate = case.rsplit('.').next().unwrap_or_default();
    let digits = rate.find(|c: char| !c.is_ascii_digit()).unwrap_or(rate.len());
    let unit = match &rate[digits..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        _ => f64::INFINITY,
    };
    if rate == "full" { 0.0 } else { rate[..digits].parse::<f64>().map_or(f64::INFINITY, |n| n * unit) }
}

/// The write rate of a case in words.
pub(super) fn rate(case: &str) -> String {
    match period_ns(case) {
        // Another run's case may end in a time, too.
        _ if !case.starts_with(CASE) => case.to_owned(),
        0.0 => "writes without a pause".into(),
        p if p.is_finite() => format!("one write every {}", tick(p)),
        _ => case.to_owned(),
    }
}
