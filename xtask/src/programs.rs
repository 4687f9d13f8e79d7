//! `cargo xtask programs`: puts programs that use tokio under load, on Warmcore's scheduler and on tokio's.
//!
//! A program is a package of the registry, or one of `xtask/programs` that is written like those. It is built once as it
//! is, and adopted by `warmcore adopt` and built again ([`adopted`]). Then two processes of the same binary run, one of
//! them with `WARMCORE=0`, and a load generator of Debian ([`load`]) sends requests to one of them at a time, in
//! alternating slices. Meanwhile clients check answers of both ([`check`]). A wrong answer, a lost connection, a task
//! that the scheduler does not place, or an error of the load generator fails the run.
//!
//! Server and clients share the CPUs, as two services on one machine do, so a rate includes the work of both sides. All
//! connections are to 127.0.0.1.
//!
//! `--recorder` compares the same scheduler with `WARMCORE_RECORD` and without, and `--record` only records ([`recorded`]), while
//! requests come at moments of their own ([`paced`]).
//!
//! The rows of a program are written to `NAME.json` and its slices to `NAME.tsv`, `NAME-soak` after a soak and
//! `NAME-recorder-SCHEDULER` of the recorder. `programs.md`
//! has the tables of all programs whose rows the folder has ([`tables`]), so they may be measured one by one.

mod adopted;
mod check;
mod load;
mod paced;
mod recorded;
mod side;
mod tables;

use crate::rounds::{Orders, Samples, alternate};
use crate::test::Live;
use adopted::Adopted;
use anyhow::ensure;
use check::Check;
use clap::builder::PossibleValuesParser;
use load::Load;
use side::{OFF, OFF_RECORDED, ON, ON_RECORDED, Side, Slice};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use warmcore_results::{Bound, Row, system, write_whole};

/// A program and how it is used.
pub struct Program {
    name: &'static str,
    package: &'static str,
    /// Of the package in the registry; empty for `xtask/programs`.
    version: &'static str,
    /// The processes in the order of their start: the port on which the process accepts connections when it is ready,
    /// and its command. `{port}`, `{files}` and `{origin}` are replaced: by the port of the load, by a folder with
    /// [`check::FILES`], and by the port of [`check::origin`].
    servers: &'static [(&'static str, &'static [&'static str])],
    load: Load,
    check: Check,
    /// Whether the program has a port that can't be chosen. Then one process runs at a time, for one slice.
    is_alone: bool,
}

const PROGRAMS: [Program; 7] = [
    Program {
        name: "mini-redis",
        package: "mini-redis",
        version: "0.4.1",
        servers: &[("{port}", &["mini-redis-server", "--port", "{port}"])],
        load: Load::Redis,
        check: Check::Redis,
        is_alone: false,
    },
    Program {
        name: "static-web-server",
        package: "static-web-server",
        version: "2.44.1",
        servers: &[(
            "{port}",
            &["static-web-server", "--host", "127.0.0.1", "--port", "{port}", "--root", "{files}"],
        )],
        load: Load::Wrk("/small"),
        check: Check::Http { files: true, puts: None },
        is_alone: false,
    },
    Program {
        name: "dufs",
        package: "dufs",
        version: "0.47.0",
        // Without its log, which would be hundreds of MB after a soak.
        servers: &[(
            "{port}",
            &["dufs", "{files}", "-b", "127.0.0.1", "-p", "{port}", "-A", "--log-format", ""],
        )],
        load: Load::H2loadOverHttp1("/small"),
        check: Check::Http { files: true, puts: Some("/put-") },
        is_alone: false,
    },
    Program {
        name: "axum-sqlx",
        package: "programs",
        version: "",
        servers: &[("{port}", &["notes", "{port}", "{files}/notes.db"])],
        load: Load::Wrk("/notes/1"),
        check: Check::Http { files: false, puts: Some("/notes/") },
        is_alone: false,
    },
    Program {
        name: "axum-reqwest",
        package: "programs",
        version: "",
        servers: &[("{port}", &["relay", "{port}", "{origin}"])],
        load: Load::Wrk("/small"),
        check: Check::Http { files: true, puts: None },
        is_alone: false,
    },
    Program {
        name: "tonic",
        package: "programs",
        version: "",
        servers: &[("{port}", &["health", "{port}"])],
        load: Load::H2loadGrpc("/grpc.health.v1.Health/Check"),
        check: Check::Client("health-client"),
        is_alone: false,
    },
    Program {
        name: "bore",
        package: "bore-cli",
        version: "0.6.0",
        servers: &[
            ("7835", &["bore", "server", "--bind-addr", "127.0.0.1"]),
            ("{port}", &["bore", "local", "{origin}", "-l", "127.0.0.1", "-t", "127.0.0.1", "-p", "{port}"]),
        ],
        load: Load::Wrk("/small"),
        check: Check::Http { files: true, puts: None },
        is_alone: true,
    },
];

