//! The report as text for a terminal, its rows as CSV for a spreadsheet, and the page of the docs with those promises
//! of the benches (bounds that rows should meet) that are missed or undecided.

use super::answers::{self, Answer};
use super::inputs::{Inputs, PROBE_COMMAND, State};
use super::markup::amount;
use super::words::{self, bound, compared, interval, measured};
use super::{SIM_COMMAND, cases, imagined, machine_picture, tally};
use std::collections::BTreeSet;
use warmcore_results::{Bound, Results, Row, Standing, Target, Timeline};

/// A sentence wraps at this many characters.
const WIDTH: usize = 96;

/// Formats rows as a block of columns with a title; an empty string if there are no rows.
fn table(title: &str, rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() { String::new() } else { format!("\n{title}\n{}", columns(&rows)) }
}

/// The short form of the report: the number of comparisons by `answers::Standing`, the machine, a line for each
/// comparison, and which runs other processes disturbed.
pub fn short(inputs: &Inputs) -> String {
    let mut out =
        format!("{}\n\n{}.\n", sentence(&tally(inputs)), machine_picture::in_words(inputs.topology));
    let row = |answer: &Answer| {
        let longer = answer.longer().map(|command| format!("longer: {command}"));
        vec![
            answer.standing().word().to_owned(),
            answer.times(),
            answer.interval(),
            answer.what.to_owned(),
            format!("beside {}", answer.alternative),
            longer.unwrap_or_default(),
        ]
    };
    for (title, answers) in [
        (
            "Your tasks, on tokio and on Warmcore (how many times better Warmcore is)",
            answers::tasks(inputs.runs),
        ),
        ("Per-CPU data and budgets, beside what one would use instead", answers::data(inputs.runs)),
    ] {
        out += &table(title, answers.iter().map(row).collect());
    }
    if let Some(told) = words::disturbed(inputs.runs) {
        out += &format!("\n{}\n", sentence(&told));
    }
    printable(&out)
}

/// One run as a table: a line per row, by case, in the run's order; then the load of the machine during the run and, if
/// they were recorded, the ids over time.
pub fn run_table(run: &Results) -> String {
    let head = ["case", "variant", "metric", "p25", "median", "min", "max", "slices", ""];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in cases(run).into_iter().flat_map(|case| run.rows.iter().filter(move |r| r.case == case)) {
        let mut cells = vec![row.case.clone(), compared(row), row.metric.clone()];
        cells.extend([row.p25, row.median, row.min, row.max].map(|v| amount(v, &row.unit)));
        let standing = row.target.as_ref().map(|t| format!("{}: {}", bound(row, t), t.standing(row).word()));
        let noisy = (row.noisy && row.target.is_none()).then(|| "noisy".to_owned());
        cells.extend([row.n.to_string(), standing.or(noisy).unwrap_or_default()]);
        lines.push(cells);
    }
    let load = format!(
        "backend {}; load {:.2} before, {:.0} % stolen and {:.0} % used by others meanwhile",
        run.percpu_backend,
        run.load.loadavg_1m,
        run.load.steal_share * 100.0,
        run.load.others_share * 100.0
    );
    let disturbed = words::disturbed(std::slice::from_ref(run));
    let disturbed = disturbed.map(|told| told + "\n").unwrap_or_default();
    printable(&format!("{}\n{}{load}\n{disturbed}{}", run.command, columns(&lines), timelines(run)))
}

/// The ids over time, if they were recorded.
fn timelines(run: &Results) -> String {
    if run.timelines.is_empty() {
        return String::new();
    }
    // Ids are aligned left: a list of them is not a number.
    format!("\n{}\n{}", timelines_title(run), aligned(&timelines_rows(run), |_| false))
}

