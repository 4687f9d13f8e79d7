//! Budgets: the run of limits, so that one sees what a drain costs, and what its slow ones do.
//!
//! Model.   The ways to drain stand in one chart, a group while the worker is quiet and one while it charges, on
//!          one axis: from the median to the 99th percentile, since a drain that is slow once in a hundred
//!          is what others wait for. The other cases are charts like any other; what they counted
//!          stands below them.
//! Number.  2 groups × 6 ways, from 100 ns to 10 ms.

use super::chart::{self, Chart, cases, distinct, is_time};
use super::markup::{amount, digits};

use warmcore_results::names::drain::{CONTENDED, HELPER, P99, QUIET};
use warmcore_results::{Results, Row};

/// The run.
pub(super) const RUN: &str = "budget";

/// The cases of drains, and what the worker does in each.
const DRAINS: [(&str, &str); 2] =
    [(QUIET, "the worker charges once before each drain"), (CONTENDED, "the worker charges all the time")];

/// Whether a case is drawn with the other drains, not by itself.
pub(super) fn is_drain(case: &str) -> bool {
    DRAINS.iter().any(|(name, _)| *name == case)
}

/// What is measured in a case, where its name does not say it.
fn what(case: &str) -> Option<&'static str> {
    Some(match case {
        "hit" => "a charge of 1 and its uncharge, each timed",
        "hit.2threads" => "the same while another CPU charges the same leaf",
        "hit.2leaves" => "the same while another CPU charges a leaf of its own",
        "ring" => "random sizes, each given back 64 charges later",
        "ring.2threads" => "the same while another CPU charges the same leaf",
        "ring.2leaves" => "the same while another CPU charges a leaf of its own",
        "swing.below" => "up and down by less than a stock has room for",
        "swing.above" => "up and down by more than a stock has room for",
        "accounts" => "a charge of 1 and its uncharge, in many accounts in turn",
        "isolation" => "a pinned worker while its stocks are taken back",
        "limit" => "four threads at their limit on two CPUs",
        "memory" => "10000 accounts on a machine of 256 CPUs, imagined",
        "cycles" => "the owner’s side, in cycles of the time-stamp counter",
        "cycles.drain" => "the drainer’s side, in cycles of the time-stamp counter",
        "alloc" => "a block had, every line of it written, and given back",
        "alloc.bare" => "a block had and given back",
        _ => return None,
    })
}

/// A case's title, or a chart's, which begins with its case.
pub(super) fn title(title: &str) -> String {
    let (case, metric) = title.split_once(", ").map_or((title, None), |(case, metric)| (case, Some(metric)));
    match (what(case), metric) {
        (None, _) => title.to_owned(),
        (Some(what), None) => format!("{case}: {what}"),
        (Some(what), Some(metric)) => format!("{case}: {what}; {metric}"),
    }
}

/// The charts of one case.
pub(super) fn of_case<'a>(run: &'a Results, case: &str) -> Vec<Chart<'a>> {
    let mut charts = chart::of_case(run, case);
    charts.iter_mut().for_each(|chart| chart.title = title(&chart.title));
    charts
}

/// What was counted in a case: the heads, then a row per way.
pub(super) fn counted(run: &Results, case: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let is_count = |r: &&Row| r.case == case && r.over.is_none() && !is_time(r);
    let rows: Vec<&Row> = run.rows.iter().filter(is_count).collect();
    let metrics = distinct(&rows, |r| &r.metric);
    let unit = |metric: &str| rows.iter().find(|r| r.metric == metric).map_or("", |r| &*r.unit);
    let head = |metric: &&str| match metric.contains(unit(metric)) {
        true => format!("#{metric}"),
        false => format!("#{metric} ({})", unit(metric)),
    };
    let heads = std::iter::once("way".to_owned()).chain(metrics.iter().map(head)).collect();
    let cell = |row: &Row| {
        let sign = row.target.as_ref().map(|t| t.standing(row).sign());
        let value = if row.median.fract() == 0.0 { format!("{}", row.median) } else { digits(row.median) };
        sign.map_or(value.clone(), |sign| format!("{value} {sign}"))
    };
    let line = |way: &str| {
        let of = |metric: &&str| {
            let row = rows.iter().find(|r| r.variant == way && r.metric == *metric);
            row.map_or("–".to_owned(), |row| cell(row))
        };
        std::iter::once(way.to_owned()).chain(metrics.iter().map(of)).collect()
    };
    (heads, distinct(&rows, |r| &r.variant).into_iter().map(line).collect())
}

/// All drains in one chart, if any was timed.
pub(super) fn drains(run: &Results) -> Option<Chart<'_>> {
    let of = |case: &str, metric: &str| -> Vec<&Row> {
        run.rows.iter().filter(|r| r.case == case && r.metric == metric && is_time(r)).collect()
    };
    let group = |(case, what): (&str, &str)| {
        let mut rows = of(case, "time");
        rows.sort_by(|a, b| a.median.total_cmp(&b.median));
        (Some(what.to_owned()), rows)
    };
    let groups: Vec<_> = DRAINS.into_iter().map(group).filter(|(_, rows)| !rows.is_empty()).collect();
    let tails = DRAINS.iter().flat_map(|(case, _)| of(case, P99)).collect();
    (!groups.is_empty()).then(|| {
        Chart::grouped(
            format!("{RUN}-drain"),
            "Taking back what another CPU holds ready".into(),
            "How to read: dot, half of the drains were at or below it; the bar ends where 99 of 100 were; thin line, \
             fastest to slowest (› goes on); hollow, noisy. Left is faster, the scale is logarithmic; Warmcore is bold."
                .into(),
            groups,
            chart::is_ours,
        )
        .with_tails(tails)
    })
}

/// All charts of the run, the drains where the first of their cases is.
pub(super) fn charts(run: &Results) -> Vec<Chart<'_>> {
    let mut drains = drains(run);
    let of_case = |case| match is_drain(case) {
        true => drains.take().into_iter().collect(),
        false => of_case(run, case),
    };
    cases(run).into_iter().flat_map(of_case).collect()
}

/// `a charge costs 0.76 ns, 6.6× less than one shared atomic; a drain of a CPU takes 120 ns, 4400× less than …`.
pub(super) fn sentence(run: &Results) -> Vec<String> {
    let drain = || {
        let rows = || run.rows.iter().filter(|r| r.case == QUIET);
        let ratio = rows().find(|r| r.metric == "ratio" && r.variant == HELPER)?;
        let ours = rows().find(|r| r.metric == "time" && Some(&r.variant) == ratio.over.as_ref())?;
        let noisy = if ratio.noisy || ours.noisy { " (noisy)" } else { "" };
        Some(format!(
            "what another CPU holds ready is taken back in {}, {}× faster than by a thread that is woken there{noisy}",
            amount(ours.median, &ours.unit),
            digits(ratio.median)
        ))
    };
    super::words::cheaper(run, "hit").into_iter().chain(drain()).collect()
}
