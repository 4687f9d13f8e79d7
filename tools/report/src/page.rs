//! The report as one HTML file that loads nothing and opens from disk.
//!
//! Four questions come first, each with a picture: what this machine is; how fast tasks run on Warmcore compared with
//! tokio; what per-CPU data and budgets cost compared with the usual alternatives; and the results of simulations of
//! other machines. Everything else is folded below. `templates/page.html` has the markup; this file fills it.

use super::answers::{self, Answer, Standing};
use super::elsewhere;
use super::imagined::{Simulated, Table};
use super::inputs::{EXPECTED, Finding, Inputs, PROBE_COMMAND, State};
use super::markup::{MARKS_CSS, amount, digits, palette_css};
use super::words::{bound, compared, disturbed, interval};
use super::{cases, distances, machine_picture, plot, tally};
use askama::Template;
use warmcore_papers::sensitivity::{Input, Sensitivity};
use warmcore_results::{Results, Row};

/// The template of the page, and the data that it shows.
#[derive(Template)]
#[template(path = "page.html")]
struct Page {
    css: String,
    processor: String,
    facts: Vec<String>,
    tally: String,
    disturbed: Option<String>,
    machine: Machine,
    tasks: Group,
    data: Group,
    elsewhere: Vec<Elsewhere>,
    simulated: Option<SimulatedBy>,
    timeline: String,
    runs: Vec<Run>,
    tables: Vec<SimTable>,
    sensitivities: Vec<Sensitive>,
    findings: Vec<Fact>,
    missing: Vec<(String, String)>,
}

/// The section on this machine, and on the cost of moving data between its CPUs.
struct Machine {
    picture: String,
    words: String,
    moves: Vec<distances::Move>,
    verdict: Option<String>,
    probe_command: &'static str,
}

/// The answers to one question.
struct Group {
    chart: String,
    rows: Vec<AnswerRow>,
    /// The commands that add the runs that are missing.
    commands: Vec<&'static str>,
}

struct AnswerRow {
    what: String,
    alternative: String,
    ours: String,
    other: String,
    times: String,
    interval: String,
    standing: &'static str,
    command: String,
}

/// A simulated table with its curves.
struct Elsewhere {
    title: String,
    machine: String,
    charts: Vec<String>,
}

/// All simulated tables.
struct SimulatedBy {
    command: String,
    tally: String,
    interrupted: Option<String>,
}

/// One run, which is folded in the page: a chart per case and metric, and every row.
struct Run {
    what: String,
    command: String,
    about: String,
    cases: Vec<Case>,
}

struct Case {
    name: String,
    charts: Vec<(String, String)>,
    rows: Vec<Vec<String>>,
}

struct SimTable {
    title: String,
    machine: String,
    source: String,
    tally: String,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

/// A simulated result, and the estimated numbers of the machine that change it.
struct Sensitive {
    asked: String,
    machine: String,
    plain: String,
    still: usize,
    rows: Vec<Vec<String>>,
}

struct Fact {
    what: String,
    state: &'static str,
    fact: String,
    advice: String,
}

/// The report as one self-contained HTML page.
///
/// # Panics
///
/// Never: the template writes into memory.
pub fn page(inputs: &Inputs) -> String {
    let [tasks, data] = [answers::tasks(inputs.runs), answers::data(inputs.runs)];
    let simulated = inputs.imagined.and_then(|imagined| imagined.simulated.as_ref());
    let timelines: Vec<_> = inputs.runs.iter().flat_map(|run| run.timelines.clone()).collect();
    let page = Page {
        css: [&palette_css(), MARKS_CSS, &plot::css(), include_str!("../templates/page.css")].concat(),
        processor: processor(inputs),
        facts: facts(inputs),
        tally: tally(inputs),
        disturbed: disturbed(inputs.runs),
        machine: machine(inputs),
        tasks: group(
            &tasks,
            "Tasks on Warmcore and on tokio",
            &["warmcore bench wake", "warmcore bench http"],
        ),
        data: Group {
            chart: costs(inputs.runs),
            ..group(&data, "", &["warmcore bench percpu", "warmcore bench budget"])
        },
        elsewhere: simulated.map(curves).unwrap_or_default(),
        simulated: simulated.map(|all| SimulatedBy {
            command: all.command.clone(),
            tally: all.tally(),
            interrupted: all.interrupted.clone(),
        }),
        timeline: match timelines.is_empty() {
            true => String::new(),
            false => plot::timelines(&timelines, "Which id each CPU had"),
        },
        runs: inputs.runs.iter().map(run).collect(),
        tables: simulated.map(|all| all.tables.iter().map(sim_table).collect()).unwrap_or_default(),
        sensitivities: inputs.imagined.iter().flat_map(|all| &all.sensitivities).map(sensitive).collect(),
        findings: inputs.doctor.iter().map(finding).collect(),
        missing: missing(inputs),
    };
    printable(&page.render().expect("the template writes into memory"))
}

/// `text` without characters that XML forbids, which names from outside may contain.
fn printable(text: &str) -> String {
    let is_forbidden =
        |c: char| c.is_control() && !matches!(c, '\n' | '\t') || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if is_forbidden(c) { '\u{fffd}' } else { c }).collect()
}

