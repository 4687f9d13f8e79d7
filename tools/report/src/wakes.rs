//! Wakes: the runs of the runtime and of its HTTP servers, so that one sees who gets how much done, and who waits.
//!
//! Model.   A part is one question: warm sets touched in one way, ping-pong, messaging, the noisy neighbour, HTTP.
//!          It has a chart of rates and one of times, a group per shape, our runtime by the policy that
//!          promises and the others beside it; all variants, our other policies too, stand in a table below.
//!          Rates of shapes that differ are drawn over tokio's median in the same shape.
//! Number.  6 shapes × 6 variants: 36 lines a chart. Sets touched in order, and all other cases, are folded.

use super::chart::{self, Chart, cases, distinct, is_positive};
use super::markup::{amount, slug};
use std::borrow::Cow;
use warmcore_results::{Results, Row};

/// The run of tasks that wake each other.
pub(super) const RUN: &str = "wake";
/// The run of HTTP servers.
pub(super) const HTTP: &str = "http";

/// What the promises call ours, and what they compare it with.
const OURS: &str = "warmcore";
const BASE: &str = "tokio";

const P99: &str = "p99";
/// Above all other times of a chart stands what can't be undercut.
const FLOOR: &str = "floor";

/// Whether a run is drawn here.
pub(super) fn is_here(what: &str) -> bool {
    [RUN, HTTP].contains(&what)
}

/// One question, and what answers it.
pub(super) struct Part<'a> {
    /// What is asked.
    pub title: String,
    /// Its cases.
    pub cases: Vec<&'a str>,
    /// Its pictures.
    pub charts: Vec<Chart<'a>>,
    /// It is no part of the short answer.
    pub is_folded: bool,
}

/// Which part a case belongs to: the beginning of its name, that all cases of the part have.
fn family<'a>(run: &Results, case: &'a str) -> &'a str {
    let dots = |n: usize| case.match_indices('.').nth(n).map_or(case, |(at, _)| &case[..at]);
    match (&*run.what, dots(0)) {
        // `warm.yield.chase.4x256K`: each way to touch and to wait is a part.
        (RUN, "warm") => dots(2),
        (RUN, family @ ("pingpong" | "messaging" | "noisy")) => family,
        (HTTP, "hello" | "axum" | "compute" | "state") => HTTP,
        _ => case,
    }
}

/// The policies that promise nothing stand in the table, not in the charts.
fn is_drawn(row: &Row) -> bool {
    row.over.is_none() && is_positive(row) && !row.variant.starts_with("warmcore ")
}

/// The rows that the accent marks.
fn is_promising(row: &Row) -> bool {
    row.variant == OURS
}

/// A shape in words, or the case as it is.
fn shape(case: &str) -> String {
    let Some((kind, shape)) = case.rsplit_once('.') else { return case.to_owned() };
    let many = |n: &str, one: &str, more: &str| match n {
        "1" => format!("one {one}"),
        n => format!("{n} {more}"),
    };
    match kind.split('.').next().unwrap_or_default() {
        "warm" => match shape.trim_end_matches('K').split_once('x') {
            Some((tasks, kib)) => format!("{tasks} tasks with {kib} KiB each"),
            None => case.to_owned(),
        },
        "pingpong" if kind.ends_with("oneshot") => {
            format!("{}, a new channel for each message", many(shape, "pair", "pairs"))
        }
        "pingpong" => format!("{}, a channel each way", many(shape, "pair", "pairs")),
        "messaging" => format!("{} of 20 senders and 20 receivers", many(shape, "group", "groups")),
        "noisy" => format!("the neighbours compute for {} at a time", shape.replace("us", " µs")),
        "hello" => format!("a short answer, {shape} connections"),
        "axum" => format!("the same by axum, {shape} connections"),
        "compute" => format!("an answer that is computed, {shape} connections"),
        "state" => format!("an answer from the connection’s own data, {shape} connections"),
        _ => case.to_owned(),
    }
}

/// A part in words, or its name.
fn title(family: &str) -> String {
    let known = match family {
        "pingpong" => "Ping-pong: two tasks that only wake each other",
        "messaging" => "Messaging: each sender to each receiver",
        "noisy" => "Noisy neighbour: a task woken beside 64 that compute",
        HTTP => "HTTP over loopback",
        _ => {
            let mut parts = family.split('.').skip(1);
            let then = match parts.next() {
                Some("yield") => "then a yield",
                Some("message") => "then a message",
                Some("sleep") => "then a sleep",
                _ => return family.to_owned(),
            };
            let touch = match parts.next() {
                Some("chase") => "at random",
                Some("sequential") => "in order",
                _ => return family.to_owned(),
            };
            return format!("Warm sets touched {touch}, {then}");
        }
    };
    known.to_owned()
}

