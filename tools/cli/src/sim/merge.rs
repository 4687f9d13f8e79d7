//! `warmcore sim merge`: puts the files of all shards of a command together.
//!
//! A shard's file has the result of each of its simulations. The tables are then made as by the whole command, with these
//! results in place of simulations: so medians, notes and what is claimed are those of the whole command, and the merged file
//! differs from its file in `when` alone. All shards of one command are needed, each once. The machine's files are read again,
//! and have to be as they were.

use super::args::{SimulatedSweep, TableKind, not_overwritten};
use super::{begun, machines_of, write};
use anyhow::{Context, bail, ensure};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use warmcore_papers::{Options, Record, Shard, Sweep};
use warmcore_report::{self as report, Part, Simulated};
use warmcore_sim::machine::SimMachine;

/// Arguments of `warmcore sim merge`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to write, as JSON (docs/json.md)
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// The files of the shards, in any order
    #[arg(value_name = "SHARD", required = true)]
    shards: Vec<PathBuf>,
    /// Also write each seed's numbers to FILE, as Parquet (built with the feature `parquet`)
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
}

impl Args {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            cfg!(feature = "parquet") || self.parquet.is_none(),
            "--parquet: this warmcore was built without the feature `parquet`; build it with `cargo build --release \
             -p warmcore-cli --features parquet`, or leave it out"
        );
        not_overwritten(self.shards.clone(), [Some(&self.out), self.parquet.as_ref()].into_iter().flatten())
    }
}

