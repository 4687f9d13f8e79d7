//! `warmcore sim`: simulates the decisions of the crates `cid`, `budget` and `sched` on another machine.
//!
//! A table is simulated for all its seeds, on as many threads as there are CPUs. After a signal, the seeds that are
//! being simulated are finished and no others begin: the table then has the seeds that were finished, and each row has
//! their number. A result does not depend on the machine that simulates it, unless that machine is simulated
//! (`--machine this`; `warmcore layout` if no machine is named), so `--json` has no host and no load.
//!
//! `--shard` simulates a part of the seeds, and `sim merge` puts the parts together (`sim/merge.rs`).
//!
//! All tables with 30 seeds take some minutes on two cores; `--quick` simulates fewer and shorter configurations. The
//! tolerances in `tools/papers/tolerances.toml` were written down before the simulator was written.

mod args;
pub mod load;
mod merge;
#[cfg(feature = "parquet")]
mod parquet;
mod progress;

pub(crate) use args::TableKind;
pub use args::{Args, LayoutArgs};

use crate::topo;
use anyhow::Context;
use args::{Common, FalseSharing, SimulatedSweep, What};
use progress::ProgressReporter;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_layout::Layout;
use warmcore_layout::culprit::{self, Base, Profile};
use warmcore_papers::{Options, Record, Row, Table, UNPUBLISHED};
use warmcore_report::{self as report, Part, Probe, Simulated};
use warmcore_results::{self as results, system as host};
use warmcore_sim::machine::{SimMachine, THIS};
use warmcore_topo::{Distance, Topology};

/// The version of the schema of `--json`. It increases when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 2;

/// The width in characters at which a note is wrapped.
const WIDTH: usize = 110;

/// Returns the results of a simulation that begins now.
pub(crate) fn begun<R>(what: &str, command: String) -> Simulated<R> {
    Simulated {
        schema: SCHEMA,
        what: format!("sim {what}"),
        command,
        when: host::utc_now(),
        interrupted: None,
        part: None,
        tables: Vec::new(),
        loads: Vec::new(),
        culprit: None,
    }
}

/// Writes the results so far to the files that were asked for.
fn keep(found: &Simulated<Row>, common: &Common) -> anyhow::Result<()> {
    write(found, common.seed, [&common.json, &common.parquet])
}

/// Writes results to a file of JSON and to one of Parquet. `first` is the first seed.
fn write(found: &Simulated<Row>, first: u64, [json, parquet]: [&Option<PathBuf>; 2]) -> anyhow::Result<()> {
    if let Some(path) = json {
        results::write_whole(path, &serde_json::to_vec_pretty(found)?)?;
    }
    #[cfg(feature = "parquet")]
    if let Some(path) = parquet {
        results::write_whole(path, &parquet::bytes(found, first)?)?;
    }
    #[cfg(not(feature = "parquet"))]
    let _ = (first, parquet);
    Ok(())
}

/// Prints which files were written. If a signal left something out, also prints what, and ends the process.
fn end(found: &Simulated<Row>, common: &Common) {
    for path in [&common.json, &common.parquet].into_iter().flatten() {
        eprintln!("written: {}", path.display());
    }
    if let Some(left_out) = &found.interrupted {
        eprintln!("interrupted: {left_out}");
        warmcore_bench::signals::end();
    }
}

/// `warmcore sim`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    args.check()?;
    match &args.what {
        What::Load(load) => load::command(load),
        What::Merge(merge) => merge::command(merge),
        What::FalseSharing(of) if of.layout.is_some() => find(of),
        _ => args.sweep().zip(args.files()).map_or(Ok(()), |(sweep, files)| tables(&sweep, files)),
    }
}

/// `warmcore layout`.
pub fn layout_command(args: &LayoutArgs) -> anyhow::Result<()> {
    let of = args.false_sharing();
    of.check()?;
    find(&of)
}

fn tables(sweep: &SimulatedSweep, common: &Common) -> anyhow::Result<()> {
    let machines: Vec<Option<SimMachine>> = machines_of(&sweep.machines)?;
    let mut all = begun(&sweep.name, sweep.said());
    all.part = sweep.shard.map(|shard| Part {
        number: shard.number,
        of: shard.of,
        machines: sweep.machines.clone(),
        seed: sweep.seed,
        seeds: sweep.seeds,
        quick: sweep.quick,
        costs: machines.iter().flatten().map(merge::fingerprint).collect(),
        sweeps: Vec::new(),
    });
    // Write now, so that an older file is not taken for the result of this run, and so that a path that can't be
    // written is reported at once.
    keep(&all, common)?;
    let chosen = TableKind::of(&sweep.name);
    let todo: Vec<(&TableKind, &Option<SimMachine>)> =
        chosen.iter().flat_map(|kind| machines.iter().map(move |machine| (kind, machine))).collect();
    let bar = warmcore_bench::progress(common.seeds, &all.what);
    bar.enable_steady_tick(Duration::from_millis(200));
    for (i, (kind, machine)) in todo.iter().enumerate() {
        let progress = ProgressReporter::new(&bar, kind.name);
        let record = sweep.shard.map(|_| Arc::<Record>::default());
        let options = Options {
            machine: (*machine).clone(),
            seeds: common.seeds(),
            quick: sweep.quick,
            threads: None,
            progress: Some(progress.clone()),
            shard: sweep.shard,
            record: record.clone(),
        };
        let replay = |seed: Option<u64>| sweep.replay(kind, seed);
        let table = progress.wait(|| (kind.table)(&options).concluded(&options), replay)?;
        let is_cut = INTERRUPTED.load(Relaxed);
        if is_cut {
            let missing: Vec<&str> = todo[i + 1..].iter().map(|(kind, _)| kind.name).collect();
            all.interrupted = Some(left_out(&table, kind.name, common.seeds, &missing));
        }
        if let Some((part, record)) = all.part.as_mut().zip(record) {
            part.sweeps.push(record.kept());
        }
        if !table.rows.is_empty() {
            bar.suspend(|| print!("{}", report::simulated(&shown(&table, is_cut))));
            all.tables.push(table);
        }
        keep(&all, common)?;
        if is_cut {
            break;
        }
    }
    bar.finish_and_clear();
    if chosen.len() > 1 {
        print!("{}", report::simulated_tally(&all.tables));
    }
    end(&all, common);
    Ok(())
}

