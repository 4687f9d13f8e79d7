//! The arguments of `warmcore sim` and `warmcore layout`, and the command lines that repeat a run.
//!
//! There is a subcommand for each table, one for all tables, and one for a user's tasks. The help of each has an
//! example and the names of the machines. Seeds are counted from 0; `--seed 7 --seeds 1` simulates the eighth seed.

use super::{load, merge};
use anyhow::{bail, ensure};
use std::ops::Range;
use std::path::{Path, PathBuf};
use warmcore_papers::{
    Options, Shard, Table, by_load, cid, drain, false_sharing, hot_windows, runtime, wake_queue,
};
use warmcore_sim::machine::THIS;
use warmcore_topo::{MACHINES, machines};

/// Arguments of `warmcore sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    #[command(subcommand)]
    pub(super) what: What,
}

/// What can be simulated.
#[derive(Debug, clap::Subcommand)]
pub(super) enum What {
    /// Concurrency ids: a burst over 16 kB after a sleep, on the area of the id that the CPU got
    #[command(after_help = table("warmcore sim cid --seeds 5"))]
    Cid(Run),
    /// Which field makes reads of another field miss, and the cheapest layout without that
    #[command(after_help = table("warmcore sim false-sharing --quick"))]
    FalseSharing(FalseSharing),
    /// CPUs kept idle for tasks that sleep briefly: clients and servers that answer each other
    #[command(after_help = table("warmcore sim hot-windows --quick --machine this"))]
    HotWindows(Run),
    /// Draining the stocks of 1 to 8192 CPUs
    #[command(after_help = table("warmcore sim drain --seeds 3 --json drain.json"))]
    Drain(Run),
    /// A queue per last-level cache: a parallel build
    #[command(after_help = table("warmcore sim wake-queue --quick --machine lstopo.xml"))]
    WakeQueue(Run),
    /// Hot windows by the number of clients, from an almost idle machine to an overloaded one
    #[command(after_help = table("warmcore sim hot-windows-by-load --quick --seeds 5"))]
    HotWindowsByLoad(Run),
    /// The wake queue's first version by the number of clients
    #[command(after_help = table("warmcore sim wake-queue-by-load --quick --seeds 5"))]
    WakeQueueByLoad(Run),
    /// The wake queue's third version, with and without reading the average idle time, by the number of clients
    #[command(after_help = table("warmcore sim wake-queue-v3-by-load --quick --seeds 5"))]
    #[command(name = "wake-queue-v3-by-load")]
    WakeQueueV3ByLoad(Run),
    /// Warmcore's runtime, tokio's rules and a runtime per core, under six loads on 2 CPUs to a whole machine
    #[command(after_help = below(RUNTIME), mut_arg("seeds", |seeds| seeds.default_value("3")))]
    Runtime(Run),
    /// Merge the files of all shards of a command (`--shard`) into what the whole command would write
    #[command(after_help = MERGE)]
    Merge(merge::Args),
    /// All published tables, and a line on each: how many rows are within their tolerance
    #[command(after_help = table("warmcore sim tables --quick --seeds 3"))]
    Tables(Run),
    /// Your program: tasks from a JSON file for rt-app, under each policy
    #[command(after_help = below(load::AFTER))]
    Load(load::Args),
}

/// The arguments of every subcommand.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    /// The machine (of `runtime`, one or several): a name below, `this` (hand-overs are timed first), FILE.xml of lstopo, or your machine FILE.toml
    #[arg(long = "machine", value_name = "MACHINE")]
    pub machines: Vec<String>,
    /// The number of simulations of each configuration, each with different random numbers
    #[arg(long, value_name = "N", default_value_t = 30, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    pub seeds: u64,
    /// The first seed; further seeds are the numbers after it
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=SEED_MAX))]
    pub seed: u64,
    /// Also write the results to FILE, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write each seed's numbers to FILE, as Parquet (built with the feature `parquet`)
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
}

/// The arguments of a subcommand that simulates a table or all tables.
#[derive(Debug, clap::Args)]
pub(super) struct Run {
    #[command(flatten)]
    pub common: Common,
    /// Simulate only every Nth seed, from the Ith on, counted from 1; `warmcore sim merge` puts the files together
    #[arg(long, value_name = "I/N", value_parser = shard, allow_hyphen_values = true)]
    pub shard: Option<Shard>,
    /// Fewer configurations, and shorter ones
    #[arg(long)]
    pub quick: bool,
}

