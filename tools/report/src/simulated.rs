//! The simulator's tables as text for a terminal: simulated and published numbers, and whether a simulated number is
//! within the tolerance that was written down before the simulation.
//!
//! A line for each row says whether its claim is met, and what kind of row it is (predicted, fitted, new, not claimed,
//! by construction). A number in the last column refers to a list below the table, which names the inputs of the row
//! that were chosen by looking at the published table.
//!
//! A row's simulated number is the median over the seeds, followed by the least and the most. A further column says
//! whether a null model, in which the proposal has no effect, meets the claim too.

use super::imagined::{SimulatedLoad, null_model, word};
use super::markup::{amount, quantity};
use super::sides;
use super::summary::{columns, printable, sentence};
use warmcore_papers::tolerance::{Claim, What};
use warmcore_papers::{Row, Table, runtime};
use warmcore_sim::simulation::Report;

/// Formats one table.
pub fn simulated(table: &Table) -> String {
    if table.name == runtime::NAME {
        return sides::text(&table.clone().into());
    }
    let head = ["row", "published", "simulated", "from", "to", "allowed", "", "no effect", "is", "with"];
    let mut inputs = Vec::new();
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(table.rows.iter().map(|row| {
        let published = row.published.map_or_else(|| "–".to_owned(), |number| of(number, row));
        let mut cells = vec![row.name.clone(), published];
        cells.extend([row.simulated, row.spread.0, row.spread.1].map(|number| of(number, row)));
        let with = row.inputs.join(", ");
        let with = if with.is_empty() { String::new() } else { format!("[{}]", number(&mut inputs, with)) };
        let standing = word(row.is_met(), "met", "MISSED").to_owned();
        let null = word(row.is_null_met(), "met too", "missed").to_owned();
        cells.extend([allowed(row), standing, null, is(row), with]);
        cells
    }));
    let inputs = inputs.iter().enumerate().map(|(i, with)| format!("[{}] {with}", i + 1));
    let why = table
        .rows
        .iter()
        .filter_map(|row| Some(format!("{}: {}", row.name, row.tolerance.as_ref()?.why.as_ref()?)));
    let built = table.rows.iter().filter_map(|row| Some(format!("{}: {}", row.name, row.by_construction?)));
    let null = match table.tally()[1] {
        (_, 0) => None,
        (met, of) => Some(format!("- A model without any effect meets {met} of {of} rows that are claimed.")),
    };
    let notes = null.into_iter().chain(table.notes.iter().map(|note| format!("- {note}")));
    let below: String =
        inputs.chain(why).chain(built).chain(notes).map(|text| sentence(&text) + "\n").collect();
    let source = sentence(&table.source);
    printable(&format!("\n{}: {}\n{source}\n\n{}\n{below}", table.name, table.machine, columns(&lines)))
}

/// Returns the number of `one` in the list, counted from 1. Adds it to the list if it is missing.
fn number(all: &mut Vec<String>, one: String) -> usize {
    let at = all.iter().position(|known| *known == one).unwrap_or(all.len());
    if at == all.len() {
        all.push(one);
    }
    at + 1
}

