//! Claims: simulated beside published: what was claimed beforehand, and how far what came out is from it.
//!
//! Model.   A line for each tolerance and mark. The band in its middle is what was allowed, the same width whatever the
//!          unit; a dot is a row, full if it is met, hollow if it is missed; the thin line is what was published. What
//!          lies far outside stands at the edge, with a sign. All rows stand below, folded, with their numbers.
//! Number.  78 claimed rows of the table of ids: 9 lines.

use super::imagined::{Row, Simulated, Table};
use super::markup::{amount, esc};
use super::table;
use warmcore_papers::tolerance::{Claim, What};

/// The band, in percent of the strip.
const BAND: (f64, f64) = (38.0, 62.0);
/// What is farther out stands here.
const EDGES: (f64, f64) = (3.0, 97.0);

/// What a table is about.
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

/// What a tolerance is about. One that is not known here is called as in the file.
fn subject(id: &str) -> String {
    let known = match id {
        "cid.ids" => "ids of a thread’s bursts",
        "cid.8_threads_10_ms" => "8 threads, pauses of 10 ms: kept ÷ cache-local",
        "cid.10_ms" => "a burst, pauses of 10 ms",
        "cid.200_ms" => "a burst, pauses of 200 ms",
        "cid.200_ms_speedup" => "kept ÷ cache-local, pauses of 200 ms",
        "false_sharing.reader" => "the reader’s extra cost that is gone",
        "false_sharing.culprit" => "wrong fields named",
        "drain.cycles" => "cycles of a drain",
        "drain.saving" => "saved at all CPUs",
        "drain.contended" => "held locks met",
        "hot_windows.regimes" => "round trips in both regimes",
        "hot_windows.window" => "the most gained",
        "wake_queue.time" => "a build’s time, wake queue",
        "sis_node.time" => "a build’s time, SIS_NODE",
        "by_load.nothing" => "loads at which nothing happened",
        "by_load.effect" => "loads at which something did",
        other => return other.replace('_', " "),
    };
    known.to_owned()
}

/// A number of a row, with its unit.
pub(super) fn of(number: Option<f64>, unit: &str) -> String {
    match (number, unit) {
        (None, _) => "–".to_owned(),
        (Some(number), "percent") => format!("{number:.2} %"),
        (Some(number), unit) => amount(number, unit),
    }
}

/// The least and the most that was allowed, in the row's unit.
fn bounds(row: &Row) -> Option<(f64, f64)> {
    let tolerance = row.tolerance.as_ref().filter(|tolerance| tolerance.claim != Claim::None)?;
    let (low, high) = (tolerance.low, tolerance.high);
    Some(match tolerance.what? {
        // Of a negative number the larger multiple is the lower bound.
        What::Ratio if row.published? < 0.0 => (row.published? * high, row.published? * low),
        What::Ratio => (row.published? * low, row.published? * high),
        What::Difference => (row.published? + low, row.published? + high),
        What::Simulated => (low, high),
    })
}

fn allowed(row: &Row) -> String {
    bounds(row).map_or_else(
        || "–".to_owned(),
        |(low, high)| match low == high {
            true => of(Some(low), &row.unit),
            false => format!("{} to {}", of(Some(low), &row.unit), of(Some(high), &row.unit)),
        },
    )
}

fn mark(row: &Row) -> String {
    row.mark.replace('_', " ")
}

/// Where a number stands, in percent of the strip: on the band if it is allowed.
fn at(number: f64, (low, high): (f64, f64)) -> f64 {
    let (left, right) = BAND;
    let place = match high - low {
        width if width > 0.0 => left + (right - left) * (number - low) / width,
        // Only one number is allowed.
        _ if number == low => (left + right) / 2.0,
        _ if number < low => EDGES.0,
        _ => EDGES.1,
    };
    if place.is_nan() { EDGES.1 } else { place.clamp(EDGES.0, EDGES.1) }
}

/// Rows of one tolerance and one mark, in the order in which they first come.
struct Group<'a> {
    name: String,
    mark: String,
    rows: Vec<&'a Row>,
}

fn groups(table: &Table) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for row in table.rows.iter().filter(|row| row.met.is_some()) {
        let Some(tolerance) = &row.tolerance else { continue };
        let (name, mark) = (subject(&tolerance.id), mark(row));
        match groups.iter_mut().find(|group| group.name == name && group.mark == mark) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { name, mark, rows: vec![row] }),
        }
    }
    groups
}

fn met(rows: &[&Row]) -> usize {
    rows.iter().filter(|row| row.met == Some(true)).count()
}

fn claimed(table: &Table) -> Vec<&Row> {
    table.rows.iter().filter(|row| row.met.is_some()).collect()
}

/// How many of the rows that a model without an effect says something about it meets.
fn null(table: &Table) -> (usize, usize) {
    let known = || table.rows.iter().filter_map(|row| row.null_met);
    (known().filter(|met| *met).count(), known().count())
}

