//! `warmcore what-if FILE`: what a recorded program would do under another policy, or on another machine.
//!
//! First the recording is replayed under its own policy on its own machine. If that does not give what was recorded, the command says
//! which figure differs, answers nothing, and fails. What calls of the schedulers cost comes from a probe, which is of the
//! processor that the answer is for; without `--probe` this machine is probed.

use crate::predict;
use crate::recording::{Source, end_if_interrupted};
use anyhow::{Context, bail, ensure};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_record::Header;
use warmcore_report::recording::{count, share, time};
use warmcore_report::wrapped;
use warmcore_results::write_whole;
use warmcore_sched::PolicyKind;
use warmcore_sim::cases::{ProbeFile, Side};
use warmcore_sim::machine::SimMachine;
use warmcore_sim::policy::SimPolicyKind;
use warmcore_sim::replay::Host;
use warmcore_sim::simulation::{Drivers, Outside, Settings};
use warmcore_topo::Topology;
use warmcore_trace::{Answer, Change, Check, Question, REPLAYS, Rebuilt, rebuild, stratified, what_if};

/// The version of the fields of `--json`.
const SCHEMA: u32 = 1;

/// The width in characters at which a sentence is wrapped.
const WIDTH: usize = 110;

/// CPU time that differs by less does not pay for a switch, in percent.
const PAYS: f64 = 3.0;

/// Arguments of `warmcore what-if`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A recording is what `warmcore record -- COMMAND` writes. Examples:
  warmcore what-if app.warmrec
  warmcore what-if app.warmrec --policy tokio --load 1.5
  warmcore what-if app.warmrec --probe probe.json --machine epyc9654_2p --workers 96")]
pub struct Args {
    /// The recording
    file: PathBuf,
    /// Where tasks run; default: the other scheduler than the recorded one, home or tokio
    #[arg(long, value_name = "POLICY", value_parser = ["home", "shared-queue", "tokio"])]
    policy: Option<String>,
    /// Another machine: a name, `this`, FILE.xml of lstopo, or FILE.toml; default: that of the recording
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,
    /// The number of workers; default: as recorded, or with --machine as many as it has CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Option<u32>,
    /// So much more arrives from outside, such as 1.5
    #[arg(long, value_name = "FACTOR", value_parser = factor, default_value = "1")]
    load: u64,
    /// Replay all of it as one window, instead of up to twelve: needs more than 1.3 kB of memory per poll
    #[arg(long)]
    whole: bool,
    /// What `warmcore predict probe --json PROBE` measured on the processor; default: measure it here, 15 s
    #[arg(long, value_name = "PROBE")]
    probe: Option<PathBuf>,
    /// Also write the answer
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Reads a factor as thousandths.
fn factor(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.01..=100.0).contains(&factor) => Ok((factor * 1000.0).round() as u64),
        _ => Err("not a factor from 0.01 to 100, such as 1.5".to_owned()),
    }
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Json<'a> {
    schema: u32,
    what: &'static str,
    file: String,
    /// The recorded program's command line.
    command: &'a str,
    /// The policy that was recorded, and the one that is asked about.
    recorded: &'static str,
    asked: &'static str,
    machine: &'a str,
    workers: usize,
    load_per_mille: u64,
    /// The probe's file, when it was measured, and on which processor.
    probe: String,
    probed: &'a str,
    processor: &'a str,
    answer: &'a Answer,
}

