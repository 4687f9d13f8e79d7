//! The cases of a bench, and the function that runs them one after the other.
//!
//! If a file is given that can be replaced, the results are written before the first case and again after each case
//! that returned rows, to a temporary file that is then renamed if the folder permits it. So after a signal, an error
//! or a crash the file has the rows of the cases that were finished, and nothing of an older run.

use crate::measure::{BenchCpus, Effort, INTERRUPTED, Interrupted, Measured, Variant, in_rounds, interleave};
use crate::runtimes::Contender;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use warmcore_results::{self as results, Results, Row, system};
use warmcore_types::CpuId;

fn write(path: &Path, results: &Results) -> anyhow::Result<()> {
    results::write_whole(path, &serde_json::to_vec_pretty(results)?)
}

/// Runs `cases`, or those that are named in `only` if it is not empty, with progress on stderr, whose lines begin with
/// `heading` and `what`. A case that needs two CPUs is left out if there is one. `command` is the command that repeats
/// the run. Before the first case and after each case that returned rows the results so far are written to the file
/// `keep`, if one is given and it [can be replaced](results::is_rewritable).
///
/// Returns an error if `only` has a name of no case, if the allowed CPUs can't be found, if a case fails, or if `keep`
/// can't be written. If a signal ends the run early, returns the rows measured so far.
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
    let steps = chosen.iter().map(|case| (case.steps)(effort)).sum();
    let bar = progress(steps, &format!("{heading}{what}"));
    let (when, meter) = (system::utc_now(), system::LoadMeter::start());
    let so_far = |rows: &[Row]| system::results(what, command, when.clone(), &meter, rows.to_vec());
    let mut rows = Vec::new();
    let keep = keep.filter(|path| results::is_rewritable(path));
    // Write now, so that an older file is not taken for the result of this run, and so that a path that can't be
    // written is reported before minutes of measuring.
    if let Some(path) = keep {
        write(path, &so_far(&rows))?;
    }
    // Without a progress bar, print a line per case and per part, so that a log shows the progress.
    let log = |done: &str| {
        if bar.is_hidden() {
            eprintln!("{heading}{what}: {done}");
        }
    };
    let mut end = 0;
    for (i, case) in chosen.iter().enumerate() {
        end += (case.steps)(effort);
        if INTERRUPTED.load(Relaxed) {
            break;
        }
        bar.set_message(case.name);
        if cpus.partner.is_none() && case.needs_two_cpus {
            // Not `bar.println`: it prints nothing if stderr is no terminal.
            bar.suspend(|| {
                eprintln!("{}: left out, it needs two CPUs and this process may use one", case.name)
            });
            continue;
        }
        // The message is not "is done": that is printed for a whole case, after its rows are written to the file, if
        // there is one.
        let part_done = |part: &str| log(&format!("{part} is measured"));
        let tick = || bar.inc(1);
        let context =
            CaseCtx { name: case.name, cpus, effort, tick: &tick, part_done: &part_done, only: None };
        match (case.run)(&context) {
            Ok(more) => rows.extend(more),
            Err(error) if error.is::<Interrupted>() => break,
            Err(error) => return Err(error.context(format!("case {}", case.name))),
        }
        if let Some(path) = keep {
            write(path, &so_far(&rows))?;
        }
        // An interrupted long case returns the rows that it has. They are kept, but the case is not reported as done.
        if INTERRUPTED.load(Relaxed) {
            break;
        }
        bar.set_position(end);
        log(&format!("{} is done, {} of {}", case.name, i + 1, chosen.len()));
    }
    bar.finish_and_clear();
    Ok(so_far(&rows))
}

/// A progress bar on stderr for `steps` steps of `what`; invisible if stderr is no terminal.
pub fn progress(steps: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>24} {bar:30} {percent:>3} % {eta:>4} left  {msg}");
    let bar = ProgressBar::new(steps).with_prefix(what.to_owned());
    bar.with_style(style.expect("the template is right"))
}

