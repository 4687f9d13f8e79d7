//! Run: the benches of each mechanism, against the plain way and named peers.
//!
//! Model.   A run is a list of cases; a case makes its rows. With `--json` the file is written before the first
//!          case and anew after every one, then renamed: whatever ends a run, a signal, an error or a crash, what was
//!          finished lies there, nothing older.
//!          A run that was interrupted returns the rows of the cases, and of the parts of a long case, that were
//!          finished.
//! Number.  `percpu` takes about 25 s, `false-sharing` 10 s; with `--quick` a quarter. `cid` takes
//!          75 s, most of it asleep; with `--quick` half. `budget` takes 35 s, with `--quick` a third.
//!          `wake` takes eight minutes, most of them for the 36 kinds of warm sets; with `--quick` one and a half.
//!          `http` takes five minutes, with `--quick` one.

pub mod budget;
pub mod cid;
pub mod false_sharing;
pub mod http;
pub mod measure;
pub mod part;
pub mod percpu;
mod runtimes;
pub mod signals;
pub mod wake;

use crate::measure::{BenchCpus, Effort, INTERRUPTED};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use warmcore_results::{self as results, system as host};
use warmcore_results::{Results, Row};

/// What can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Counter, free list, sum and drain, beside what one would use without Warmcore
    Percpu,
    /// What a reader pays when somebody writes beside its field
    FalseSharing,
    /// Whether a CPU gets the id back that it used last, and what ids cost
    Cid,
    /// What a limit costs, and what taking back unused units costs who holds them
    Budget,
    /// What our runtime makes of tasks that wake each other, beside tokio, smol, rayon and Go
    Wake,
    /// What our runtime makes of HTTP servers, beside tokio and smol
    Http,
}

impl What {
    /// All of them, in the order of the command's help.
    pub const EVERY: [Self; 6] =
        [Self::Percpu, Self::FalseSharing, Self::Cid, Self::Budget, Self::Wake, Self::Http];

    /// Those that a report holds, in its order. `wake` and `http` take minutes: they are drawn if their
    /// results lie there.
    pub const ALL: [Self; 4] = [Self::Percpu, Self::FalseSharing, Self::Cid, Self::Budget];

    /// Its cases, in the order of the report.
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

    /// What it measures, for the command's help.
    pub fn about(self) -> &'static str {
        match self {
            Self::Percpu => "Counter, free list, sum and drain, beside what one would use without Warmcore",
            Self::FalseSharing => "What a reader pays when somebody writes beside its field",
            Self::Cid => "Whether a CPU gets the id back that it used last, and what ids cost",
            Self::Budget => "What a limit costs, and what taking back unused units costs who holds them",
            Self::Wake => {
                "What our runtime makes of tasks that wake each other, beside tokio, smol, rayon and Go"
            }
            Self::Http => "What our runtime makes of HTTP servers, beside tokio and smol",
        }
    }

    /// As on the command line.
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

fn write(path: &Path, results: &Results) -> anyhow::Result<()> {
    results::write_whole(path, &serde_json::to_vec_pretty(results)?)
}

/// Runs all cases of `what`, or the one that is named, with progress on stderr; `keep` as in [`run_cases`].
pub fn run(
    what: What,
    effort: Effort,
    only: Option<&str>,
    heading: &str,
    keep: Option<&Path>,
) -> anyhow::Result<Results> {
    let quick = if effort.rounds == Effort::QUICK.rounds { " --quick" } else { "" };
    let case = only.map_or(String::new(), |c| format!(" --case {c}"));
    let command = format!("warmcore bench {}{quick}{case}", what.name());
    let mut results = run_cases(what.name(), what.cases(), effort, only, heading, &command, keep)?;
    if results.rows.iter().any(|row| row.case == cid::timeline::CASE) {
        results.timelines = cid::timeline::record_all();
    }
    Ok(results)
}

