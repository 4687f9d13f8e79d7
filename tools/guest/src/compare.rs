//! Compares schedulers: a guest for each scheduler and seed, which runs all scenarios.

use crate::cache::Cache;
use crate::counts::ProbeCounts;
use crate::figures::Figures;
use crate::guest::{Ended, Guest, Machine};
use crate::kernel::Kernel;
use crate::scenario::Scenario;
use crate::scheduler::Scheduler;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use warmcore_guest_init::{Done, Line, Run};

/// What is compared.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// On this kernel.
    pub kernel: Kernel,
    /// And this machine.
    pub machine: Machine,
    /// These schedulers.
    pub schedulers: Vec<Scheduler>,
    /// In these scenarios.
    pub scenarios: Vec<Scenario>,
    /// With these seeds.
    pub seeds: Vec<u64>,
}

/// A guest of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its kernel.
    pub kernel: Kernel,
    /// Its machine.
    pub machine: Machine,
    /// Its scheduler's name.
    pub scheduler: String,
    /// Its seed.
    pub seed: u64,
    /// Its scenarios.
    pub runs: Vec<Run>,
    /// The SHA-256 of its files, by name.
    pub programs: BTreeMap<String, String>,
}

/// What came of a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The guest.
    pub job: Job,
    /// What it said.
    pub lines: Vec<Line>,
}

/// The mean, the smallest and the largest of a figure over the seeds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

/// A scenario under a scheduler.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScenarioRow {
    /// The scenario's name.
    pub scenario: String,
    /// The scheduler's.
    pub scheduler: String,
    /// The figures of each seed.
    pub seeds: Vec<(u64, Figures)>,
    /// What went wrong, with the seed. Such a run has no figures.
    pub errors: Vec<(u64, String)>,
}

impl Spread {
    /// Of these values; without any all three are 0.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let number = values.clone().count();
        let fold = |begin, step: fn(f64, f64) -> f64| values.clone().fold(begin, step);
        if number == 0 {
            return Self::default();
        }
        Self {
            mean: fold(0.0, |sum, value| sum + value) / number as f64,
            least: fold(f64::MAX, f64::min),
            most: fold(f64::MIN, f64::max),
        }
    }
}

impl ScenarioRow {
    /// A figure over the seeds.
    pub fn spread(&self, of: impl Fn(&Figures) -> f64) -> Spread {
        let values: Vec<f64> = self.seeds.iter().map(|(_, figures)| of(figures)).collect();
        Spread::of(values.into_iter())
    }
}

impl Comparison {
    /// How many guests it has.
    pub fn guests(&self) -> usize {
        self.schedulers.len() * self.seeds.len()
    }

    fn job(&self, cache: &Cache, scheduler: &Scheduler, seed: u64) -> anyhow::Result<Job> {
        let guest = self.guest(scheduler, seed);
        let programs = guest.programs(cache)?;
        let Guest { kernel, machine, seed, runs, .. } = guest;
        let kernel = Kernel { image: Default::default(), ..kernel };
        Ok(Job { kernel, machine, scheduler: scheduler.name.clone(), seed, runs, programs })
    }

    /// The guest of a scheduler and a seed.
    pub fn guest(&self, scheduler: &Scheduler, seed: u64) -> Guest {
        Guest {
            kernel: self.kernel.clone(),
            machine: self.machine,
            scheduler: scheduler.clone(),
            seed,
            runs: self.scenarios.iter().map(|scenario| scenario.run.clone()).collect(),
            is_probed: true,
        }
    }

    fn jobs(&self, cache: &Cache) -> anyhow::Result<Vec<(&Scheduler, Job)>> {
        let of_seed = |seed: u64| self.schedulers.iter().map(move |it| Ok((it, self.job(cache, it, seed)?)));
        self.seeds.iter().flat_map(|seed| of_seed(*seed)).collect()
    }

