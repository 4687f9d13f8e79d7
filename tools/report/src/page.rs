//! Page: the report as one HTML file that loads nothing and opens from disk.
//!
//! Model.   What was found, in words; what was promised; the measurements, a chart per case; what was simulated; the
//!          machine; what it offers; how it was run; every row. What wasn't run has its place
//!          too, with the command that adds it.

use super::chart::Chart;
use super::headline::headline;
use super::inputs::{EXPECTED, Inputs, PROBE_COMMAND};
use super::markup::{MARKS_CSS, esc, palette_css};
use super::words::{self, promises_of, tally};
use super::{
    budgets, cases, chart, cids, imagined, imagined_parts, matrix, sharing, table, timeline, topo_picture,
    wakes,
};
use warmcore_results::Results;

const STYLE: &str = include_str!("style.css");

/// The report as one self-contained HTML page.
pub fn page(inputs: &Inputs) -> String {
    let head = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<title>Warmcore report: {}</title>\n\
         <style>\n{}{MARKS_CSS}{STYLE}</style>\n</head>\n<body>\n",
        esc(&processor(inputs)),
        palette_css(),
    );
    let parts = [
        header(inputs),
        promises(inputs),
        measurements(inputs),
        imagined(inputs),
        machine(inputs),
        offers(inputs),
        how_it_was_run(inputs),
        raw(inputs),
    ];
    format!("{head}<main>\n{}</main>\n</body>\n</html>\n", parts.concat())
}

fn section(id: &str, title: &str, body: &str) -> String {
    format!("<section id=\"{id}\"><h2>{}</h2>\n{body}</section>\n", esc(title))
}

/// What stands where a measurement is missing.
fn missing(what: &str, command: &str) -> String {
    format!("<p class=\"missing\">{} not run. <code>{}</code> adds it.</p>\n", esc(what), esc(command))
}

fn processor(inputs: &Inputs) -> String {
    let of_run = inputs.runs.first().map(|r| r.machine.cpu.clone());
    of_run.or(inputs.topology.model.clone()).unwrap_or_else(|| inputs.topology.source.clone())
}

fn header(inputs: &Inputs) -> String {
    let mut facts = vec![processor(inputs), topo_picture::in_words(inputs.topology)];
    if let Some(run) = inputs.runs.first() {
        facts.extend([format!("Linux {}", run.machine.kernel), run.percpu_backend.clone(), run.when.clone()]);
    }
    let facts: String = facts.iter().map(|f| format!("<li>{}</li>", esc(f))).collect();
    let nav: String = [
        ("promises", "Promises"),
        ("measurements", "Measurements"),
        ("simulated", "Simulated"),
        ("machine", "Machine"),
        ("offers", "Doctor"),
        ("runs", "Runs"),
        ("raw", "Rows"),
    ]
    .iter()
    .map(|(id, name)| format!("<a href=\"#{id}\">{name}</a> "))
    .collect();
    let tally = tally(words::promises(inputs))
        .map(|t| format!("<p class=\"tally\">{}</p>\n", esc(&t)))
        .unwrap_or_default();
    let disturbed = words::disturbed(inputs.runs)
        .map(|told| format!("<p class=\"disturbed missed\">{}</p>\n", esc(&told)))
        .unwrap_or_default();
    format!(
        "<header><p class=\"kicker\">Warmcore report</p>\n<h1>{}</h1>\n{tally}{disturbed}<ul class=\"where\">{facts}</ul>\n\
         <nav aria-label=\"Sections\">{nav}</nav></header>\n",
        esc(&headline(inputs))
    )
}

fn promises(inputs: &Inputs) -> String {
    let body = if words::promises(inputs).next().is_none() {
        "<p class=\"missing\">None of the runs here promises anything.</p>\n".to_owned()
    } else {
        "<p>A promise is judged by the measured median, and undecided where the median’s 95 % interval holds values \
         of both sides. The values were written for one processor: on another one a standing may say more about the \
         processor than about the code.</p>\n"
            .to_owned()
            + &table::promised(words::promises(inputs))
    };
    section("promises", "What was promised", &body)
}

