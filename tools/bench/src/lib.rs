//! Benches of each mechanism of Warmcore, compared with the plain way and with named alternatives.
//!
//! A bench ([`What`]) is a list of cases, and a case makes its rows ([`Case`]). The variants of most cases run in one
//! process, in alternating slices of about a millisecond ([`measure`]). If a signal interrupts a bench, the bench
//! returns the rows of the finished cases and, from a case that returns rows in parts, those of the finished parts.
//!
//! On two cores `percpu` takes about 25 s and `false-sharing` 10 s; with `--quick` a quarter of that. `cid` takes 75 s,
//! most of it waiting; with `--quick` half. `budget` takes 35 s, with `--quick` a third. `wake` takes eight minutes,
//! most of them for the 36 kinds of `warm` cases; with `--quick` one and a half. `http` takes five minutes, with
//! `--quick` one.

pub mod budget;
pub mod calls;
mod case;
pub mod cid;
pub mod false_sharing;
pub mod http;
pub mod measure;
pub mod once;
pub mod part;
pub mod percpu;
mod race;
mod runtimes;
pub mod signals;
pub mod wake;
mod working_set;

pub use case::{Case, CaseCtx, progress, run_cases};

use anyhow::Context;
use measure::Effort;
use part::Part;
use serde_json::Value;
use std::path::Path;
use warmcore_results::Results;

/// A bench: the cases of one mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Counter, free list, sum and drain, compared with what programs use without Warmcore
    Percpu,
    /// What a reader pays when another CPU writes a field on the same cache line or on the next one
    FalseSharing,
    /// Whether a CPU gets the concurrency id back that it used last, and what ids cost
    Cid,
    /// What a limit costs, and what taking back unused units costs the CPU that holds them
    Budget,
    /// Tasks that wake each other on Warmcore's runtime, compared with tokio, smol, rayon and Go
    Wake,
    /// HTTP servers on Warmcore's runtime, compared with tokio and smol
    Http,
}

impl What {
    /// All benches, in the order of the command's help.
    pub const EVERY: [Self; 6] =
        [Self::Percpu, Self::FalseSharing, Self::Cid, Self::Budget, Self::Wake, Self::Http];

    /// The cases, in the order of the report.
    pub fn cases(self) -> &'static [Case] {
        match self {
            Self::Percpu => percpu::CASES,
            Self::FalseSharing => false_sharing::CASES,
            Self::Cid => cid::CASES,
            Self::Budget => budget::CASES,
            Self::Wake => wake::CASES,
            Self::Http => http::CASES,
        }
    }

    /// What the bench measures, for the command's help.
    pub fn about(self) -> &'static str {
        match self {
            Self::Percpu => "Counter, free list, sum and drain, beside what one would use without Warmcore",
            Self::FalseSharing => "What a reader pays when another CPU writes beside its field",
            Self::Cid => "Whether a CPU gets the id back that it used last, and what ids cost",
            Self::Budget => {
                "What a limit costs, and what taking back unused units costs the CPU that holds them"
            }
            Self::Wake => {
                "What our runtime makes of tasks that wake each other, beside tokio, smol, rayon and Go"
            }
            Self::Http => "What our runtime makes of HTTP servers, beside tokio and smol",
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Percpu => "percpu",
            Self::FalseSharing => "false-sharing",
            Self::Cid => "cid",
            Self::Budget => "budget",
            Self::Wake => "wake",
            Self::Http => "http",
        }
    }
}

/// Runs the cases of `what` that `only` names, or all if `only` is empty, with progress on stderr; `keep` as in
/// [`run_cases`]. If the case of timelines ran, records the timelines too.
pub fn run(
    what: What,
    effort: Effort,
    only: &[&str],
    heading: &str,
    keep: Option<&Path>,
) -> anyhow::Result<Results> {
    let quick = if effort.is_quick() { " --quick" } else { "" };
    let case: String = only.iter().map(|name| format!(" --case {name}")).collect();
    let command = format!("warmcore bench {}{quick}{case}", what.name());
    let mut results = run_cases(what.name(), what.cases(), effort, only, heading, &command, keep)?;
    if results.rows.iter().any(|row| row.case == cid::timeline::CASE) {
        results.timelines = cid::timeline::record_all();
    }
    Ok(results)
}

/// Runs a part, `{"NAME":ARGUMENTS}`, in this process and prints its answer; the HTTP client's part prints an answer to
/// each command on its stdin. The hidden command calls this.
pub fn run_part(part: &str) -> anyhow::Result<()> {
    fn answer<P: Part>(arguments: Value) -> anyhow::Result<()> {
        println!("{}", serde_json::to_string(&serde_json::from_value::<P>(arguments)?.answer()?)?);
        Ok(())
    }
    let parts: serde_json::Map<String, Value> = serde_json::from_str(part)?;
    let (name, arguments) = parts.into_iter().next().context("no part is named")?;
    match name.as_str() {
        cid::intermittent::Round::NAME => answer::<cid::intermittent::Round>(arguments),
        cid::memory::Many::NAME => answer::<cid::memory::Many>(arguments),
        budget::memory::Many::NAME => answer::<budget::memory::Many>(arguments),
        wake::timers::Idle::NAME => answer::<wake::timers::Idle>(arguments),
        wake::memory::Waiting::NAME => answer::<wake::memory::Waiting>(arguments),
        wake::late::Late::NAME => answer::<wake::late::Late>(arguments),
        once::Once::NAME => answer::<once::Once>(arguments),
        once::Names::NAME => answer::<once::Names>(arguments),
        http::load::PART => http::load::serve(),
        _ => anyhow::bail!("no part is called {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_named_once() {
        for what in What::EVERY {
            let names: std::collections::BTreeSet<&str> = what.cases().iter().map(|case| case.name).collect();
            assert_eq!(names.len(), what.cases().len(), "{what:?}");
        }
    }
}
