//! `cargo xtask test`: runs the steps of [`steps`] one after the other and prints a line for each.
//!
//! A step is one cargo command, the tests of some packages, or test programs of an earlier step, run again (and built,
//! if that step did not run). A step that fails does not stop the run, so that one run shows everything that is broken.
//!
//! The test programs are built first (`cargo test --no-run`), without a limit, and then run one by one. A test program
//! that makes no progress is ended and reported, and so is each cargo command but those that build test programs.
//!
//! The output of a step is kept in files of `target/xtask` that have the step's name. The times of the steps are kept
//! in `target/xtask/times`, from which the next run estimates how much time is left.

pub mod binaries;
mod estimate;
mod live;
mod steps;

use crate::process::{self, Ended};
use crate::{guest, instructions, locks, sanitizers, syscalls};
use anyhow::{Context, bail};
pub use binaries::Binary;
use estimate::Estimates;
pub use live::Live;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
pub use steps::{Level, Needs, Step, Work, step};

/// Which steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first level of which steps run.
    pub from: Level,
    /// The last level of which steps run.
    pub to: Level,
}

impl Range {
    fn contains(self, level: Level) -> bool {
        (self.from..=self.to).contains(&level)
    }
}

/// How tests ended: passed, failed, ignored.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts([u64; 3]);

impl Counts {
    /// Adds up the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn of(output: &str) -> Self {
        let mut counts = Self::default();
        for line in output.lines().filter(|line| line.starts_with("test result:")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2) {
                let Ok(n) = pair[0].parse::<u64>() else { continue };
                match pair[1] {
                    "passed;" => counts.0[0] += n,
                    "failed;" => counts.0[1] += n,
                    "ignored;" => counts.0[2] += n,
                    _ => {}
                }
            }
        }
        counts
    }

    fn add(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }
}

/// How a step ended.
#[derive(Default)]
struct Outcome {
    ok: bool,
    counts: Counts,
    /// The programs that failed, with their output.
    report: String,
    /// The test programs with their seconds and seconds of CPU time, the longest first.
    parts: Vec<(String, f64, f64)>,
}

/// A run: the programs that were built, and how the steps ended.
struct Run<'a> {
    root: &'a Path,
    folder: PathBuf,
    live: Live,
    estimates: Estimates,
    /// The test programs of each step that built some, by the step's name.
    built: BTreeMap<&'static str, Vec<Binary>>,
    /// The command `warmcore`, if a step built it.
    command: Option<PathBuf>,
    total: Counts,
    failed: Vec<String>,
    /// Seconds and seconds of CPU time of each step that ran, and of at most eight of its test programs, the longest of
    /// those that took 5 s or more.
    times: Vec<(String, f64, f64)>,
}

/// `cargo xtask test` leaves 4 GB in an empty `target/`. What the other steps need was not measured; this many GB is the guess.
const NEEDED_GB: u64 = 10;

/// The free space of the folder's file system, by `df`. `None`: it did not say.
fn free_gb(folder: &Path) -> Option<u64> {
    let output = Command::new("df").arg("-Pk").arg(folder).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let kilobytes: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kilobytes / 1_000_000)
}

/// Runs the steps of these levels that can run on this machine and would end within `limit`, and before those of
/// [`Level::Test`] checks the lock files. Fails if a step or the check fails, or if no test passed.
pub fn run(root: &Path, range: Range, limit: Duration) -> anyhow::Result<()> {
    let began = Instant::now();
    let folder = root.join("target/xtask");
    std::fs::create_dir_all(&folder)?;
    let mut planned: Vec<sanitizers::Planned> =
        steps::all().into_iter().filter(|step| range.contains(step.level)).map(Ok).collect();
    if range.contains(Level::All) {
        planned.extend(sanitizers::steps());
    }
    let estimates = Estimates::read(&folder.join("times"), planned.iter().flatten());
    let mut run = Run {
        root,
        folder,
        live: Live::new(),
        estimates,
        built: BTreeMap::new(),
        command: None,
        total: Counts::default(),
        failed: Vec::new(),
        times: Vec::new(),
    };
    if let Some(free) = free_gb(&run.folder).filter(|free| *free < NEEDED_GB) {
        let why = format!(
            "{free} GB are free in target/, a run may need {NEEDED_GB}: errors of the disk may follow"
        );
        run.live.line(&format!("note  {:<28} {why}", "disk"));
    }
    if range.contains(Level::Test) && !locks::check(root)? {
        run.failed.push("lock files".to_owned());
    }
    for planned in planned {
        match planned.and_then(|step| {
            match run.missing(&step).or_else(|| run.too_long(&step, limit, began.elapsed())) {
                None => Ok(step),
                Some(why) => Err((step.name, why)),
            }
        }) {
            Ok(step) => run.step(step.name, |run| run.work(&step))?,
            Err((name, why)) => run.live.line(&format!("skip  {name:<28} {why}")),
        }
    }
    run.end(began)
}