/// The arguments of `warmcore sim false-sharing`. With `--layout` it does the same as `warmcore layout`, which in
/// version 0.1 had to be called in this way.
#[derive(Debug, clap::Args)]
pub(super) struct FalseSharing {
    #[command(flatten)]
    pub run: Run,
    /// See `warmcore layout`
    #[arg(long, value_name = "FILE", requires = "profile", hide = true)]
    pub layout: Option<PathBuf>,
    /// See `warmcore layout`
    #[arg(long = "struct", value_name = "NAME", requires = "layout", hide = true)]
    pub of: Option<String>,
    /// See `warmcore layout`
    #[arg(long, value_name = "FILE", requires = "layout", hide = true)]
    pub profile: Option<PathBuf>,
    /// See `warmcore layout`
    #[arg(long, value_name = "WHERE", requires = "profile", hide = true)]
    pub at: Option<String>,
}

/// The arguments of `warmcore layout`.
#[derive(Debug, clap::Args)]
#[command(after_help = below(CULPRIT))]
pub struct LayoutArgs {
    /// Where the fields are: an ELF file with debug information, BTF, TOML or JSON
    #[arg(value_name = "FILE")]
    layout: PathBuf,
    /// How often which thread reads and writes which field: TOML, JSON, or the output of `perf c2c report --stdio` or
    /// `perf mem report --stdio`
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// The struct's name in an ELF file or BTF
    #[arg(long = "struct", value_name = "NAME")]
    of: Option<String>,
    /// Where the struct was while perf took samples: 0xADDRESS, or a static's SYMBOL
    #[arg(long, value_name = "WHERE")]
    at: Option<String>,
    /// The machine: a name below, `this` (hand-overs are timed first), FILE.xml of lstopo, or your machine FILE.toml
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,
    /// Also write the result to FILE, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl LayoutArgs {
    /// Converts to the arguments of `warmcore sim false-sharing --layout`, which does not simulate.
    pub(super) fn false_sharing(&self) -> FalseSharing {
        let (machines, json) = (self.machine.iter().cloned().collect(), self.json.clone());
        let common = Common { machines, seeds: 1, seed: 0, json, parquet: None };
        FalseSharing {
            run: Run { common, shard: None, quick: false },
            layout: Some(self.layout.clone()),
            of: self.of.clone(),
            profile: Some(self.profile.clone()),
            at: self.at.clone(),
        }
    }
}

/// Reads `2/3` as the second of three shards.
fn shard(text: &str) -> Result<Shard, String> {
    let number = |text: &str| text.parse::<u64>().ok();
    match text.split_once('/').map(|(which, of)| (number(which), number(of))) {
        Some((Some(number), Some(of))) if (1..=of).contains(&number) => Ok(Shard { number, of }),
        Some((Some(_), Some(0))) => {
            Err("there is at least one shard; say 1/1, or 1/3, 2/3 and 3/3".to_owned())
        }
        Some((Some(0), Some(of))) => {
            Err(format!("shards are counted from 1; say 1/{of} to {of}/{of}, the index of a job plus 1"))
        }
        Some((Some(number), Some(of))) => {
            Err(format!("there is no shard {number} of {of}; say 1/{of} to {of}/{of}"))
        }
        _ => Err("not a shard; say which one and of how many, such as 2/3".to_owned()),
    }
}

/// The most seeds of a run. A larger number is probably a typing error.
const SEEDS_MAX: u64 = 1_000_000;

/// The largest first seed, so that the end of the seeds' range does not overflow.
const SEED_MAX: u64 = u64::MAX - SEEDS_MAX;