/// The machines of these names; [`None`], for the machine of the publication, if there are no names.
fn machines_of(names: &[String]) -> anyhow::Result<Vec<Option<SimMachine>>> {
    if names.is_empty() {
        return Ok(vec![None]);
    }
    names.iter().map(|name| machine_of(name).map(Some)).collect()
}

/// Describes what is missing because of a signal.
fn left_out(table: &Table, name: &str, seeds: u64, missing: &[&str]) -> String {
    let counts = || table.rows.iter().map(|row| row.numbers.len());
    let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    let of = match (least, most) {
        (_, 0) => format!("of {name} no seed was finished"),
        (least, most) if least == most => format!("{name} has {most} of {seeds} seeds"),
        (least, most) => {
            format!("{name} has {least} to {most} of {seeds} seeds, as each row says, and rows are missing")
        }
    };
    match missing {
        [] => of,
        missing => format!("{of}; not begun: {}", missing.join(", ")),
    }
}

/// Prepares the table for printing: the remark [`UNPUBLISHED`] of rows becomes one note of the table. If `is_cut`, each
/// row's name gets the number of its seeds.
fn shown(table: &Table, is_cut: bool) -> Table {
    let mut table = table.clone();
    let mut is_unpublished = false;
    for row in &mut table.rows {
        if is_cut {
            row.name = format!("{} [seeds: {}]", row.name, row.numbers.len());
        }
        if let Some(tolerance) = row.tolerance.as_mut().filter(|t| t.why.as_deref() == Some(UNPUBLISHED)) {
            tolerance.why = None;
            is_unpublished = true;
        }
    }
    if is_unpublished {
        table.notes.insert(0, format!("Not claimed: {UNPUBLISHED}."));
    }
    table
}

/// Formats notes as list items, wrapped at [`WIDTH`].
fn noted(notes: &[String]) -> String {
    notes.iter().map(|note| report::wrapped(&format!("- {note}"), WIDTH, 2) + "\n").collect()
}

/// Returns the machine that `--machine` names. For `this`, if the process may use two CPUs or more, the transfers of a
/// cache line are timed first, which takes 2 to 20 s: the estimates for any machine are wrong by a factor of four on
/// some machines.
fn machine_of(what: &str) -> anyhow::Result<SimMachine> {
    let machine = SimMachine::read(what)?;
    if what != THIS || machine.topology.usable().len() < 2 {
        return Ok(machine);
    }
    match topo::probe_with_bar(&machine.topology, topo::TIMING) {
        Ok(probe) => {
            let timed = hand_overs(&machine.topology, &probe);
            Ok(machine.timed(&timed))
        }
        Err(_) if INTERRUPTED.load(Relaxed) => {
            eprintln!("interrupted: the probe was not finished, and nothing was simulated");
            warmcore_bench::signals::end()
        }
        Err(error) => {
            eprintln!("not timed, so hand-overs are estimates: {error:#}");
            Ok(machine)
        }
    }
}

/// The median of the timed pairs of each distance, in ps.
fn hand_overs(topology: &Topology, probe: &Probe) -> BTreeMap<Distance, u64> {
    let median = |ns: Vec<f64>| (ns[ns.len() / 2] * 1000.0).round() as u64;
    probe.times(topology).into_iter().map(|(distance, ns)| (distance, median(ns))).collect()
}