/// `warmcore what-if`.
///
/// # Errors
/// The file is no recording, or is damaged; the probe or the machine can't be read; or the recording can't be judged.
pub fn command(args: &Args) -> anyhow::Result<()> {
    let source = Source::of(&args.file)?;
    let named = || args.file.display().to_string();
    let header = source.open(&indicatif::ProgressBar::hidden()).with_context(named)?.header().clone();
    let probe = probe(args, &header)?;

    let bar = warmcore_bench::progress(source.bytes * 3, "the recording");
    let analysis = warmcore_trace::analyze(|| source.open(&bar), &[]);
    end_if_interrupted();
    let analysis = analysis.with_context(named)?;
    if let warmcore_trace::Ending::Damaged(what) = &analysis.program.ending {
        bail!("{}: {what}; what is left of it is not asked", args.file.display());
    }
    ensure!(analysis.coverage.polls > 0, "{} has no polls; record the program while it works", named());
    let spans = stratified(analysis.program.length_ns, analysis.coverage.polls, args.whole);
    let rebuilt = source.open(&bar).and_then(|recording| rebuild(recording, &analysis, &spans));
    end_if_interrupted();
    let rebuilt = rebuilt.with_context(named)?;
    bar.finish_and_clear();

    let recorded = recorded_policy(&rebuilt);
    let asked = match args.policy.as_deref() {
        Some("tokio") => SimPolicyKind::WorkSteal,
        Some("shared-queue") => SimPolicyKind::Product(PolicyKind::SharedQueue),
        Some(_) => SimPolicyKind::Product(PolicyKind::Home),
        None if rebuilt.is_warmcore => SimPolicyKind::WorkSteal,
        None => SimPolicyKind::Product(PolicyKind::Home),
    };
    let before = host(&probe, recorded, here(&probe, &header, rebuilt.workers as u32)?);
    let (machine, place) = match &args.machine {
        Some(name) => machine(name, args.workers)?,
        None => {
            let workers = args.workers.unwrap_or(rebuilt.workers as u32);
            (here(&probe, &header, workers)?, "the recording's machine".to_owned())
        }
    };
    let question =
        Question { recorded: before, asked: host(&probe, asked, machine), load_per_mille: args.load };
    let bar = warmcore_bench::progress(REPLAYS, "replays");
    let is_interrupted = || INTERRUPTED.load(Relaxed);
    let answer = what_if(&rebuilt, &analysis, &question, &is_interrupted, &|| bar.inc(1));
    end_if_interrupted();
    let Some(answer) = answer? else { bail!("interrupted") };
    bar.finish_and_clear();

    let workers = question.asked.topology.cpus.len();
    if let Some(path) = &args.json {
        let json = Json {
            schema: SCHEMA,
            what: "what_if",
            file: named(),
            command: &header.command,
            recorded: name(recorded),
            asked: name(asked),
            machine: &place,
            workers,
            load_per_mille: args.load,
            probe: args
                .probe
                .as_ref()
                .map_or("measured for this".to_owned(), |path| path.display().to_string()),
            probed: &probe.when,
            processor: &probe.machine.cpu,
            answer: &answer,
        };
        write_whole(path, &serde_json::to_vec_pretty(&json)?)?;
    }
    let is_one = rebuilt.windows.len() == 1;
    println!(
        "{} on {} with {} workers, {} polls in {}; {} with {} of its time {} replayed.",
        header.command,
        said(recorded),
        rebuilt.workers,
        count(analysis.coverage.polls),
        time(analysis.program.length_ns),
        if is_one { "one window".to_owned() } else { format!("{} windows", rebuilt.windows.len()) },
        share(answer.replayed_per_mille, 1000),
        if is_one { "is" } else { "are" },
    );
    println!("\n{}", table(&answer.checks));
    if !answer.refusals.is_empty() {
        bail!("this recording can't be judged:\n- {}", answer.refusals.join("\n- "));
    }
    let all = answer.wakes.all().max(1);
    println!("{}", wrapped(&sentences(&answer, said(asked), &place, workers, args.load), WIDTH, 0));
    println!(
        "{}",
        wrapped(
            &format!(
                "It rests on the costs of calls that were probed on {} ({}), and on the wakes: {} of them by tasks, which follow each \
                 other in the replay, and {} from outside, which come when they were recorded.",
                probe.machine.cpu,
                probe.when,
                share(answer.wakes.by_tasks, all),
                share(answer.wakes.from_outside, all),
            ),
            WIDTH,
            0
        )
    );
    Ok(())
}

/// The probe of the file that was named, or one of this machine, if that is the recording's.
fn probe(args: &Args, header: &Header) -> anyhow::Result<ProbeFile> {
    if let Some(path) = &args.probe {
        return Ok(ProbeFile::read(path)?);
    }
    let topology = Topology::this_machine().context("can't read this machine's topology")?;
    let is_here = header.cpus.len() == topology.usable().len();
    ensure!(
        is_here,
        "the recording is of another machine, with {} CPUs; run `warmcore predict probe --json PROBE` there, and say --probe PROBE",
        header.cpus.len()
    );
    predict::measured()
}

/// The policy of the recording.
fn recorded_policy(rebuilt: &Rebuilt) -> SimPolicyKind {
    match rebuilt.is_warmcore {
        true => SimPolicyKind::Product(PolicyKind::default()),
        false => SimPolicyKind::WorkSteal,
    }
}

fn name(policy: SimPolicyKind) -> &'static str {
    if policy == SimPolicyKind::WorkSteal { "tokio" } else { policy.name() }
}

