//! The report as one HTML file that loads nothing and opens from disk.
//!
//! Four questions come first, each with a picture: what this machine is; how fast tasks run on Warmcore compared with
//! tokio; what per-CPU data and budgets cost compared with the usual alternatives; and the results of simulations of
//! other machines. Everything else is folded below. `templates/page.html` has the markup; this file fills it.

use super::answers::{self, Answer};
use super::elsewhere;
use super::imagined::{Simulated, tally as tally_of, word};
use super::inputs::{Finding, Inputs, PROBE_COMMAND, Probe};
use super::markup::{MARKS_CSS, amount, is_forbidden, palette_css, quantity};
use super::words::{bound, compared, disturbed, interval};
use super::{cases, distances, machine_picture, plot, sides, tally};
use askama::Template;
use warmcore_papers::sensitivity::{Input, Sensitivity};
use warmcore_papers::{JsonRow, Table};
use warmcore_results::{Results, Row};

/// The template of the page, and the data that it shows.
#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    css: String,
    processor: String,
    facts: Vec<String>,
    tally: String,
    disturbed: Option<String>,
    machine: Machine<'a>,
    tasks: Group,
    data: Group,
    elsewhere: Vec<Elsewhere<'a>>,
    simulated: Option<&'a Simulated>,
    runtime: Option<&'a Simulated>,
    sides: Vec<sides::Page<'a>>,
    timeline: String,
    runs: Vec<Run<'a>>,
    tables: Vec<SimTable<'a>>,
    sensitivities: Vec<Sensitive<'a>>,
    findings: &'a [Finding],
    missing: Vec<(&'static str, &'static str)>,
}

/// The section on this machine, and on the cost of moving data between its CPUs.
struct Machine<'a> {
    picture: String,
    words: String,
    moves: Vec<distances::Move>,
    probe: Option<&'a Probe>,
    probe_command: &'static str,
}

/// The answers to one question.
struct Group {
    chart: String,
    rows: Vec<Answer>,
    /// The commands that measure what the group shows.
    commands: [&'static str; 2],
}

/// A simulated table with its curves.
struct Elsewhere<'a> {
    title: &'a str,
    machine: &'a str,
    charts: Vec<String>,
}

/// One run, which is folded in the page: a chart for each metric of a case of which there are two numbers or more that
/// are no ratios, and every row.
struct Run<'a> {
    run: &'a Results,
    about: String,
    cases: Vec<Case<'a>>,
}

struct Case<'a> {
    name: &'a str,
    charts: Vec<(&'a str, String)>,
    rows: Vec<[String; 6]>,
}

struct SimTable<'a> {
    table: &'a Table<JsonRow>,
    title: &'a str,
    tally: String,
    rows: Vec<[String; 7]>,
}

/// A simulated result, and the numbers of the machine that change it.
struct Sensitive<'a> {
    of: &'a Sensitivity,
    plain: String,
    rows: Vec<[String; 6]>,
}

/// The report as one self-contained HTML page.
///
/// # Panics
///
/// Never: the template writes into memory.
pub fn page(inputs: &Inputs) -> String {
    let simulated = inputs.simulated();
    let runtime = inputs.imagined.and_then(|imagined| imagined.runtime.as_ref());
    let (tasks, data) = (answers::tasks(inputs.runs), answers::data(inputs.runs));
    let page = Page {
        css: [&palette_css(), MARKS_CSS, &plot::css(), include_str!("../templates/page.css")].concat(),
        processor: processor(inputs),
        facts: facts(inputs),
        tally: tally(inputs),
        disturbed: disturbed(inputs.runs),
        machine: machine(inputs),
        tasks: Group {
            chart: plot::answers(&tasks, TASKS),
            rows: tasks,
            commands: ["warmcore bench wake", "warmcore bench http"],
        },
        data: Group {
            chart: costs(inputs.runs),
            rows: data,
            commands: ["warmcore bench percpu", "warmcore bench budget"],
        },
        elsewhere: simulated.map(curves).unwrap_or_default(),
        simulated,
        runtime,
        sides: runtime.iter().flat_map(|all| &all.tables).map(sides::page).collect(),
        timeline: timeline(inputs.runs),
        runs: inputs.runs.iter().map(run).collect(),
        tables: simulated.iter().flat_map(|all| &all.tables).map(sim_table).collect(),
        sensitivities: inputs.imagined.iter().flat_map(|all| &all.sensitivities).map(sensitive).collect(),
        findings: inputs.doctor,
        missing: inputs.absent().map(|(_, title, command)| (*title, *command)).collect(),
    };
    printable(&page.render().expect("the template writes into memory"))
}

/// Replaces the characters of [`is_forbidden`], which names from outside may contain.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_forbidden(c) { '\u{fffd}' } else { c }).collect()
}

/// The label of the chart of tasks.
const TASKS: &str = "Tasks on Warmcore and on tokio";

/// The chart of the id that each CPU had over time.
fn timeline(runs: &[Results]) -> String {
    let timelines: Vec<_> = runs.iter().flat_map(|run| run.timelines.clone()).collect();
    plot::timelines(&timelines, "Which id each CPU had")
}

/// The pictures of a report for which there are results, each for a separate file: the file's name, then its content.
pub fn pictures(inputs: &Inputs) -> Vec<(String, String)> {
    let mut files = vec![("machine.svg".to_owned(), machine_picture::svg(inputs.topology))];
    let mut add = |name: &str, svg: String| {
        if !svg.is_empty() {
            let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            files.push((format!("{name}.svg"), printable(&plot::alone(&svg))));
        }
    };
    add("tasks", plot::answers(&answers::tasks(inputs.runs), TASKS));
    add("costs", costs(inputs.runs));
    add("ids", timeline(inputs.runs));
    for table in inputs.simulated().iter().flat_map(|simulated| &simulated.tables) {
        for (i, svg) in elsewhere::charts(table).into_iter().enumerate() {
            add(&format!("sim-{}-{}", table.name.replace('_', "-"), i + 1), svg);
        }
    }
    files
}

