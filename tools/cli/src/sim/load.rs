//! `warmcore sim load`: simulates tasks from a file on another machine, under each policy.
//!
//! There is a simulation per policy and seed; all policies have the same tasks and the same random durations. The kernel's
//! policies place tasks on a simulated kernel, with ticks, time slices and preemption. The runtimes' policies run on the
//! product's scheduler core, with a worker per CPU: no task is preempted, and a call of the core takes no time of its own.
//! After a signal, the result has the seeds that were finished under all policies.
//!
//! A second of 64 CPUs that switch every 50 µs is a million events and takes a fifth of a second.

use super::args::Common;
use super::progress::ProgressReporter;
use super::{begun, end, keep, noted};
use anyhow::Context;
use clap::builder::PossibleValuesParser;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use warmcore_papers::Options;
use warmcore_report::{self as report, SimulatedLoad};
use warmcore_results as results;
use warmcore_sim::costs::Costs;
use warmcore_sim::policy::{Kernel, SimPolicyKind};
use warmcore_sim::program::rt_app;
use warmcore_sim::simulation::{Observer, Report, Scheduler, Settings, Simulation};
use warmcore_sim::trace::Trace;
use warmcore_topo::Topology;
use warmcore_types::Nanos;

/// The machine if `--machine` is not given.
const MACHINE: &str = "epyc9654_2p";

/// The simulated duration if the file of tasks has none.
const LASTS: Nanos = Nanos(1_000_000_000);

/// A policy by its name on the command line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoadPolicy {
    /// Of a simulated kernel.
    Kernel(Kernel),
    /// Of the workers of a runtime.
    Runtime(SimPolicyKind),
}

fn all() -> Vec<(&'static str, LoadPolicy)> {
    let kernel = Kernel::default();
    let linux = [
        ("kernel", kernel),
        ("kernel-hot-windows", Kernel { hot_windows: true, ..kernel }),
        ("kernel-wake-queue", Kernel { wake_queue: true, ..kernel }),
        ("kernel-sis-node", Kernel { sis_node: true, ..kernel }),
    ];
    let kinds = SimPolicyKind::all().map(|kind| (kind.name(), LoadPolicy::Runtime(kind)));
    linux.into_iter().map(|(name, kernel)| (name, LoadPolicy::Kernel(kernel))).chain(kinds).collect()
}

/// The policy of this name, if there is one.
pub(crate) fn policy(name: &str) -> Option<LoadPolicy> {
    all().into_iter().find_map(|(known, policy)| (known == name).then_some(policy))
}

/// Reads a file of tasks, and prints which of its keys have no meaning here.
///
/// # Errors
/// The file can't be read, or describes no tasks.
pub(crate) fn read_tasks(file: &Path) -> anyhow::Result<rt_app::Load> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("can't read {}; is it a readable text file?", file.display()))?;
    let load = rt_app::read(&text).map_err(|e| anyhow::anyhow!("{}: {e}", file.display()))?;
    if !load.ignored.is_empty() {
        eprintln!("without a meaning here: {}", load.ignored.join(", "));
    }
    Ok(load)
}

/// The names that `--policy` accepts.
fn policies() -> PossibleValuesParser {
    PossibleValuesParser::new(all().into_iter().map(|(name, _)| name))
}

pub(super) const AFTER: &str = "\
Example:
  warmcore sim load --tasks web.json --machine epyc9654_2p --seeds 5
  warmcore sim load --tasks web.json --policy home --trace home.trace
The file is rt-app's: { \"tasks\": { \"web\": { \"instance\": 8, \"run\": 100, \"sleep\": 900 } } }, in µs; fixtures/sim/web.json
has more. A deadlock is reported with the tasks that wait for each other, and the command that replays it.
Under kernel* tasks are threads of a simulated Linux, which preempts them. Under the other policies they are tasks of a
runtime with a worker per CPU, on Warmcore's scheduler core: a task keeps its CPU until it sleeps, waits, yields or ends.";

/// Arguments of `warmcore sim load`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The tasks, as JSON for rt-app
    #[arg(long, value_name = "FILE")]
    pub tasks: PathBuf,
    /// Simulate only this policy
    #[arg(long, value_name = "NAME", value_parser = policies())]
    pub policy: Option<String>,
    #[command(flatten)]
    pub common: Common,
    /// With --policy: write the first seed's sched_switch and sched_waking to FILE, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", requires = "policy")]
    pub trace: Option<PathBuf>,
}

