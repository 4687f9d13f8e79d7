//! Wake queue: a build with many jobs, with and without a shared queue per LLC, with and without wakers that search the
//! neighbouring LLCs (SIS_NODE), and, except in a quick run, with three ways in which a CPU that runs out of work
//! searches.
//!
//! `make -jN` as a graph of tasks: make forks N shells, one for a file, and another one as soon as a file is done. The
//! shell forks the driver. The driver forks the compiler, and the assembler, which sleeps until data has come through
//! the pipe. Each parent waits for its children. Then the shell forks the checker and the dependency fixer. At the end
//! of the build fewer and fewer jobs run; after the last one make links. Every setting compiles the same files in the
//! same order: the random lengths are drawn per file.
//!
//! A simulation has 32 files per CPU (a quick one 8) instead of some hundred, 0.25 s each. Only ratios are compared,
//! since the time at the end when few jobs run is a larger part of a shorter build. `tolerances.toml` allows the
//! build's time to change by −0.6 % to 0 with the queue and by 0 to +1 % with SIS_NODE. Three forms of newidle
//! balancing, the search of a CPU that runs out of work (gated: only if the CPU is usually idle for at least as long
//! as the search takes; always; never) test an objection to the queue: that it only makes up for a balancer that stops
//! too early. The share of searches that the gate ends is shown too.
//!
//! # Source
//!
//! "sched: Implement shared wakequeue in CFS", linux-kernel, June 2023, RFC 3/3: `make -j$(nproc) built-in.a` of an
//! allyesconfig. The machines are those of `crates/topo/machines.toml`.

use super::{Numbers, Options, Row, Table, row_named};
use serde::Deserialize;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::policy::Kernel;
use warmcore_sim::policy::kernel::Newidle;
use warmcore_sim::program::{Length, Program};
use warmcore_sim::simulation::{CpuCounts, Settings, Simulation};
use warmcore_types::Nanos;

/// Files per CPU; some hundred in the published build.
const FILES_PER_CPU: u32 = 32;

/// The compiler's mean time for a file, uniformly distributed from two to eight fifths of it. An estimate. With rare
/// long files the result would depend more on which CPU got the last one than on the placement.
const COMPILE: Nanos = Nanos(250_000_000);

/// Wakes of the assembler per file. An estimate.
const PARTS: u32 = 8;

/// The input of every row: [`make`] was written with knowledge of the results of earlier graphs.
const GRAPH: &str =
    "the job graph: a pipe and even lengths came in after earlier graphs had shown no effect, or noise";

/// A build that takes longer than this, an hour, counts as one that hangs.
const TOO_LONG: Nanos = Nanos(3_600_000_000_000);

/// The published numbers of a machine.
#[derive(Deserialize)]
struct Published {
    #[serde(rename = "where")]
    machine: String,
    /// With neither change, with SIS_NODE, with the queue, with both.
    rows: [Measured; 4],
}

#[derive(Deserialize)]
struct Measured {
    seconds: f64,
    cpu_percent: f64,
}

/// The result of a build.
#[derive(Debug, Clone, Copy)]
struct Built {
    seconds: f64,
    /// CPU use in percent of one CPU.
    cpu_percent: f64,
    /// Of the searches by CPUs that ran out of work, the share that newidle balancing's gate (see the top of this file)
    /// ended, in percent.
    gated_percent: f64,
    /// The time of these searches, in millionths of all CPUs' time.
    search_ppm: f64,
}

impl Numbers for Built {
    fn numbers(&self) -> Vec<f64> {
        vec![self.seconds, self.cpu_percent, self.gated_percent, self.search_ppm]
    }

    fn of_numbers(numbers: &[f64]) -> Option<Self> {
        let [seconds, cpu_percent, gated_percent, search_ppm] = *numbers else { return None };
        Some(Self { seconds, cpu_percent, gated_percent, search_ppm })
    }
}