/// The marks of every chart here.
const MARKS: &str = "dot, the median; thick bar, its 95 % interval; thin line, lowest to highest slice (› goes on); hollow, noisy.";

/// A chart of one metric, a group per case, variants in the order of the run; nothing without rows.
fn by_case<'a>(
    run: &'a Results,
    cases: &[&str],
    metric: &str,
    name: &str,
    title: String,
    how: String,
) -> Option<Chart<'a>> {
    let of_case = |case: &&str| {
        let rows = run.rows.iter().filter(|r| r.case == *case && r.metric == metric && is_drawn(r));
        let mut rows: Vec<&Row> = rows.collect();
        rows.sort_by_key(|r| !r.variant.starts_with(FLOOR));
        (Some(shape(case)), rows)
    };
    let groups: Vec<_> = cases.iter().map(of_case).filter(|(_, rows)| !rows.is_empty()).collect();
    (!groups.is_empty())
        .then(|| Chart::grouped(format!("{}-{name}", run.what), title, how, groups, is_promising))
}

/// The same over tokio's median of each case; a case without tokio has nothing to stand over, and is left out.
fn over_base<'a>(
    run: &'a Results,
    cases: &[&str],
    metric: &str,
    name: &str,
    title: String,
) -> Option<Chart<'a>> {
    let of_case = |case: &&str| {
        let rows = || run.rows.iter().filter(|r| r.case == *case && r.metric == metric && is_drawn(r));
        let base = rows().find(|r| r.variant == BASE)?;
        let one = base.median;
        let scaled = |r: &Row| {
            Cow::Owned(Row {
                unit: "x".into(),
                p25: r.p25 / one,
                median: r.median / one,
                min: r.min / one,
                max: r.max / one,
                ci95: r.ci95.map(|ci| ci.map(|end| end / one)),
                target: None,
                ..r.clone()
            })
        };
        let head = format!("{}; 1× is {}", shape(case), amount(one, &base.unit));
        Some((Some(head), rows().map(scaled).collect()))
    };
    let groups: Vec<_> = cases.iter().filter_map(of_case).collect();
    let how = format!(
        "How to read: a task touches all of its own data, its warm set, again and again; {metric} per second \
         over tokio’s median in the same shape; {MARKS} Right is more, the scale is logarithmic; Warmcore is bold. Intervals \
         are of each variant alone; ratios round by round stand below."
    );
    (!groups.is_empty())
        .then(|| Chart::of_any(format!("{}-{name}", run.what), title, how, groups, is_promising))
}

/// What a chart of rates says below it.
fn rates_how(what: &str) -> String {
    format!(
        "How to read: {what} per second, k is a thousand, M a million; {MARKS} Right is more, the scale is logarithmic; \
         Warmcore is bold."
    )
}

/// What a chart of 99th percentiles says below it.
fn p99_how(what: &str) -> String {
    format!(
        "How to read: 99 of 100 {what} took at most so long, in each slice; {MARKS} Left is faster, the scale is \
         logarithmic; Warmcore is bold."
    )
}

fn warm<'a>(run: &'a Results, family: &str, cases: &[&str]) -> Vec<Chart<'a>> {
    let (title, name) = (title(family), slug(family));
    let touches = over_base(run, cases, "touches", &name, format!("{title}; touches over tokio’s"));
    let slowest = format!("{title}; slowest task over tokio’s");
    let slowest = over_base(run, cases, "slowest task", &format!("{name}-slowest"), slowest);
    let how = p99_how("touches of a whole set");
    let p99 = by_case(run, cases, P99, &format!("{name}-p99"), format!("{title}; p99 of a touch"), how);
    touches.into_iter().chain(slowest).chain(p99).collect()
}

fn ping_pong<'a>(run: &'a Results, cases: &[&str]) -> Vec<Chart<'a>> {
    let title = title("pingpong");
    let metric = "round trips";
    let rates =
        by_case(run, cases, metric, "pingpong", format!("{title}; {metric} per second"), rates_how(metric));
    let how = "How to read: dot, half of the round trips took at most so long; the bar ends where 99 of 100 were; thin \
               line, the lowest to the highest median of a slice (› goes on); hollow, noisy. Left is faster, the scale \
               is logarithmic; Warmcore is bold.";
    let times =
        by_case(run, cases, "p50", "pingpong-times", format!("{title}; time of a round trip"), how.into());
    let is_tail = |r: &&Row| cases.contains(&&*r.case) && r.metric == P99 && is_drawn(r);
    let times = times.map(|chart| chart.with_tails(run.rows.iter().filter(is_tail).collect()));
    rates.into_iter().chain(times).collect()
}

