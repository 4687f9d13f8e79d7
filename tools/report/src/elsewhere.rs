//! Curves of simulated machines over a number of threads, CPUs or clients, from the simulator's tables.
//!
//! A table's rows are named `8 CPUs, queued`: a number, what it counts, and the series; rows with other names are not
//! drawn. A series with three published numbers or more is drawn as a curve of its simulated numbers, with rings for
//! the published ones, at most four curves in a chart; a series of ids is not drawn. All other series are only in the
//! table.

use super::plot::{self, Curve};
use std::collections::BTreeMap;
use warmcore_papers::{JsonRow, Table};

/// The title of a table.
pub(super) fn title(name: &str) -> &str {
    match name {
        "cid" => "Concurrency ids",
        "false_sharing" => "False sharing",
        "hot_windows" => "Hot windows",
        "drain" => "Draining stocks",
        "wake_queue" => "The shared wake queue",
        "hot_windows_by_load" => "Hot windows by load",
        "wake_queue_by_load" => "The shared wake queue by load",
        "wake_queue_v3_by_load" => "The shared wake queue, third version, by load",
        other => other,
    }
}

/// A published and a simulated number.
type Both = (Option<f64>, Option<f64>);

/// A series of a table: its numbers by the number in the row's name.
#[derive(Default)]
struct Series {
    unit: String,
    points: BTreeMap<u64, Both>,
}

/// Splits a row's name, such as `8 CPUs, queued`, into the number, what it counts, and the series.
fn parts(name: &str) -> Option<(u64, &str, &str)> {
    let (number, rest) = name.split_once(' ')?;
    let (counted, series) = rest.split_once(", ")?;
    let is_word = counted.chars().all(char::is_alphabetic);
    is_word.then_some((number.parse().ok()?, counted, series))
}

/// The charts of a table, a chart per unit; none if its rows are no curves.
pub(super) fn charts(table: &Table<JsonRow>) -> Vec<String> {
    let mut series: BTreeMap<String, Series> = BTreeMap::new();
    let mut counted = "";
    for row in &table.rows {
        let Some((number, what, name)) = parts(&row.name) else { continue };
        counted = what;
        let one = series.entry(name.to_owned()).or_default();
        one.unit.clone_from(&row.unit);
        one.points.insert(number, (row.published, row.simulated));
    }
    let is_curve =
        |one: &Series| one.points.values().filter(|(published, _)| published.is_some()).count() >= 3;
    // An id is a name and no quantity, so it is not drawn as a curve.
    series.retain(|_, one| one.unit != "ids" && is_curve(one));
    let mut by_unit: BTreeMap<String, Vec<Curve>> = BTreeMap::new();
    for (name, one) in series {
        let curves = by_unit.entry(one.unit).or_default();
        // A chart with more than four curves can't be read; the table has all series.
        let class = curves.len() / 2;
        if class >= 4 {
            continue;
        }
        let points = |of: fn(&Both) -> Option<f64>| {
            one.points.iter().filter_map(|(x, both)| Some((*x as f64, of(both)?))).collect()
        };
        curves.push(Curve { name, points: points(|both| both.1), class, is_published: false });
        curves.push(Curve { name: String::new(), points: points(|both| both.0), class, is_published: true });
    }
    by_unit
        .into_iter()
        .map(|(unit, curves)| {
            let is_log = curves.iter().flat_map(|curve| &curve.points).all(|(_, y)| *y > 0.0);
            let label = format!("{}, on {}", title(&table.name), table.machine);
            plot::curves(&curves, counted, &unit, is_log, &label)
        })
        .collect()
}
