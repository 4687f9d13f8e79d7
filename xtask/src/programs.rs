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

mod adopted;
mod check;
mod load;
mod side;

use crate::test::Live;
use anyhow::{bail, ensure};
use check::Check;
use load::Load;
use side::{OFF, ON, Side, Slice};
use std::path::Path;
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
        servers: &[("{port}", &["dufs", "{files}", "-b", "127.0.0.1", "-p", "{port}", "-A"])],
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

/// What a call of the command does.
struct Options {
    /// The programs.
    chosen: Vec<&'static Program>,
    /// Only build.
    builds: bool,
    rounds: usize,
    slice: Duration,
    variants: &'static [&'static str],
}

impl Options {
    fn of(args: &[&str]) -> anyhow::Result<Self> {
        let three_minutes = Self {
            chosen: Vec::new(),
            builds: false,
            rounds: 9,
            slice: Duration::from_secs(10),
            variants: &[ON, OFF],
        };
        let mut options = three_minutes;
        for arg in args {
            match *arg {
                "--build" => options.builds = true,
                "--quick" => (options.rounds, options.slice) = (2, Duration::from_secs(2)),
                // Ten minutes.
                "--soak" => (options.rounds, options.variants) = (60, &[ON]),
                name => match PROGRAMS.iter().find(|program| program.name == name) {
                    Some(program) => options.chosen.push(program),
                    None => {
                        let names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
                        bail!("{name} is neither an option nor one of the programs {}", names.join(", "));
                    }
                },
            }
        }
        if options.chosen.is_empty() {
            options.chosen = PROGRAMS.iter().collect();
        }
        Ok(options)
    }
}

/// Builds the programs that the arguments name, and runs them. Returns an error if one can't be adopted or does not do
/// what it should.
pub fn run(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    let options = Options::of(args)?;
    let needed: Vec<_> = options.chosen.iter().map(|program| program.load.tool()).collect();
    load::require(&needed)?;
    let folder = root.join("target/programs");
    let mut live = Live::new();
    let mut faults = Vec::new();
    let command = format!("cargo xtask programs {}", args.join(" "));
    for program in &options.chosen {
        let (when, meter) = (system::utc_now(), system::LoadMeter::start());
        let done = measure(root, &folder, program, &options, &mut live);
        // A program that can't be built leaves the others their results.
        let (rows, found) = done.unwrap_or_else(|error| (Vec::new(), vec![format!("{error:#}")]));
        for row in &rows {
            live.line(&line(row));
        }
        if !options.builds && !rows.is_empty() {
            let json = folder.join(format!("{}.json", program.name));
            let results = system::results("programs", command.trim_end(), when, &meter, rows);
            write_whole(&json, &serde_json::to_vec_pretty(&results)?)?;
            let load = &results.load;
            live.line(&format!(
                "    {} ({:.0} % of the CPU time by other processes)",
                json.display(),
                load.others_share * 100.0
            ));
        }
        faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", program.name)));
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Builds a program and runs it. Returns the rows, and what went wrong during the run.
fn measure(
    root: &Path,
    folder: &Path,
    program: &'static Program,
    options: &Options,
    live: &mut Live,
) -> anyhow::Result<(Vec<Row>, Vec<String>)> {
    let adopted = adopted::prepare(root, folder, program, live)?;
    if options.builds {
        return Ok((adopted.rows, Vec::new()));
    }
    let mut sides = Vec::new();
    for variant in options.variants {
        sides.push(Side::new(program, variant, &adopted, folder)?);
    }
    let mut samples: Vec<Vec<Slice>> = vec![Vec::new(); sides.len()];
    if !program.is_alone {
        for side in &mut sides {
            side.start()?;
            // Fills caches, and tells `Load::Redis` how many requests a slice has.
            side.slice(Duration::from_secs(1))?;
        }
    }
    for round in 0..options.rounds {
        for turn in 0..sides.len() {
            let left = options.slice * ((options.rounds - round) * sides.len() - turn) as u32;
            let which = (round + turn) % sides.len();
            let side = &mut sides[which];
            live.show(program.name, &format!("{}, slice {}", side.variant, round + 1), Some(left));
            if program.is_alone {
                side.start()?;
            }
            samples[which].push(side.slice(options.slice)?);
            if program.is_alone {
                side.stop()?;
            }
        }
    }
    for side in &mut sides {
        side.stop()?;
    }
    let mut rows = adopted.rows.clone();
    rows.extend(numbers(program.name, &sides, &samples));
    let foreign = rows.iter().filter(|row| row.metric == FOREIGN && row.median > 0.0);
    let foreign = foreign.map(|row| format!("{} foreign tasks", row.median));
    let faults = sides.iter().flat_map(Side::faults).cloned().chain(foreign).collect();
    Ok((rows, faults))
}

/// The metric of tasks that the scheduler does not place.
const FOREIGN: &str = "foreign tasks";

/// A metric: its name, its unit, and its number of a slice.
type Metric = (&'static str, &'static str, fn(&Slice) -> f64);

const METRICS: [Metric; 3] = [
    ("requests", "k/s", |slice| slice.per_second / 1e3),
    ("p99", "ns", |slice| slice.p99_ns),
    ("CPU per request", "ns", |slice| slice.cpu_ns),
];

/// The rows of the slices, indexed by side and round, and of the sides.
fn numbers(case: &str, sides: &[Side<'_>], samples: &[Vec<Slice>]) -> Vec<Row> {
    let of = |side: usize, number: fn(&Slice) -> f64| samples[side].iter().map(number).collect::<Vec<f64>>();
    let mut rows = Vec::new();
    for (metric, unit, number) in METRICS {
        for (i, side) in sides.iter().enumerate() {
            rows.push(Row::of(case, side.variant, metric, unit, &of(i, number)));
        }
        if sides.len() == 2 {
            let ratio = Row::ratio(case, sides[0].variant, sides[1].variant, &of(0, number), &of(1, number));
            rows.push(Row { metric: format!("ratio, {metric}"), ..ratio });
        }
    }
    rows.push(Row::of(
        case,
        ON,
        "polls on another worker than the one before",
        "%",
        &of(0, |slice| slice.moved),
    ));
    let slices = samples[0].len() as u64;
    let foreign = samples[0].iter().map(|slice| slice.foreign).max().unwrap_or(0);
    rows.push(Row::exact(case, ON, FOREIGN, "tasks", foreign as f64, slices).promise(Bound::AtMost, 0.0));
    for side in sides {
        let exact = |metric, unit, value: u64| Row::exact(case, side.variant, metric, unit, value as f64, 1);
        rows.push(exact("checked answers", "answers", side.checked));
        rows.push(exact("resident after the first slice", "KiB", side.resident_kib[0]));
        rows.push(exact("resident at the end", "KiB", side.resident_kib[1]));
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
