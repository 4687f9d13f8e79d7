//! Three ways to place tasks, simulated: Warmcore's runtime, tokio's rules and a runtime per core.
//!
//! A row of the table is named `24 CPUs, warm sets, 50 %, Warmcore, p99`: a size, a load, the part of the CPUs, a side and a
//! figure ([`warmcore_papers::runtime`]). As text there is a line for each size, load and part, with all sides beside each other.
//! In the page there are four curves over the number of CPUs for each load and part, each beside its bound, in which no task
//! waits or moves.

use super::markup::{amount, quantity};
use super::plot::{self, Curve};
use super::summary::{columns, printable, sentence};
use std::collections::BTreeMap;
use warmcore_papers::runtime::{FIGURES, Load, Side};
use warmcore_papers::{JsonRow, Table};

/// The parts of a row's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'a> {
    load: &'a str,
    percent: u64,
    cpus: u64,
}

/// A median and its bound, by side and figure.
type Numbers<'a> = BTreeMap<(&'a str, &'a str), (Option<f64>, Option<f64>)>;

fn parts(name: &str) -> Option<(Name<'_>, &str, &str)> {
    let mut parts = name.split(", ");
    let cpus = parts.next()?.strip_suffix(" CPUs")?.parse().ok()?;
    let load = parts.next()?;
    let percent = parts.next()?.strip_suffix(" %")?.parse().ok()?;
    let (side, figure) = (parts.next()?, parts.next()?);
    parts.next().is_none().then_some((Name { load, percent, cpus }, side, figure))
}

/// The numbers of each point.
fn points(table: &Table<JsonRow>) -> BTreeMap<Name<'_>, Numbers<'_>> {
    let mut points: BTreeMap<Name<'_>, Numbers<'_>> = BTreeMap::new();
    for row in &table.rows {
        if let Some((name, side, figure)) = parts(&row.name) {
            points.entry(name).or_default().insert((side, figure), (row.simulated, row.null));
        }
    }
    points
}

const ROUNDS: &str = FIGURES[0].0;
const P99: &str = FIGURES[1].0;
const NEAR: &str = FIGURES[2].0;
const FAR: &str = FIGURES[3].0;
const CPU: &str = FIGURES[4].0;

/// The sum of the moves of a side, in percent.
fn moved(numbers: &Numbers<'_>, side: &str) -> Option<f64> {
    let of = |figure| numbers.get(&(side, figure)).and_then(|(number, _)| *number);
    Some(of(NEAR)? + of(FAR)?)
}

/// The cells of a line: the point, and each figure of each side.
fn lines(table: &Table<JsonRow>) -> Vec<Vec<String>> {
    let points = points(table);
    let mut lines = Vec::new();
    for load in Load::ALL {
        let of_load = points.iter().filter(|(name, _)| name.load == load.name());
        for (Name { load, percent, cpus }, numbers) in of_load {
            let number =
                |number: Option<f64>, unit: &str| number.map_or("–".to_owned(), |n| amount(n, unit));
            let of = |side: Side, figure: &str, unit: &str| {
                number(numbers.get(&(side.name(), figure)).and_then(|(number, _)| *number), unit)
            };
            let bound = |figure: &str, unit: &str| {
                let found = Side::ALL.iter().find_map(|side| numbers.get(&(side.name(), figure))?.1);
                number(found, unit)
            };
            let mut cells = vec![format!("{load}, {percent} %"), cpus.to_string()];
            for (figure, unit) in [(ROUNDS, "k/s"), (P99, "ns"), (CPU, "ns")] {
                cells.extend(Side::ALL.map(|side| of(side, figure, unit)));
                cells.push(bound(figure, unit));
            }
            let moves = [Side::Warmcore, Side::Tokio].map(|side| {
                let part = moved(numbers, side.name());
                part.map_or("–".to_owned(), |part| quantity((part * 10.0).round() / 10.0, "%"))
            });
            cells.extend(moves);
            lines.push(cells);
        }
    }
    lines
}

/// The heads of [`lines`]: the figures, and below them the sides.
const HEADS: [&str; 16] = [
    "load",
    "CPUs",
    "rounds: Warmcore",
    "tokio's",
    "per core",
    "bound",
    "p99: Warmcore",
    "tokio's",
    "per core",
    "bound",
    "CPU: Warmcore",
    "tokio's",
    "per core",
    "bound",
    "moved: Warmcore",
    "tokio's",
];

/// The table as text.
pub(super) fn text(table: &Table<JsonRow>) -> String {
    let mut all = vec![HEADS.map(str::to_owned).to_vec()];
    all.extend(lines(table));
    let seeds = table.rows.iter().map(|row| row.seeds).min().unwrap_or(0);
    let notes = table.notes.iter().map(|note| format!("- {note}"));
    let first =
        format!("- Medians of {seeds} seeds; --json has the least and the most, and where tasks moved to.");
    let below: String = std::iter::once(first).chain(notes).map(|text| sentence(&text) + "\n").collect();
    let source = sentence(&table.source);
    printable(&format!("\n{}: {}\n{source}\n\n{}\n{below}", table.name, table.machine, columns(&all)))
}