impl Run<'_> {
    /// Runs a step and prints its line and, if the step failed, its output.
    fn step(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Self) -> anyhow::Result<Outcome>,
    ) -> anyhow::Result<()> {
        let (began, cpu) = (Instant::now(), process::children_cpu());
        self.estimates.begin(name);
        let outcome = work(self)?;
        let seconds = began.elapsed().as_secs_f64();
        let cpu = process::children_cpu().saturating_sub(cpu).as_secs_f64();
        self.estimates.end(name, seconds, outcome.ok);
        let tests = match outcome.counts.0 {
            [0, 0, 0] => String::new(),
            [passed, failed, ignored] => format!("{passed} passed, {failed} failed, {ignored} ignored"),
        };
        let state = if outcome.ok { "ok  " } else { "FAIL" };
        self.live.line(&format!("{state}  {name:<28} {seconds:>5.0} s {cpu:>6.0} s CPU  {tests}"));
        if !outcome.ok {
            self.live.line(&outcome.report);
            self.failed.push(name.to_owned());
        }
        self.total.add(outcome.counts);
        self.times.push((name.to_owned(), seconds, cpu));
        let slow = outcome.parts.into_iter().filter(|(_, seconds, _)| *seconds >= 5.0);
        self.times.extend(slow.take(8).map(|(part, seconds, cpu)| (format!("  {part}"), seconds, cpu)));
        Ok(())
    }

    /// The reason if a step can't run on this machine.
    fn missing(&self, step: &Step) -> Option<String> {
        match step.needs {
            Needs::Nothing => None,
            Needs::Rseq => (!self.has_rseq())
                .then(|| "this system runs no restartable sequences: `warmcore doctor` says why".to_owned()),
            Needs::Target(target) => {
                (!process::has_target(target)).then(|| format!("not installed: `rustup target add {target}`"))
            }
            Needs::Toolchain(version) => {
                (!process::succeeds("rustc", &[&format!("+{version}"), "--version"]))
                    .then(|| format!("not installed: `rustup toolchain install {version}`"))
            }
            Needs::Cargo(tool) => (!process::succeeds("cargo", &[tool, "--version"]))
                .then(|| format!("not installed: `cargo install cargo-{tool}`")),
            Needs::Valgrind => instructions::is_possible().err().map(|why| why.to_string()),
            Needs::Strace => syscalls::is_possible().err().map(|why| why.to_string()),
            Needs::Guest => guest::is_possible().err().map(|why| why.to_string()),
        }
    }

    /// The reason if a step would end later than `limit` after the beginning.
    fn too_long(&self, step: &Step, limit: Duration, elapsed: Duration) -> Option<String> {
        let (estimate, left) = (self.estimates.estimate(step.name), limit.saturating_sub(elapsed));
        let minutes = |time: Duration| time.as_secs().div_ceil(60);
        (estimate > left)
            .then(|| format!("would take about {} min, {} min are left", minutes(estimate), minutes(left)))
    }

    fn work(&mut self, step: &Step) -> anyhow::Result<Outcome> {
        match step.work {
            Work::Cargo => self.cargo(step, &words(step.args), ""),
            Work::Tests { also_documentation, leaves_out_long } => {
                let (args, harness) = split(step.args);
                let Some(binaries) = self.build(step, &args)? else { return self.build_error(step) };
                self.built.insert(step.name, binaries.clone());
                let chosen = binaries.into_iter().filter_map(|binary| {
                    let more = if leaves_out_long { binary.without_long()? } else { Vec::new() };
                    Some((binary, [&harness[..], &more].concat()))
                });
                let mut outcome = self.run_all(step, &chosen.collect::<Vec<_>>())?;
                if also_documentation {
                    let args: Vec<&str> = args.iter().copied().chain(["--doc"]).collect();
                    let documentation = self.cargo(step, &args, "-examples")?;
                    outcome.ok &= documentation.ok;
                    outcome.counts.add(documentation.counts);
                    outcome.report += &documentation.report;
                }
                Ok(outcome)
            }
            Work::Again { of, packages, only_long } => {
                if !self.built.contains_key(of) {
                    let built = steps::all().into_iter().find(|step| step.name == of);
                    let built = built.with_context(|| format!("no step is called {of}"))?;
                    let Some(binaries) = self.build(&built, &split(built.args).0)? else {
                        return self.build_error(&built);
                    };
                    self.built.insert(of, binaries);
                }
                let chosen = self.built[of].iter().filter_map(|binary| {
                    let args = if only_long { binary.only_long()? } else { Vec::new() };
                    let is_chosen = packages.is_empty() || packages.contains(&&*binary.package);
                    is_chosen.then(|| (binary.clone(), args))
                });
                let chosen: Vec<_> = chosen.collect();
                self.run_all(step, &chosen)
            }
        }
    }

    fn output(&self, step: &Step, end: &str) -> PathBuf {
        self.folder.join(format!("{}{end}.txt", step.name.replace([' ', ',', '\''], "-")))
    }

    /// Builds the test programs of a step, with cargo's arguments `args`. `None` if they do not build.
    fn build(&mut self, step: &Step, args: &[&str]) -> anyhow::Result<Option<Vec<Binary>>> {
        let more = ["--no-run", "--message-format", "json-render-diagnostics"];
        let args: Vec<&str> = args.iter().copied().chain(more).collect();
        let (out, err) = (self.output(step, "-built"), self.output(step, "-build"));
        let mut cargo = process::cargo(self.root, &args);
        cargo.envs(step.env.iter().copied()).stdout(File::create(&out)?).stderr(File::create(&err)?);
        let ended = process::wait(&mut cargo, None, &[&err], &mut |text| {
            self.live.show(step.name, &process::last_compiled(text), Some(self.estimates.left()));
        })?;
        match ended {
            Ended::Well => {
                let messages = std::fs::read_to_string(&out)?;
                self.command = binaries::command_of_messages(&messages).or(self.command.take());
                Ok(Some(binaries::of_messages(&messages, self.root)?))
            }
            _ => Ok(None),
        }
    }

    fn build_error(&self, step: &Step) -> anyhow::Result<Outcome> {
        let said = std::fs::read_to_string(self.output(step, "-build")).unwrap_or_default();
        Ok(Outcome { report: format!("{said}\nagain: {}", step.command()), ..Outcome::default() })
    }

    /// Runs test programs, each with its arguments, one after the other.
    fn run_all(&mut self, step: &Step, binaries: &[(Binary, Vec<&str>)]) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome { ok: true, ..Outcome::default() };
        let path = self.output(step, "");
        let mut whole = File::create(&path)?;
        for (number, (binary, harness)) in (1..).zip(binaries) {
            let (began, cpu) = (Instant::now(), process::children_cpu());
            let one = self.folder.join("running.txt");
            let mut command = binary.command(harness)?;
            command.envs(step.env.iter().copied());
            // Standard output and standard error both append. Otherwise each would overwrite the other's text.
            File::create(&one)?;
            let append = || File::options().append(true).open(&one);
            command.stdout(append()?).stderr(append()?);
            let ended = process::wait(&mut command, Some(step.limit), &[&one], &mut |text| {
                let test = text.lines().rev().find_map(|line| line.strip_prefix("test ")).unwrap_or_default();
                let part = format!("{number} of {}, {}: {test}", binaries.len(), binary.name());
                self.live.show(step.name, &part, Some(self.estimates.left()));
            })?;
            let text = String::from_utf8_lossy(&std::fs::read(&one)?).into_owned();
            std::io::Write::write_all(&mut whole, format!("{}\n{text}", binary.name()).as_bytes())?;
            outcome.counts.add(Counts::of(&text));
            let cpu = process::children_cpu().saturating_sub(cpu).as_secs_f64();
            outcome.parts.push((binary.name(), began.elapsed().as_secs_f64(), cpu));
            if let Some(why) = ended.failure() {
                outcome.ok = false;
                outcome.report +=
                    &format!("{}: {why}\n{text}\nagain: {}\n", binary.name(), binary.again(step.env));
            }
        }
        outcome.parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(outcome)
    }

    /// Runs cargo. Its output is kept in files named by the step and `end`.
    fn cargo(&mut self, step: &Step, args: &[&str], end: &str) -> anyhow::Result<Outcome> {
        let (out, err) = (self.output(step, end), self.output(step, &format!("{end}-cargo")));
        let mut cargo = process::cargo(self.root, args);
        cargo.envs(step.env.iter().copied()).stdout(File::create(&out)?).stderr(File::create(&err)?);
        let ended = process::wait(&mut cargo, Some(step.limit), &[&err, &out], &mut |text| {
            self.live.show(step.name, &process::last_compiled(text), Some(self.estimates.left()));
        })?;
        let [out, err] = [out, err].map(|path| std::fs::read(path).unwrap_or_default());
        let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
        let failure = ended.failure();
        let report = failure.as_ref().map(|why| format!("{why}\n{out}\n{err}\nagain: {}\n", step.command()));
        Ok(Outcome {
            ok: failure.is_none(),
            counts: Counts::of(&out),
            report: report.unwrap_or_default(),
            parts: Vec::new(),
        })
    }

    /// Whether restartable sequences work on this machine, as the command `warmcore` reports, which an earlier step
    /// built. False if no step has built it or it can't be run.
    fn has_rseq(&self) -> bool {
        let Some(command) = &self.command else { return false };
        let doctor = Command::new(command).arg("doctor").env_remove("WARMCORE_PERCPU").output();
        let said =
            String::from_utf8_lossy(&doctor.map(|output| output.stdout).unwrap_or_default()).into_owned();
        said.lines().any(|line| line.starts_with("ok") && line.contains("per-CPU data rseq"))
    }

    /// Prints how long each step took and how the tests ended. Returns an error if a step failed or no test passed.
    fn end(self, began: Instant) -> anyhow::Result<()> {
        self.live.line("\nstep                                seconds   of CPU");
        for (name, seconds, cpu) in &self.times {
            self.live.line(&format!("{name:<34} {seconds:>8.0} {cpu:>8.0}"));
        }
        self.live.line(&format!("{:<34} {:>8.0}", "all", began.elapsed().as_secs_f64()));
        let [passed, failed, ignored] = self.total.0;
        self.live.line(&format!("\n{passed} passed, {failed} failed, {ignored} ignored"));
        if !self.failed.is_empty() {
            bail!("failed: {}", self.failed.join(", "));
        }
        if passed == 0 {
            bail!("no test ran");
        }
        Ok(())
    }
}

