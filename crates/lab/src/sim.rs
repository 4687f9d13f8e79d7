//! Sim: what the decisions of `cid`, `budget` and `place` lead to on a machine that isn't here.
//!
//! Model.   A table is simulated on a thread of its own, for all its seeds, while this one shows the time and looks for
//!          a signal: what was finished by then is printed and written, the table under way is given up. Nothing of
//!          this machine is in a result, so `--json` holds no machine and no load.
//! Number.  All tables with 30 seeds take a minute or two on two cores; with `--quick` a few seconds.
//! Source.  `crates/sim`; the tolerances were written down before it, in `crates/sim/tolerances.toml`.

pub mod load;

use crate::measure::INTERRUPTED;
use crate::{host, report, results};
use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use warmcore_sim::costs::Costs;
use warmcore_sim::culprit::{self, Culprit, Profile};
use warmcore_sim::layout::Layout;
use warmcore_sim::table::{Options, Table, cid, drain, false_sharing, hot_windows, wake_queue};
use warmcore_topo::{MACHINES, Topology, machines};

/// The version of what `--json` writes. It grows when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// Where a culprit is looked for if no machine is named: 224 CPUs, as in the published case.
const CULPRITS_MACHINE: &str = "spr_224cpu_2p";

/// How often a signal is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Concurrency ids: a burst over 16 kB after a sleep, on the id's area that the CPU got
    Cid,
    /// Who makes a reader's line miss, and the cheapest layout without it
    FalseSharing,
    /// CPUs kept for whom sleeps shortly: 224 clients and servers that answer each other
    HotWindows,
    /// Taking back what lies in 1 to 8192 CPUs' stocks
    Drain,
    /// A queue per last-level cache: a parallel build
    WakeQueue,
    /// All of them
    Tables,
    /// A program of yours: tasks from a JSON file as rt-app reads it, under each policy
    Load,
}

impl What {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The tables behind a name.
    fn tables(self) -> Vec<What> {
        match self {
            Self::Tables => {
                vec![Self::Cid, Self::FalseSharing, Self::HotWindows, Self::Drain, Self::WakeQueue]
            }
            one => vec![one],
        }
    }

    fn table(self, options: &Options) -> Table {
        match self {
            Self::Cid => cid::table(options),
            Self::FalseSharing => false_sharing::table(options),
            Self::HotWindows => hot_windows::table(options),
            Self::Drain => drain::table(options),
            Self::WakeQueue => wake_queue::table(options),
            Self::Tables | Self::Load => unreachable!("`{}` is no table", self.name()),
        }
    }
}

/// Arguments of `warmcore sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// What to simulate
    what: What,
    /// Not the machine that was published, but this one of the machine file
    #[arg(long, value_name = "NAME", value_parser = known)]
    machine: Option<String>,
    /// So many simulations of each, each with random numbers of its own
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Fewer configurations, and shorter ones
    #[arg(long)]
    quick: bool,
    /// Also write the results there, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// With false-sharing: whose fields stand where. An ELF file with debug information, BTF, TOML or JSON
    #[arg(long, value_name = "FILE", requires = "profile")]
    layout: Option<PathBuf>,
    /// The struct's name in an ELF file or BTF
    #[arg(long = "struct", value_name = "NAME", requires = "layout")]
    of: Option<String>,
    /// Who reads and writes which field how often: TOML or JSON
    #[arg(long, value_name = "FILE", requires = "layout")]
    profile: Option<PathBuf>,
    /// With load: the tasks, as JSON for rt-app
    #[arg(long, value_name = "FILE", required_if_eq("what", "load"))]
    tasks: Option<PathBuf>,
    /// With load: only under this policy
    #[arg(long, value_name = "NAME", requires = "tasks", value_parser = load::policies())]
    policy: Option<String>,
    /// With load and a policy: the first seed's sched_switch and sched_waking, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", requires = "policy")]
    trace: Option<PathBuf>,
}

const AFTER: &str = "\
A row is predicted (nothing in it was chosen by looking at the published table), fitted (something was, and the row
says what), new (nobody has published it), or nothing is claimed for it. How far a row may be from what was published
was written down before the simulator: crates/sim/tolerances.toml.
The culprit in a layout of yours:
  warmcore sim false-sharing --layout target/debug/server --struct server::Shared --profile profile.toml
Tasks of yours, on another machine:
  warmcore sim load --tasks web.json --machine epyc9654_2p --seeds 5
fixtures/sim/ has a layout, a profile and tasks to begin with.";

