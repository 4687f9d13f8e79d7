//! Cids: the run of concurrency ids, so that one sees what a pause does to whose data.
//!
//! Model.   First the picture of the ids over time; then what a burst after a pause costs, a chart for
//!          areas written before and one for the others, a group per delay; the counted shares
//!          in a table below. The other cases are charts like any other.
//! Number.  4 delays × 6 ways: 24 lines a chart.

use super::chart::{self, Chart, cases, distinct, is_time};
use super::markup::{amount, digits};
use super::timeline;
use warmcore_results::names::intermittent::{
    AFTER_A_PAUSE, CASE, ENTRY, FAULTS, FOREIGN, FRESH, MEAN, OWN, PASS,
};
use warmcore_results::{Results, Row};

/// The run.
pub(super) const RUN: &str = "cid";

/// A case of the intermittent program, by the parts of its name.
fn parts(case: &str) -> Option<(&str, &str)> {
    case.strip_prefix(CASE)?.strip_prefix('.')?.split_once('.')
}

/// Whether a case is drawn by its group, not by itself.
pub(super) fn is_grouped(case: &str) -> bool {
    parts(case).is_some() || case == warmcore_results::names::cid::TIMELINE
}

/// The charts of the intermittent program.
pub(super) fn grouped(run: &Results) -> Vec<Chart<'_>> {
    let rows: Vec<&Row> = run.rows.iter().filter(|r| parts(&r.case).is_some() && is_time(r)).collect();
    let kinds = [("touched", "areas written before"), ("untouched", "areas that nobody wrote before")];
    let chart = |(kind, title): (&str, &str)| {
        let of_kind: Vec<&Row> =
            rows.iter().copied().filter(|r| parts(&r.case).is_some_and(|(_, k)| k == kind)).collect();
        let group = |case: &str| {
            let mut group: Vec<&Row> =
                of_kind.iter().copied().filter(|r| r.case == case && r.metric == AFTER_A_PAUSE).collect();
            group.sort_by(|a, b| a.median.total_cmp(&b.median));
            let delay = parts(case).map_or(case, |(delay, _)| delay.trim_end_matches("ms"));
            (Some(format!("delay {delay} ms, times the number of threads")), group)
        };
        Chart::grouped(
            format!("{RUN}-intermittent-{kind}"),
            format!("A burst after a pause, {title}"),
            "How to read: a group is a length of the pause. Dot, the median burst; thick bar, its 95 % interval; \
             thin line, lowest to highest burst; hollow, noisy. Left is faster, the scale is logarithmic; cache-local \
             is bold."
                .into(),
            distinct(&of_kind, |r| &r.case).into_iter().map(group).filter(|(_, rows)| !rows.is_empty()).collect(),
            chart::is_ours,
        )
    };
    kinds.into_iter().map(chart).filter(|chart| !chart.groups.is_empty()).collect()
}

/// All charts of the run.
pub(super) fn charts(run: &Results) -> Vec<Chart<'_>> {
    let others = cases(run).into_iter().filter(|case| !is_grouped(case));
    let others: Vec<Chart> = others.flat_map(|case| chart::of_case(run, case)).collect();
    grouped(run).into_iter().chain(others).collect()
}

/// What was counted in the intermittent program: a row per way and pause.
pub(super) fn counted(run: &Results) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for case in cases(run) {
        let Some((delay, kind)) = parts(case) else { continue };
        let rows: Vec<&Row> = run.rows.iter().filter(|r| r.case == case && r.over.is_none()).collect();
        for way in distinct(&rows, |r| &r.variant) {
            let of = |metric: &str| rows.iter().find(|r| r.variant == way && r.metric == metric);
            let time = |metric| of(metric).map_or("–".into(), |r| amount(r.median, &r.unit));
            let share = |metric| of(metric).map_or("–".into(), |r| format!("{} %", digits(r.median)));
            lines.push(vec![
                format!("{}, {kind}", delay.replace("ms", " ms")),
                way.to_owned(),
                share(OWN),
                share(FOREIGN),
                share(FRESH),
                of(FAULTS).map_or("–".into(), |r| digits(r.median)),
                time(AFTER_A_PAUSE),
                time(ENTRY),
                time(PASS),
                time(MEAN),
            ]);
        }
    }
    lines
}

/// The heads of [`counted`].
pub(super) const COUNTED: [&str; 10] = [
    "delay, areas",
    "way",
    "#own area",
    "#foreign",
    "#fresh",
    "#page faults",
    "#time",
    "#entry",
    "#pass",
    "#mean",
];

/// `after pauses a CPU finds its own data in 100 % of its bursts (kept-per-cpu: 0 %)`.
pub(super) fn sentence(run: &Results) -> Option<String> {
    // The longest pause that was measured, areas written before: what the promise is about.
    let case = cases(run).into_iter().rfind(|case| parts(case).is_some_and(|(_, kind)| kind == "touched"))?;
    let share = |way: &str| run.rows.iter().find(|r| r.case == case && r.variant == way && r.metric == OWN);
    let (ours, kept) = (share(warmcore_results::names::cid::OURS)?, share("kept-per-cpu")?);
    let delay = parts(case)?.0.replace("ms", " ms");
    Some(format!(
        "after a delay of {delay} a CPU finds its own data in {} % of its bursts with cache-local ids, in {} % with \
         ids that expire",
        digits(ours.median),
        digits(kept.median)
    ))
}

/// The picture as a file: name, then content.
pub(super) fn picture(run: &Results) -> Option<(String, String)> {
    (!run.timelines.is_empty()).then(|| (timeline::FILE.to_owned(), timeline::svg(run)))
}
