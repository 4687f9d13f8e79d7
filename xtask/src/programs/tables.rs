//! The tables of programs: what Warmcore's scheduler changes, and what was counted.

use super::{CHECKED, FOREIGN, METRICS, MOVED, OFF, ON, RESIDENT};
use crate::table::{machine, ratio};
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;
use warmcore_results::{Bound, Results, Row};

/// The end of the name of a soak's files.
pub const SOAK: &str = "-soak";

/// The tables of the programs whose rows `folder` has, as Markdown.
pub fn text(folder: &Path, programs: impl Iterator<Item = &'static str>) -> anyhow::Result<String> {
    let mut ratios = "| program | | WARMCORE=0 | Warmcore ÷ WARMCORE=0: p25 | median | p75 | 95 % | | n |\n\
                      |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let mut counts =
        "| program | when, UTC | CPU used by others | moved polls | foreign tasks | checked answers | \
                      with WARMCORE=0 | resident MiB, start and end | with WARMCORE=0 |\n\
                      |---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    let mut host = None;
    for name in programs.flat_map(|name| [name.to_owned(), format!("{name}{SOAK}")]) {
        let path = folder.join(&name).with_extension("json");
        let Ok(json) = std::fs::read(&path) else { continue };
        let results: Results =
            serde_json::from_slice(&json).with_context(|| format!("no results: {}", path.display()))?;
        add_ratios(&mut ratios, &name, &results.rows);
        add_counts(&mut counts, &name, &results);
        host = Some(machine(&results.machine));
    }
    let host = host.unwrap_or_else(|| "no program was measured".to_owned());
    Ok(format!("{host}\n\n{ratios}\n{counts}"))
}

fn find<'a>(rows: &'a [Row], variant: &str, metric: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.variant == variant && row.metric == metric)
}

/// Adds a line for each metric; none for a soak, which has no slices with `WARMCORE=0`.
fn add_ratios(text: &mut String, name: &str, rows: &[Row]) {
    for (metric, ..) in METRICS {
        let of = |what: &str| find(rows, ON, &format!("{what}{metric}"));
        let all = (find(rows, OFF, metric), of("ratio, "), of("p75 of the ratio, "));
        let (Some(off), Some(median), Some(p75)) = all else { continue };
        let better = if metric == METRICS[0].0 { Bound::AtLeast } else { Bound::AtMost };
        let cells = ratio(median, p75.median, better);
        let off = match &*off.unit {
            "ns" => format!("{:.1} µs", off.median / 1e3),
            unit => format!("{:.1} {unit}", off.median),
        };
        let _ = writeln!(text, "| {name} | {metric} | {off} | {cells} | {} |", median.n);
    }
}

fn add_counts(text: &mut String, name: &str, results: &Results) {
    let of = |variant: &str, metric: &str| find(&results.rows, variant, metric).map(|row| row.median);
    let count = |variant, metric| of(variant, metric).map_or_else(String::new, |count| count.to_string());
    let resident = |variant| {
        let [Some(start), Some(end)] = RESIDENT.map(|metric| of(variant, metric)) else {
            return String::new();
        };
        format!("{:.1}, {:.1}", start / 1024.0, end / 1024.0)
    };
    let _ = writeln!(
        text,
        "| {name} | {} | {:.0} % | {:.1} % | {} | {} | {} | {} | {} |",
        results.when,
        results.load.others_share * 100.0,
        of(ON, MOVED).unwrap_or(0.0),
        count(ON, FOREIGN),
        count(ON, CHECKED),
        count(OFF, CHECKED),
        resident(ON),
        resident(OFF),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_results::{system, write_whole};

    #[test]
    fn more_requests_and_less_time_are_faster() {
        let folder = std::env::temp_dir().join(format!("xtask-programs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let row = |variant: &str, metric: &str, value: f64| Row::exact("b", variant, metric, "ns", value, 6);
        let mut rows = Vec::new();
        for (metric, ..) in METRICS {
            rows.push(row(OFF, metric, 2000.0));
            rows.push(row(ON, &format!("ratio, {metric}"), 1.5));
            rows.push(row(ON, &format!("p75 of the ratio, {metric}"), 1.75));
        }
        rows.extend([row(ON, FOREIGN, 3.0), row(ON, CHECKED, 40.0), row(OFF, CHECKED, 50.0)]);
        rows.extend([row(ON, RESIDENT[0], 1024.0), row(ON, RESIDENT[1], 1536.0)]);
        let meter = system::LoadMeter::start();
        let mut results = system::results("programs", "", "now".to_owned(), &meter, rows);
        let write = |name: &str, results: &Results| {
            write_whole(&folder.join(name), &serde_json::to_vec(results).unwrap()).unwrap();
        };
        write("b.json", &results);
        // As after a soak.
        results.rows.retain(|row| row.variant == ON && !row.metric.contains("ratio"));
        write("b-soak.json", &results);
        let text = text(&folder, ["a", "b"].into_iter()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();

        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| b")).collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(lines[0], "| b | requests | 2.0 µs | 1.50 | 1.50 | 1.75 | 1.50 to 1.50 | faster | 6 |");
        assert!(lines[1].contains("| p99 |") && lines[1].contains("| slower |"), "{text}");
        assert!(lines[3].contains(" | 3 | 40 | 50 | 1.0, 1.5 |  |"), "{text}");
        assert!(
            lines[4].starts_with("| b-soak | now |") && lines[4].contains(" | 3 | 40 |  | 1.0, 1.5 |"),
            "{text}"
        );
    }
}