/// Runs the build on a machine.
fn build(machine: &SimMachine, kernel: Kernel, seed: u64, files_per_cpu: u32) -> Built {
    let SimMachine { topology, costs, .. } = machine;
    let cpus = topology.cpus.len() as u32;
    let mut sim = Simulation::new(topology, costs, Settings::kernel(), kernel, seed);
    sim.spawn(&make(cpus, cpus * files_per_cpu)).unwrap_or_else(|e| panic!("{e}"));
    let report = sim.run(TOO_LONG).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.is_complete(), "the build hangs: {:?}", report.outcome);
    let ns = sim.now().0 as f64;
    let sum = |of: fn(&CpuCounts) -> u64| report.cpus.iter().map(of).sum::<u64>() as f64;
    Built {
        seconds: ns / 1e9,
        cpu_percent: sum(|cpu| cpu.busy_ns) / ns * 100.0,
        gated_percent: sum(|cpu| cpu.gated) / sum(|cpu| cpu.searches).max(1.0) * 100.0,
        search_ppm: sum(|cpu| cpu.search_ns) / ns / f64::from(cpus) * 1e6,
    }
}

/// The program `make`, which builds `files` files, at most `at_once` at a time.
pub fn make(at_once: u32, files: u32) -> Program {
    let around = |us: u64| Length::Around(Nanos(us * 1000), 30);
    let compiler =
        Program::new("cc1").run(Length::Between(Nanos(COMPILE.0 * 2 / 5), Nanos(COMPILE.0 * 8 / 5)));
    // The assembler reads the compiler's pipe, and is woken whenever data has come.
    let part = Length::Exponential(Nanos(COMPILE.0 / u64::from(PARTS)));
    let assembler =
        Program::new("as").repeat(PARTS, |p| p.sleep(part).run(around(20_000 / u64::from(PARTS))));
    let driver =
        Program::new("gcc").run(around(1_500)).fork(assembler).fork(compiler).join().run(around(300));
    let checker = Program::new("objtool").run(around(5_000));
    let fixer = Program::new("fixdep").run(around(1_000));
    let shell = Program::new("sh")
        .run(around(800))
        .fork(driver)
        .join()
        .run(around(200))
        .fork(checker)
        .join()
        .run(around(200))
        .fork(fixer)
        .join()
        .run(around(100))
        .wake("make");
    let first = at_once.min(files);
    Program::new("make")
        .repeat(first, |p| p.run(around(150)).fork(shell.clone()))
        .repeat(files - first, |p| p.wait().run(around(150)).fork(shell.clone()))
        .join()
        .run(around(20_000))
}

/// The settings: Linux, and those that are compared with it. A quick run has the first four.
fn settings(quick: bool) -> Vec<(&'static str, Kernel)> {
    let linux = Kernel::default();
    let all = vec![
        ("none", linux),
        ("SIS_NODE", Kernel { sis_node: true, ..linux }),
        ("wake queue", Kernel { wake_queue: true, ..linux }),
        ("wake queue and SIS_NODE", Kernel { wake_queue: true, sis_node: true, ..linux }),
        ("newidle always", Kernel { newidle: Newidle::Always, ..linux }),
        ("newidle always and wake queue", Kernel { newidle: Newidle::Always, wake_queue: true, ..linux }),
        ("newidle off", Kernel { newidle: Newidle::Off, ..linux }),
        ("newidle off and wake queue", Kernel { newidle: Newidle::Off, wake_queue: true, ..linux }),
    ];
    all.into_iter().take(if quick { 4 } else { 8 }).collect()
}

/// The table, for the requested machine or for all published ones.
///
/// # Panics
///
/// If the machine file lacks a published machine, or a build hangs.
pub fn table(options: &Options) -> Table {
    let published: Vec<Published> = super::published("wake_queue");
    let all: Vec<SimMachine> = match &options.machine {
        Some(machine) => vec![machine.clone()],
        None => published.iter().map(|of| options.machine_or(&of.machine)).collect(),
    };
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for machine in &all {
        let of = published.iter().find(|of| of.machine == machine.name);
        let of_machine = machine_rows(machine, of, options);
        notes.extend(answer(&machine.name, &of_machine));
        rows.extend(of_machine);
    }
    notes.extend(self::notes(options));
    let all: Vec<&str> = all.iter().map(|machine| machine.name.as_str()).collect();
    Table {
        name: "wake_queue".into(),
        machine: all.join(", "),
        source: "linux-kernel, 13 June 2023, [RFC PATCH 3/3] sched: Implement shared wakequeue in CFS".into(),
        rows,
        notes,
    }
}