/// What the timelines show, in a line.
fn timelines_title(run: &Results) -> String {
    // Whether each CPU had the same id in all its bursts, no two CPUs had the same id, and some CPU had two bursts.
    let is_kept = |timeline: &&Timeline| {
        let lanes = || timeline.lanes.iter().map(|lane| &lane.bursts[..]).filter(|bursts| !bursts.is_empty());
        let ids: BTreeSet<u32> = lanes().map(|bursts| bursts[0].cid).collect();
        lanes().all(|bursts| bursts.iter().all(|burst| burst.cid == bursts[0].cid))
            && lanes().any(|bursts| bursts.len() > 1)
            && lanes().count() == ids.len()
    };
    match run.timelines.iter().find(is_kept) {
        Some(timeline) => format!("The same CPU, the same id: {}", timeline.policy),
        None => "Which id each CPU had".to_owned(),
    }
}

/// The ids of the bursts, a row per CPU.
fn timelines_rows(run: &Results) -> Vec<Vec<String>> {
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

/// Replaces characters that would control the terminal, except line ends; names in the text may come from outside.
pub(super) fn printable(text: &str) -> String {
    text.split('\n')
        .map(|line| warmcore_results::printable::printable(line, '\u{fffd}'))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The whole report as text.
pub fn summary(inputs: &Inputs) -> String {
    let mut out = short(inputs);
    for run in inputs.runs {
        let rows = cases(run).into_iter().flat_map(|case| {
            let mut rows: Vec<&Row> = run.rows.iter().filter(|r| r.case == case).collect();
            rows.sort_by(|a, b| {
                (&a.unit, &a.metric).cmp(&(&b.unit, &b.metric)).then(a.median.total_cmp(&b.median))
            });
            rows
        });
        let cells = |r: &Row| {
            let noisy = if r.noisy { "noisy" } else { "" };
            vec![
                r.case.clone(),
                compared(r),
                r.metric.clone(),
                amount(r.median, &r.unit),
                interval(r).unwrap_or_default(),
                noisy.to_owned(),
            ]
        };
        out += &table(
            &format!("{}  ({}; {})", run.what, run.command, run.percpu_backend),
            rows.map(cells).collect(),
        );
    }
    if let Some(simulated) = inputs.simulated() {
        out += "\nSimulated\n";
        out.extend(imagined::text(simulated).iter().map(|line| sentence(&format!("- {line}")) + "\n"));
    }
    if let Some(probe) = inputs.probe {
        out += &format!("\n{}{}\n", sentence(&probe.verdict), if probe.noisy { " (noisy)" } else { "" });
    }
    let trouble = inputs.doctor.iter().filter(|f| f.state != State::Ok).map(|f| {
        let advice = f.advice.as_ref().map(|a| format!("; {a}")).unwrap_or_default();
        vec![f.what.clone(), f.state.word().to_owned(), format!("{}{advice}", f.fact)]
    });
    out += &table("Doctor", trouble.collect());
    let absent = inputs.absent().map(|(what, _, by)| (*what, *by));
    let probe = inputs.probe.is_none().then_some(("topo-probe", PROBE_COMMAND));
    let tables = inputs.simulated().is_none().then_some(("sim-tables", SIM_COMMAND));
    let absent =
        absent.chain(probe).chain(tables).map(|(what, by)| vec![what.to_owned(), by.to_owned()]).collect();
    out += &table("Not run; the command that adds it", absent);
    printable(&out)
}

/// Formats rows in columns as wide as their widest cell. After the first column, cells that begin with a digit (or `-`
/// and a digit) are aligned right.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    aligned(rows, |cell| cell.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()))
}

/// Formats rows in columns. After the first column, cells for which `is_number` holds are aligned right.
fn aligned(rows: &[Vec<String>], is_number: fn(&str) -> bool) -> String {
    let count = |s: &String| s.chars().count();
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(count).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, width))| {
            // `format!` counts chars. Each char that we write takes one column of the terminal.
            if i > 0 && is_number(cell) { format!("  {cell:>width$}") } else { format!("  {cell:<width$}") }
        });
        let line: String = cells.collect();
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Breaks `text` between words into lines of at most `width` characters; only a word that is longer, or that does not
/// fit behind the indent, makes a longer line. The second and later lines are indented by `indent`.
pub fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if last.is_empty() {
            *last = word.to_owned();
        } else if last.chars().count() + word.chars().count() >= width {
            lines.push(format!("{:indent$}{word}", ""));
        } else {
            *last += &format!(" {word}");
        }
    }
    lines.join("\n")
}