/// A machine of the file.
fn known(name: &str) -> Result<String, String> {
    let names = machines(MACHINES).map_err(|e| e.to_string())?;
    if names.iter().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    Err(format!("no such machine; there are {}", names.join(", ")))
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
pub struct Simulated {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What ran: `sim cid`, `sim tables`, `sim culprit`.
    pub what: String,
    /// The command that repeats it, to the digit.
    pub command: String,
    /// When it began, UTC, RFC 3339.
    pub when: String,
    /// The tables that were finished.
    pub tables: Vec<Table>,
    /// Of a load: what came of it under each policy, seed by seed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<load::Load>,
    /// Of a layout: who is to blame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub culprit: Option<Culprit>,
}

/// `warmcore sim`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.layout.is_none() || args.what == What::FalseSharing,
        "--layout belongs to `warmcore sim false-sharing`, not to `{}`",
        args.what.name()
    );
    ensure!(
        args.tasks.is_none() || args.what == What::Load,
        "--tasks belongs to `warmcore sim load`, not to `{}`",
        args.what.name()
    );
    if let Some(tasks) = &args.tasks {
        return load::command(args, tasks);
    }
    if let Some((layout, profile)) = args.layout.as_ref().zip(args.profile.as_ref()) {
        return find(args, layout, profile);
    }
    if let Some(name) = &args.machine {
        // What the machine file lacks is told now, and not from within a table.
        Costs::from_machine(MACHINES, name)?;
    }
    let options = Options { machine: args.machine.clone(), seeds: 0..args.seeds, quick: args.quick };
    let mut all = Simulated {
        schema: SCHEMA,
        what: format!("sim {}", args.what.name()),
        command: repeat(args),
        when: host::utc_now(),
        tables: Vec::new(),
        loads: Vec::new(),
        culprit: None,
    };
    // Now, so that no older file stands for this run, and a path that can't be written is told at once.
    keep(args, &all)?;
    let chosen = args.what.tables();
    let bar = crate::progress(chosen.len() as u64, &all.what);
    bar.enable_steady_tick(Duration::from_millis(200));
    for what in &chosen {
        bar.set_message(what.name());
        let Some(table) = until_signal(*what, &options)? else { break };
        bar.suspend(|| print!("{}", report::simulated(&table)));
        all.tables.push(table);
        keep(args, &all)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if chosen.len() > 1 {
        print!("{}", report::simulated_tally(&all.tables));
    }
    if let Some(path) = &args.json {
        eprintln!("written: {}", path.display());
    }
    if INTERRUPTED.load(Relaxed) {
        let missing: Vec<String> = chosen[all.tables.len()..].iter().map(|what| what.name()).collect();
        eprintln!("interrupted: the tables above were finished; missing: {}", missing.join(", "));
        crate::signals::end();
    }
    Ok(())
}

/// The table, or nothing if a signal comes first.
fn until_signal(what: What, options: &Options) -> anyhow::Result<Option<Table>> {
    let (done, result) = channel();
    let options = options.clone();
    let simulate = move || _ = done.send(what.table(&options));
    let thread = std::thread::Builder::new().name(what.name()).spawn(simulate)?;
    loop {
        match result.recv_timeout(LOOK_EVERY) {
            Ok(table) => return Ok(Some(table)),
            // Its panic has been told.
            Err(RecvTimeoutError::Disconnected) => {
                _ = thread.join();
                anyhow::bail!("the simulation of {} panicked; this is a bug", what.name());
            }
            Err(RecvTimeoutError::Timeout) if INTERRUPTED.load(Relaxed) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// The culprit in a layout.
fn find(args: &Args, layout: &Path, profile: &Path) -> anyhow::Result<()> {
    let name = args.machine.as_deref().unwrap_or(CULPRITS_MACHINE);
    let (costs, topology) = (Costs::from_machine(MACHINES, name)?, Topology::from_machine(MACHINES, name)?);
    let read =
        |path: &Path| std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()));
    let is_declared = layout.extension().is_some_and(|end| end == "toml" || end == "json");
    let layout = match &args.of {
        Some(name) => Layout::read(layout, name)?,
        None if is_declared => Layout::declared(&read(layout)?, &layout.display().to_string())?,
        None => anyhow::bail!("which struct of {}? Say --struct NAME", layout.display()),
    };
    let profile = Profile::parse(&read(profile)?, &profile.display().to_string())?;
    let found = culprit::find(&layout, &profile, &costs, &topology)?;
    print!("{}", found.report());
    let all = Simulated {
        schema: SCHEMA,
        what: "sim culprit".to_owned(),
        command: repeat(args),
        when: host::utc_now(),
        tables: Vec::new(),
        loads: Vec::new(),
        culprit: Some(found),
    };
    keep(args, &all)
}

/// The command that repeats it.
fn repeat(args: &Args) -> String {
    let mut command = format!("warmcore sim {}", args.what.name());
    let mut say = |option: &str, value: Option<String>| {
        if let Some(value) = value {
            command = format!("{command} {option} {value}");
        }
    };
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    say("--machine", args.machine.clone());
    say("--layout", path(&args.layout));
    say("--struct", args.of.clone());
    say("--profile", path(&args.profile));
    say("--tasks", path(&args.tasks));
    say("--policy", args.policy.clone());
    if args.layout.is_none() {
        say("--seeds", Some(args.seeds.to_string()));
    }
    if args.quick {
        command += " --quick";
    }
    command
}

fn keep(args: &Args, all: &Simulated) -> anyhow::Result<()> {
    let Some(path) = &args.json else { return Ok(()) };
    results::write_whole(path, &serde_json::to_vec_pretty(all)?)
}