/// The curves of a load that needs a part of the CPUs.
pub(super) struct Curves {
    /// The part, in percent.
    pub percent: u64,
    /// The figure's name, and its picture.
    pub charts: Vec<(&'static str, String)>,
}

/// A load in the page.
pub(super) struct OfLoad {
    /// Its name.
    pub name: &'static str,
    /// The curves by part of the CPUs, the least first.
    pub parts: Vec<Curves>,
}

/// A machine in the page.
pub(super) struct Page<'a> {
    /// The table, for its notes.
    pub table: &'a Table<JsonRow>,
    /// The fewest seeds of a row.
    pub seeds: usize,
    /// The loads that it has.
    pub loads: Vec<OfLoad>,
    /// The heads and the cells of the table.
    pub heads: [&'static str; 16],
    pub lines: Vec<Vec<String>>,
}

/// The curves and numbers of a table.
pub(super) fn page(table: &Table<JsonRow>) -> Page<'_> {
    let points = points(table);
    let of_load = |load: Load| {
        let of_load = points.iter().filter(|(name, _)| name.load == load.name());
        let mut percents: Vec<u64> = of_load.map(|(name, _)| name.percent).collect();
        percents.dedup();
        let part = |percent| {
            let points: Vec<(u64, &Numbers<'_>)> = points
                .iter()
                .filter(|(name, _)| name.load == load.name() && name.percent == percent)
                .map(|(name, numbers)| (name.cpus, numbers))
                .collect();
            Curves { percent, charts: charts(load, percent, &points) }
        };
        OfLoad { name: load.name(), parts: percents.into_iter().map(part).collect() }
    };
    Page {
        table,
        seeds: table.rows.iter().map(|row| row.seeds).min().unwrap_or(0),
        loads: Load::ALL.map(of_load).into_iter().filter(|load| !load.parts.is_empty()).collect(),
        heads: HEADS,
        lines: lines(table),
    }
}

/// What a chart shows of a side at a point with so many CPUs, and whether it is the side's or that of the bound.
type Shown = fn(&Numbers<'_>, Option<&str>, u64) -> Option<f64>;

/// A number of a side, or the bound beside it.
fn number(numbers: &Numbers<'_>, side: Option<&str>, figure: &str) -> Option<f64> {
    match side {
        Some(side) => numbers.get(&(side, figure))?.0,
        None => Side::ALL.iter().find_map(|side| numbers.get(&(side.name(), figure))?.1),
    }
}

/// The four charts: throughput by CPU, 99th percentile, moved polls, CPU time of a round.
fn charts(load: Load, percent: u64, points: &[(u64, &Numbers<'_>)]) -> Vec<(&'static str, String)> {
    let all: [(&str, &str, bool, Shown); 4] = [
        ("Rounds per second and CPU", "k/s", false, |numbers, side, cpus| {
            Some(number(numbers, side, ROUNDS)? / cpus as f64)
        }),
        ("99th percentile", "µs", true, |numbers, side, _| {
            number(numbers, side, P99).map(|ns| ns / 1e3).filter(|us| *us > 0.0)
        }),
        ("Polls after a move", "%", false, |numbers, side, _| match side {
            // A runtime per core and the bound have none.
            Some(side) if side != Side::PerCore.name() => moved(numbers, side),
            _ => Some(0.0),
        }),
        ("CPU time per round", "µs", false, |numbers, side, _| {
            number(numbers, side, CPU).map(|ns| ns / 1e3)
        }),
    ];
    let sides = Side::ALL.iter().map(|side| Some(side.name())).chain([None]);
    all.into_iter()
        .map(|(what, unit, is_log, shown)| {
            let curve = |(class, side): (usize, Option<&'static str>)| {
                let at = |(cpus, numbers): &(u64, &Numbers<'_>)| {
                    Some((*cpus as f64, shown(numbers, side, *cpus).filter(|number| number.is_finite())?))
                };
                let points = points.iter().filter_map(at).collect();
                Curve { name: side.unwrap_or("bound").to_owned(), points, class, is_published: false }
            };
            let curves: Vec<Curve> =
                sides.clone().enumerate().map(curve).filter(|curve| !curve.points.is_empty()).collect();
            let label = format!("{what}, {}, {percent} % of the CPUs", load.name());
            let svg = if curves.is_empty() {
                String::new()
            } else {
                plot::curves(&curves, "CPUs", unit, is_log, &label)
            };
            (what, svg)
        })
        .filter(|(_, svg)| !svg.is_empty())
        .collect()
}

#[cfg(test)]
pub(super) mod tests;
