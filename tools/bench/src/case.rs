//! Cases: what a bench consists of, and how its cases are run one after the other.
//!
//! The results are written before the first case and anew after every one, then renamed: after a signal, an error or
//! a crash the file holds the cases that were finished, and nothing older.

use crate::measure::{BenchCpus, Effort, INTERRUPTED, Measured, Variant, interleave};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use warmcore_results::{self as results, Results, Row, system};

fn write(path: &Path, results: &Results) -> anyhow::Result<()> {
    results::write_whole(path, &serde_json::to_vec_pretty(results)?)
}

/// Runs `cases`, or those that are named, with progress on stderr; `command` is what repeats it. Before the first
/// case and after every one the results so far are written to `keep`, if it is a file.
pub fn run_cases(
    what: &str,
    cases: &[Case],
    effort: Effort,
    only: &[&str],
    heading: &str,
    command: &str,
    keep: Option<&Path>,
) -> anyhow::Result<Results> {
    let is_chosen = |case: &&Case| only.is_empty() || only.contains(&case.name);
    let chosen: Vec<&Case> = cases.iter().filter(is_chosen).collect();
    if let Some(unknown) = only.iter().find(|name| cases.iter().all(|case| case.name != **name)) {
        let names = cases.iter().map(|c| c.name).collect::<Vec<_>>().join(", ");
        anyhow::bail!("no case of {what} is called {unknown}; there are {names}");
    }
    let cpus = BenchCpus::find().context("can't tell where to measure")?;
    let mut steps = 0;
    let ends: Vec<u64> = chosen
        .iter()
        .map(|case| {
            steps += (case.steps)(effort);
            steps
        })
        .collect();
    let bar = progress(steps, &format!("{heading}{what}"));
    let (when, meter) = (system::utc_now(), system::LoadMeter::start());
    let so_far = |rows: &[Row]| system::results(what, command, when.clone(), &meter, rows.to_vec());
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
        if cpus.partner.is_none() && case.needs_two_cpus {
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
    needs_two_cpus: bool,
    /// How far its progress bar moves.
    steps: fn(Effort) -> u64,
    /// Its rows; `None` if it was interrupted.
    run: fn(&CaseCtx) -> anyhow::Result<Option<Vec<Row>>>,
}

impl Case {
    /// A case that can be measured on one CPU, and moves its progress bar once a round.
    pub const fn new(name: &'static str, run: fn(&CaseCtx) -> anyhow::Result<Option<Vec<Row>>>) -> Self {
        Self { name, needs_two_cpus: false, steps: |effort| effort.rounds as u64, run }
    }

    /// The case, left out where there is one CPU.
    pub const fn needs_two_cpus(self) -> Self {
        Self { needs_two_cpus: true, ..self }
    }

    /// The case, whose progress bar moves so many times.
    pub const fn with_steps(self, steps: fn(Effort) -> u64) -> Self {
        Self { steps, ..self }
    }
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
    pub fn interleave(&self, variants: Vec<Variant>) -> anyhow::Result<Option<Measured>> {
        interleave(self.name, variants, self.cpus, self.effort, self.tick)
    }
}