const MARKS: &str = "\
A row is predicted (nothing in it was chosen by looking at the published table), fitted (something was, and the row
says what), new (it is not published), by construction (it can't come out otherwise, and is counted nowhere), or nothing
is claimed for it. How far a row may be from what was published was written down before this simulator:
tools/papers/tolerances.toml. A row is met if its median and its mean are within that, from five seeds on; beside it stands
whether a null model, in which the proposal has no effect, is. On a machine for which nothing was published the
same is simulated, nothing is claimed, and the costs that are estimates are listed.";

const CULPRIT: &str = "\
Examples:
  warmcore layout target/debug/server --struct server::Shared --profile profile.toml
  perf c2c report --stdio --node-info > c2c.txt; warmcore layout ... --profile c2c.txt --at 0x55d0c8a4e0c0
The costs are those of the machine that --machine or the profile names, else of this one.
fixtures/sim/ has mm_struct.toml and hackbench.toml to begin with.";

const RUNTIME: &str = "\
Examples:
  warmcore sim runtime --json sim-runtime.json     two sockets of 96 cores; some minutes on two cores
  warmcore sim runtime --quick --machine lstopo.xml --machine bergamo_9d64_1p
Each load needs 25, 50, 75 and 100 % of the first 2, 8, 24, 96 and 192 CPUs of the machine, and of all. A number stands
beside a bound, in which no task waits and none moves. Nothing was published, so nothing is claimed. Warmcore and tokio's
rules are simulated on the same scheduler core; what calls cost was probed on an AMD EPYC, what lines cost is the machine's.";

const MERGE: &str = "\
Example:
  warmcore sim runtime --seeds 8 --shard 1/2 --json part-1.json
  warmcore sim runtime --seeds 8 --shard 2/2 --json part-2.json
  warmcore sim merge sim-runtime.json part-1.json part-2.json
The result is that of `warmcore sim runtime --seeds 8` but for `when`. docs/cluster.md shows job arrays.";

const AFTER: &str = "\
Examples:
  warmcore sim tables --quick --seeds 3            all that was published, beside what comes out here
  warmcore sim hot-windows --machine lstopo.xml    what it would do on the machine of that file
  warmcore sim load --tasks web.json --seeds 5     tasks of yours, under each policy
`warmcore sim WHAT --help` says what each one takes. Ctrl-C keeps the seeds that are finished.";

/// The end of a help: an example, and the names of the machines.
pub(super) fn below(example: &str) -> String {
    let names = machines(MACHINES).map(|names| names.join(", ")).unwrap_or_default();
    let names = names.replacen(", milan", ",\n  milan", 1);
    format!(
        "{example}\n\nMachines:\n  {names};\n  `this`; a file of `lstopo --of xml`, *.xml; a machine file of yours, \
         *.toml, or *.toml:NAME if it has several.\n  crates/topo/machines.toml has the format; `inherits` may name one of the \
         above."
    )
}

fn table(example: &str) -> String {
    below(&format!("Example:\n  {example}\n\n{MARKS}"))
}

/// A table that can be simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableKind {
    /// The name of its subcommand.
    pub name: &'static str,
    pub table: fn(&Options) -> Table,
}

impl TableKind {
    /// The table that is not published.
    const RUNTIME: Self = Self { name: "runtime", table: runtime::table };

    /// The tables of a subcommand: of `tables` all that were published.
    pub(super) fn of(subcommand: &str) -> Vec<Self> {
        if subcommand == Self::RUNTIME.name {
            return vec![Self::RUNTIME];
        }
        Self::ALL.into_iter().filter(|kind| ["tables", kind.name].contains(&subcommand)).collect()
    }

    pub(crate) const ALL: [Self; 8] = [
        Self { name: "cid", table: cid::table },
        Self { name: "false-sharing", table: false_sharing::table },
        Self { name: "hot-windows", table: hot_windows::table },
        Self { name: "drain", table: drain::table },
        Self { name: "wake-queue", table: wake_queue::table },
        Self { name: "hot-windows-by-load", table: by_load::hot_windows },
        Self { name: "wake-queue-by-load", table: by_load::wake_queue },
        Self { name: "wake-queue-v3-by-load", table: by_load::wake_queue_v3 },
    ];
}

impl Common {
    pub fn seeds(&self) -> Range<u64> {
        self.seed..self.seed + self.seeds
    }