fn measurements(inputs: &Inputs) -> String {
    let (mut body, mut how) = (String::new(), NOT_BY_ITSELF);
    for (what, title, command) in EXPECTED {
        let runs: Vec<&Results> = inputs.runs.iter().filter(|r| r.what == what).collect();
        body += &format!("<h3>{title}</h3>\n");
        if runs.is_empty() {
            body += &missing("This was", command);
            if wakes::is_here(what) {
                // Once, though two runs may be missing.
                body += std::mem::take(&mut how);
            }
        }
        body.extend(runs.into_iter().map(run));
    }
    for other in inputs.runs.iter().filter(|r| EXPECTED.iter().all(|(what, ..)| *what != r.what)) {
        body += &format!("<h3>{}</h3>\n{}", esc(&other.what), run(other));
    }
    section("measurements", "What was measured", &body)
}

/// Why a report lacks the runs of the runtime, and how to add them.
const NOT_BY_ITSELF: &str = "<p>It takes minutes, so that a report doesn’t measure it by itself: run it in the folder of \
                             this page, then draw the page again with <code>warmcore report --out . --render</code>.</p>\n";

fn article(title: &str, chart: &str, beside: &str) -> String {
    format!("<article><h4>{}</h4>\n{chart}{beside}</article>\n", esc(title))
}

/// The ratios are for who compares: folded, so that the pictures stand next to each other.
fn folded(rows: String) -> String {
    match rows.is_empty() {
        true => rows,
        false => format!("<details><summary>Ratios, round by round</summary>\n{rows}</details>\n"),
    }
}

/// Charts, and what belongs to them below the last; without a chart that alone.
fn articles(name: &str, charts: &[Chart], beside: &str) -> String {
    match charts {
        [] => article(name, "", beside),
        [most @ .., last] => {
            let most: String = most.iter().map(|c| article(&c.title, &c.html(), "")).collect();
            most + &article(&last.title, &last.html(), beside)
        }
    }
}

fn run(run: &Results) -> String {
    if run.what == sharing::CASE {
        let charts: String = sharing::charts(run).iter().map(|c| article(&c.title, &c.html(), "")).collect();
        return charts + &folded(table::beside_times(run, |_| true));
    }
    if run.what == budgets::RUN {
        return budget(run);
    }
    if wakes::is_here(&run.what) {
        return runtime(run);
    }
    let of_case = |name: &str| {
        let mut charts = chart::of_case(run, name);
        let title = words::about(name).map_or(name.to_owned(), |about| format!("{name}: {about}"));
        charts.iter_mut().for_each(|chart| chart.title = chart.title.replacen(name, &title, 1));
        let rows = table::beside_times(run, |r| r.case == name);
        // A case without times has nothing else to show.
        let beside = if charts.is_empty() { rows } else { folded(rows) };
        articles(&title, &charts, &beside)
    };
    if run.what != cids::RUN {
        return cases(run).into_iter().map(of_case).collect();
    }
    let picture = if run.timelines.is_empty() { String::new() } else { timeline::html(run) };
    let charts: String = cids::grouped(run).iter().map(|c| article(&c.title, &c.html(), "")).collect();
    let counted = match &cids::counted(run)[..] {
        [] => String::new(),
        rows => format!(
            "<details><summary>On whose data the bursts ran, and page faults per burst</summary>\n{}</details>\n",
            table::counted("On whose data the bursts ran", &cids::COUNTED, rows)
        ),
    };
    let others = cases(run).into_iter().filter(|case| !cids::is_grouped(case)).map(of_case);
    picture + &charts + &counted + &others.collect::<String>()
}

/// The run of budgets: the drains in one chart where the first of their cases is, and what was counted in
/// a table of its own.
fn budget(run: &Results) -> String {
    let mut drains = budgets::drains(run);
    let of_case = |name: &str| {
        let is_drain = budgets::is_drain(name);
        let charts = match is_drain {
            true => match drains.take() {
                Some(chart) => vec![chart],
                None => return String::new(),
            },
            false => budgets::of_case(run, name),
        };
        let is_here = |case: &str| case == name || (is_drain && budgets::is_drain(case));
        let ratios = table::beside_times(run, |r| r.over.is_some() && is_here(&r.case));
        let (heads, lines) = budgets::counted(run, name);
        let counted = match lines.is_empty() {
            true => String::new(),
            false => {
                table::counted("What was counted", &heads.iter().map(|h| &**h).collect::<Vec<_>>(), &lines)
            }
        };
        articles(&budgets::title(name), &charts, &(counted + &folded(ratios)))
    };
    cases(run).into_iter().map(of_case).collect()
}

