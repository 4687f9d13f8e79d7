//! Table: promises, comparisons, findings, runs and raw rows, as HTML tables with headers.

use super::inputs::{Finding, State};
use super::markup::{amount, digits, esc};
use super::matrix::Class;
use super::words::{bound, compared, measured};
use warmcore_results::{HostInfo, Results, Row, Target};

/// A table: a class, a caption for those who hear it, the heads and the rows. A cell that begins
/// with `#` in its head is a number and stands right. Cells are markup: escaped by the caller.
fn table(class: &str, caption: &str, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let side = |head: &str| if head.starts_with('#') { " class=\"n\"" } else { "" };
    let head: String = heads
        .iter()
        .map(|h| format!("<th scope=\"col\"{}>{}</th>", side(h), esc(h.trim_start_matches('#'))))
        .collect();
    let body: String = rows
        .into_iter()
        .map(|cells| {
            let cells: String = cells
                .iter()
                .zip(heads)
                .enumerate()
                .map(|(i, (cell, head))| match i {
                    0 => format!("<th scope=\"row\">{cell}</th>"),
                    _ => format!(
                        "<td{} data-head=\"{}\">{cell}</td>",
                        side(head),
                        esc(head.trim_start_matches('#'))
                    ),
                })
                .collect();
            format!("<tr>{cells}</tr>\n")
        })
        .collect();
    format!(
        "<table class=\"{class}\"><caption>{}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n",
        esc(caption)
    )
}

fn interval(row: &Row) -> String {
    super::words::interval(row).map_or("–".into(), |interval| esc(&interval))
}

/// The promises, and how each stands.
pub(super) fn promised<'a>(promises: impl Iterator<Item = (&'a Row, &'a Target)>) -> String {
    let row = |(row, target): (&Row, &Target)| {
        let standing = target.standing(row);
        let noisy = if row.noisy { ", noisy" } else { "" };
        vec![
            esc(&row.case),
            esc(&measured(row)),
            esc(&amount(row.median, &row.unit)),
            interval(row),
            esc(&bound(row, target)),
            format!("<span class=\"{0}\">{1} {0}{noisy}</span>", standing.word(), standing.sign()),
        ]
    };
    let heads = ["case", "compared", "#value", "#95 % interval", "#promised", "standing"];
    table("cards", "Promises", &heads, promises.map(row))
}

