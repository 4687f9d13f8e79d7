//! Run: the benches of each mechanism, against the plain way and named peers.
//!
//! Model.   A run is a list of cases; a case makes its rows. A run that was interrupted returns
//!          the rows of the cases that were finished.
//! Number.  `percpu` takes about 25 s, `false-sharing` 10 s; with `--quick` a quarter. `cid` takes
//!          75 s, most of it asleep; with `--quick` half. `budget` takes 35 s, with `--quick` a third.
//!          `wake` takes eight minutes, most of them for the 36 kinds of warm sets; with `--quick` one and a half.
//!          `http` takes five minutes, with `--quick` one.

pub mod budget;
pub mod cid;
pub mod false_sharing;
pub mod http;
pub mod part;
pub mod percpu;
pub mod wake;

use crate::measure::{Effort, INTERRUPTED, Place};
use crate::results::{Results, Row};
use crate::{host, results};
use anyhow::Context;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

/// What can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
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
    /// Those that a report holds, in its order. `wake` and `http` take minutes: they are drawn if their
    /// results lie there.
    pub const ALL: [Self; 4] = [Self::Percpu, Self::FalseSharing, Self::Cid, Self::Budget];

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

/// Arguments of `warmcore run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to measure
    what: What,
    /// Also write the results there, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A third of the rounds: a first look, with wider intervals
    #[arg(long)]
    quick: bool,
    /// Only this case
    #[arg(long, value_name = "CASE")]
    case: Option<String>,
}

/// `warmcore run`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let results = run(args.what, effort, args.case.as_deref(), "")?;
    print!("{}", crate::report::run_table(&results));
    if let Some(path) = &args.json {
        results::write_whole(path, &serde_json::to_vec_pretty(&results)?)?;
        eprintln!("written: {}", path.display());
    }
    if INTERRUPTED.load(Relaxed) {
        eprintln!("interrupted: the cases above were finished, the others are missing");
        std::process::exit(130);
    }
    Ok(())
}

/// Runs all cases of `what`, or the one that is named, with progress on stderr.
pub fn run(what: What, effort: Effort, only: Option<&str>, heading: &str) -> anyhow::Result<Results> {
    let cases = match what {
        What::Percpu => percpu::CASES,
        What::FalseSharing => false_sharing::CASES,
        What::Cid => cid::CASES,
        What::Budget => budget::CASES,
        What::Wake => wake::CASES,
        What::Http => http::CASES,
    };
    let quick = if effort.rounds == Effort::QUICK.rounds { " --quick" } else { "" };
    let case = only.map_or(String::new(), |c| format!(" --case {c}"));
    let command = format!("warmcore run {}{quick}{case}", what.name());
    let mut results = run_cases(what.name(), cases, effort, only, heading, &command)?;
    if results.rows.iter().any(|row| row.case == cid::timeline::CASE) {
        results.timelines = cid::timeline::record_all();
    }
    Ok(results)
}

/// Runs `cases`, or the one that is named, with progress on stderr; `command` is what repeats it.
pub fn run_cases(
    what: &str,
    cases: &[Case],
    effort: Effort,
    only: Option<&str>,
    heading: &str,
    command: &str,
) -> anyhow::Result<Results> {
    let chosen: Vec<&Case> = cases.iter().filter(|c| only.is_none_or(|name| name == c.name)).collect();
    let names = || cases.iter().map(|c| c.name).collect::<Vec<_>>().join(", ");
    anyhow::ensure!(
        !chosen.is_empty(),
        "no case of {what} is called {}; there are {}",
        only.unwrap_or(""),
        names()
    );
    let place = Place::find().context("can't tell where to measure")?;
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
    let mut rows = Vec::new();
    for (case, end) in chosen.iter().zip(ends) {
        bar.set_message(case.name);
        if place.partner.is_none() && case.needs_two {
            // Not `bar.println`, which says nothing where stderr is no terminal.
            bar.suspend(|| {
                eprintln!("{}: left out, it needs two CPUs and this process may use one", case.name)
            });
            continue;
        }
        let context = Ask { name: case.name, place, effort, tick: &|| bar.inc(1) };
        match (case.run)(&context).with_context(|| format!("case {}", case.name))? {
            Some(more) => rows.extend(more),
            None => break,
        }
        bar.set_position(end);
    }
    bar.finish_and_clear();
    Ok(host::results(what, command, when, &meter, rows))
}

/// One case of a run.
pub struct Case {
    /// As it stands in the rows.
    pub name: &'static str,
    /// It cannot be measured on one CPU.
    pub needs_two: bool,
    /// Its rows; `None` if it was interrupted.
    pub run: fn(&Ask) -> anyhow::Result<Option<Vec<Row>>>,
}

/// What a case is given.
pub struct Ask<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it runs.
    pub place: Place,
    /// How long it may take.
    pub effort: Effort,
    /// To be called after every round.
    pub tick: &'a dyn Fn(),
}

impl Ask<'_> {
    /// Interleaves the variants.
    pub fn interleave(
        &self,
        variants: Vec<crate::measure::Variant>,
    ) -> anyhow::Result<Option<crate::measure::Measured>> {
        crate::measure::interleave(self.name, variants, self.place, self.effort, self.tick)
    }
}