/// Finds the culprit in a layout, the field that makes reads of others miss, and prints it.
fn find(args: &FalseSharing) -> anyhow::Result<()> {
    let common = &args.run.common;
    let (Some(layout), Some(profile)) = (&args.layout, &args.profile) else { return Ok(()) };
    let read = |path: &Path| {
        std::fs::read_to_string(path)
            .with_context(|| format!("can't read {}; is it a readable text file?", path.display()))
    };
    let is_declared = layout.extension().is_some_and(|end| end == "toml" || end == "json");
    let layout = match &args.of {
        Some(name) => Layout::read(layout, name)?,
        None if is_declared => Layout::declared(&read(layout)?, &layout.display().to_string())?,
        None => anyhow::bail!("which struct of {}? Say --struct NAME", layout.display()),
    };
    let (text, place) = (read(profile)?, profile.display().to_string());
    let (profile, notes) = match culprit::is_perf(&text) {
        false => (Profile::parse(&text, &place)?, Vec::new()),
        true => {
            let Some(at) = &args.at else {
                anyhow::bail!(
                    "{place} is what perf printed; where did the struct stand? Say --at 0xADDRESS, or --at SYMBOL for a \
                     static in `perf mem`"
                );
            };
            culprit::from_perf(&text, &layout, &Base::parse(at), &place)?
        }
    };
    // Without `--machine`, use the machine that the profile names; if it names none, this machine.
    let named = common.machine().or(profile.machine.as_deref());
    let machine = machine_of(named.unwrap_or(THIS))?;
    let mut all = begun("culprit", args.said());
    keep(&all, common)?;
    let found = culprit::find(&layout, &profile, &machine)?;
    print!("{found}");
    let of_machine = if machine.is_known { Vec::new() } else { machine.notes() };
    print!("{}", noted(&[notes, of_machine].concat()));
    all.culprit = Some(found);
    keep(&all, common)?;
    end(&all, common);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_types::CpuId;

    #[test]
    fn a_probes_times_are_the_costs_of_this_machine() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hwloc/synthetic-80cpu-2numa.xml");
        let drawn = SimMachine::read(folder).unwrap();
        // CPUs 0 and 1 share a core, 4 is on the same LLC, 79 in the other socket.
        let cpus = vec![0, 1, 4, 79];
        let distances: Vec<_> =
            cpus.iter().map(|c| drawn.topology.distance(CpuId(0), CpuId(*c)).unwrap()).collect();
        assert_eq!(distances, [Distance::Same, Distance::Smt, Distance::Llc, Distance::Other]);
        let ns = |a: usize, b: usize| match (a.min(b), a.max(b)) {
            (0, 1) => Some(11.0),
            (_, 2) if a != b => Some(97.4),
            (0, 3) => None,
            (_, 3) if a != b => Some(240.0),
            _ => None,
        };
        let probe = Probe {
            working_sets: Vec::new(),
            hand_over_ns: (0..4).map(|a| (0..4).map(|b| ns(a, b)).collect()).collect(),
            spread_ns: vec![vec![None; 4]; 4],
            cpus,
            verdict: String::new(),
            noisy: false,
        };
        let timed = hand_overs(&drawn.topology, &probe);
        let costs = drawn.timed(&timed).costs;
        assert_eq!(
            [Distance::Smt, Distance::Llc, Distance::Other].map(|d| costs.hand_over(d)),
            [11_000, 97_400, 240_000]
        );
    }

    /// The fields that `docs/json.md` lists under a heading.
    fn documented(heading: &str) -> std::collections::BTreeSet<String> {
        let docs = include_str!("../../../docs/json.md");
        let section = docs.split("\n## ").find(|s| s.lines().next() == Some(heading));
        let rows = section.unwrap_or_else(|| panic!("docs/json.md has no section {heading}")).lines();
        rows.filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
    }

    #[test]
    fn the_schema_of_simulations_in_the_docs_is_the_schema() {
        let row = Row::of("8 threads", "ns", vec![1.0]).against(Some(1.0), "cid.10_ms");
        let (rows, notes) = (vec![row], vec!["a note".into()]);
        let (name, source) = ("cid".into(), "a mail".into());
        let full = Simulated {
            tables: vec![Table { name, machine: "epyc9654_2p".into(), source, rows, notes }],
            ..begun("cid", "warmcore sim cid --seeds 30".into())
        };
        let value = serde_json::to_value(full).unwrap();
        let part = serde_json::to_value(Part {
            number: 1,
            of: 2,
            machines: Vec::new(),
            seed: 0,
            seeds: 2,
            quick: false,
            costs: Vec::new(),
            sweeps: Vec::new(),
        });
        let written: std::collections::BTreeSet<String> =
            part.unwrap().as_object().unwrap().keys().cloned().collect();
        assert_eq!(documented("Simulated part"), written);
        for (heading, at) in [
            ("Simulated", ""),
            ("Simulated table", "/tables/0"),
            ("Simulated row", "/tables/0/rows/0"),
            ("Tolerance", "/tables/0/rows/0/tolerance"),
        ] {
            let mut written: std::collections::BTreeSet<String> =
                value.pointer(at).unwrap().as_object().unwrap().keys().cloned().collect();
            // These are written only if they are not empty.
            let only = ["culprit", "interrupted", "loads", "part"].map(str::to_owned);
            written.extend(only.into_iter().filter(|_| heading == "Simulated"));
            assert_eq!(documented(heading), written, "left: docs/json.md, right: the code, of {heading}");
        }
        assert_eq!(value["tables"][0]["rows"][0]["mark"], "predicted");
        assert_eq!(value["tables"][0]["rows"][0]["met"], true);
    }
}