/// What of a case is no time: ratios and counts.
pub(super) fn beside_times(run: &Results, keep: impl Fn(&Row) -> bool) -> String {
    let rows: Vec<&Row> = run.rows.iter().filter(|r| keep(r) && !super::chart::is_time(r)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let many = rows.iter().any(|r| r.case != rows[0].case);
    let row = |r: &&Row| {
        let case = if many { format!("{}: ", super::sharing::rate(&r.case)) } else { String::new() };
        let noisy = if r.noisy { " <em>noisy</em>" } else { "" };
        vec![
            esc(&format!("{case}{}", compared(r))),
            esc(&r.metric),
            format!("{}{noisy}", esc(&amount(r.median, &r.unit))),
            interval(r),
        ]
    };
    table(
        "cards beside",
        "Beside the times",
        &["compared", "metric", "#value", "#95 % interval"],
        rows.iter().map(row),
    )
}

/// What was counted: a row per way.
pub(super) fn counted(caption: &str, heads: &[&str], rows: &[Vec<String>]) -> String {
    let escaped = rows.iter().map(|cells| cells.iter().map(|cell| esc(cell)).collect());
    table("cards counted", caption, heads, escaped)
}

/// The ids of a timeline's bursts; the first row has the heads.
pub(super) fn lanes(rows: &[Vec<String>]) -> String {
    let heads: Vec<&str> = rows.iter().take(1).flatten().map(String::as_str).collect();
    let escaped = rows.iter().skip(1).map(|cells| cells.iter().map(|cell| esc(cell)).collect());
    table("cards", "The id of each burst", &heads, escaped)
}

/// Rows that were simulated. Cells are markup.
pub(super) fn simulated(rows: &[Vec<String>]) -> String {
    let heads = ["row", "#published", "#simulated", "#of the seeds", "#allowed", "standing", "is"];
    table("cards imagined", "Simulated beside published", &heads, rows.iter().cloned())
}

/// The numbers that move an answer. Cells are markup.
pub(super) fn inputs(rows: &[Vec<String>]) -> String {
    let heads = ["number", "#is", "trust", "source", "#with half", "#with twice"];
    table("cards imagined", "What moves the answer", &heads, rows.iter().cloned())
}

/// The hand-over times by what two CPUs share.
pub(super) fn by_distance(classes: &[Class]) -> String {
    let row = |c: &Class| {
        let a = |v| esc(&amount(v, "ns"));
        vec![format!("CPUs that share {}", c.shared), c.pairs.to_string(), a(c.median), a(c.lo), a(c.hi)]
    };
    let heads = ["pairs", "#how many", "#median", "#lowest", "#highest"];
    table("cards", "One-way hand-over of a cache line", &heads, classes.iter().map(row))
}

/// What the doctor found.
pub(super) fn findings(findings: &[Finding]) -> String {
    let row = |f: &Finding| {
        let (sign, word, class) = match f.state {
            State::Ok => ("✓", "ok", "met"),
            State::Limited => ("~", "limited", "noisy"),
            State::Missing => ("✕", "missing", "missed"),
        };
        let advice = f.advice.as_ref().map(|a| format!(" <em>{}</em>", esc(a))).unwrap_or_default();
        vec![
            esc(&f.what),
            format!("<span class=\"{class}\">{sign} {word}</span>"),
            format!("{}{advice}", esc(&f.fact)),
        ]
    };
    table(
        "cards prose",
        "What this machine offers",
        &["what", "state", "fact, and the next step"],
        findings.iter().map(row),
    )
}

/// The machines that the results name: mostly one.
pub(super) fn machines(runs: &[Results]) -> String {
    let mut seen: Vec<&HostInfo> = Vec::new();
    let same = |a: &HostInfo, b: &HostInfo| format!("{a:?}") == format!("{b:?}");
    for run in runs {
        if !seen.iter().any(|m| same(m, &run.machine)) {
            seen.push(&run.machine);
        }
    }
    let list = |m: &&HostInfo| {
        let facts = [
            ("processor", m.cpu.clone()),
            ("architecture", m.arch.clone()),
            ("CPUs online", m.cpus.to_string()),
            ("allowed here", m.allowed.clone()),
            ("kernel", m.kernel.clone()),
            ("libc", m.libc.clone()),
            ("hypervisor", m.hypervisor.clone().unwrap_or("none seen".into())),
        ];
        let facts: String =
            facts.iter().map(|(k, v)| format!("<div><dt>{k}</dt><dd>{}</dd></div>", esc(v))).collect();
        format!("<dl class=\"facts\">{facts}</dl>\n")
    };
    seen.iter().map(list).collect()
}

/// Each run: the command that repeats it, and what disturbed it.
pub(super) fn runs(runs: &[Results]) -> String {
    let share = |s: f64| format!("{} %", digits(s * 100.0));
    let row = |r: &Results| {
        vec![
            esc(&r.what),
            format!("<code>{}</code>", esc(&r.command)),
            esc(&r.when),
            esc(&r.percpu_backend),
            digits(r.load.loadavg_1m),
            share(r.load.steal_share),
            share(r.load.others_share),
        ]
    };
    let heads = [
        "run",
        "command that repeats it",
        "began (UTC)",
        "per-CPU data",
        "#load before",
        "#steal",
        "#others",
    ];
    table("cards", "The runs", &heads, runs.iter().map(row))
}

/// Every row, as measured.
pub(super) fn raw(runs: &[Results]) -> String {
    let row = |(what, r): (&str, &Row)| {
        let ci = r.ci95.map(|ci| ci.map(digits)).unwrap_or(["–".into(), "–".into()]);
        let target = r.target.as_ref().map(|t| esc(&bound(r, t))).unwrap_or_default();
        let [lo, hi] = ci;
        let mut cells = vec![esc(&r.case), esc(&compared(r)), esc(&r.metric), esc(&r.unit)];
        cells.extend([r.min, r.p25, r.median].map(digits));
        cells.extend([lo, hi, digits(r.max), r.n.to_string()]);
        cells.extend([if r.noisy { "noisy" } else { "" }.to_owned(), target, esc(what)]);
        cells
    };
    let heads = [
        "case", "variant", "metric", "unit", "#min", "#p25", "#median", "#ci low", "#ci high", "#max",
        "#slices", "noisy", "promised", "run",
    ];
    let rows = runs.iter().flat_map(|run| run.rows.iter().map(|row| (&*run.what, row)));
    table("raw", "Every row", &heads, rows.map(row))
}