/// `warmcore sim load`.
pub(super) fn command(args: &Args) -> anyhow::Result<()> {
    let (common, tasks) = (&args.common, &args.tasks);
    let load = read_tasks(tasks)?;
    let machine = super::machine_of(common.machine().unwrap_or(MACHINE))?;
    let chosen: Vec<_> = all()
        .into_iter()
        .filter(|(policy, _)| args.policy.as_ref().is_none_or(|only| only == policy))
        .collect();
    let command = args.said(args.policy.as_deref(), (common.seed, common.seeds));
    let mut found = begun("load", command);
    keep(&found, common)?;
    let scenario = Scenario { load: &load, topology: &machine.topology, costs: &machine.costs };
    let bar = warmcore_bench::progress(common.seeds, "sim load");
    bar.enable_steady_tick(Duration::from_millis(200));
    let progress = ProgressReporter::new(&bar, "load");
    let options = Options { seeds: common.seeds(), progress: Some(progress.clone()), ..Options::default() };
    // Keep the error of the lowest seed. All lower seeds were begun earlier, so the error is the same in every run.
    let error: Mutex<Option<(u64, &str, anyhow::Error)>> = Mutex::new(None);
    // Run each seed under all policies, so that the finished seeds can be compared.
    let under = |(policy, who): &(&'static str, LoadPolicy), seed: u64| match scenario.run(*who, seed, ()) {
        Ok((report, ())) => Some(report),
        Err(e) => {
            progress.enough();
            let mut error = error.lock().unwrap_or_else(PoisonError::into_inner);
            if error.as_ref().is_none_or(|(first, ..)| seed < *first) {
                *error = Some((seed, policy, e));
            }
            None
        }
    };
    let replay = |seed: Option<u64>| {
        args.said(args.policy.as_deref(), seed.map_or((common.seed, common.seeds), |seed| (seed, 1)))
    };
    let done = progress.wait(|| options.each_per_seed(&chosen, under), replay);
    bar.finish_and_clear();
    let done = done?;
    if let Some((seed, policy, error)) = error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let replay = args.said(Some(policy), (seed, 1));
        anyhow::bail!("{}: under {policy}, seed {seed}: {error:#}\nReplay it: {replay}", tasks.display());
    }
    let seeds = done.len() as u64;
    let mut under: Vec<Vec<Report>> = chosen.iter().map(|_| Vec::new()).collect();
    for (reports, report) in done.into_iter().flat_map(|seed| (0..).zip(seed)) {
        under[reports].extend(report);
    }
    let load = |((policy, _), reports): (&(&str, LoadPolicy), Vec<Report>)| SimulatedLoad {
        policy: (*policy).to_owned(),
        machine: machine.name.clone(),
        reports,
    };
    found.loads = chosen.iter().zip(under).filter(|_| seeds > 0).map(load).collect();
    let is_cut = seeds < common.seeds;
    if is_cut {
        found.interrupted = Some(format!("load has {seeds} of {} seeds under each policy", common.seeds));
    }
    if seeds > 0 {
        print!("{}", report::simulated_loads(&found.loads));
        let are_one =
            |load: &SimulatedLoad| load.reports.iter().all(|report| report.hash == load.reports[0].hash);
        if seeds > 1 && found.loads.iter().all(are_one) {
            println!("all seeds gave the same, event by event: nothing in these tasks is random");
        }
        if common.machine().is_some() {
            print!("{}", noted(&machine.notes()));
        }
    }
    keep(&found, common)?;
    if let Some((path, (_, who))) = args.trace.as_ref().zip(chosen.first()).filter(|_| !is_cut) {
        let trace = scenario.run(*who, common.seed, Trace::default())?.1.into_text();
        results::write_whole(path, trace.as_bytes())?;
        eprintln!("written: {}; open it at ui.perfetto.dev", path.display());
    }
    end(&found, common);
    Ok(())
}

/// Tasks on a machine.
pub(crate) struct Scenario<'a> {
    pub(crate) load: &'a rt_app::Load,
    pub(crate) topology: &'a Topology,
    pub(crate) costs: &'a Costs,
}

impl Scenario<'_> {
    /// # Errors
    /// A program that can't go on; tasks that wait for each other.
    pub(crate) fn run<O: Observer>(
        &self,
        who: LoadPolicy,
        seed: u64,
        observer: O,
    ) -> anyhow::Result<(Report, O)> {
        let (topology, costs) = (self.topology, self.costs);
        match who {
            LoadPolicy::Kernel(kernel) => {
                self.finish(Simulation::watched(topology, costs, Settings::kernel(), kernel, seed, observer))
            }
            LoadPolicy::Runtime(kind) => {
                let settings = Settings::runtime();
                self.finish(Simulation::runtime_watched(topology, costs, settings, kind, seed, observer))
            }
        }
    }

    fn finish<S: Scheduler, O: Observer>(&self, mut sim: Simulation<S, O>) -> anyhow::Result<(Report, O)> {
        for program in &self.load.programs {
            sim.spawn(program)?;
        }
        let report = sim.run(self.load.duration.unwrap_or(LASTS))?;
        if let Some(waits) = report.deadlock() {
            anyhow::bail!("nothing will happen any more after {:?}:\n{waits}", report.now);
        }
        Ok((report, sim.into_observer()))
    }
}