/// The words of a command line.
fn words(args: &str) -> Vec<&str> {
    args.split(' ').filter(|word| !word.is_empty()).collect()
}

/// Splits arguments at the first ` -- ` into cargo's and the test programs'.
fn split(args: &str) -> (Vec<&str>, Vec<&str>) {
    let (cargo, harness) = args.split_once(" -- ").unwrap_or((args, ""));
    (words(cargo), words(harness))
}

/// The CPU time that a program may use without printing anything, if its step has no other limit: see
/// [`process::wait`].
pub const LIMIT: Duration = Duration::from_mins(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_programs_are_added() {
        let line = |passed, failed, ignored| {
            format!(
                "test result: ok. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 9 filtered out\n"
            )
        };
        let text = format!("test a ... ok\n{}x\n{}", line(3, 0, 1), line(2, 4, 0));
        assert_eq!(Counts::of(&text), Counts([5, 4, 1]));
    }

    #[test]
    fn arguments_of_the_harness_stand_behind_two_hyphens() {
        let (cargo, harness) = split("test --lib  -p a -- loom --ignored");
        assert_eq!((cargo, harness), (vec!["test", "--lib", "-p", "a"], vec!["loom", "--ignored"]));
        assert_eq!(split("fmt --check"), (vec!["fmt", "--check"], vec![]));
    }

    #[test]
    fn a_level_includes_those_before_it_unless_it_is_the_rest() {
        let of = |from, to| {
            let range = Range { from, to };
            [Level::Test, Level::Full, Level::All].map(|level| range.contains(level))
        };
        assert_eq!(of(Level::Test, Level::Test), [true, false, false]);
        assert_eq!(of(Level::Test, Level::All), [true; 3]);
        assert_eq!(of(Level::Full, Level::Full), [false, true, false]);
    }
}