fn machine_rows(machine: &SimMachine, published: Option<&Published>, options: &Options) -> Vec<Row> {
    let SimMachine { name, topology, .. } = machine;
    let settings = settings(options.quick);
    let files = if options.quick { FILES_PER_CPU / 4 } else { FILES_PER_CPU };
    let done = options.sweep(&settings, |(_, kernel), seed| build(machine, *kernel, seed, files));
    // One number per seed: of the setting at this index, compared with the first setting under the same seed.
    let numbers = |at: usize, of: &dyn Fn(Built, Built) -> f64| -> Vec<f64> {
        done.iter().map(|seed| of(seed[at], seed[0])).collect()
    };
    let time = |run: Built, base: Built| (run.seconds / base.seconds - 1.0) * 100.0;
    let usage = |run: Built, base: Built| (run.cpu_percent / base.cpu_percent - 1.0) * 100.0;
    let row =
        |what: &str, unit, numbers| Row::of(format!("{name}, {what}"), unit, numbers).with_inputs(&[GRAPH]);
    let cpus = topology.cpus.len() as f64;
    let mut rows = vec![
        row("none, CPU use of all", "percent", numbers(0, &|run, _| run.cpu_percent / cpus))
            .beside(published.map(|of| of.rows[0].cpu_percent / cpus)),
        row("none, newidle searches that the gate ended", "percent", numbers(0, &|run, _| run.gated_percent)),
        row("none, newidle searches, of all CPUs' time", "ppm", numbers(0, &|run, _| run.search_ppm)),
    ];
    for (at, (setting, _)) in settings.iter().enumerate().skip(1) {
        let change = |of: fn(&Measured) -> f64| {
            let Published { rows, .. } = published?;
            rows.get(at).map(|row| (of(row) / of(&rows[0]) - 1.0) * 100.0)
        };
        let seconds = change(|row| row.seconds);
        let times = numbers(at, &time);
        let row_of_mean =
            mean(row(&format!("{setting}, time, mean and its error"), "percent", times.clone()));
        let row_of_time = row(&format!("{setting}, time"), "percent", times).beside(seconds);
        rows.push(match *setting {
            "SIS_NODE" => row_of_time.within("sis_node.time").beside_null(0.0),
            "wake queue" => row_of_time.within("wake_queue.time").beside_null(0.0),
            _ => row_of_time,
        });
        rows.push(row_of_mean.beside(seconds));
        let usage = row(&format!("{setting}, CPU use"), "percent", numbers(at, &usage));
        rows.push(usage.beside(change(|row| row.cpu_percent)));
    }
    rows
}

/// The row with the mean over the seeds, and one standard error to each side as its spread: the spread of seeds does
/// not show how well the mean is known.
fn mean(row: Row) -> Row {
    let (n, mean) = (row.numbers.len() as f64, row.mean());
    let variance = row.numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0).max(1.0);
    let error = (variance / n).sqrt();
    Row { simulated: mean, spread: (mean - error, mean + error), ..row }
}

/// A note on whether newidle balancing just stops too early: for one machine, how the build's time changes if the
/// balancer never stops, if there is none, and with the queue. `None` without these settings.
fn answer(machine: &str, rows: &[Row]) -> Option<String> {
    let of = |setting: &str| row_named(rows, &format!("{machine}, {setting}"));
    let time = |setting: &str| of(&format!("{setting}, time, mean and its error"));
    let said = |row: &Row| format!("{:+.2} ± {:.2} %", row.simulated, (row.spread.1 - row.spread.0) / 2.0);
    let (always, off, queue) = (time("newidle always")?, time("newidle off")?, time("wake queue")?);
    let gated = of("none, newidle searches that the gate ended")?;
    Some(format!(
        "{machine}, was newidle balancing merely stopped too early? Its gate ends {:.1} % of the searches. Never stopping it \
         changes the build's time by {}, having none by {}, the queue by {}.",
        gated.simulated,
        said(always),
        said(off),
        said(queue)
    ))
}

fn notes(options: &Options) -> Vec<String> {
    let mut notes = vec![
        format!(
            "{FILES_PER_CPU} files per CPU of {} ms on average, estimated; the same \
             files for every setting. Percent are against the same seed without either.",
            COMPILE.0 / 1_000_000
        ),
        "No input and output, no recursion of make, and a pipe that wakes its reader by the clock: fewer wakes per \
         file than in truth. An effect of 0.15 % needs 30 seeds and more."
            .to_owned(),
        "Both bounds have 0 in them: a row that is met while its mean is within an error of 0 says that nothing speaks \
         against the effect, not that it has come out."
            .to_owned(),
    ];
    if options.quick {
        notes.push(format!("Quick: {} files per CPU, so the tail counts for more.", FILES_PER_CPU / 4));
    }
    notes
}
