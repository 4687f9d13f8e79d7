//! `warmcore report`: measures what answers a user's questions, and writes a folder with a page that a browser opens
//! from disk.
//!
//! Each run's JSON is written as soon as the run is finished; the page is drawn from the JSON files in the folder, this
//! machine's topology and the findings of `doctor`. So an interrupted report keeps its finished runs, and `--render`
//! draws the page again. The page also shows results that other commands put into the folder (`peers.json`, or
//! `warmcore bench wake --json wake.json`) and the simulated tables (`sim.json`).
//!
//! The short form takes about 160 s on two cores; `--full` runs every case of every bench. Several tables are simulated
//! at the same time; nothing is measured meanwhile. A signal ends the simulation, and its results are dropped.
//!
//! With a FILE the command measures nothing: `recording` draws the page of that recording.

use crate::sim::{self, TableKind, begun};
use crate::{doctor, recording, topo};
use anyhow::{Context, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use warmcore_bench::measure::{Effort, INTERRUPTED};
use warmcore_bench::{What, run};
use warmcore_papers::sensitivity::{self, Sensitivity};
use warmcore_papers::{Options, Progress, Table};
use warmcore_report::{self as report, Imagined, Inputs, Probe, Simulated};
use warmcore_results::{Results, SCHEMA, write_whole};
use warmcore_topo::Topology;

/// Arguments of `warmcore report`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Measure nothing: draw the page of a FILE that `warmcore record` wrote
    #[arg(value_name = "FILE", conflicts_with_all = ["out", "quick", "full", "render", "sim"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    recording: recording::Outputs,
    /// The folder to write: report.html, summary.txt, standing.md, raw.csv, *.svg, *.json
    #[arg(long, value_name = "DIR", default_value = "warmcore-report")]
    out: PathBuf,
    /// A third of the rounds, and shorter ones: a first look, with wider intervals
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every case of every bench with all its rounds, and how the simulated tables depend on estimates: half an hour
    #[arg(long)]
    full: bool,
    /// Measure nothing: draw the page again from the results in the folder
    #[arg(long)]
    render: bool,
    /// Read what was simulated from a FILE that `warmcore sim tables --json` or `warmcore sim runtime --json` wrote; the tables are
    /// not simulated then
    #[arg(long, value_name = "FILE")]
    sim: Vec<PathBuf>,
    /// Also write all results to FILE, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const AFTER: &str = "\
Without FILE it measures this machine for about three minutes. With FILE it shows what a program recorded:

    warmcore record -- target/release/server
    warmcore report server-20261123-081500.warmrec --perfetto server.pftrace";

/// The names, without `.json`, of the files with the simulated tables, with the simulated runtimes, and with what the tables
/// depend on.
const SIM: &str = "sim";
const SIM_RUNTIME: &str = "sim-runtime";
const SENSITIVITY: &str = "sim-sensitivity";

/// What a file of `warmcore sim runtime` is of.
const RUNTIME_WHAT: &str = "sim runtime";

/// A bench of a report: its cases (all if the list is empty), the number and length of its rounds, and its expected
/// duration in seconds on two cores.
struct Short {
    what: What,
    cases: &'static [&'static str],
    effort: Effort,
    seconds: u64,
}

const SHORT: [Short; 5] = [
    Short {
        what: What::Percpu,
        cases: &["counter.add.called", "counter.add.2threads", "sum", "freelist.pair.called"],
        effort: Effort::FULL,
        seconds: 10,
    },
    Short { what: What::Cid, cases: &["cid.enter"], effort: Effort::FULL, seconds: 5 },
    Short { what: What::Budget, cases: &["hit", "hit.2threads"], effort: Effort::FULL, seconds: 10 },
    Short {
        what: What::Wake,
        cases: &["warm.yield.chase", "noisy.20us", "pingpong.channel.16"],
        effort: Effort::QUICK,
        seconds: 40,
    },
    Short { what: What::Http, cases: &["hello.8", "hello.64"], effort: Effort::QUICK, seconds: 30 },
];

/// The expected durations of the probe and of the simulated tables, in seconds on two cores.
const PROBE_SECONDS: u64 = 5;
const TABLES_SECONDS: u64 = 60;