    /// What came of a guest of this comparison that was run elsewhere.
    ///
    /// # Errors
    /// A program of the guest is gone.
    pub fn outcome(
        &self,
        cache: &Cache,
        scheduler: &Scheduler,
        seed: u64,
        lines: Vec<Line>,
    ) -> anyhow::Result<Outcome> {
        Ok(Outcome { job: self.job(cache, scheduler, seed)?, lines })
    }

    /// Runs all guests, `at_once` at a time, and keeps each in `folder` when it has ended; a guest that is there, with the same kernel and programs, is not run again.
    /// `progress` is told after each run. After an interruption the outcomes are those that ended before.
    ///
    /// # Errors
    /// A guest could not be run at all: an error of the first such guest, after all guests that run have ended.
    pub fn run(
        &self,
        cache: &Cache,
        folder: &Path,
        at_once: usize,
        is_interrupted: &(dyn Fn() -> bool + Sync),
        progress: &(dyn Fn(&Job, &Line) + Sync),
    ) -> anyhow::Result<Vec<Outcome>> {
        std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
        let jobs = self.jobs(cache)?;
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let done: Mutex<Vec<(usize, Outcome)>> = Mutex::new(Vec::new());
        let work = |lane: usize| {
            loop {
                let at = next.fetch_add(1, Relaxed);
                let Some((scheduler, job)) = jobs.get(at).filter(|_| !is_interrupted()) else { return };
                match self.one(cache, folder, (scheduler, job), lane, is_interrupted, progress) {
                    Ok(None) => return,
                    Ok(Some(outcome)) => {
                        done.lock().unwrap_or_else(PoisonError::into_inner).push((at, outcome))
                    }
                    Err(error) => {
                        next.store(jobs.len(), Relaxed);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        return;
                    }
                }
            }
        };
        let work = &work;
        std::thread::scope(|scope| (0..at_once.max(1)).for_each(|lane| _ = scope.spawn(move || work(lane))));
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(at, _)| *at);
        Ok(done.into_iter().map(|(_, outcome)| outcome).collect())
    }

    fn one(
        &self,
        cache: &Cache,
        folder: &Path,
        (scheduler, job): (&Scheduler, &Job),
        lane: usize,
        is_interrupted: &dyn Fn() -> bool,
        progress: &dyn Fn(&Job, &Line),
    ) -> anyhow::Result<Option<Outcome>> {
        let file = folder.join(format!("{}-{}.json", scheduler.file_name(), job.seed));
        let kept = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Outcome>(&text).ok());
        if let Some(kept) = kept.filter(|kept| kept.job == *job) {
            kept.lines.iter().for_each(|line| progress(job, line));
            return Ok(Some(kept));
        }
        let said = &mut |line: &Line| progress(job, line);
        let ended = self.guest(scheduler, job.seed).boot(cache, lane, is_interrupted, said);
        let ended = ended.with_context(|| format!("{} with seed {}", scheduler.name, job.seed))?;
        let Some(Ended { lines, .. }) = ended else { return Ok(None) };
        let outcome = Outcome { job: job.clone(), lines };
        warmcore_results::write_whole(&file, &serde_json::to_vec_pretty(&outcome)?)?;
        Ok(Some(outcome))
    }

    /// The rows of what came of it: scenario by scenario, and scheduler by scheduler within.
    pub fn rows(&self, outcomes: &[Outcome]) -> Vec<ScenarioRow> {
        let mut rows = Vec::new();
        for scenario in &self.scenarios {
            for scheduler in &self.schedulers {
                let mut row = ScenarioRow {
                    scenario: scenario.name.clone(),
                    scheduler: scheduler.name.clone(),
                    seeds: Vec::new(),
                    errors: Vec::new(),
                };
                for outcome in outcomes.iter().filter(|outcome| outcome.job.scheduler == scheduler.name) {
                    match outcome.figures(&scenario.name) {
                        Ok(figures) => row.seeds.push((outcome.job.seed, figures)),
                        Err(error) => row.errors.push((outcome.job.seed, format!("{error:#}"))),
                    }
                }
                rows.push(row);
            }
        }
        rows
    }
}