fn processor(inputs: &Inputs) -> String {
    let of_run = inputs.runs.first().map(|r| r.machine.cpu.clone());
    of_run.or(inputs.topology.model.clone()).unwrap_or_else(|| inputs.topology.source.clone())
}

fn facts(inputs: &Inputs) -> Vec<String> {
    let mut facts = vec![machine_picture::in_words(inputs.topology)];
    if let Some(run) = inputs.runs.first() {
        let host = run.machine.hypervisor.as_ref().map(|name| format!("under {name}"));
        facts.extend([format!("Linux {}", run.machine.kernel), run.percpu_backend.clone()]);
        facts.extend(host);
        facts.push(run.when.clone());
    }
    facts
}

fn machine<'a>(inputs: &Inputs<'a>) -> Machine<'a> {
    let moves = inputs.probe.map(|probe| distances::moves(inputs.topology, probe)).unwrap_or_default();
    Machine {
        picture: machine_picture::html(inputs.topology),
        words: machine_picture::in_words(inputs.topology),
        moves,
        probe: inputs.probe,
        probe_command: PROBE_COMMAND,
    }
}

/// The chart of the time that each operation takes on Warmcore and on the alternatives.
fn costs(runs: &[Results]) -> String {
    const LEGEND: [&str; 5] =
        ["Warmcore", "a shared atomic", "a thread-local number", "a mutex", "malloc and free"];
    let label = "Per-CPU data and budgets beside what one would use instead";
    plot::times(&answers::operations(runs), &LEGEND, label)
}

fn curves(simulated: &Simulated) -> Vec<Elsewhere<'_>> {
    let tables = simulated.tables.iter().map(|table| Elsewhere {
        title: elsewhere::title(&table.name),
        machine: &table.machine,
        charts: elsewhere::charts(table),
    });
    tables.filter(|table| !table.charts.is_empty()).collect()
}

fn run(run: &Results) -> Run<'_> {
    let load = &run.load;
    let about = format!(
        "{}; {}; {:.0} % of the CPUs stolen and {:.0} % used by others meanwhile",
        run.when,
        run.percpu_backend,
        load.steal_share * 100.0,
        load.others_share * 100.0
    );
    let case = |name| {
        let rows: Vec<&Row> = run.rows.iter().filter(|row| row.case == name).collect();
        let mut metrics: Vec<(&str, &str)> = Vec::new();
        for row in rows.iter().filter(|row| row.over.is_none()) {
            if !metrics.contains(&(&row.metric, &row.unit)) {
                metrics.push((&row.metric, &row.unit));
            }
        }
        let charts = metrics.into_iter().filter_map(|(metric, unit)| {
            let of = |row: &&&Row| row.over.is_none() && row.metric == metric && row.unit == unit;
            let rows: Vec<&Row> = rows.iter().filter(of).copied().collect();
            // A chart of one number would show nothing.
            let svg = if rows.len() < 2 { String::new() } else { plot::variants(&rows, metric) };
            (!svg.is_empty()).then_some((metric, svg))
        });
        Case { name, charts: charts.collect(), rows: rows.iter().map(|row| cells(row)).collect() }
    };
    Run { run, about, cases: cases(run).into_iter().map(case).collect() }
}

/// The cells of a row: what is compared, the metric, the median, the interval, the number of slices (measurements), and
/// whether it is noisy and which bound was promised.
fn cells(row: &Row) -> [String; 6] {
    let expected = row.target.as_ref().map(|target| format!("; expected {}", bound(row, target)));
    let noisy = if row.noisy { "noisy" } else { "" };
    [
        compared(row),
        row.metric.clone(),
        amount(row.median, &row.unit),
        interval(row).unwrap_or_default(),
        row.n.to_string(),
        format!("{noisy}{}", expected.unwrap_or_default()),
    ]
}

fn sim_table(table: &Table<JsonRow>) -> SimTable<'_> {
    let rows = table.rows.iter().map(|row| {
        let number =
            |number: Option<f64>| number.map_or("–".to_owned(), |number| quantity(number, &row.unit));
        let null = (row.null_met == Some(true)).then(|| "a model without any effect meets it".to_owned());
        let transient = (row.transient > 0).then(|| "transient".to_owned());
        let why = row.tolerance.as_ref().and_then(|tolerance| tolerance.why.clone());
        let notes = null.into_iter().chain(transient).chain(row.inputs.iter().cloned()).chain(why);
        let notes: Vec<String> = notes.chain(row.by_construction.clone()).collect();
        let (low, high) = row.spread;
        [
            row.name.clone(),
            number(row.published),
            number(row.simulated),
            format!("{} … {}", number(low), number(high)),
            row.mark.replace('_', " "),
            word(row.met, "met", "missed").to_owned(),
            notes.join("; "),
        ]
    });
    SimTable { table, title: elsewhere::title(&table.name), tally: tally_of(table), rows: rows.collect() }
}

fn sensitive(of: &Sensitivity) -> Sensitive<'_> {
    let with_unit = |number: f64| amount(number, &of.unit);
    let row = |input: &Input| {
        let trust = match input.trust {
            'D' => "documented",
            'R' => "recalled",
            _ => "estimated",
        };
        [
            input.name.clone(),
            amount(input.value, &input.unit),
            with_unit(input.low),
            with_unit(input.high),
            trust.to_owned(),
            input.basis.clone(),
        ]
    };
    Sensitive { of, plain: with_unit(of.plain), rows: of.inputs.iter().map(row).collect() }
}
