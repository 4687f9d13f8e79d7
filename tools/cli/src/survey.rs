//! Survey: `warmcore report`. Measures everything and writes a folder that opens from disk.
//!
//! Model.   Each run's JSON is written as soon as it is finished; the page is drawn from what is
//!          there. So an interrupted survey leaves its finished runs, `--render` draws the page
//!          again, and results that other programs put there (`peers.json`) join it.
//!          What was simulated (`imagined`) joins the same way: `sim.json`.
//! Number.  Two and a half minutes on two cores, a good third of that with `--quick`; and half a minute more for what is
//!          simulated.

use crate::{doctor, topo};
use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::{Effort, INTERRUPTED};
use warmcore_bench::{What, run};
use warmcore_report::{self as report, Imagined, Inputs, Probe};
use warmcore_results::{Results, SCHEMA, write_whole};
use warmcore_topo::Topology;

mod imagined;

/// Arguments of `warmcore report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder to write: report.html, summary.txt, raw.csv, *.svg, *.json
    #[arg(long, value_name = "DIR", default_value = "warmcore-report")]
    out: PathBuf,
    /// A third of the rounds: a first look, with wider intervals
    #[arg(long)]
    quick: bool,
    /// Measure nothing: draw the page again from the results in the folder
    #[arg(long)]
    render: bool,
    /// Don't simulate the tables: take them from this file, which `warmcore sim tables --json` wrote
    #[arg(long, value_name = "FILE")]
    sim: Option<PathBuf>,
    /// Also write all results there, as one JSON array (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The runs that may be in a folder, in the order of the page.
const RUNS: [&str; 7] = ["percpu", "false-sharing", "cid", "budget", "wake", "http", "peers"];

/// What was simulated, in the folder.
const SIM: &str = "sim";
const PICTURES: &str = "sim-pictures";

/// `warmcore report`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    let out = &args.out;
    std::fs::create_dir_all(out).with_context(|| format!("can't make the folder {}", out.display()))?;
    // What can't be read is told before minutes of measuring.
    let given = args.sim.as_deref().map(imagined::read).transpose()?;
    let topology = Topology::this_machine()?;
    if !args.render {
        measure(args, &topology)?;
    }
    if let Some(given) = given {
        keep(out, SIM, &given)?;
    }
    let runs: Vec<Results> =
        RUNS.iter().filter_map(|what| read(out, what).transpose()).collect::<Result<_, _>>()?;
    let probe: Option<Probe> = read(out, "probe")?;
    let findings = doctor::findings();
    let sim = file(out, SIM);
    let simulated = if sim.exists() { Some(imagined::read(&sim)?) } else { None };
    let imagined = Imagined { simulated, pictures: read(out, PICTURES)? };
    let (probe, doctor) = (probe.as_ref(), &findings[..]);
    let inputs = Inputs { topology: &topology, probe, runs: &runs, doctor, imagined: Some(&imagined) };

    write_whole(&out.join("summary.txt"), report::summary(&inputs).as_bytes())?;
    write_whole(&out.join("raw.csv"), report::raw_csv(&runs).as_bytes())?;
    for (name, svg) in report::pictures(&inputs) {
        write_whole(&out.join(name), svg.as_bytes())?;
    }
    // The page last: where it is, all of it is.
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

/// Runs everything, and leaves in the folder what this survey finished, nothing older.
fn measure(args: &Args, topology: &Topology) -> anyhow::Result<()> {
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    for name in ["probe", SIM, PICTURES].into_iter().chain(What::ALL.map(What::name)) {
        let _ = std::fs::remove_file(file(&args.out, name));
    }
    let steps = What::ALL.len() + 3;
    for (step, what) in What::ALL.into_iter().enumerate() {
        if INTERRUPTED.load(Relaxed) {
            return Ok(());
        }
        let results = run(what, effort, None, &format!("{} of {steps}  ", step + 1), None)?;
        if !results.rows.is_empty() {
            write_whole(&file(&args.out, what.name()), &serde_json::to_vec_pretty(&results)?)?;
        }
    }
    if INTERRUPTED.load(Relaxed) {
        return Ok(());
    }
    let bar = warmcore_bench::progress(1, &format!("{} of {steps}  topo --probe", steps - 2));
    let probed = topo::probe(topology, &|done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    match probed {
        Ok(probe) => keep(&args.out, "probe", &probe)?,
        // One CPU has no pairs: the rest of the report is as good.
        Err(error) => eprintln!("not probed: {error:#}"),
    }
    if args.sim.is_none()
        && !INTERRUPTED.load(Relaxed)
        && let Some(simulated) = imagined::tables(&format!("{} of {steps}  ", steps - 1))?
    {
        keep(&args.out, SIM, &simulated)?;
    }
    if !INTERRUPTED.load(Relaxed)
        && let Some(pictures) = imagined::pictures(&format!("{steps} of {steps}  "))
    {
        keep(&args.out, PICTURES, &pictures)?;
    }
    Ok(())
}

/// Writes what was found, whole.
fn keep(out: &Path, name: &str, found: &impl Serialize) -> anyhow::Result<()> {
    write_whole(&file(out, name), &serde_json::to_vec_pretty(found)?)
}

fn file(out: &Path, name: &str) -> PathBuf {
    out.join(name).with_extension("json")
}

/// What an earlier run left, if it left it.
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