    /// Checks that no file is overwritten that is also read or written as another output, that no output is a folder,
    /// and that Parquet can be written if it is asked for. `read` and `written` are files that are read and written
    /// besides those of `self`.
    fn check(&self, read: &[&Option<PathBuf>], written: &[&Option<PathBuf>]) -> anyhow::Result<()> {
        ensure!(
            cfg!(feature = "parquet") || self.parquet.is_none(),
            "--parquet: this warmcore was built without the feature `parquet`; build it with `cargo build --release \
             -p warmcore-cli --features parquet`, or take --json"
        );
        let path = |file: &str| file.rsplit_once(':').map_or(file, |(path, _)| path).to_owned();
        let file =
            |machine: &String| if machine.contains(".toml:") { path(machine) } else { machine.clone() };
        let machines = self.machines.iter().map(file).map(PathBuf::from).filter(|path| path.is_file());
        let read = read.iter().copied().flatten().cloned().chain(machines);
        let written = [&self.json, &self.parquet].into_iter().chain(written.iter().copied());
        not_overwritten(read.collect(), written.flatten())
    }

    /// The machine, if one is named. [`Args::check`] has seen that there are not several.
    pub fn machine(&self) -> Option<&str> {
        self.machines.first().map(String::as_str)
    }

    /// Appends the machine and the seeds to a command that repeats the run. The seeds are the first and their number.
    fn said(&self, words: &mut Vec<String>, seeds: (u64, u64)) {
        for machine in &self.machines {
            words.extend(["--machine".to_owned(), quoted(machine)]);
        }
        if seeds.0 != 0 {
            words.extend(["--seed".to_owned(), seeds.0.to_string()]);
        }
        words.extend(["--seeds".to_owned(), seeds.1.to_string()]);
    }
}

/// Checks that no file that is `read` is also written, that none is written twice, and that none is a folder.
pub(super) fn not_overwritten<'a>(
    read: Vec<PathBuf>,
    written: impl Iterator<Item = &'a PathBuf>,
) -> anyhow::Result<()> {
    let mut seen: Vec<PathBuf> = read.iter().map(|path| real(path)).collect();
    for path in written {
        let file = real(path);
        if seen.contains(&file) {
            bail!(
                "{} would be overwritten: it is named twice; name another file to write to",
                path.display()
            );
        }
        ensure!(!path.is_dir(), "can't write {}: it is a folder; name a file in it", path.display());
        seen.push(file);
    }
    Ok(())
}

/// A file's canonical name. The file need not exist; if its folder does not exist either, this is `path`.
fn real(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let named = || Some(std::fs::canonicalize(folder).ok()?.join(path.file_name()?));
    std::fs::canonicalize(path).ok().or_else(named).unwrap_or_else(|| path.to_owned())
}

/// Quotes a word for the shell if necessary.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=+,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Args {
    /// The name of the subcommand.
    pub(super) fn name(&self) -> &'static str {
        match &self.what {
            What::Cid(_) => "cid",
            What::FalseSharing(_) => "false-sharing",
            What::HotWindows(_) => "hot-windows",
            What::Drain(_) => "drain",
            What::WakeQueue(_) => "wake-queue",
            What::HotWindowsByLoad(_) => "hot-windows-by-load",
            What::WakeQueueByLoad(_) => "wake-queue-by-load",
            What::WakeQueueV3ByLoad(_) => "wake-queue-v3-by-load",
            What::Tables(_) => "tables",
            What::Runtime(_) => "runtime",
            What::Merge(_) => "merge",
            What::Load(_) => "load",
        }
    }

    /// The arguments of a subcommand that simulates tables; none for `load` and `merge`.
    fn run(&self) -> Option<&Run> {
        match &self.what {
            What::Cid(run)
            | What::HotWindows(run)
            | What::Drain(run)
            | What::WakeQueue(run)
            | What::HotWindowsByLoad(run)
            | What::WakeQueueByLoad(run)
            | What::WakeQueueV3ByLoad(run)
            | What::Tables(run)
            | What::Runtime(run)
            | What::FalseSharing(FalseSharing { run, .. }) => Some(run),
            What::Load(_) | What::Merge(_) => None,
        }
    }

    /// What is simulated.
    pub(super) fn sweep(&self) -> Option<SimulatedSweep> {
        let Run { common, shard, quick } = self.run()?;
        Some(SimulatedSweep {
            name: self.name().to_owned(),
            machines: common.machines.clone(),
            seed: common.seed,
            seeds: common.seeds,
            quick: *quick,
            shard: *shard,
        })
    }

    pub(super) fn files(&self) -> Option<&Common> {
        self.run().map(|run| &run.common)
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        match &self.what {
            What::FalseSharing(of) => of.check()?,
            What::Load(load) => load.common.check(&[&Some(load.tasks.clone())], &[&load.trace])?,
            What::Merge(merge) => merge.check()?,
            _ => self.files().map_or(Ok(()), |common| common.check(&[], &[]))?,
        }
        let machines = match &self.what {
            What::Load(load) => load.common.machines.len(),
            _ => self.files().map_or(0, |common| common.machines.len()),
        };
        ensure!(
            machines < 2 || matches!(self.what, What::Runtime(_)),
            "--machine is given {machines} times, and `warmcore sim {}` simulates one machine; say one, and run it again for the \
             others",
            self.name()
        );
        let Some(Run { common, shard: Some(shard), .. }) = self.run() else { return Ok(()) };
        ensure!(
            shard.of <= common.seeds,
            "--shard {}/{}: there are {} seeds, and a shard has at least one; say at most {} shards, or more --seeds",
            shard.number,
            shard.of,
            common.seeds,
            common.seeds
        );
        ensure!(common.json.is_some(), "--shard: a shard is merged from its file; say --json FILE");
        ensure!(
            common.parquet.is_none(),
            "--shard: a shard has no Parquet file; say --parquet FILE to `warmcore sim merge`"
        );
        ensure!(
            !common.machines.iter().any(|machine| machine == THIS),
            "--shard: each shard would time its own machine for `--machine this`; say a name or a file"
        );
        Ok(())
    }
}

