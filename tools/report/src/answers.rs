//! The questions that a report answers, and the rows of the results that answer them.
//!
//! An answer compares Warmcore with one named alternative: how many times better Warmcore is, with the 95 % interval of
//! the ratios of single slices (short measurements of both sides, one after the other). A row of a ratio names the
//! variant in the denominator; the metric of both sides decides whether more is better. Each ratio is inverted if
//! necessary, so that Warmcore is better in every answer above 1.

use super::markup::{amount, digits};
use warmcore_results::{Results, Row};

/// A ratio from 1 ÷ this to this counts as level: users don't change their runtime for a difference of 5 %.
pub(super) const LEVEL: f64 = 1.05;

/// The result of a comparison of Warmcore with an alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// All of the interval is above 1, and some of it above [`LEVEL`].
    Ahead,
    /// All of the interval is from 1 ÷ [`LEVEL`] to [`LEVEL`].
    Level,
    /// All of the interval is below 1, and some of it below 1 ÷ [`LEVEL`].
    Behind,
    /// The interval contains 1, and some of it is above [`LEVEL`] or below 1 ÷ [`LEVEL`]. A longer run may give a
    /// narrower interval.
    Undecided,
}

impl Standing {
    /// All values, in the order in which a report lists them.
    pub const ALL: [Self; 4] = [Self::Ahead, Self::Level, Self::Behind, Self::Undecided];

    /// The standing of an interval of ratios, where above 1 is better.
    pub fn of([low, high]: [f64; 2]) -> Self {
        if low >= 1.0 / LEVEL && high <= LEVEL {
            Self::Level
        } else if low > 1.0 {
            Self::Ahead
        } else if high < 1.0 {
            Self::Behind
        } else {
            Self::Undecided
        }
    }

    /// A word for the standing; it is also a class in the page's style sheet.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Level => "level",
            Self::Behind => "behind",
            Self::Undecided => "undecided",
        }
    }
}

/// A comparison of Warmcore with one alternative.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    /// What was compared: `a counter add, 16 counters in turn`.
    pub what: &'static str,
    /// The alternative: `a relaxed atomic`.
    pub alternative: &'static str,
    /// How many times better Warmcore is.
    pub times: f64,
    /// The 95 % interval of `times`; both ends are `times` if the run has no interval.
    pub interval: [f64; 2],
    /// Warmcore's number and its unit, if the run has that row.
    pub ours: Option<(f64, String)>,
    /// The alternative's number and its unit, if the run has that row.
    pub other: Option<(f64, String)>,
    /// The command that measures the same in a longer run.
    pub command: String,
}

impl Answer {
    /// Returns the result of the comparison.
    pub fn standing(&self) -> Standing {
        Standing::of(self.interval)
    }

    /// Formats Warmcore's number; empty if the run does not have it.
    pub fn ours(&self) -> String {
        self.ours.as_ref().map_or(String::new(), |(value, unit)| amount(*value, unit))
    }

    /// Formats the alternative's number; empty if the run does not have it.
    pub fn other(&self) -> String {
        self.other.as_ref().map_or(String::new(), |(value, unit)| amount(*value, unit))
    }

    /// Formats how many times better Warmcore is: `1.2×`.
    pub fn times(&self) -> String {
        format!("{}×", digits(self.times))
    }

    /// Formats the interval: `1.1 … 1.3`.
    pub fn interval(&self) -> String {
        self.interval.map(digits).join(" … ")
    }

    /// The command that measures longer, if the comparison is undecided.
    pub fn longer(&self) -> Option<&str> {
        (self.standing() == Standing::Undecided).then_some(&self.command)
    }
}

/// A question, and the rows that answer it.
#[derive(Debug, Clone, Copy)]
struct Question {
    what: &'static str,
    alternative: &'static str,
    /// The run: `wake`.
    run: &'static str,
    case: &'static str,
    /// The metric of the ratio: `ratio`, `ratio, p99`.
    ratio: &'static str,
    /// The metric of both sides: `time`, `p99`.
    metric: &'static str,
    /// The alternative's name in the results.
    variant: &'static str,
}