fn noisy<'a>(run: &'a Results, cases: &[&str]) -> Option<Chart<'a>> {
    let how = format!(
        "{} The others are of another tenant. The floor is computed: a poll can’t be interrupted, so the task \
         waits for the first worker that ends its own.",
        p99_how("wakes")
    );
    by_case(run, cases, P99, "noisy", format!("{}; p99 of a wake", title("noisy")), how)
}

fn http<'a>(run: &'a Results, cases: &[&str]) -> Vec<Chart<'a>> {
    let title = title(HTTP);
    let how = format!("{} Clients and servers share the CPUs.", rates_how("requests"));
    let rates = by_case(run, cases, "requests", "requests", format!("{title}; requests per second"), how);
    let p99 = by_case(run, cases, P99, P99, format!("{title}; p99 of a request"), p99_how("requests"));
    rates.into_iter().chain(p99).collect()
}

/// The parts of a run, in the order of the run.
pub(super) fn parts(run: &Results) -> Vec<Part<'_>> {
    let all = cases(run);
    let mut families: Vec<&str> = Vec::new();
    for case in &all {
        let family = family(run, case);
        if !families.contains(&family) {
            families.push(family);
        }
    }
    let part = |name: &str| {
        let cases: Vec<&str> = all.iter().copied().filter(|case| family(run, case) == name).collect();
        let (charts, is_folded): (Vec<Chart>, bool) = match name {
            "pingpong" => (ping_pong(run, &cases), false),
            "messaging" => {
                let title = format!("{}; messages per second", title(name));
                let how = rates_how("messages received");
                (by_case(run, &cases, "messages", name, title, how).into_iter().collect(), false)
            }
            "noisy" => (noisy(run, &cases).into_iter().collect(), false),
            HTTP => (http(run, &cases), false),
            _ if name.starts_with("warm.") => (warm(run, name, &cases), name.ends_with(".sequential")),
            case => (chart::of_case(run, case), true),
        };
        Part { title: title(name), cases, charts, is_folded }
    };
    families.into_iter().map(part).collect()
}

/// All charts of the run.
pub(super) fn charts(run: &Results) -> Vec<Chart<'_>> {
    parts(run).into_iter().flat_map(|part| part.charts).collect()
}

/// Every variant of a part in numbers: the heads, then a row per case and variant.
pub(super) fn numbers(run: &Results, cases: &[&str]) -> (Vec<String>, Vec<Vec<String>>) {
    let rows: Vec<&Row> = run.rows.iter().filter(|r| r.over.is_none() && cases.contains(&&*r.case)).collect();
    let metrics = distinct(&rows, |r| &r.metric);
    let heads = ["case", "variant"].map(str::to_owned).into_iter();
    let heads = heads.chain(metrics.iter().map(|metric| format!("#{metric}"))).collect();
    let cell = |row: &Row| {
        let sign = row.target.as_ref().map(|t| format!(" {}", t.standing(row).sign()));
        amount(row.median, &row.unit) + &sign.unwrap_or_default()
    };
    let mut lines = Vec::new();
    for case in cases {
        let of_case: Vec<&Row> = rows.iter().copied().filter(|r| r.case == *case).collect();
        for variant in distinct(&of_case, |r| &r.variant) {
            let of = |metric: &&str| {
                let row = of_case.iter().find(|r| r.variant == variant && r.metric == *metric);
                row.map_or("–".to_owned(), |row| cell(row))
            };
            let names = [case.to_string(), variant.to_owned()];
            lines.push(names.into_iter().chain(metrics.iter().map(of)).collect());
        }
    }
    (heads, lines)
}

/// `tasks that yield between touches of their own data touch it 1.5× as often as on tokio, the slowest of them 1.2× as
/// often as the slowest there`.
pub(super) fn sentence(run: &Results) -> Vec<String> {
    let ratio = |case: &str, metric: &str| {
        let over_base = |r: &&Row| r.case == case && r.metric == metric && r.over.as_deref() == Some(BASE);
        let row = run.rows.iter().filter(|r| is_promising(r)).find(over_base)?;
        Some((amount(row.median, &row.unit), if row.noisy { " (noisy)" } else { "" }))
    };
    let warm = ratio("warm.yield.chase", "ratio, geometric mean of all").map(|(times, noisy)| {
        let slowest = ratio("warm.yield.chase", "ratio, slowest task, geometric mean of all");
        let slowest = slowest.map(|(times, noisy)| {
            format!(", the slowest of them {times} as often as the slowest there{noisy}")
        });
        format!(
            "tasks that yield between touches of their own data touch it {times} as often as on tokio{noisy}{}",
            slowest.unwrap_or_default()
        )
    });
    let hello = ratio("hello.64", "ratio").map(|(times, noisy)| {
        format!("an HTTP server of short answers to 64 connections gives {times} as many as on tokio{noisy}")
    });
    warm.into_iter().chain(hello).collect()
}