/// The pictures of a report, each for a separate file: the file's name, then its content.
pub fn pictures(inputs: &Inputs) -> Vec<(String, String)> {
    let mut files = vec![("machine.svg".to_owned(), machine_picture::svg(inputs.topology))];
    let mut add = |name: &str, svg: String| {
        if !svg.is_empty() {
            let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            files.push((format!("{name}.svg"), printable(&plot::alone(&svg))));
        }
    };
    let tasks = answers::tasks(inputs.runs);
    if !tasks.is_empty() {
        add("tasks", plot::answers(&tasks, "Tasks on Warmcore and on tokio"));
    }
    add("costs", costs(inputs.runs));
    let timelines: Vec<_> = inputs.runs.iter().flat_map(|run| run.timelines.clone()).collect();
    if !timelines.is_empty() {
        add("ids", plot::timelines(&timelines, "Which id each CPU had"));
    }
    let simulated = inputs.imagined.and_then(|imagined| imagined.simulated.as_ref());
    for table in simulated.iter().flat_map(|simulated| &simulated.tables) {
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

fn machine(inputs: &Inputs) -> Machine {
    let moves = inputs.probe.map(|probe| distances::moves(inputs.topology, probe)).unwrap_or_default();
    let noisy = |probe: &super::Probe| if probe.noisy { " (noisy)" } else { "" };
    Machine {
        picture: machine_picture::html(inputs.topology),
        words: machine_picture::in_words(inputs.topology),
        moves,
        verdict: inputs.probe.map(|probe| format!("{}{}", probe.verdict, noisy(probe))),
        probe_command: PROBE_COMMAND,
    }
}

fn value((value, unit): &(f64, String)) -> String {
    amount(*value, unit)
}

fn group(answers: &[Answer], label: &str, commands: &[&'static str]) -> Group {
    let row = |answer: &Answer| AnswerRow {
        what: answer.what.to_owned(),
        alternative: answer.alternative.to_owned(),
        ours: answer.ours.as_ref().map(value).unwrap_or_default(),
        other: answer.other.as_ref().map(value).unwrap_or_default(),
        times: format!("{}×", digits(answer.times)),
        interval: answer.interval.map(digits).join(" … "),
        standing: answer.standing().word(),
        command: match answer.standing() {
            Standing::Undecided => answer.command.clone(),
            _ => String::new(),
        },
    };
    let chart = if answers.is_empty() { String::new() } else { plot::answers(answers, label) };
    Group { chart, rows: answers.iter().map(row).collect(), commands: commands.to_vec() }
}

/// The chart of the time that each operation takes on Warmcore and on the alternatives.
fn costs(runs: &[Results]) -> String {
    const LEGEND: [&str; 5] =
        ["Warmcore", "a shared atomic", "a thread-local number", "a mutex", "malloc and free"];
    let operations: Vec<_> = answers::operations(runs);
    match operations.is_empty() {
        true => String::new(),
        false => {
            plot::times(&operations, &LEGEND, "Per-CPU data and budgets beside what one would use instead")
        }
    }
}

fn curves(simulated: &Simulated) -> Vec<Elsewhere> {
    let of = |table: &Table| Elsewhere {
        title: elsewhere::title(&table.name).to_owned(),
        machine: table.machine.clone(),
        charts: elsewhere::charts(table),
    };
    simulated.tables.iter().map(of).filter(|table| !table.charts.is_empty()).collect()
}

fn run(run: &Results) -> Run {
    let load = &run.load;
    let about = format!(
        "{}; {}; {:.0} % of the CPUs stolen and {:.0} % used by others meanwhile",
        run.when,
        run.percpu_backend,
        load.steal_share * 100.0,
        load.others_share * 100.0
    );
    let case = |name: &str| {
        let rows: Vec<&Row> = run.rows.iter().filter(|row| row.case == name).collect();
        let mut metrics: Vec<(&str, &str)> = Vec::new();
        for row in rows.iter().filter(|row| row.over.is_none()) {
            if !metrics.contains(&(&row.metric, &row.unit)) {
                metrics.push((&row.metric, &row.unit));
            }
        }
        let chart = |(metric, unit): &(&str, &str)| {
            let of = |row: &&&Row| row.over.is_none() && row.metric == *metric && row.unit == *unit;
            let rows: Vec<&Row> = rows.iter().filter(of).copied().collect();
            // A chart of one number would show nothing.
            let svg = if rows.len() < 2 { String::new() } else { plot::variants(&rows, metric) };
            (metric.to_string(), svg)
        };
        Case {
            name: name.to_owned(),
            charts: metrics.iter().map(chart).filter(|(_, svg)| !svg.is_empty()).collect(),
            rows: rows.iter().map(|row| cells(row)).collect(),
        }
    };
    let cases = cases(run).into_iter().map(case).collect();
    Run { what: run.what.clone(), command: run.command.clone(), about, cases }
}

/// The cells of a row: what is compared, metric, median, interval, slices, and whether it is noisy.
fn cells(row: &Row) -> Vec<String> {
    let expected = row.target.as_ref().map(|target| format!("; expected {}", bound(row, target)));
    let noisy = if row.noisy { "noisy" } else { "" };
    vec![
        compared(row),
        row.metric.clone(),
        amount(row.median, &row.unit),
        interval(row).unwrap_or_default(),
        row.n.to_string(),
        format!("{noisy}{}", expected.unwrap_or_default()),
    ]
}

fn sim_table(table: &Table) -> SimTable {
    let number = |number: Option<f64>, unit: &str| match (number, unit) {
        (None, _) => "–".to_owned(),
        (Some(number), "percent") => format!("{number:.2} %"),
        (Some(number), unit) => amount(number, unit),
    };
    let rows = table.rows.iter().map(|row| {
        let met = match row.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        let null = (row.null_met == Some(true)).then(|| "a model without any effect meets it".to_owned());
        let transient = (row.transient > 0).then(|| "transient".to_owned());
        let why = row.tolerance.as_ref().and_then(|tolerance| tolerance.why.clone());
        let notes = null.into_iter().chain(transient).chain(row.inputs.iter().cloned()).chain(why);
        let notes: Vec<String> = notes.chain(row.by_construction.clone()).collect();
        let (low, high) = row.spread;
        vec![
            row.name.clone(),
            number(row.published, &row.unit),
            number(row.simulated, &row.unit),
            format!("{} … {}", number(low, &row.unit), number(high, &row.unit)),
            row.mark.replace('_', " "),
            met.to_owned(),
            notes.join("; "),
        ]
    });
    SimTable {
        title: elsewhere::title(&table.name).to_owned(),
        machine: table.machine.clone(),
        source: table.source.clone(),
        tally: table.tally(),
        rows: rows.collect(),
        notes: table.notes.clone(),
    }
}

fn sensitive(one: &Sensitivity) -> Sensitive {
    let of = |number: f64| amount(number, &one.unit);
    let row = |input: &Input| {
        let trust = match input.trust {
            'D' => "documented",
            'R' => "recalled",
            _ => "estimated",
        };
        vec![
            input.name.clone(),
            amount(input.value, &input.unit),
            of(input.low),
            of(input.high),
            trust.to_owned(),
            input.basis.clone(),
        ]
    };
    Sensitive {
        asked: one.asked.clone(),
        machine: one.machine.clone(),
        plain: of(one.plain),
        still: one.still,
        rows: one.inputs.iter().map(row).collect(),
    }
}

fn finding(finding: &Finding) -> Fact {
    Fact {
        what: finding.what.clone(),
        state: match finding.state {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Missing => "missing",
        },
        fact: finding.fact.clone(),
        advice: finding.advice.clone().unwrap_or_default(),
    }
}

/// The parts that are not in the report, each with the command that adds it.
fn missing(inputs: &Inputs) -> Vec<(String, String)> {
    let absent = EXPECTED.iter().filter(|(what, ..)| inputs.runs.iter().all(|run| run.what != *what));
    absent.map(|(_, title, command)| (title.to_string(), command.to_string())).collect()
}