/// Arguments: the question's words, the alternative, the run, the case, the metric of the ratio, the metric of both
/// sides, the variant.
const fn ask(
    what: &'static str,
    alternative: &'static str,
    [run, case, ratio, metric, variant]: [&'static str; 5],
) -> Question {
    Question { what, alternative, run, case, ratio, metric, variant }
}

const TASKS: &[Question] = &[
    ask(
        "4 tasks walk 256 KiB each and yield: walks of the slowest task",
        "tokio",
        ["wake", "warm.yield.chase.4x256K", "ratio, slowest task", "slowest task", "tokio"],
    ),
    ask(
        "4 tasks walk 256 KiB each and yield: walks of all",
        "tokio",
        ["wake", "warm.yield.chase.4x256K", "ratio", "touches", "tokio"],
    ),
    ask(
        "4 tasks walk 256 KiB each and yield: walks of all",
        "tokio, one runtime per core",
        ["wake", "warm.yield.chase.4x256K", "ratio", "touches", "tokio per core"],
    ),
    ask(
        "a ping beside 64 tasks that compute 20 µs at a time: p99 of a wake",
        "tokio",
        ["wake", "noisy.20us", "ratio", "p99", "tokio"],
    ),
    ask(
        "16 pairs of tasks that ping-pong: round trips",
        "tokio",
        ["wake", "pingpong.channel.16", "ratio", "round trips", "tokio"],
    ),
    ask("HTTP, 8 connections: requests", "tokio", ["http", "hello.8", "ratio", "requests", "tokio"]),
    ask("HTTP, 64 connections: requests", "tokio", ["http", "hello.64", "ratio", "requests", "tokio"]),
    ask(
        "HTTP, 64 connections: p99 of a request",
        "tokio",
        ["http", "hello.64", "ratio, p99", "p99", "tokio"],
    ),
];

/// An operation on per-CPU data or budgets.
struct Operation {
    name: &'static str,
    run: &'static str,
    case: &'static str,
    /// The alternatives that Warmcore is compared with, each with its name in the results.
    beside: &'static [(&'static str, &'static str)],
    /// The variants that the chart of times shows, each with its class in the legend.
    drawn: &'static [(usize, &'static str)],
}

const DATA: [Operation; 8] = [
    Operation {
        name: "a counter add, 16 counters in turn",
        run: "percpu",
        case: "counter.add.called",
        beside: &[("a relaxed atomic", "relaxed atomic"), ("a thread-local add", "thread-local += 1")],
        drawn: &[(0, "warmcore"), (1, "relaxed atomic"), (2, "thread-local += 1")],
    },
    Operation {
        name: "a counter add while another CPU adds",
        run: "percpu",
        case: "counter.add.2threads",
        beside: &[("one shared atomic", "relaxed atomic")],
        drawn: &[(0, "warmcore"), (1, "relaxed atomic"), (2, "thread-local += 1"), (3, "std Mutex")],
    },
    Operation {
        name: "reading a counter",
        run: "percpu",
        case: "sum",
        beside: &[("a padded atomic per CPU", "a padded atomic per CPU number")],
        drawn: &[(0, "warmcore"), (1, "relaxed atomic")],
    },
    Operation {
        name: "a buffer from a free list and back",
        run: "percpu",
        case: "freelist.pair.called",
        beside: &[("malloc and free", "malloc + free"), ("crossbeam's queue", "crossbeam ArrayQueue")],
        drawn: &[(0, "warmcore"), (3, "std Mutex<Vec>"), (4, "malloc + free")],
    },
    Operation {
        name: "entering a tenant and leaving it",
        run: "cid",
        case: "cid.enter",
        beside: &[],
        drawn: &[(0, "warmcore tenant"), (2, "thread_local crate, a slot"), (3, "std Mutex")],
    },
    Operation {
        name: "a charge against a limit, 3 levels deep, through a call",
        run: "budget",
        case: "hit",
        beside: &[("one shared atomic", "one shared atomic, in a function")],
        drawn: &[],
    },
    Operation {
        name: "a charge against a limit, 3 levels deep",
        run: "budget",
        case: "hit",
        beside: &[],
        drawn: &[(0, "warmcore, in a function"), (1, "one shared atomic, in a function"), (3, "std Mutex")],
    },
    Operation {
        name: "a charge while another CPU charges",
        run: "budget",
        case: "hit.2threads",
        beside: &[
            ("one shared atomic", "one shared atomic, in a function"),
            ("three atomics, leaf to root", "three atomics, leaf to root"),
        ],
        drawn: &[(0, "warmcore, in a function"), (1, "one shared atomic, in a function"), (3, "std Mutex")],
    },
];

/// Whether more is better for a metric.
fn is_more_better(metric: &str) -> bool {
    ["touches", "slowest task", "round trips", "messages", "requests", "polls"].contains(&metric)
}