fn said(policy: SimPolicyKind) -> &'static str {
    match policy {
        SimPolicyKind::WorkSteal => "tokio's scheduler",
        SimPolicyKind::Product(PolicyKind::SharedQueue) => "Warmcore's scheduler with a shared queue",
        _ => "Warmcore's scheduler",
    }
}

type Machine = (Topology, warmcore_sim::costs::Costs);

/// The recording's machine with so many workers: its last-level caches, if the workers divide evenly among them.
fn here(probe: &ProbeFile, header: &Header, workers: u32) -> anyhow::Result<Machine> {
    let mut llcs: Vec<u32> = header.cpus.iter().filter_map(|cpu| cpu.llc).collect();
    llcs.sort_unstable();
    llcs.dedup();
    let workers = workers.max(1);
    let llcs = Some(llcs.len() as u32).filter(|llcs| *llcs > 0 && workers.is_multiple_of(*llcs)).unwrap_or(1);
    Ok(probe.machine((llcs, workers / llcs))?)
}

/// The first CPUs of a named machine.
fn machine(name: &str, workers: Option<u32>) -> anyhow::Result<(Machine, String)> {
    let SimMachine { name, costs, mut topology, .. } = SimMachine::read(name)?;
    let all = topology.cpus.len();
    let workers = workers.map_or(all, |workers| workers as usize);
    ensure!(
        workers <= all,
        "{name} has {all} CPUs, and --workers says {workers}; a worker has a CPU of its own"
    );
    topology.cpus.truncate(workers);
    Ok(((topology, costs), name))
}

/// A runtime on a machine. An adopted program's workers below a last-level cache share a driver.
fn host(probe: &ProbeFile, policy: SimPolicyKind, (topology, costs): Machine) -> Host {
    let (side, drivers) = match policy {
        SimPolicyKind::WorkSteal => (Side::Tokio, Drivers::FirstParked),
        _ => (Side::Warmcore, Drivers::Attendant),
    };
    let outside = Outside { drivers, ..probe.outside(side) };
    let settings = Settings { calls: probe.calls(side), outside, learns_moves: true, ..Settings::runtime() };
    Host { topology, costs, settings, policy, others_per_mille: 0, others_run: false }
}

/// The figures of the recording beside those of its replay.
fn table(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let Check { name, recorded, replayed, within, is_met } = check;
        let within = if name.ends_with('%') { format!("{within} points") } else { format!("× {within}") };
        let met = if *is_met { "met" } else { "missed" };
        format!("{name:<48}{recorded:>12.2}{replayed:>12.2}{within:>12}  {met}\n")
    };
    format!("{:<48}{:>12}{:>12}{:>12}\n", "", "recorded", "replayed", "within")
        + &checks.iter().map(line).collect::<String>()
}

/// A change in percent, with its interval.
fn percent(change: &Change) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let of = format!("{:+.1} %", percent(change.ratio));
    change
        .interval
        .map_or(of.clone(), |(low, high)| format!("{of} ({:+.1} to {:+.1})", percent(low), percent(high)))
}

/// The answer.
fn sentences(answer: &Answer, policy: &str, machine: &str, workers: usize, load: u64) -> String {
    let Answer { cpu, p50, p99, same_core, .. } = answer;
    let load =
        if load == 1000 { String::new() } else { format!(" and {} times the load", load as f64 / 1000.0) };
    let is_decided = cpu.interval.is_some_and(|(low, high)| low > 1.0 || high < 1.0);
    let reach = |ratio: f64| (ratio - 1.0).abs() * 100.0;
    let most = cpu.interval.map_or(reach(cpu.ratio), |(low, high)| reach(low).max(reach(high)));
    let pays = match () {
        () if most <= PAYS => format!("Switching will not pay: the CPU time changes by less than {PAYS} %."),
        () if !is_decided => {
            "Whether that saves CPU time can't be told from this recording: record longer.".to_owned()
        }
        () if cpu.ratio < 1.0 => "Switching saves CPU time.".to_owned(),
        () => "Switching costs CPU time.".to_owned(),
    };
    format!(
        "Under {policy} on {machine} with {workers} workers{load}, a poll takes {} CPU time; from wake to poll the median is {} \
         ({} to {}), and the 99th percentile {} ({} to {}). Of the polls, {:.1} % are on the core of their task's poll before, \
         instead of {:.1} %. {pays}",
        percent(cpu),
        percent(p50),
        time(p50.before as u64),
        time(p50.after as u64),
        percent(p99),
        time(p99.before as u64),
        time(p99.after as u64),
        same_core.1 * 100.0,
        same_core.0 * 100.0,
    )
}