/// A row in a sentence.
fn spoken(row: &Row) -> String {
    let published = row.published.map(|number| format!(", published {}", of(Some(number), &row.unit)));
    format!(
        "{}: {}{}, allowed {}: {}",
        row.name,
        of(row.simulated, &row.unit),
        published.unwrap_or_default(),
        allowed(row),
        if row.met == Some(true) { "met" } else { "missed" }
    )
}

fn line(group: &Group) -> String {
    let (left, right) = BAND;
    let mut marks = format!(
        "<rect class=\"allowed\" x=\"{left}%\" width=\"{}%\" y=\"3\" height=\"20\" rx=\"2\"/>",
        right - left
    );
    let published = |row: &&Row| Some((at(row.published?, bounds(row)?) * 10.0).round() as i64);
    let mut lines: Vec<i64> = group.rows.iter().filter_map(published).collect();
    lines.sort_unstable();
    lines.dedup();
    for x in lines {
        let x = x as f64 / 10.0;
        marks += &format!("<line class=\"said\" x1=\"{x}%\" x2=\"{x}%\" y1=\"3\" y2=\"23\"/>");
    }
    // Those that are missed last: they lie on top.
    for is_met in [true, false] {
        for row in group.rows.iter().filter(|row| row.met == Some(is_met)) {
            let (Some(number), Some(bounds)) = (row.simulated, bounds(row)) else { continue };
            let x = at(number, bounds);
            let class = if is_met { "hit" } else { "miss" };
            marks += &format!(
                "<circle class=\"{class}\" cx=\"{x:.1}%\" cy=\"13\" r=\"5\"><title>{}</title></circle>",
                esc(&spoken(row))
            );
            if x <= EDGES.0 {
                marks += "<text class=\"clip\" x=\"0\" y=\"19.5\">‹</text>";
            } else if x >= EDGES.1 {
                marks += "<text class=\"clip end\" x=\"100%\" y=\"19.5\">›</text>";
            }
        }
    }
    let (met, all) = (met(&group.rows), group.rows.len());
    let standing = if met == all { "met" } else { "missed" };
    let told = match (met == all, all) {
        (true, 1) => "✓ met".to_owned(),
        (true, _) => format!("✓ all {all} met"),
        (false, 1) => "✕ missed".to_owned(),
        (false, _) => format!("✕ {} of {all} missed", all - met),
    };
    format!(
        "<li class=\"line\"><span class=\"name\">{} <em>{}</em></span><svg class=\"strip\" height=\"26\" role=\"img\">\
         <title>{}, {}: {told}</title>{marks}</svg><span class=\"value {standing}\">{told}</span></li>",
        esc(&group.name),
        esc(&group.mark),
        esc(&group.name),
        esc(&group.mark)
    )
}

/// What was found, in a sentence.
fn sentence(table: &Table) -> String {
    let rows = claimed(table);
    let (met, of) = (met(&rows), rows.len());
    let count = |mark: &str| table.rows.iter().filter(|row| row.mark == mark).count();
    let mut parts = vec![match of {
        0 => "Nothing is claimed".to_owned(),
        _ if met == of => {
            format!("All {of} numbers that were claimed are within what was allowed beforehand")
        }
        _ => format!(
            "Of {of} numbers that were claimed, {met} {} within what was allowed beforehand and {} {} missed",
            if met == 1 { "is" } else { "are" },
            of - met,
            if of - met == 1 { "is" } else { "are" }
        ),
    }];
    if let (met, of @ 1..) = null(table) {
        parts.push(format!("a model in which the proposal has no effect meets {met} of {of}"));
    }
    for (mark, what) in [("not_claimed", "claimed for"), ("new", "published about")] {
        match count(mark) {
            0 => {}
            1 => parts.push(format!("nothing is {what} 1 row")),
            n => parts.push(format!("nothing is {what} {n} rows")),
        }
    }
    match count("by_construction") {
        0 => {}
        1 => parts.push("1 row can’t come out otherwise and is not counted".to_owned()),
        n => parts.push(format!("{n} rows can’t come out otherwise and are not counted")),
    }
    parts.join("; ") + "."
}

/// All rows, those that are missed first.
fn rows(table: &Table) -> String {
    let order = |row: &&Row| match row.met {
        Some(false) => 0,
        Some(true) => 1,
        None => 2,
    };
    let mut rows: Vec<&Row> = table.rows.iter().collect();
    rows.sort_by_key(order);
    let cells = |row: &&Row| {
        let standing = match row.met {
            Some(true) => "<span class=\"met\">✓ met</span>".to_owned(),
            Some(false) => "<span class=\"missed\">✕ missed</span>".to_owned(),
            None => "–".to_owned(),
        };
        let standing = match row.null_met {
            Some(true) => standing + "<small>a model without any effect meets it</small>",
            _ => standing,
        };
        let mut is = esc(&mark(row));
        if row.transient > 0 {
            is += "<small>transient</small>";
        }
        let why = row.tolerance.as_ref().and_then(|tolerance| tolerance.why.clone());
        for note in row.inputs.iter().cloned().chain(why).chain(row.by_construction.clone()) {
            is += &format!("<small>{}</small>", esc(&note));
        }
        let spread = match row.spread {
            (low, high) if low == high => "–".to_owned(),
            (low, high) => format!("{} … {}", of(low, &row.unit), of(high, &row.unit)),
        };
        vec![
            esc(&row.name),
            esc(&of(row.published, &row.unit)),
            esc(&of(row.simulated, &row.unit)),
            esc(&spread),
            esc(&allowed(row)),
            standing,
            is,
        ]
    };
    table::simulated(&rows.iter().map(cells).collect::<Vec<_>>())
}