/// Answers to a user's questions about the runtime.
pub(super) fn tasks(runs: &[Results]) -> Vec<Answer> {
    answers(TASKS, runs)
}

/// Answers to a user's questions about per-CPU data and budgets.
pub(super) fn data(runs: &[Results]) -> Vec<Answer> {
    let questions = DATA.iter().flat_map(|Operation { name, run, case, beside, .. }| {
        beside
            .iter()
            .map(|(alternative, variant)| ask(name, alternative, [run, case, "ratio", "time", variant]))
    });
    answers(&questions.collect::<Vec<_>>(), runs)
}

fn answers(questions: &[Question], runs: &[Results]) -> Vec<Answer> {
    questions.iter().filter_map(|question| answer(question, runs)).collect()
}

/// Whether `variant` is Warmcore's on any backend and is called in the same way as `other`: inlined into the loop, or
/// through a function.
fn is_ours(variant: &str, other: &str) -> bool {
    const CALLED: &str = ", in a function";
    let name = variant.strip_suffix(CALLED);
    name.is_some() == other.ends_with(CALLED) && is_called(name.unwrap_or(variant), "warmcore")
}

fn answer(question: &Question, runs: &[Results]) -> Option<Answer> {
    // A case may be in several runs: the last run that has the ratio counts.
    let in_case = |row: &&Row| row.case == question.case;
    let rows = runs.iter().rev().filter(|run| run.what == question.run);
    let (run, ratio, is_ours_above) = rows.into_iter().find_map(|run| {
        let ratios = run.rows.iter().filter(in_case).filter(|row| row.metric == question.ratio);
        ratios.into_iter().find_map(|row| {
            let over = row.over.as_deref()?;
            let is_above = over == question.variant && is_ours(&row.variant, over);
            let is_below = row.variant == question.variant && is_ours(over, &row.variant);
            (is_above || is_below).then_some((run, row, is_above))
        })
    })?;
    let ours = if is_ours_above { &ratio.variant } else { ratio.over.as_ref()? };
    let value = |variant: &str| {
        let mut rows = run.rows.iter().filter(in_case);
        let row = rows.find(|row| row.variant == variant && row.metric == question.metric)?;
        Some((row.median, row.unit.clone()))
    };
    let [low, high] = ratio.ci95.unwrap_or([ratio.median; 2]);
    // If less is better, as for times, the variant with the larger number is worse.
    let is_turned = is_ours_above != is_more_better(question.metric);
    let (times, interval) =
        if is_turned { (1.0 / ratio.median, [1.0 / high, 1.0 / low]) } else { (ratio.median, [low, high]) };
    Some(Answer {
        what: question.what,
        alternative: question.alternative,
        times,
        interval,
        ours: value(ours),
        other: value(question.variant),
        command: format!("warmcore bench {} --case {}", question.run, case_name(question.case)),
    })
}

/// The case's name on the command line. The results of a case of warm sets name its shape too: for
/// `warm.yield.chase.4x256K` the command line takes `warm.yield.chase`.
fn case_name(case: &str) -> &str {
    match case.rsplit_once('.') {
        Some((family, _)) if case.starts_with("warm.") => family,
        _ => case,
    }
}

/// Whether a row's variant has this name. In a row, Warmcore's names may also contain the backend, which `name` leaves
/// out.
fn is_called(variant: &str, name: &str) -> bool {
    let plain = ["rseq", "atomic", "plain"].iter().find_map(|backend| {
        let rest = variant.strip_prefix("warmcore ")?.strip_prefix(backend)?;
        Some(format!("warmcore{rest}"))
    });
    plain.as_deref().unwrap_or(variant) == name
}

/// The times of the ways of doing an operation, for each operation of which at least two ways were measured.
pub(super) fn operations(runs: &[Results]) -> Vec<super::plot::Operation> {
    let time = |run: &str, case: &str, name: &str| {
        let rows = runs.iter().rev().filter(|results| results.what == run).flat_map(|results| &results.rows);
        let mut rows = rows.filter(|row| row.case == case && row.metric == "time" && row.over.is_none());
        rows.find(|row| is_called(&row.variant, name)).map(|row| row.median)
    };
    let operations = DATA.iter().map(|Operation { name, run, case, drawn, .. }| {
        let times = drawn.iter().filter_map(|(class, way)| Some((*class, time(run, case, way)?))).collect();
        super::plot::Operation { name, times }
    });
    operations.filter(|operation| operation.times.len() > 1).collect()
}
