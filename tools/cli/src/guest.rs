//! `warmcore guest`: what schedulers do with a workload, on a real kernel in an emulated machine.
//!
//! The guest has no cache and no speed, so a table has no times of work: it says where tasks ran, and which waited. The first lines of
//! the help say so too. A comparison keeps each guest when it has ended: after Ctrl-C, the same command goes on.

mod simulate;
mod table;

use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_bench::progress;
use warmcore_guest::{
    Cache, Comparison, Machine, Outcome, RIVALS, Rival, Scenario, Scheduler, prepare, scenarios,
};
use warmcore_guest_init::{Done, Line};
use warmcore_results::write_whole;

const ABOUT: &str = "\
The guest is QEMU's emulator, whose clock counts instructions: the same seed gives the same bytes on any machine, without KVM,
network or root. It has no caches: where tasks ran and which waited is what it says, and never how fast anything is.

  warmcore guest prepare                                  # once, in a checkout: kernels and programs, 60 to 130 MB
  warmcore guest run rrp --scheduler warm
  warmcore guest compare --scheduler eevdf --scheduler warm --scheduler warm,hand_over=off --scenario rrj --scenario rrp
  warmcore guest simulate --tasks fixtures/sim/pairs.json # the simulator beside the kernel";

/// Arguments of `warmcore guest`.
#[derive(Debug, clap::Args)]
#[command(after_help = ABOUT, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Fetches kernels through apt, without installing them, and builds the guest's programs
    Prepare {
        /// A version, such as 7.2 or 6.18.15; default: the newest of each minor version from 6.18
        #[arg(long, value_name = "VERSION")]
        kernel: Vec<String>,
        /// Also build this scheduler of others from crates.io, in the version that `list` shows
        #[arg(long, value_name = "NAME", value_parser = rival, conflicts_with = "rivals")]
        rival: Vec<&'static Rival>,
        /// Also build all schedulers of others that `list` shows
        #[arg(long)]
        rivals: bool,
        #[command(flatten)]
        place: CacheArgs,
    },
    /// Lists scenarios, schedulers of others, and the kernels that were fetched
    List {
        #[command(flatten)]
        place: CacheArgs,
    },
    /// Boots a guest, runs scenarios in it, and prints their counts
    Run {
        /// A scenario, or a file that ends with .toml
        #[arg(required = true, value_name = "SCENARIO")]
        scenarios: Vec<String>,
        /// eevdf, warm, or a program in the guest's /bin; with settings: warm,hand_over=off
        #[arg(long, value_name = "NAME", default_value = "eevdf", value_parser = scheduler)]
        scheduler: Scheduler,
        /// Of the durations in the workload
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Print all that the guest says
        #[arg(long)]
        console: bool,
        #[command(flatten)]
        on: On,
    },
    /// Runs rt-app's tasks under EEVDF and `warm`, simulates them under `kernel` and `home`, and prints both side by side
    #[command(after_help = simulate::AFTER)]
    Simulate(simulate::Args),
    /// Compares schedulers in scenarios over seeds: a table, and a picture of each scenario
    Compare {
        /// A scenario, or a file that ends with .toml; default: rrj, rrp and hogs
        #[arg(long, value_name = "SCENARIO")]
        scenario: Vec<String>,
        /// A scheduler, as in `run`; default: eevdf and warm
        #[arg(long, value_name = "NAME", value_parser = scheduler)]
        scheduler: Vec<Scheduler>,
        /// How many seeds
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
        seeds: u64,
        #[command(flatten)]
        guests: Guests,
        #[command(flatten)]
        on: On,
    },
}