fn article(table: &Table) -> String {
    let lines: String = groups(table).iter().map(line).collect();
    let chart = match lines.is_empty() {
        true => String::new(),
        false => format!("<figure class=\"chart spaced\"><ol>{lines}</ol></figure>\n"),
    };
    let notes: String = table.notes.iter().map(|note| format!("<li>{}</li>", esc(note))).collect();
    format!(
        "<article><h4>{}, on {}</h4>\n<p>{}</p>\n{chart}<details><summary>All {} rows, those that are missed first\
         </summary>\n<p>Published: {}.</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"All rows \
         of {}\">{}</div></details>\n<details><summary>What to know before one believes it</summary>\n\
         <ul class=\"notes\">{notes}</ul></details></article>\n",
        esc(title(&table.name)),
        esc(&table.machine),
        esc(&sentence(table)),
        table.rows.len(),
        esc(&table.source),
        esc(title(&table.name)),
        rows(table),
    )
}

/// All tables in a sentence.
fn tally(simulated: &Simulated) -> String {
    let claimed: Vec<&Row> = simulated.tables.iter().flat_map(claimed).collect();
    let by = |mark: &str| {
        let rows: Vec<&Row> = claimed.iter().copied().filter(|row| row.mark == mark).collect();
        (met(&rows), rows.len())
    };
    let ((predicted, of_predicted), (fitted, of_fitted)) = (by("predicted"), by("fitted"));
    let nulls = || simulated.tables.iter().map(null);
    let (null, of_null) =
        (nulls().map(|(met, _)| met).sum::<usize>(), nulls().map(|(_, of)| of).sum::<usize>());
    let beside = match of_null {
        0 => String::new(),
        _ => format!(" A model in which no proposal has any effect meets {null} of {of_null}."),
    };
    format!(
        "{predicted} of {of_predicted} predicted numbers and {fitted} of {of_fitted} fitted ones are within what was \
         allowed beforehand.{beside}"
    )
}

/// The tables.
pub(super) fn html(simulated: &Simulated) -> String {
    let articles: String = simulated.tables.iter().map(article).collect();
    let quick = match simulated.command.contains("--quick") {
        true => format!(
            " That is a quick form with few seeds, in which effects of less than a percent are noise; <code>{}</code> and \
             <code>warmcore report --out . --render</code> in the folder of this page show the whole.",
            esc(super::imagined::COMMAND)
        ),
        false => String::new(),
    };
    let left_out = |why: &String| format!("<p class=\"missing\">Interrupted: {}</p>\n", esc(why));
    let left_out = simulated.interrupted.as_ref().map(left_out).unwrap_or_default();
    format!(
        "<h3>Against what others measured</h3>\n<p class=\"verdict\">{}</p>\n{left_out}<p>A number is predicted if nothing in it was \
         chosen by looking at the published table, and fitted if something was; how far it may be from what was published \
         was written down before this simulator. A row that can’t come out otherwise is counted nowhere, and one is met \
         if its median and its mean over the seeds are. <code>{}</code> repeats it, to the digit.{quick}</p>\n\
         <p class=\"reading\">How to read: a line is a promise, a dot one number that is under it. The band is what was \
         allowed, the thin line what was published. A hollow dot is missed; ‹ and › are farther out than there is room.\
         </p>\n{articles}",
        esc(&tally(simulated)),
        esc(&simulated.command)
    )
}

/// The same in lines of text: a miss is said as loud as what is met.
pub(super) fn text(simulated: &Simulated) -> Vec<String> {
    let mut lines = vec![format!("{} ({})", tally(simulated), simulated.command)];
    for table in &simulated.tables {
        let rows = claimed(table);
        let beside = match null(table) {
            (_, 0) => String::new(),
            (met, of) => format!("; a model without any effect meets {met} of {of}"),
        };
        lines.push(format!(
            "{}: {} of {} rows within what was allowed{beside}",
            table.name,
            met(&rows),
            rows.len()
        ));
        let missed = rows.iter().filter(|row| row.met == Some(false));
        lines.extend(missed.map(|row| format!("missed, {}: {}", mark(row), spoken(row))));
    }
    lines
}