/// A number for what a machine is: FNV-1a of its CPUs and its costs.
pub(super) fn fingerprint(machine: &SimMachine) -> String {
    let text = format!("{:?} {:?}", machine.topology, machine.costs);
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// A shard's file.
struct ShardFile {
    path: String,
    /// The subcommand: `drain`.
    name: String,
    command: String,
    part: Part,
}

impl ShardFile {
    fn read(path: &PathBuf) -> anyhow::Result<Self> {
        let at = path.display().to_string();
        let text = std::fs::read(path).with_context(|| format!("can't read {at}"))?;
        let value: serde_json::Value = serde_json::from_slice(&text).with_context(|| {
            format!("{at} is not JSON; name files that `warmcore sim --shard --json` wrote")
        })?;
        let schema = &value["schema"];
        ensure!(
            *schema == super::SCHEMA,
            "{at} has schema {schema}, and this program reads {}; simulate it again with this version",
            super::SCHEMA
        );
        let Simulated { what, command, interrupted, part, .. } = serde_json::from_value::<Simulated>(value)
            .with_context(|| {
            format!("{at} is no file of a simulation; name files that `warmcore sim --shard` wrote")
        })?;
        let Some(part) = part else {
            bail!("{at} is no shard: it has all of `{command}`; name files that were written with --shard")
        };
        if let Some(what) = interrupted {
            bail!("{at} was interrupted: {what}; run it again: {command} --json {at}");
        }
        ensure!(
            (1..=part.of).contains(&part.number) && part.seeds.checked_add(part.seed).is_some(),
            "{at} is damaged: it is shard {} of {}, of {} seeds from {}; run it again: {command} --json {at}",
            part.number,
            part.of,
            part.seeds,
            part.seed
        );
        let name = what.strip_prefix("sim ").unwrap_or(&what).to_owned();
        Ok(Self { path: at, name, command, part })
    }

    /// What the shard is a part of.
    fn whole(&self) -> SimulatedSweep {
        let Part { machines, seed, seeds, quick, .. } = self.part.clone();
        SimulatedSweep { name: self.name.clone(), machines, seed, seeds, quick, shard: None }
    }
}

/// `warmcore sim merge`.
pub(super) fn command(args: &Args) -> anyhow::Result<()> {
    let shards: Vec<ShardFile> = args.shards.iter().map(ShardFile::read).collect::<Result<_, _>>()?;
    let sweep = complete(&shards)?;
    let machines = machines_of(&sweep.machines)?;
    let costs: Vec<String> = machines.iter().flatten().map(fingerprint).collect();
    for ShardFile { path, part, .. } in &shards {
        ensure!(
            part.costs == costs,
            "{path} was simulated on another machine than {} is here now; merge where the shards ran, or simulate again",
            sweep.machines.join(", ")
        );
    }
    let mut all = begun(&sweep.name, sweep.said());
    let chosen = TableKind::of(&sweep.name);
    let todo: Vec<_> = chosen.iter().flat_map(|kind| machines.iter().map(move |m| (kind, m))).collect();
    for (table, (kind, machine)) in todo.iter().enumerate() {
        let record = Arc::new(Record::of(joined(&shards, table)?));
        let options = Options {
            machine: (*machine).clone(),
            seeds: sweep.seed..sweep.seed + sweep.seeds,
            quick: sweep.quick,
            record: Some(record.clone()),
            ..Options::default()
        };
        let table = (kind.table)(&options).concluded(&options);
        ensure!(
            record.fits(),
            "the shards do not have the simulations of `{}` as this program makes it; simulate and merge with one version",
            sweep.said()
        );
        print!("{}", report::simulated(&super::shown(&table, false)));
        all.tables.push(table);
    }
    if chosen.len() > 1 {
        print!("{}", report::simulated_tally(&all.tables));
    }
    write(&all, sweep.seed, [&Some(args.out.clone()), &args.parquet])?;
    for path in [Some(&args.out), args.parquet.as_ref()].into_iter().flatten() {
        eprintln!("written: {}", path.display());
    }
    Ok(())
}

/// What all shards together are, if they are all shards of one command.
fn complete(shards: &[ShardFile]) -> anyhow::Result<SimulatedSweep> {
    let Some(first) = shards.first() else { bail!("no shard is named; name the files of all") };
    let (sweep, of) = (first.whole(), first.part.of);
    let mut by_number: BTreeMap<u64, &str> = BTreeMap::new();
    for shard in shards {
        let ShardFile { path, command, part, .. } = shard;
        ensure!(
            shard.whole() == sweep && part.of == of,
            "{} is of `{}`, and {path} of `{command}`; merge shards of one command, and only those",
            first.path,
            first.command
        );
        if let Some(other) = by_number.insert(part.number, path) {
            bail!(
                "{other} and {path} are both shard {}/{of} of `{}`; name each shard once",
                part.number,
                sweep.said()
            );
        }
    }
    let missing: Vec<String> = (1..=of)
        .filter(|number| !by_number.contains_key(number))
        .map(|number| SimulatedSweep { shard: Some(Shard { number, of }), ..sweep.clone() }.said())
        .collect();
    if let Some(next) = missing.first() {
        bail!(
            "of {of} shards {} are here and {} missing; the first of these is made by: {next} --json FILE",
            by_number.len(),
            missing.len()
        );
    }
    Ok(sweep)
}

/// The results of the simulations of a table, of all shards together.
fn joined(shards: &[ShardFile], table: usize) -> anyhow::Result<Vec<Sweep>> {
    let mut all: Vec<Sweep> = Vec::new();
    for (i, ShardFile { path, part, command, .. }) in shards.iter().enumerate() {
        let damaged =
            || format!("{path} does not fit the other shards; run it again: {command} --json {path}");
        let sweeps = part.sweeps.get(table).with_context(damaged)?;
        if i == 0 {
            all.clone_from(sweeps);
            continue;
        }
        ensure!(sweeps.len() == all.len(), damaged());
        for (sum, sweep) in all.iter_mut().zip(sweeps) {
            ensure!(sum.items == sweep.items, damaged());
            for (seed, results) in &sweep.by_seed {
                ensure!(sum.by_seed.insert(*seed, results.clone()).is_none(), damaged());
            }
        }
    }
    Ok(all)
}