/// `warmcore report`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = &args.file {
        return recording::show(file, &args.recording, args.json.as_deref());
    }
    let out = &args.out;
    std::fs::create_dir_all(out).with_context(|| format!("can't make the folder {}", out.display()))?;
    // Report a file that can't be read before minutes of measuring.
    let given: Vec<Simulated> = args.sim.iter().map(|path| read_simulated(path)).collect::<Result<_, _>>()?;
    let topology = Topology::this_machine()?;
    if !args.render {
        measure(args, &topology, given.iter().all(|given| given.what == RUNTIME_WHAT))?;
    }
    for given in given {
        keep(out, if given.what == RUNTIME_WHAT { SIM_RUNTIME } else { SIM }, &given)?;
    }
    let runs: Vec<Results> = report::EXPECTED
        .iter()
        .filter_map(|(what, ..)| read(out, what).transpose())
        .collect::<Result<_, _>>()?;
    let probe: Option<Probe> = read(out, "probe")?;
    let findings = doctor::findings();
    let simulated = |name: &str| {
        let path = file(out, name);
        path.exists().then(|| read_simulated(&path)).transpose()
    };
    let (simulated, runtime) = (simulated(SIM)?, simulated(SIM_RUNTIME)?);
    let imagined =
        Imagined { simulated, runtime, sensitivities: read(out, SENSITIVITY)?.unwrap_or_default() };
    let (probe, doctor) = (probe.as_ref(), &findings[..]);
    let inputs = Inputs { topology: &topology, probe, runs: &runs, doctor, imagined: Some(&imagined) };

    write_whole(&out.join("summary.txt"), report::summary(&inputs).as_bytes())?;
    write_whole(&out.join("standing.md"), report::standing(&runs).as_bytes())?;
    write_whole(&out.join("raw.csv"), report::raw_csv(&runs).as_bytes())?;
    for (name, svg) in report::pictures(&inputs) {
        write_whole(&out.join(name), svg.as_bytes())?;
    }
    // Write the page after its pictures, so that an interrupted run leaves no new page without them.
    let page = out.join("report.html");
    write_whole(&page, report::page(&inputs).as_bytes())?;
    if let Some(path) = &args.json {
        write_whole(path, &serde_json::to_vec_pretty(&runs)?)?;
    }
    println!("{}", report::short(&inputs));
    let page = std::path::absolute(&page).unwrap_or(page);
    println!("The page:  file://{}\nThe text:  {}", page.display(), out.join("summary.txt").display());
    if INTERRUPTED.load(Relaxed) {
        eprintln!("interrupted: the page shows what was finished; run it again for the rest");
        warmcore_bench::signals::end();
    }
    Ok(())
}

/// Removes the results of an earlier report, then runs the benches and the probe, simulates the tables if `has_tables`,
/// and with `--full` also how the tables depend on estimates. After a signal, what has not begun is left out.
fn measure(args: &Args, topology: &Topology, has_tables: bool) -> anyhow::Result<()> {
    for name in ["probe", SIM, SENSITIVITY].into_iter().chain(What::EVERY.map(What::name)) {
        let _ = std::fs::remove_file(file(&args.out, name));
    }
    let runs: Vec<Short> = match args.full {
        true => What::EVERY
            .map(|what| Short { what, cases: &[], effort: Effort::FULL, seconds: 300 })
            .into_iter()
            .collect(),
        false => SHORT.into_iter().collect(),
    };
    let tables = if has_tables { TABLES_SECONDS } else { 0 };
    let steps = runs.len() + 1 + usize::from(has_tables);
    let mut left: u64 = runs.iter().map(|run| run.seconds).sum::<u64>() + PROBE_SECONDS + tables;
    let heading = |step: usize, left: u64| format!("{step} of {steps}, {left} s left  ");
    for (step, Short { what, cases, effort, seconds }) in (1..).zip(runs) {
        if INTERRUPTED.load(Relaxed) {
            return Ok(());
        }
        let effort = if args.quick { Effort::QUICK } else { effort };
        let results = run(what, effort, cases, &heading(step, left), None)?;
        if !results.rows.is_empty() {
            write_whole(&file(&args.out, what.name()), &serde_json::to_vec_pretty(&results)?)?;
        }
        left -= seconds;
    }
    if INTERRUPTED.load(Relaxed) {
        return Ok(());
    }
    let heading_of_probe = heading(steps - usize::from(has_tables), left);
    match topo::probe_with_bar(topology, &format!("{heading_of_probe}topo --probe")) {
        Ok(probe) => keep(&args.out, "probe", &probe)?,
        // For example, a single CPU has no pair to time. The rest of the report does not depend on the probe.
        Err(error) => eprintln!("not probed: {error:#}"),
    }
    if has_tables
        && !INTERRUPTED.load(Relaxed)
        && let Some(simulated) = simulate(&heading(steps, tables))
    {
        keep(&args.out, SIM, &simulated)?;
    }
    if args.full
        && !INTERRUPTED.load(Relaxed)
        && let Some(sensitivities) = sensitivities()
    {
        keep(&args.out, SENSITIVITY, &sensitivities)?;
    }
    Ok(())
}