/// The runs of the runtime: the questions one by one, the promises, then what is folded.
fn runtime(run: &Results) -> String {
    let (mut shown, mut more) = (String::new(), String::new());
    for part in wakes::parts(run) {
        let (heads, lines) = wakes::numbers(run, &part.cases);
        let heads: Vec<&str> = heads.iter().map(|head| &**head).collect();
        let numbers = match lines.is_empty() {
            true => String::new(),
            false => format!(
                "<details><summary>All variants in numbers</summary>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" \
                 aria-label=\"All variants in numbers\">{}</div></details>\n",
                table::counted("All variants in numbers", &heads, &lines)
            ),
        };
        let ratios = table::beside_times(run, |r| r.over.is_some() && part.cases.contains(&&*r.case));
        let drawn = articles(&part.title, &part.charts, &(numbers + &folded(ratios)));
        if part.is_folded { more += &drawn } else { shown += &drawn }
    }
    if let Some(tally) = tally(promises_of(run)) {
        let table = table::promised(promises_of(run));
        shown += &format!("<details><summary>{}</summary>\n{table}</details>\n", esc(&tally));
    }
    if !more.is_empty() {
        shown += &format!("<details><summary>The other cases of this run</summary>\n{more}</details>\n");
    }
    shown
}

/// Machines that aren't here.
fn imagined(inputs: &Inputs) -> String {
    let nothing = imagined::Imagined::default();
    let body = imagined_parts::html(inputs.imagined.unwrap_or(&nothing));
    section("simulated", "What was simulated", &body)
}

fn machine(inputs: &Inputs) -> String {
    let t = inputs.topology;
    let named = |what: &str, set: &warmcore_types::CpuSet| match set.is_empty() {
        true => String::new(),
        false => format!("<li>{what}: CPUs {set}</li>"),
    };
    let quota = t
        .quota
        .as_ref()
        .map(|q| format!("<li>quota: {} CPUs’ time ({})</li>", q.cpus, esc(&q.file.display().to_string())));
    let notes: String = t.notes.iter().map(|n| format!("<li>{}</li>", esc(n))).collect();
    let sets = [
        named("not allowed here", &t.online().difference(&t.usable())),
        named("isolated", &t.isolated),
        named("without a tick (nohz_full)", &t.nohz_full),
        named("offline", &t.offline),
        quota.unwrap_or_default(),
        notes,
    ]
    .concat();
    let list = if sets.is_empty() { sets } else { format!("<ul class=\"notes\">{sets}</ul>\n") };
    let hand_over = match inputs.probe {
        None => missing("The hand-over probe was", PROBE_COMMAND),
        Some(probe) => format!(
            "<p class=\"verdict\">{}{}</p>\n{}<figure>{}<figcaption>How to read: row hands a cache line to column; \
             the median one-way time in ns. A stronger colour is slower, in steps of equal ratio. CPUs stand in the order of \
             the machine above; where there are many, lines part the last-level caches, thicker ones the \
             sockets.</figcaption></figure>\n",
            esc(&probe.verdict),
            if probe.noisy { " <em>noisy: the times spread too far to trust this</em>" } else { "" },
            table::by_distance(&matrix::by_distance(t, probe)),
            matrix::html(t, probe),
        ),
    };
    section(
        "machine",
        "The machine",
        &format!(
            "<p>{}; read from {}.</p>\n<figure>{}<figcaption>How to read: a box holds what shares it: sockets hold \
             nodes, nodes last-level caches, caches cores, cores CPUs, by the kernel’s numbers.</figcaption>\
             </figure>\n{list}<h3>Hand-over of a cache line</h3>\n{hand_over}",
            esc(&topo_picture::in_words(t)),
            esc(&t.source),
            topo_picture::html(t),
        ),
    )
}

fn offers(inputs: &Inputs) -> String {
    let body = match inputs.doctor {
        [] => missing("The doctor was", "warmcore doctor"),
        findings => table::findings(findings),
    };
    section("offers", "What the doctor found", &body)
}

fn how_it_was_run(inputs: &Inputs) -> String {
    let body = match inputs.runs {
        [] => missing("Any measurement was", "warmcore report"),
        runs => format!(
            "{}<p>Steal is CPU time that the hypervisor gave to others, others is what other processes used, both of \
             all CPU time during the run.</p>\n{}",
            table::machines(runs),
            table::runs(runs)
        ),
    };
    section("runs", "How it was run", &body)
}

fn raw(inputs: &Inputs) -> String {
    let n: usize = inputs.runs.iter().map(|r| r.rows.len()).sum();
    section(
        "raw",
        "Every row",
        &format!(
            "<details><summary>{n} rows, as measured</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" \
             aria-label=\"Every row\">{}</div></details>\n",
            table::raw(inputs.runs)
        ),
    )
}