/// What a command simulates, and which part of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SimulatedSweep {
    /// The subcommand.
    pub name: String,
    pub machines: Vec<String>,
    pub seed: u64,
    pub seeds: u64,
    pub quick: bool,
    pub shard: Option<Shard>,
}

impl SimulatedSweep {
    /// The command that repeats it, without its output files.
    pub fn said(&self) -> String {
        self.command(&self.name, (self.seed, self.seeds), self.shard)
    }

    /// The command that repeats one table with `seed`, or with all seeds.
    pub fn replay(&self, kind: &TableKind, seed: Option<u64>) -> String {
        self.command(kind.name, seed.map_or((self.seed, self.seeds), |seed| (seed, 1)), None)
    }

    fn command(&self, name: &str, seeds: (u64, u64), shard: Option<Shard>) -> String {
        let mut words = vec![format!("warmcore sim {name}")];
        Common { machines: self.machines.clone(), seeds: 0, seed: 0, json: None, parquet: None }
            .said(&mut words, seeds);
        if self.quick {
            words.push("--quick".to_owned());
        }
        words.extend(shard.map(|Shard { number, of }| format!("--shard {number}/{of}")));
        words.join(" ")
    }
}

impl FalseSharing {
    pub fn check(&self) -> anyhow::Result<()> {
        let common = &self.run.common;
        ensure!(
            self.layout.is_none() || common.parquet.is_none(),
            "--parquet is for tables, and a culprit is none; take --json"
        );
        ensure!(
            self.layout.is_none() || self.run.shard.is_none(),
            "--shard is for tables, and a culprit is none; leave it out"
        );
        common.check(&[&self.layout, &self.profile], &[])
    }

    /// The `warmcore layout` command that finds the same culprit (the field that makes reads of another miss) again.
    pub fn said(&self) -> String {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let mut words = vec!["warmcore layout".to_owned()];
        words.extend(path(&self.layout).map(|layout| quoted(&layout)));
        for (option, value) in [
            ("--struct", self.of.clone()),
            ("--profile", path(&self.profile)),
            ("--at", self.at.clone()),
            ("--machine", self.run.common.machine().map(str::to_owned)),
        ] {
            words.extend(value.into_iter().flat_map(|value| [option.to_owned(), quoted(&value)]));
        }
        words.join(" ")
    }
}

impl load::Args {
    /// The command that repeats the load under `policy`, or under all policies. `seeds` are the first seed and the
    /// number of seeds.
    pub fn said(&self, policy: Option<&str>, seeds: (u64, u64)) -> String {
        let mut words =
            vec!["warmcore sim load --tasks".to_owned(), quoted(&self.tasks.display().to_string())];
        if let Some(policy) = policy {
            words.extend(["--policy".to_owned(), policy.to_owned()]);
        }
        self.common.said(&mut words, seeds);
        words.join(" ")
    }
}