#[derive(Debug, clap::Args)]
struct CacheArgs {
    /// Where kernels and programs are kept; default: warmcore/guest in the user's cache
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// How a comparison's guests run, and where what comes of them is kept.
#[derive(Debug, clap::Args)]
struct Guests {
    /// Guests at a time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Keep guests and pictures in this folder
    #[arg(long, value_name = "DIR", default_value = "guest")]
    out: PathBuf,
    /// Also write what was compared
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct On {
    /// A fetched kernel, such as 7.2, or a file; default: the newest that was fetched
    #[arg(long, value_name = "VERSION")]
    kernel: Option<String>,
    /// CPUs of the machine
    #[arg(long, value_name = "N", default_value_t = 8)]
    cpus: u32,
    /// Its last-level caches
    #[arg(long, value_name = "N", default_value_t = 2)]
    llcs: u32,
    /// Hardware threads of a core
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u32,
    #[command(flatten)]
    place: CacheArgs,
}

fn scheduler(name: &str) -> Result<Scheduler, String> {
    Scheduler::parse(name).map_err(|error| error.to_string())
}

fn rival(name: &str) -> Result<&'static Rival, String> {
    Rival::find(name).map_err(|error| error.to_string())
}

impl CacheArgs {
    fn cache(&self) -> anyhow::Result<Cache> {
        self.cache.clone().map_or_else(Cache::of_user, |folder| Ok(Cache::at(folder)))
    }
}

impl On {
    fn machine(&self) -> Machine {
        Machine { cpus: self.cpus, llcs: self.llcs, threads: self.threads, memory: self.memory }
    }

    fn kernel(&self, cache: &Cache) -> anyhow::Result<warmcore_guest::Kernel> {
        match &self.kernel {
            Some(version) => cache.kernel(version),
            None => {
                let newest = cache.kernels().into_iter().next();
                newest.context("no kernel was fetched: `warmcore guest prepare` does that")
            }
        }
    }
}

fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// `warmcore guest`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::Prepare { kernel, rival, rivals, place } => {
            let bar = progress(0, "guest prepare");
            bar.enable_steady_tick(std::time::Duration::from_millis(200));
            let root = checkout()?;
            let cache = place.cache()?;
            let rivals = if *rivals { RIVALS.iter().collect() } else { rival.clone() };
            let prepared = prepare(&cache, &root, kernel, &rivals, true, &|step| {
                bar.suspend(|| eprintln!("guest prepare: {step}"));
            });
            bar.finish_and_clear();
            prepared?;
            list(&cache);
            Ok(())
        }
        What::List { place } => {
            for scenario in scenarios() {
                let missing = scenario.missing().map(|missing| format!(" ({missing})"));
                println!("{:17} {}{}", scenario.name, scenario.about, missing.unwrap_or_default());
            }
            list(&place.cache()?);
            Ok(())
        }
        What::Run { scenarios, scheduler, seed, console, on } => {
            run(scenarios, scheduler, *seed, *console, on)
        }
        What::Simulate(args) => simulate::command(args),
        What::Compare { scenario, scheduler, seeds, guests, on } => {
            let scenario =
                if scenario.is_empty() { &["rrj", "rrp", "hogs"].map(str::to_owned)[..] } else { scenario };
            let default = || vec![Scheduler::own(), Scheduler::warm()];
            let schedulers = if scheduler.is_empty() { default() } else { scheduler.clone() };
            let cache = on.place.cache()?;
            let comparison = Comparison {
                kernel: on.kernel(&cache)?,
                machine: on.machine(),
                schedulers,
                scenarios: found(scenario)?,
                seeds: (1..=*seeds).collect(),
            };
            compare(&comparison, &cache, guests)
        }
    }
}

fn found(names: &[String]) -> anyhow::Result<Vec<Scenario>> {
    names.iter().map(|name| Scenario::find(name)).collect()
}

/// The checkout in which this command was called.
fn checkout() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir()?;
    let found = here.ancestors().find(|folder| folder.join("scx/Cargo.toml").is_file());
    found.map(Path::to_owned).with_context(|| {
        format!("{} is in no checkout of Warmcore, whose scx/ has the guest's programs", here.display())
    })
}