/// The last lines of what a program wrote, in one.
fn last(said: &[String]) -> String {
    said[said.len().saturating_sub(8)..].join("; ")
}

impl Outcome {
    /// The figures of a scenario.
    ///
    /// # Errors
    /// The guest has no such run; its workload failed; another scheduler than the named one was in charge of some tasks at some time.
    pub fn figures(&self, scenario: &str) -> anyhow::Result<Figures> {
        let is_it = |line: &&Line| matches!(line, Line::Ran { name, .. } if name == scenario);
        let Some(Line::Ran { is_scheduled, status, counts, done, said, .. }) = self.lines.iter().find(is_it)
        else {
            match self.lines.last() {
                Some(Line::Failed { why }) => bail!("{why}"),
                _ => bail!("the guest has no run of {scenario}"),
            }
        };
        let end = self.lines.iter().find_map(|line| match line {
            Line::Scheduler { status, said } => {
                Some(format!("; its status at the end is {status}, and it says: {}", last(said)))
            }
            _ => None,
        });
        let end = end.unwrap_or_default();
        ensure!(
            *is_scheduled,
            "{} was not in charge of all tasks for all of the run{end}",
            self.job.scheduler
        );
        ensure!(*status == 0, "the workload ended with status {status}: {}", last(said));
        let done: Option<Done> = done.clone().map(serde_json::from_value).transpose()?;
        Ok(Figures::of(&ProbeCounts::read(counts)?, done.as_ref()))
    }

    /// What the kernel's log says of stalls and bugs.
    pub fn warnings(&self) -> &[String] {
        match self.lines.last() {
            Some(Line::Ended { warnings, .. }) => warnings,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::ProbeCounts;

    fn outcome(lines: Vec<Line>) -> Outcome {
        let kernel = Kernel {
            release: String::new(),
            package: String::new(),
            sha256: String::new(),
            image: Default::default(),
        };
        let machine = Machine { cpus: 8, llcs: 2, threads: 1, memory: 1024 };
        let scheduler = "scx_x".to_owned();
        let job = Job { kernel, machine, scheduler, seed: 1, runs: Vec::new(), programs: BTreeMap::new() };
        Outcome { job, lines }
    }

    fn ran(is_scheduled: bool, status: i32) -> Line {
        let counts = serde_json::to_value(ProbeCounts { schema: 1, ..ProbeCounts::default() }).unwrap();
        let said = ["first", "last"].map(str::to_owned).to_vec();
        Line::Ran { name: "rrj".into(), is_scheduled, status, counts, done: None, said }
    }

    #[test]
    fn a_scheduler_that_left_has_no_figures_but_a_reason() {
        assert!(outcome(vec![ran(true, 0)]).figures("rrj").is_ok());
        let left = Line::Scheduler { status: 1, said: vec!["runnable task stall".into()] };
        let error = outcome(vec![ran(false, 0), left]).figures("rrj").unwrap_err().to_string();
        assert_eq!(
            error,
            "scx_x was not in charge of all tasks for all of the run; its status at the end is 1, and it says: runnable task stall"
        );
        let error = outcome(vec![ran(true, 3)]).figures("rrj").unwrap_err().to_string();
        assert_eq!(error, "the workload ended with status 3: first; last");
    }

    #[test]
    fn a_scheduler_that_did_not_load_has_an_error_in_each_scenario() {
        let failed = outcome(vec![Line::Failed { why: "the scheduler /bin/scx_x ended".into() }]);
        for scenario in ["rrj", "rrp"] {
            assert_eq!(failed.figures(scenario).unwrap_err().to_string(), "the scheduler /bin/scx_x ended");
        }
    }
}