/// One case of a bench.
pub struct Case {
    /// The name, as in the rows.
    pub name: &'static str,
    /// Whether the case needs a second CPU.
    pub(crate) needs_two_cpus: bool,
    /// The number of steps by which the case moves the progress bar.
    steps: fn(Effort) -> u64,
    /// Measures and returns the rows; after a signal, the error [`Interrupted`] or the rows of the finished parts.
    pub(crate) run: fn(&CaseCtx) -> anyhow::Result<Vec<Row>>,
    /// The names of the parts of the case, if it has parts; its rows are of the case `NAME.PART`.
    pub(crate) parts: &'static [&'static str],
    /// Whether slices of the case, or of a part, can be run on one runtime: see [`CaseCtx::only`].
    pub(crate) has_slices: bool,
}

impl Case {
    /// Makes a case that needs one CPU and moves the progress bar by [`Effort::rounds`] steps.
    pub const fn new(name: &'static str, run: fn(&CaseCtx) -> anyhow::Result<Vec<Row>>) -> Self {
        let steps = |effort: Effort| effort.rounds as u64;
        Self { name, needs_two_cpus: false, steps, run, parts: &[], has_slices: true }
    }

    /// Leaves the case out if the process may use only one CPU.
    pub const fn needs_two_cpus(self) -> Self {
        Self { needs_two_cpus: true, ..self }
    }

    /// Names the parts of the case.
    pub const fn with_parts(self, parts: &'static [&'static str]) -> Self {
        Self { parts, ..self }
    }

    /// Says that the case runs whole on all its runtimes, or not at all.
    pub const fn without_slices(self) -> Self {
        Self { has_slices: false, ..self }
    }

    /// Sets the number of steps by which the case moves the progress bar.
    pub const fn with_steps(self, steps: fn(Effort) -> u64) -> Self {
        Self { steps, ..self }
    }
}

/// What the runner hands to a case.
pub struct CaseCtx<'a> {
    /// The case's name.
    pub name: &'a str,
    /// The CPUs to measure on.
    pub cpus: BenchCpus,
    /// The number of rounds and the length of a slice.
    pub effort: Effort,
    /// Moves the progress bar by one step.
    pub tick: &'a dyn Fn(),
    /// A long case calls this with the name of each part that is finished. The case returns the rows of these parts
    /// even if a signal interrupts it later.
    pub part_done: &'a dyn Fn(&str),
    /// If set, the case runs only on this runtime and, if it has parts, only this part.
    pub(crate) only: Option<(Contender, &'a str)>,
}

impl CaseCtx<'_> {
    /// Measures the variants in alternating slices.
    pub fn interleave(&self, variants: Vec<Variant>) -> anyhow::Result<Measured> {
        interleave(self.name, variants, self.cpus, self.effort, self.tick)
    }

    /// Those of `contenders` on which the case runs. What runs on Warmcore also runs with a shared driver.
    pub(crate) fn chosen(&self, contenders: &[Contender]) -> Vec<Contender> {
        match self.only {
            None => contenders.to_vec(),
            Some((only, _)) => {
                let like = if only == Contender::OursShared { Contender::Ours } else { only };
                contenders.contains(&like).then_some(only).into_iter().collect()
            }
        }
    }

    /// Whether the case runs this part.
    pub(crate) fn has_part(&self, part: &str) -> bool {
        self.only.is_none_or(|(_, only)| only == part)
    }

    /// Calls `slice` for each of `variants` in every round, in an order that is shuffled for each round, and moves the
    /// progress bar after each round. Ends with an error if `slice` returns one or if a signal came.
    pub(crate) fn in_rounds(
        &self,
        rounds: usize,
        variants: usize,
        slice: impl FnMut(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        in_rounds(rounds, variants, |round| self.part_of(round, rounds), slice)
    }

    /// Moves the progress bar when `done` of `of` equal parts of the case are finished; the case calls it after each.
    /// All parts together are [`Effort::rounds`] steps.
    pub(crate) fn part_of(&self, done: usize, of: usize) {
        let at = |parts: usize| self.effort.rounds * parts / of;
        (at(done - 1)..at(done)).for_each(|_| (self.tick)());
    }

    /// Returns the second CPU of a case that needs two. Panics if there is none.
    pub(crate) fn partner(&self) -> CpuId {
        self.cpus.partner.expect("the case needs two CPUs")
    }
}