fn list(cache: &Cache) {
    println!("\nschedulers: eevdf, warm, and of others:");
    for rival in RIVALS {
        let Rival { name, version } = rival;
        let missing = format!(" (not built: `warmcore guest prepare --rival {name}`)");
        println!("  {name:17} {version}{}", if rival.is_built(cache) { "" } else { &missing });
    }
    let kernels = cache.kernels();
    if kernels.is_empty() {
        println!("\nno kernel was fetched: `warmcore guest prepare` does that");
    } else {
        println!("\nkernels:");
    }
    for kernel in kernels {
        println!("  {:32} {}", kernel.release, kernel.package);
    }
}

fn run(
    names: &[String],
    scheduler: &Scheduler,
    seed: u64,
    shows_console: bool,
    on: &On,
) -> anyhow::Result<()> {
    let (cache, scenarios) = (on.place.cache()?, found(names)?);
    let comparison = Comparison {
        kernel: on.kernel(&cache)?,
        machine: on.machine(),
        schedulers: vec![scheduler.clone()],
        scenarios,
        seeds: vec![seed],
    };
    let bar = progress(names.len() as u64, "guest run");
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let ended = comparison.guest(scheduler, seed).run(&cache, 0, &is_interrupted, &mut |line| {
        if let Line::Ran { .. } = line {
            bar.inc(1);
        }
    })?;
    bar.finish_and_clear();
    let Some(ended) = ended else {
        eprintln!("interrupted");
        return Ok(());
    };
    if shows_console {
        println!("{}", String::from_utf8_lossy(&ended.console));
    }
    let outcomes = [comparison.outcome(&cache, scheduler, seed, ended.lines)?];
    print!("{}", table::of(&comparison, &outcomes));
    for line in &outcomes[0].lines {
        if let Line::Ran { name, done: Some(done), .. } = line
            && let Some(counts) = serde_json::from_value::<Done>(done.clone())?.sections
        {
            println!("\n{name}: {counts}");
        }
    }
    all_have_figures(&comparison, &outcomes)
}

/// # Errors
/// A run has no figures.
fn all_have_figures(comparison: &Comparison, outcomes: &[Outcome]) -> anyhow::Result<()> {
    if outcomes.len() < comparison.guests() {
        println!(
            "interrupted: {} of {} guests; the same command goes on",
            outcomes.len(),
            comparison.guests()
        );
    }
    let without: usize = comparison.rows(outcomes).iter().map(|row| row.errors.len()).sum();
    let runs = outcomes.len() * comparison.scenarios.len();
    ensure!(without == 0, "{without} of {runs} runs have no figures; the lines below the tables say why");
    Ok(())
}

fn compare(comparison: &Comparison, cache: &Cache, guests: &Guests) -> anyhow::Result<()> {
    let outcomes = run_all(comparison, cache, guests, "guest compare")?;
    let rows = comparison.rows(&outcomes);
    print!("{}", table::of(comparison, &outcomes));
    for (scenario, picture) in table::pictures(comparison, &rows) {
        let file = guests.out.join(format!("{scenario}.svg"));
        write_whole(&file, picture.as_bytes())?;
        println!("{}", file.display());
    }
    if let Some(file) = &guests.json {
        write_whole(file, serde_json::to_string_pretty(&table::json(comparison, &outcomes))?.as_bytes())?;
    }
    all_have_figures(comparison, &outcomes)
}

/// Runs the guests of a comparison, and draws the progress of the command that is called `what`.
fn run_all(
    comparison: &Comparison,
    cache: &Cache,
    guests: &Guests,
    what: &str,
) -> anyhow::Result<Vec<Outcome>> {
    let bar = progress((comparison.guests() * comparison.scenarios.len()) as u64, what);
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let outcomes =
        comparison.run(cache, &guests.out, guests.jobs as usize, &is_interrupted, &|job, line| {
            if let Line::Ran { name, .. } = line {
                bar.set_message(format!("{} {name} {}", job.scheduler, job.seed));
                bar.inc(1);
            }
        })?;
    bar.finish_and_clear();
    ensure!(!outcomes.is_empty(), "interrupted before the first guest had ended");
    Ok(outcomes)
}