/// Runs `cases`, or the one that is named, with progress on stderr; `command` is what repeats it. Before the first
/// case and after every one the results so far are written to `keep`, if it is a file.
pub fn run_cases(
    what: &str,
    cases: &[Case],
    effort: Effort,
    only: Option<&str>,
    heading: &str,
    command: &str,
    keep: Option<&Path>,
) -> anyhow::Result<Results> {
    let chosen: Vec<&Case> = cases.iter().filter(|c| only.is_none_or(|name| name == c.name)).collect();
    let names = || cases.iter().map(|c| c.name).collect::<Vec<_>>().join(", ");
    anyhow::ensure!(
        !chosen.is_empty(),
        "no case of {what} is called {}; there are {}",
        only.unwrap_or(""),
        names()
    );
    let cpus = BenchCpus::find().context("can't tell where to measure")?;
    let mut steps = 0;
    let ends: Vec<u64> = chosen
        .iter()
        .map(|case| {
            steps += cid::steps(case, effort);
            steps
        })
        .collect();
    let bar = crate::progress(steps, &format!("{heading}{what}"));
    let (when, meter) = (host::utc_now(), host::LoadMeter::start());
    let so_far = |rows: &[Row]| host::results(what, command, when.clone(), &meter, rows.to_vec());
    let mut rows = Vec::new();
    let keep = keep.filter(|path| results::is_rewritable(path));
    // Now, so that no older run's file stands for this one, and a path that can't be written is told before it costs
    // minutes.
    if let Some(path) = keep {
        write(path, &so_far(&rows))?;
    }
    // Where nobody sees a bar, a log shows how far it is.
    let log = |done: &str| {
        if bar.is_hidden() {
            eprintln!("{heading}{what}: {done}");
        }
    };
    for (i, (case, end)) in chosen.iter().zip(ends).enumerate() {
        if INTERRUPTED.load(Relaxed) {
            break;
        }
        bar.set_message(case.name);
        if cpus.partner.is_none() && case.needs_two {
            // Not `bar.println`, which says nothing where stderr is no terminal.
            bar.suspend(|| {
                eprintln!("{}: left out, it needs two CPUs and this process may use one", case.name)
            });
            continue;
        }
        // Not "done", which says that the rows are in the file.
        let part_done = |part: &str| log(&format!("{part} is measured"));
        let context = CaseCtx { name: case.name, cpus, effort, tick: &|| bar.inc(1), part_done: &part_done };
        match (case.run)(&context).with_context(|| format!("case {}", case.name))? {
            Some(more) => rows.extend(more),
            None => break,
        }
        if let Some(path) = keep {
            write(path, &so_far(&rows))?;
        }
        // A long case gives what it has: its rows are kept, but it isn't done.
        if INTERRUPTED.load(Relaxed) {
            break;
        }
        bar.set_position(end);
        log(&format!("{} is done, {} of {}", case.name, i + 1, chosen.len()));
    }
    bar.finish_and_clear();
    Ok(so_far(&rows))
}

/// A bar on stderr for `steps` of `what`; invisible where stderr is no terminal.
pub fn progress(steps: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>24} {bar:30} {percent:>3} % {eta:>4} left  {msg}");
    let bar = ProgressBar::new(steps).with_prefix(what.to_owned());
    bar.with_style(style.expect("the template is right"))
}

/// One case of a run.
pub struct Case {
    /// As it stands in the rows.
    pub name: &'static str,
    /// It cannot be measured on one CPU.
    pub needs_two: bool,
    /// Its rows; `None` if it was interrupted.
    pub run: fn(&CaseCtx) -> anyhow::Result<Option<Vec<Row>>>,
}

/// What a case is given.
pub struct CaseCtx<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it runs.
    pub cpus: BenchCpus,
    /// How long it may take.
    pub effort: Effort,
    /// To be called after every round.
    pub tick: &'a dyn Fn(),
    /// To be called by a long case with the name of each of its parts whose rows it gives also if it is cut short.
    pub part_done: &'a dyn Fn(&str),
}

impl CaseCtx<'_> {
    /// Interleaves the variants.
    pub fn interleave(
        &self,
        variants: Vec<crate::measure::Variant>,
    ) -> anyhow::Result<Option<crate::measure::Measured>> {
        crate::measure::interleave(self.name, variants, self.cpus, self.effort, self.tick)
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
