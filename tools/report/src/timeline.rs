//! Which id each CPU had over time, as text: a row per CPU, a column per policy.

use warmcore_results::{Results, Timeline};

/// The ids over time, if they were recorded.
pub(super) fn text(run: &Results) -> String {
    if run.timelines.is_empty() {
        return String::new();
    }
    // Ids are aligned left: a list of them is not a number.
    let rows: Vec<Vec<String>> = rows(run);
    let widths = |i: usize| rows.iter().filter_map(|r| Some(r.get(i)?.chars().count())).max().unwrap_or(0);
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(i, cell)| format!("  {cell:<width$}", width = widths(i)));
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    format!("\n{}\n{}", title(run), rows.iter().map(line).collect::<String>())
}

/// How often a CPU, when it ran again, had the id of its last burst. Of how many.
fn returns(timeline: &Timeline) -> (usize, usize) {
    let pairs = || timeline.lanes.iter().flat_map(|lane| lane.bursts.windows(2));
    (pairs().filter(|pair| pair[0].cid == pair[1].cid).count(), pairs().count())
}

/// How many CPUs ran with the id that most of them ran with.
fn sharing(timeline: &Timeline) -> usize {
    let with = |id| timeline.lanes.iter().filter(|l| l.bursts.iter().any(|b| b.cid == id)).count();
    let all = timeline.lanes.iter().flat_map(|lane| lane.bursts.iter().map(|burst| burst.cid));
    all.collect::<std::collections::BTreeSet<_>>().into_iter().map(with).max().unwrap_or(0)
}

/// What the timelines show, in a line.
fn title(run: &Results) -> String {
    let all = |timeline: &Timeline| {
        let (same, of) = returns(timeline);
        of > 0 && same == of && sharing(timeline) == 1
    };
    match run.timelines.iter().find(|t| all(t)) {
        Some(timeline) => format!("The same CPU, the same id: {}", timeline.policy),
        None => "Which id each CPU had".to_owned(),
    }
}

/// The ids of the bursts, a row per CPU.
fn rows(run: &Results) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["id of each burst".to_owned()]];
    rows[0].extend(run.timelines.iter().map(|timeline| timeline.policy.clone()));
    for (i, lane) in run.timelines.first().into_iter().flat_map(|t| &t.lanes).enumerate() {
        let ids = |timeline: &Timeline| {
            let bursts = timeline.lanes.get(i).into_iter().flat_map(|lane| &lane.bursts);
            bursts.map(|burst| burst.cid.to_string()).collect::<Vec<_>>().join(" ")
        };
        rows.push(
            std::iter::once(format!("CPU {}", lane.cpu)).chain(run.timelines.iter().map(ids)).collect(),
        );
    }
    rows
}