/// Writes a result as JSON; the file is replaced as a whole.
fn keep(out: &Path, name: &str, found: &impl Serialize) -> anyhow::Result<()> {
    write_whole(&file(out, name), &serde_json::to_vec_pretty(found)?)
}

fn file(out: &Path, name: &str) -> PathBuf {
    out.join(name).with_extension("json")
}

/// Reads a result from the folder; `None` if there is no such file.
fn read<T: DeserializeOwned>(out: &Path, name: &str) -> anyhow::Result<Option<T>> {
    let path = file(out, name);
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| format!("can't read {}", path.display()))?,
    };
    let help =
        || format!("{} is not a result of schema {SCHEMA}; delete it or measure again", path.display());
    serde_json::from_slice(&bytes).with_context(help).map(Some)
}

/// The number of seeds of a report's tables.
const SEEDS: u64 = warmcore_papers::SEEDS_MIN as u64;

/// Ends the simulation after a signal.
#[derive(Debug)]
struct Signals;

impl Progress for Signals {
    fn is_over(&self) -> bool {
        INTERRUPTED.load(Relaxed)
    }
}

fn options() -> Options {
    Options { seeds: 0..SEEDS, quick: true, progress: Some(Arc::new(Signals)), ..Options::default() }
}

/// Simulates the tables as `warmcore sim tables --quick` with `SEEDS` seeds does. `None` if a signal came.
fn simulate(step: &str) -> Option<Simulated> {
    // The tables that take longest come first, so that no thread begins a long one at the end.
    let mut kinds = TableKind::ALL;
    kinds.reverse();
    let mut simulated = begun("tables", format!("warmcore sim tables --seeds {SEEDS} --quick"));
    let bar = warmcore_bench::progress(kinds.len() as u64, &format!("{step}sim tables"));
    bar.enable_steady_tick(Duration::from_millis(200));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(kind) = kinds.get(next.fetch_add(1, Relaxed)) {
            bar.set_message(kind.name);
            let table = (kind.table)(&options()).concluded(&options());
            done.lock().expect("no thread panics with it").push(table);
            bar.inc(1);
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(kinds.len());
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    bar.finish_and_clear();
    let mut tables = done.into_inner().expect("no thread panics with it");
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    simulated.tables = tables.into_iter().map(Table::from).collect();
    (!INTERRUPTED.load(Relaxed)).then_some(simulated)
}

/// How much the tables' results depend on each estimated number of the machine. `None` if a signal came.
fn sensitivities() -> Option<Vec<Sensitivity>> {
    let bar = warmcore_bench::progress(1, "what moves the simulated answers");
    bar.enable_steady_tick(Duration::from_millis(200));
    let sensitivities = sensitivity::all(&options());
    bar.finish_and_clear();
    (!INTERRUPTED.load(Relaxed)).then_some(sensitivities)
}

/// Reads a file that `warmcore sim tables --json` wrote.
fn read_simulated(path: &Path) -> anyhow::Result<Simulated> {
    let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    let help = || {
        format!(
            "{}: not what `warmcore sim tables --json FILE` of schema {} writes; simulate again",
            path.display(),
            sim::SCHEMA
        )
    };
    let simulated: Simulated = serde_json::from_slice(&bytes).with_context(help)?;
    ensure!(simulated.schema == sim::SCHEMA, "{}; it has schema {}", help(), simulated.schema);
    ensure!(
        simulated.part.is_none(),
        "{} is a shard, made by `{}`; put it together with the others first: warmcore sim merge OUT.json SHARD.json...",
        path.display(),
        simulated.command
    );
    Ok(simulated)
}
