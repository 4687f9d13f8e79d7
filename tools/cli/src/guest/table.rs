//! The table, the picture and the JSON of a comparison.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use warmcore_guest::{Comparison, Figures, Outcome, ScenarioRow, Spread};
use warmcore_report::{Cloud, scatter};

/// A column: its heading, its digits after the point, and its figure.
type Column = (&'static str, usize, fn(&Figures) -> f64);

const COLUMNS: [Column; 10] = [
    ("same %", 1, |figures| figures.same),
    ("queued %", 1, |figures| figures.queued),
    (">100µs %", 1, |figures| figures.over_100us),
    ("other LLC %", 1, |figures| figures.other_llc),
    ("p50 µs", 0, |figures| figures.p50_us),
    ("p99 µs", 0, |figures| figures.p99_us),
    ("busy", 1, |figures| figures.busy),
    ("bubbles %", 2, |figures| figures.bubbles),
    ("migrations", 0, |figures| figures.migrations as f64),
    ("switches", 0, |figures| figures.switches as f64),
];

/// The mean over the seeds, with the least and the most if they differ.
fn shown(row: &ScenarioRow, digits: usize, of: impl Fn(&Figures) -> f64) -> String {
    if row.seeds.is_empty() {
        return "–".to_owned();
    }
    let Spread { mean, least, most } = row.spread(of);
    let [mean, least, most] = [mean, least, most].map(|value| format!("{value:.digits$}"));
    if least == most { mean } else { format!("{mean} ({least}–{most})") }
}

/// A table for each scenario: a line for each scheduler.
pub(super) fn of(comparison: &Comparison, outcomes: &[Outcome]) -> String {
    let rows = comparison.rows(outcomes);
    let machine = comparison.machine;
    let mut text = format!(
        "Linux {}, {} CPUs in {} last-level caches, {} {}; the mean, and the least and the most of the seeds.\n",
        comparison.kernel.release,
        machine.cpus,
        machine.llcs,
        comparison.seeds.len(),
        if comparison.seeds.len() == 1 { "seed" } else { "seeds" },
    );
    for scenario in &comparison.scenarios {
        text += &format!("\n{}: {}\n", scenario.name, scenario.about);
        let rows: Vec<&ScenarioRow> = rows.iter().filter(|row| row.scenario == scenario.name).collect();
        text += &table(&rows);
        for row in rows {
            for (seed, error) in &row.errors {
                text += &format!("  {}, seed {seed}: {error}\n", row.scheduler);
            }
        }
    }
    for outcome in outcomes {
        for warning in outcome.warnings() {
            text += &format!(
                "{}, seed {}: the kernel says: {warning}\n",
                outcome.job.scheduler, outcome.job.seed
            );
        }
    }
    text
}

/// A line for each row.
pub(super) fn table(rows: &[&ScenarioRow]) -> String {
    let mut cells = vec![
        std::iter::once("")
            .chain(COLUMNS.iter().map(|(name, ..)| *name))
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    ];
    // What only some scenarios have.
    let has_shares = rows.iter().any(|row| row.seeds.iter().any(|(_, figures)| figures.unequal.is_some()));
    let mut groups: Vec<&str> = rows
        .iter()
        .flat_map(|row| &row.seeds)
        .flat_map(|(_, figures)| &figures.groups)
        .map(|(name, _)| name.as_str())
        .collect();
    groups.sort_unstable();
    groups.dedup();
    cells[0].extend(has_shares.then(|| "largest ÷ smallest".to_owned()));
    cells[0].extend(groups.iter().flat_map(|group| [format!("{group} p99 µs"), "moved %".to_owned()]));
    for row in rows {
        let mut line = vec![row.scheduler.clone()];
        line.extend(COLUMNS.iter().map(|(_, digits, of)| shown(row, *digits, of)));
        line.extend(has_shares.then(|| shown(row, 2, |figures| figures.unequal.unwrap_or(0.0))));
        for group in &groups {
            let of = |figures: &Figures| {
                let found = figures.groups.iter().find(|(name, _)| name == group);
                found.map(|(_, of_group)| *of_group).unwrap_or_default()
            };
            line.push(shown(row, 0, |figures| of(figures).p99_us));
            line.push(shown(row, 1, |figures| of(figures).moved));
        }
        cells.push(line);
    }
    aligned(&cells)
}

/// Cells in columns: the first to the left, the others to the right.
pub(super) fn aligned(cells: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..cells[0].len())
        .map(|column| cells.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in cells {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            text += &if column == 0 { format!("  {cell:width$}") } else { format!("  {cell:>width$}") };
        }
        text = text.trim_end().to_owned() + "\n";
    }
    text
}

/// A picture for each scenario: a point per scheduler and seed, of the wakes on the same CPU against those that were queued beside an
/// idle one.
pub(super) fn pictures<'a>(
    comparison: &'a Comparison,
    rows: &'a [ScenarioRow],
) -> impl Iterator<Item = (&'a str, String)> {
    comparison.scenarios.iter().map(|scenario| {
        let group = |row: &ScenarioRow| Cloud {
            name: row.scheduler.clone(),
            points: row.seeds.iter().map(|(_, figures)| (figures.queued, figures.same)).collect(),
        };
        let mut groups: Vec<Cloud> =
            rows.iter().filter(|row| row.scenario == scenario.name).map(group).collect();
        // The first group has Warmcore's colour.
        groups.sort_by_key(|group| !group.name.starts_with("warm"));
        let picture =
            scatter(&groups, "queued beside an idle CPU, % of wakes", "on the same CPU, % of wakes");
        (&*scenario.name, picture)
    })
}

/// The rows of a comparison, and what they rest on.
pub(super) fn json(comparison: &Comparison, outcomes: &[Outcome]) -> Value {
    let programs: BTreeMap<_, _> =
        outcomes.iter().map(|Outcome { job, .. }| (&job.scheduler, &job.programs)).collect();
    json!({
        "schema": 1,
        "what": "guest",
        "kernel": comparison.kernel,
        "machine": comparison.machine,
        "seeds": comparison.seeds,
        "programs": programs,
        "rows": comparison.rows(outcomes),
    })
}