/// The arguments of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The programs; all if none is named
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(PROGRAMS.map(|program| program.name)))]
    names: Vec<String>,
    /// Only build the programs, which takes up to 5 GB in target/programs
    #[arg(long, conflicts_with_all = ["quick", "soak"])]
    build: bool,
    /// Record six programs on both schedulers instead of measuring them; with NAMEs, the servers among these
    #[arg(long, conflicts_with_all = ["build", "quick", "soak"])]
    record: bool,
    /// Compare each scheduler with a recorder and without one, instead of the schedulers
    #[arg(long, conflicts_with_all = ["build", "record", "soak"])]
    recorder: bool,
    /// Two slices of 2 s
    #[arg(long, conflicts_with = "soak")]
    quick: bool,
    /// Ten minutes, without WARMCORE=0
    #[arg(long)]
    soak: bool,
    /// With --record: requests come at this percentage of the rate that clients reach which wait for each answer; 100: from those clients
    #[arg(long, value_name = "N", default_value_t = 40, requires = "record")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
    /// The folder of the results
    #[arg(long, value_name = "FOLDER", default_value = "target/programs")]
    out: PathBuf,
}

/// Variants that are compared: the end of the name of their files, and the variants.
type Group = (&'static str, &'static [&'static str]);

/// What a call of the command does.
struct Options {
    /// The programs.
    chosen: Vec<&'static Program>,
    /// Only build.
    builds: bool,
    rounds: usize,
    slice: Duration,
    /// What is compared, one after the other.
    groups: &'static [Group],
    /// The folder of the results.
    out: PathBuf,
}

impl Options {
    fn of(args: &Args) -> Self {
        let is_chosen = |name: &str| args.names.is_empty() || args.names.iter().any(|it| it == name);
        let chosen = PROGRAMS.iter().filter(|program| is_chosen(program.name)).collect();
        let (rounds, seconds) = match (args.quick, args.soak) {
            (true, _) => (2, 2),
            // Ten minutes.
            (_, true) => (60, 10),
            _ => (9, 10),
        };
        let groups: &[Group] = match (args.soak, args.recorder) {
            (true, _) => &[(tables::SOAK, &[ON])],
            (_, true) => {
                &[("-recorder-tokio", &[OFF_RECORDED, OFF]), ("-recorder-warmcore", &[ON_RECORDED, ON])]
            }
            _ => &[("", &[ON, OFF])],
        };
        let slice = Duration::from_secs(seconds);
        Self { chosen, builds: args.build, rounds, slice, groups, out: args.out.clone() }
    }
}

/// Builds the programs that the arguments name, and runs them. Returns an error if one can't be adopted or does not do
/// what it should.
pub fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    let options = Options::of(args);
    let folder = root.join("target/programs");
    std::fs::create_dir_all(&folder)?;
    std::fs::create_dir_all(&options.out)?;
    let lock = File::create(folder.join("lock"))?;
    ensure!(lock.try_lock().is_ok(), "another `cargo xtask programs` uses {}", folder.display());
    if args.record {
        return recorded::run(root, &options.out, &options.chosen, args.percent);
    }
    let needed: Vec<_> = options.chosen.iter().map(|program| program.load.tool()).collect();
    load::require(&needed)?;
    let mut live = Live::new();
    let mut faults = Vec::new();
    for (program, (suffix, variants)) in
        options.chosen.iter().flat_map(|it| options.groups.iter().map(move |group| (it, group)))
    {
        let adopted = adopted::prepare(root, &folder, program, &mut live);
        // Without the builds, so that the load is that of the slices.
        let (when, meter) = (system::utc_now(), system::LoadMeter::start());
        let done =
            adopted.and_then(|adopted| measure(&folder, program, &adopted, &options, variants, &mut live));
        // A program that can't be built leaves the others their results.
        let Measured { rows, slices, faults: found } = done
            .unwrap_or_else(|error| Measured { faults: vec![format!("{error:#}")], ..Measured::default() });
        for row in &rows {
            live.line(&line(row));
        }
        if !slices.is_empty() {
            let results = system::results("programs", &crate::command_line(), when, &meter, rows);
            let path = options.out.join(format!("{}{suffix}", program.name));
            write_whole(&path.with_extension("json"), &serde_json::to_vec_pretty(&results)?)?;
            write_whole(&path.with_extension("tsv"), slices.as_bytes())?;
        }
        faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", program.name)));
    }
    if !options.builds {
        let tables = tables::text(&options.out, PROGRAMS.iter().map(|program| program.name))?;
        write_whole(&options.out.join("programs.md"), tables.as_bytes())?;
        live.line(&tables);
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// What a run of a program gave.
#[derive(Default)]
struct Measured {
    rows: Vec<Row>,
    /// All slices as text; empty if the program did not run to its end.
    slices: String,
    /// What went wrong.
    faults: Vec<String>,
}

/// Runs a program.
fn measure(
    folder: &Path,
    program: &'static Program,
    adopted: &Adopted,
    options: &Options,
    variants: &[&'static str],
    live: &mut Live,
) -> anyhow::Result<Measured> {
    if options.builds {
        return Ok(Measured { rows: adopted.rows.clone(), ..Measured::default() });
    }
    let mut sides = Vec::new();
    for variant in variants {
        sides.push(Side::new(program, variant, adopted, folder)?);
    }
    let mut samples: Vec<Vec<Slice>> = vec![Vec::new(); sides.len()];
    let mut faults = Vec::new();
    if let Err(error) = load_all(program, options, &mut sides, &mut samples, live) {
        faults.push(format!("{error:#}"));
    }
    for side in &mut sides {
        // The clients may have seen the cause of an error of the load generator.
        if let Err(error) = side.stop() {
            faults.push(format!("{error:#}"));
        }
        faults.extend(side.faults().iter().cloned());
    }
    if samples.iter().any(|samples| samples.len() < options.rounds) {
        return Ok(Measured { faults, ..Measured::default() });
    }
    let mut rows = adopted.rows.clone();
    rows.extend(numbers(program.name, &sides, &samples));
    let foreign = rows.iter().filter(|row| row.metric == FOREIGN && row.median > 0.0);
    faults.extend(foreign.map(|row| format!("{} foreign tasks", row.median)));
    let mut slices = String::new();
    paired(program.name, &sides, &samples).for_each(|samples| samples.add_slices(&mut slices));
    Ok(Measured { rows, slices, faults })
}

/// Starts the sides and measures all their slices.
fn load_all(
    program: &Program,
    options: &Options,
    sides: &mut [Side<'_>],
    samples: &mut [Vec<Slice>],
    live: &mut Live,
) -> anyhow::Result<()> {
    let restarts = program.is_alone && sides.len() > 1;
    if !restarts {
        for side in &mut *sides {
            side.start()?;
            // Fills caches, and tells `Load::Redis` how many requests a slice has.
            side.slice(Duration::from_secs(1))?;
        }
    }
    let mut left = options.rounds * sides.len();
    alternate(0..options.rounds, &mut Orders::new(sides.len()), |round, which| {
        let side = &mut sides[which];
        let time_left = options.slice * left as u32;
        live.show(program.name, &format!("{}, slice {}", side.variant, round + 1), Some(time_left));
        left -= 1;
        if restarts {
            side.start()?;
        }
        samples[which].push(side.slice(options.slice)?);
        if restarts {
            side.stop()?;
        }
        Ok(())
    })
}

/// Names of metrics. Foreign tasks are those that the scheduler does not place.
const FOREIGN: &str = "foreign tasks";
const MOVED: &str = "polls on another worker than the one before";
const CHECKED: &str = "checked answers";
const RESIDENT: [&str; 2] = ["resident after the first slice", "resident at the end"];

/// A metric: its name, its unit, and its number of a slice.
type Metric = (&'static str, &'static str, fn(&Slice) -> f64);

const METRICS: [Metric; 3] = [
    ("requests", "k/s", |slice| slice.per_second / 1e3),
    ("p99", "ns", |slice| slice.p99_ns),
    ("CPU per request", "ns", |slice| slice.cpu_ns),
];

/// The values of each metric in the slices, which are indexed by side and round.
fn paired(case: &str, sides: &[Side<'_>], samples: &[Vec<Slice>]) -> impl Iterator<Item = Samples> {
    METRICS.into_iter().map(move |(metric, unit, number)| {
        let values = |(side, samples): (&Side<'_>, &Vec<Slice>)| {
            (side.variant.to_owned(), samples.iter().map(number).collect())
        };
        let sides = sides.iter().zip(samples).map(values).collect();
        Samples { sides, ..Samples::new(case, metric, unit, []) }
    })
}

/// The rows of the slices, indexed by side and round, and of the sides.
fn numbers(case: &str, sides: &[Side<'_>], samples: &[Vec<Slice>]) -> Vec<Row> {
    let first = sides[0].variant;
    let mut rows = Vec::new();
    for samples in paired(case, sides, samples) {
        rows.extend((0..sides.len()).map(|side| samples.row(side)));
        if sides.len() == 2 {
            rows.extend([samples.ratio(0, 1), samples.third_quartile(0, 1)]);
        }
    }
    if sides[0].is_on() {
        let moved: Vec<f64> = samples[0].iter().map(|slice| slice.moved).collect();
        rows.push(Row::of(case, first, MOVED, "%", &moved));
        let slices = samples[0].len() as u64;
        let foreign = samples[0].iter().map(|slice| slice.foreign).max().unwrap_or(0);
        rows.push(
            Row::exact(case, first, FOREIGN, "tasks", foreign as f64, slices).promise(Bound::AtMost, 0.0),
        );
    }
    for side in sides {
        let exact = |metric, unit, value: u64| Row::exact(case, side.variant, metric, unit, value as f64, 1);
        rows.push(exact(CHECKED, "answers", side.checked));
        for (metric, kib) in RESIDENT.into_iter().zip(side.resident_kib) {
            rows.push(exact(metric, "KiB", kib));
        }
    }
    rows
}

/// A row as text.
fn line(row: &Row) -> String {
    let of = row.over.as_ref().map(|over| format!(" ÷ {over}")).unwrap_or_default();
    let spread = if row.n > 1 && row.min < row.max {
        format!(" (p25 {:.4}, {:.4} to {:.4}, {} slices)", row.p25, row.min, row.max, row.n)
    } else {
        String::new()
    };
    format!(
        "    {:<18} {:<12} {}{of}: {:.4} {}{spread}",
        row.case, row.variant, row.metric, row.median, row.unit
    )
}