/// Breaks a sentence into lines of at most [`WIDTH`] characters.
pub(super) fn sentence(text: &str) -> String {
    wrapped(text, WIDTH, 0)
}

/// Every row of every run as CSV (RFC 4180), with a header line.
pub fn raw_csv(runs: &[Results]) -> String {
    let mut out = "run,when,case,variant,metric,unit,p25,median,min,max,n,noisy,ci95_low,ci95_high,over,\
                   target_kind,target_value,target_standing\r\n"
        .to_owned();
    for (run, row) in runs.iter().flat_map(|run| run.rows.iter().map(move |row| (run, row))) {
        let number = |n: Option<f64>| n.map(|n| n.to_string()).unwrap_or_default();
        let target = row.target.as_ref();
        let kind = target.map_or("", |t| match t.kind {
            Bound::AtLeast => "at_least",
            Bound::AtMost => "at_most",
        });
        let mut cells: Vec<String> =
            [&run.what, &run.when, &row.case, &row.variant, &row.metric, &row.unit].map(|t| quoted(t)).into();
        cells.extend([row.p25, row.median, row.min, row.max].map(|n| n.to_string()));
        cells.extend([row.n.to_string(), row.noisy.to_string()]);
        cells.extend([0, 1].map(|i| number(row.ci95.map(|ci| ci[i]))));
        cells.extend([quoted(row.over.as_deref().unwrap_or_default()), kind.to_owned()]);
        cells.extend([
            number(target.map(|t| t.value)),
            target.map(|t| t.standing(row).word().to_owned()).unwrap_or_default(),
        ]);
        out += &(cells.join(",") + "\r\n");
    }
    out
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// A Markdown page: the number of promises that are met, and each promise that is missed or undecided. If a row was
/// measured more than once, the newest one counts.
pub fn standing(runs: &[Results]) -> String {
    let mut sorted: Vec<&Results> = runs.iter().collect();
    sorted.sort_by(|a, b| a.when.cmp(&b.when));
    let mut newest: Vec<(&Results, &Row, &Target)> = Vec::new();
    for run in sorted {
        for row in &run.rows {
            let Some(target) = &row.target else { continue };
            let is_same = |(other_run, other, _): &(&Results, &Row, &Target)| {
                (&other_run.what, &other.case, &other.variant, &other.metric, &other.over)
                    == (&run.what, &row.case, &row.variant, &row.metric, &row.over)
            };
            newest.retain(|other| !is_same(other));
            newest.push((run, row, target));
        }
    }
    newest.sort_by_key(|(run, row, _)| (run.what.clone(), row.case.clone()));
    let met = newest.iter().filter(|(_, row, target)| target.standing(row) == Standing::Met).count();
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let line = |(run, row, target): &(&Results, &Row, &Target)| {
        let standing = target.standing(row).word();
        format!(
            "| `{}` | {} | {} | {} | {} | {standing} | {} |\n",
            cell(&row.case),
            cell(&measured(row)),
            cell(&bound(row, target)),
            cell(&amount(row.median, &row.unit)),
            cell(&interval(row).unwrap_or_default()),
            cell(run.when.split('T').next().unwrap_or_default()),
        )
    };
    let open: String =
        newest.iter().filter(|(_, row, target)| target.standing(row) != Standing::Met).map(line).collect();
    format!(
        "# Where it stands\n\nWhat the benches expected of themselves, before they were written, on the machine of the newest report in \
         `reports/`.\n`warmcore report --render` writes this page from the results in a folder. Of {} expectations {met} are met; the \
         others:\n\n| case | compared | expected | reached | 95 % interval | | measured |\n|---|---|---|---|---|---|---|\n{open}",
        newest.len()
    )
}