/// Formats the results of a load, a line per policy. The numbers are medians over the seeds.
pub fn simulated_loads(loads: &[SimulatedLoad]) -> String {
    let head = [
        "policy",
        "wakes",
        "tasks ran",
        "busy",
        "waits on average",
        "at most",
        "moved",
        "woken elsewhere",
        "switches",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for SimulatedLoad { policy, reports, .. } in loads {
        let median = |of: &dyn Fn(&Report) -> f64| {
            let mut numbers: Vec<f64> = reports.iter().map(of).collect();
            numbers.sort_by(f64::total_cmp);
            warmcore_papers::median(&numbers)
        };
        let share = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        let percent = |number: f64| format!("{number:.2} %");
        let wakes_away = |report: &Report| {
            let [same, away @ ..] = report.total().wakes_by_distance;
            let away: u64 = away.iter().sum();
            share(away, same + away)
        };
        let wait = |report: &Report| report.total().wait_ns as f64 / report.total().switches.max(1) as f64;
        lines.push(vec![
            policy.clone(),
            format!("{:.0}", median(&|report| report.total().wakes as f64)),
            amount(median(&|report| report.total().run_ns as f64), "ns"),
            percent(median(&|report| report.busy_per_mille() as f64 / 10.0)),
            amount(median(&wait), "ns"),
            amount(median(&|report| report.total().wait_ns_max as f64), "ns"),
            percent(median(&|report| share(report.total().moves(), report.total().switches))),
            percent(median(&wakes_away)),
            format!("{:.0}", median(&|report| report.total().switches as f64)),
        ]);
    }
    let of = loads.first().map_or(String::new(), |load| {
        format!(
            "\non {}, {} seeds; what tasks ran for has the time in it that they waited for their data\n",
            load.machine,
            load.reports.len()
        )
    });
    printable(&format!("{of}{}", columns(&lines)))
}

/// A line for each table, and a line for each row that is missed, so that a missed row is as visible as one that is
/// met.
pub fn simulated_tally(tables: &[Table]) -> String {
    let mut out = String::new();
    for table in tables {
        let [(met, claimed), null] = table.tally();
        let null = null_model(null);
        out += &sentence(&format!("{}: {met} of {claimed} rows within what was allowed{null}", table.name));
        out.push('\n');
        for row in table.rows.iter().filter(|row| row.is_met() == Some(false)) {
            out += &sentence(&format!("- missed: {} ({}): {}", row.name, is(row), of(row.simulated, row)));
            out.push('\n');
        }
    }
    printable(&format!("\n{out}"))
}

/// Formats a number of a row with its unit.
fn of(number: f64, row: &Row) -> String {
    quantity(number, row.unit)
}

/// The range that the row's tolerance allows, as text; `–` if nothing is claimed.
fn allowed(row: &Row) -> String {
    let Some(tolerance) = row.tolerance.as_ref().filter(|tolerance| tolerance.claim != Claim::None) else {
        return "–".to_owned();
    };
    let (low, high) = match (tolerance.what, row.published) {
        // For a negative number the larger multiple is the lower bound.
        (Some(What::Ratio), Some(published)) if published < 0.0 => {
            (published * tolerance.high, published * tolerance.low)
        }
        (Some(What::Ratio), Some(published)) => (published * tolerance.low, published * tolerance.high),
        (Some(What::Difference), Some(published)) => (published + tolerance.low, published + tolerance.high),
        _ => (tolerance.low, tolerance.high),
    };
    format!("{} to {}", of(low, row), of(high, row))
}

/// The kind of the row, and in how many of its seeds the simulation had not settled (was transient).
fn is(row: &Row) -> String {
    let mark = row.mark().name().replace('_', " ");
    match row.transient {
        0 => mark,
        seeds => format!("{mark}, transient ({seeds} of {})", row.numbers.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(simulated: f64) -> Table {
        let row = |name: &str| Row::of(name, "ns", vec![simulated]);
        let rows = vec![
            row("8 threads").against(Some(100.0), "cid.10_ms"),
            row("24 threads").against(Some(100.0), "cid.10_ms").with_inputs(&["a fault"]),
            row("churn"),
            row("build").against(Some(1.0), "wake_queue.seconds"),
            row("ids").against(Some(1.0), "cid.ids").by_construction("its id stays"),
            row("by load").beside_null(0.0).transient(1).against(Some(-10.0), "by_load.effect"),
        ];
        let notes = vec!["believe it late".to_owned()];
        Table { name: "cid".into(), machine: "somewhere".into(), source: "a mail".into(), rows, notes }
    }

    #[test]
    fn a_row_says_what_it_is_and_whether_it_is_met() {
        let text = simulated(&table(129.0));
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("8 threads").contains("70.0 ns to 130 ns"), "{text}");
        assert!(line("8 threads").contains(" met ") && line("8 threads").contains(" predicted"), "{text}");
        assert!(line("ids  ").contains("by construction") && !line("ids  ").contains("MISSED"), "{text}");
        assert!(text.contains("ids: its id stays"), "{text}");
        assert!(line("by load").contains("-20.0 ns to -5.00 ns"), "{text}");
        assert!(
            line("by load").contains("transient (1 of 1)") && line("by load").contains("missed"),
            "{text}"
        );
        assert!(text.contains("A model without any effect meets 0 of 1 rows"), "{text}");
        assert!(line("24 threads").contains(" fitted ") && line("24 threads").ends_with("[1]"), "{text}");
        assert!(text.contains("\n[1] a fault\n"), "{text}");
        assert!(line("churn").contains("new"), "{text}");
        assert!(line("build").contains("not claimed") && text.contains("which is calibration"), "{text}");
        assert!(text.contains("believe it late") && text.contains("a mail"), "{text}");
    }

    #[test]
    fn a_miss_is_said_as_a_miss() {
        let table = table(131.0);
        assert_eq!(simulated(&table).matches("MISSED").count(), 3);
        let tally = simulated_tally(&[table]);
        assert!(
            tally.contains("0 of 3 rows within what was allowed; a model without any effect meets 0 of 1")
                && tally.contains("missed: 24 threads (fitted): 131 ns"),
            "{tally}"
        );
    }
}
