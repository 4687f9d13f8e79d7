//! `warmcore guest simulate`: the simulator's imitation of Linux and of `home` beside a real kernel, with the same tasks.
//!
//! rt-app runs a file of tasks in a guest, under EEVDF and under `scx_warm`; the simulator reads the same file, with the guest's costs, and
//! simulates it under `kernel` and `home`. Both are counted by the same definitions: the guest by `scx_probe`, the simulation by
//! [`SchedProbe`]. The tolerances were written down before the first run, in `fixtures/sim/tolerances.md`.

use super::{Guests, On, all_have_figures, run_all, table};
use crate::sim::load::{self, LoadPolicy, read_tasks};
use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use warmcore_guest::{
    Comparison, Figures, Machine, Migrations, Outcome, Places, ProbeCounts, Queued, Scenario, ScenarioRow,
    Scheduler, Spread, Time,
};
use warmcore_papers::tolerance::{Tolerance, What, named};
use warmcore_results::write_whole;
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::probe::{SchedCounts, SchedProbe, WakesByPlace};
use warmcore_sim::program::rt_app::Load;
use warmcore_topo::Topology;

pub(super) const AFTER: &str = "\
Example:
  warmcore guest simulate --tasks fixtures/sim/pairs.json --tasks fixtures/sim/timers.json --json simulate.json
The files are rt-app's. Let tasks `runtime`, in µs of time: `run` is a number of loops, which takes longer in the guest the more CPUs are
busy. Let phases take 1.4 ms and longer, since waking an idle CPU of the guest takes 33 µs. The tolerances stand in
fixtures/sim/tolerances.md. Where one is missed, the simulator's imitation is wrong or leaves something out (docs/guest.md).";

/// Arguments of `warmcore guest simulate`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The tasks, as JSON for rt-app; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    tasks: Vec<PathBuf>,
    /// Simulate this machine: a name or FILE.toml, as in `sim load`; default: the guest's, with its costs
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    guests: Guests,
    #[command(flatten)]
    on: On,
}

/// The policies of the simulator that are an imitation of EEVDF and of scx_warm.
const POLICIES: [&str; 2] = ["kernel", "home"];

/// What is compared: its name, its digits, how a row has it, and its tolerance.
type Measure = (&'static str, usize, fn(&Figures) -> f64, &'static str);

const MEASURES: [Measure; 4] = [
    ("same %", 1, |figures| figures.same, "guest.same"),
    ("other LLC %", 1, |figures| figures.other_llc, "guest.other_llc"),
    ("bubbles %", 2, |figures| figures.bubbles, "guest.bubbles"),
    (
        "migrations per wake",
        3,
        |figures| figures.migrations as f64 / figures.wakes.max(1) as f64,
        "guest.migrations",
    ),
];

/// A measure of the guest and of the simulation.
#[derive(Debug, Serialize)]
struct Compared {
    measure: &'static str,
    guest: Spread,
    simulated: Spread,
    tolerance: Tolerance,
    /// Whether the means are within the tolerance. `None`: a side has no figures.
    is_met: Option<bool>,
    #[serde(skip)]
    digits: usize,
}

/// A file of tasks under a scheduler of the guest and a policy of the simulator.
#[derive(Debug, Serialize)]
struct Beside {
    tasks: String,
    guest: ScenarioRow,
    simulated: ScenarioRow,
    measures: Vec<Compared>,
}

impl Beside {
    fn of(guest: ScenarioRow, simulated: ScenarioRow) -> Self {
        let has_both = !guest.seeds.is_empty() && !simulated.seeds.is_empty();
        let compared = |(measure, digits, of, tolerance): &Measure| {
            let (tolerance, guest, simulated) = (named(tolerance), guest.spread(of), simulated.spread(of));
            let is_met = if has_both { tolerance.allows(simulated.mean, Some(guest.mean)) } else { None };
            Compared { measure, guest, simulated, tolerance, is_met, digits: *digits }
        };
        let measures = MEASURES.iter().map(compared).collect();
        Self { tasks: guest.scenario.clone(), guest, simulated, measures }
    }
}

/// `warmcore guest simulate`.
pub(super) fn command(args: &Args) -> anyhow::Result<()> {
    let scenarios: Vec<Scenario> = args.tasks.iter().map(|file| Scenario::of_tasks(file)).collect();
    for (i, scenario) in scenarios.iter().enumerate() {
        let is_twice = scenarios[..i].iter().any(|before| before.name == scenario.name);
        ensure!(!is_twice, "two files are called {}: rename one", scenario.name);
        if let Some(missing) = scenario.missing() {
            anyhow::bail!(missing);
        }
    }
    let cache = args.on.place.cache()?;
    let comparison = Comparison {
        kernel: args.on.kernel(&cache)?,
        machine: args.on.machine(),
        schedulers: vec![Scheduler::own(), Scheduler::warm()],
        scenarios,
        seeds: (1..=args.seeds).collect(),
    };
    let machine = match &args.machine {
        Some(name) => SimMachine::read(name)?,
        None => guest_machine(comparison.machine)?,
    };
    // The simulator first: it takes a second, and finds what is wrong with a file.
    let mut simulated = Vec::new();
    for (scenario, file) in comparison.scenarios.iter().zip(&args.tasks) {
        let load = read_tasks(file)?;
        for policy in POLICIES {
            let row = simulate(&scenario.name, &load, &machine, policy, &comparison.seeds);
            simulated.push(row.with_context(|| file.display().to_string())?);
        }
    }
    let outcomes = run_all(&comparison, &cache, &args.guests, "guest simulate")?;
    let rows: Vec<Beside> = comparison
        .rows(&outcomes)
        .into_iter()
        .zip(simulated)
        .map(|(guest, sim)| Beside::of(guest, sim))
        .collect();
    print!("{}", text(&comparison, &machine.name, &rows));
    if let Some(file) = &args.guests.json {
        let json = report(&comparison, &outcomes, &machine, &rows);
        write_whole(file, serde_json::to_string_pretty(&json)?.as_bytes())?;
        eprintln!("written: {}", file.display());
    }
    all_have_figures(&comparison, &outcomes)
}

/// The guest as a machine of the simulator.
fn guest_machine(machine: Machine) -> anyhow::Result<SimMachine> {
    let text = machine.file()?;
    let costs = Costs::from_machine(&text, Machine::SECTION)?;
    let topology = Topology::from_machine(&text, Machine::SECTION)?;
    Ok(SimMachine { name: "the guest's machine file".to_owned(), costs, topology, is_known: false })
}

/// Simulates tasks under a policy.
fn simulate(
    name: &str,
    load: &Load,
    machine: &SimMachine,
    policy: &str,
    seeds: &[u64],
) -> anyhow::Result<ScenarioRow> {
    let who: LoadPolicy = load::policy(policy).context("the simulator has both policies")?;
    let scenario = load::Scenario { load, topology: &machine.topology, costs: &machine.costs };
    let one = |seed: &u64| {
        let (report, probe) = scenario
            .run(who, *seed, SchedProbe::new(&machine.topology))
            .with_context(|| format!("under {policy}, seed {seed}"))?;
        let counts = counts_of(&probe.counts_at(report.now), machine.topology.cpus.len() as u64);
        Ok((*seed, Figures::of(&counts, None)))
    };
    Ok(ScenarioRow {
        scenario: name.to_owned(),
        scheduler: format!("sim {policy}"),
        seeds: seeds.iter().map(one).collect::<anyhow::Result<_>>()?,
        errors: Vec::new(),
    })
}

/// The counts of a simulation, as the guest's probe writes its own. What the simulation does not count is 0, and in no figure that is
/// compared.
fn counts_of(counts: &SchedCounts, cpus: u64) -> ProbeCounts {
    let WakesByPlace { same, llc, other } = counts.wakes;
    ProbeCounts {
        elapsed_ns: counts.observed_ns,
        cpus,
        wakes: Places { same, llc, other },
        wakeups: counts.wakeups,
        queued: Queued {
            any: counts.queued,
            over_50us: counts.over_50us,
            over_100us: counts.over_100us,
            longest_ns: counts.longest_ns,
            ..Queued::default()
        },
        migrations: Migrations { all: counts.migrations, other_llc: counts.migrations_other_llc },
        switches: counts.switches,
        histogram: counts.histogram.to_vec(),
        time: Time {
            observed_ns: counts.observed_ns,
            idle_ns: counts.idle_ns,
            waiting_ns: counts.waiting_ns,
            idle_while_waiting_ns: counts.idle_while_waiting_ns,
        },
        ..ProbeCounts::default()
    }
}

/// The bounds of a tolerance, in words.
fn bounds(tolerance: &Tolerance, digits: usize) -> String {
    let Tolerance { low, high, .. } = tolerance;
    match tolerance.what {
        Some(What::Ratio) => format!("{low}–{high} ×"),
        _ if *low == -*high => format!("±{high:.0}"),
        _ => format!("{low:.digits$}–{high:.digits$}"),
    }
}

/// What comes of a comparison: for each file of tasks all figures of both sides, and the measures that have a tolerance.
fn text(comparison: &Comparison, machine: &str, rows: &[Beside]) -> String {
    let mut text = format!(
        "Linux {} in a guest with {} CPUs in {} last-level caches, beside the simulator on {machine}; {} seeds: the mean, and the least and the \
         most.\n",
        comparison.kernel.release,
        comparison.machine.cpus,
        comparison.machine.llcs,
        comparison.seeds.len(),
    );
    for of_tasks in rows.chunk_by(|a, b| a.tasks == b.tasks) {
        text += &format!("\n{}\n", of_tasks[0].tasks);
        let lines: Vec<&ScenarioRow> =
            of_tasks.iter().flat_map(|beside| [&beside.guest, &beside.simulated]).collect();
        text += &table::table(&lines);
        for (seed, error) in of_tasks.iter().flat_map(|beside| &beside.guest.errors) {
            text += &format!("  seed {seed}: {error}\n");
        }
        text += "\n";
        let heading = ["", "guest", "simulated", "differs by", "tolerance", ""].map(str::to_owned);
        let mut cells = vec![heading.to_vec()];
        for beside in of_tasks {
            let both = format!("{} / {}", beside.guest.scheduler, beside.simulated.scheduler);
            cells.extend(beside.measures.iter().map(|compared| line(&both, compared)));
        }
        text += &table::aligned(&cells);
    }
    text
}

fn line(both: &str, compared: &Compared) -> Vec<String> {
    let Compared { measure, guest, simulated, tolerance, is_met, digits } = compared;
    let (digits, guest, simulated) = (*digits, guest.mean, simulated.mean);
    let differs = match tolerance.what {
        Some(What::Ratio) => format!("× {:.2}", simulated / guest),
        _ => format!("{:+.digits$}", simulated - guest),
    };
    let met = match is_met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "no figures",
    };
    vec![
        format!("{both}: {measure}"),
        format!("{guest:.digits$}"),
        format!("{simulated:.digits$}"),
        differs,
        bounds(tolerance, digits),
        met.to_owned(),
    ]
}

/// What `--json` writes.
fn report(comparison: &Comparison, outcomes: &[Outcome], machine: &SimMachine, rows: &[Beside]) -> Value {
    let mut all = table::json(comparison, outcomes);
    all["what"] = json!("guest simulate");
    all["costs"] =
        machine.costs.numbers().map(|(name, number)| (name.to_owned(), json!(number.milli))).collect();
    all["rows"] = json!(rows);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scheduler: &str, same: f64, migrations: u64) -> ScenarioRow {
        let figures = Figures { wakes: 1000, same, other_llc: 2.0, migrations, ..Figures::default() };
        ScenarioRow {
            scenario: "pairs".into(),
            scheduler: scheduler.into(),
            seeds: vec![(1, figures)],
            errors: Vec::new(),
        }
    }

    fn comparison() -> Comparison {
        Comparison {
            kernel: warmcore_guest::Kernel {
                release: "7.2.13".into(),
                package: String::new(),
                sha256: String::new(),
                image: PathBuf::new(),
            },
            machine: Machine { cpus: 8, llcs: 2, threads: 1, memory: 1024 },
            schedulers: Vec::new(),
            scenarios: Vec::new(),
            seeds: vec![1],
        }
    }

    #[test]
    fn a_difference_within_the_tolerance_is_met_and_one_beyond_it_is_missed() {
        let beside = Beside::of(row("eevdf", 60.0, 400), row("sim kernel", 70.5, 200));
        let met: Vec<Option<bool>> = beside.measures.iter().map(|compared| compared.is_met).collect();
        // 10.5 points of 10; the same; the same; half as many.
        assert_eq!(met, [Some(false), Some(true), Some(true), Some(true)]);
        let text = text(&comparison(), "the guest", &[beside]);
        let line = |of: &str| {
            text.lines()
                .find(|line| line.contains(of))
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(line("kernel: same %"), "eevdf / sim kernel: same % 60.0 70.5 +10.5 ±10 missed");
        assert_eq!(
            line("migrations per"),
            "eevdf / sim kernel: migrations per wake 0.400 0.200 × 0.50 0.5–2 × met"
        );
    }

    #[test]
    fn without_figures_nothing_is_met_or_missed() {
        let none = ScenarioRow { seeds: Vec::new(), errors: vec![(1, "left".into())], ..row("warm", 0.0, 0) };
        let beside = Beside::of(none, row("sim home", 70.0, 100));
        assert!(beside.measures.iter().all(|compared| compared.is_met.is_none()));
        let text = text(&comparison(), "the guest", &[beside]);
        assert!(text.contains("seed 1: left") && text.contains("no figures"), "{text}");
    }

    #[test]
    fn the_guests_machine_has_its_costs_and_any_number_of_cpus() {
        let machine = guest_machine(Machine { cpus: 12, llcs: 3, threads: 2, memory: 1024 }).unwrap();
        assert_eq!(machine.topology.cpus.len(), 12);
        assert_eq!(machine.costs.ns("ipi_idle_c1_wakeup").0, 33_000);
        let llcs: std::collections::BTreeSet<_> = machine.topology.cpus.iter().map(|cpu| cpu.llc.0).collect();
        assert_eq!(llcs.len(), 3);
        assert!(guest_machine(Machine { cpus: 7, llcs: 2, threads: 1, memory: 1024 }).is_err());
    }

    #[test]
    fn the_files_of_tasks_can_be_simulated_under_both_policies() {
        let machine = guest_machine(comparison().machine).unwrap();
        for name in ["pairs", "timers"] {
            let file =
                PathBuf::from(format!("{}/../../fixtures/sim/{name}.json", env!("CARGO_MANIFEST_DIR")));
            for policy in POLICIES {
                let row = simulate(name, &read_tasks(&file).unwrap(), &machine, policy, &[1]).unwrap();
                let (_, figures) = &row.seeds[0];
                assert!(figures.wakes > 1000 && (3.0..5.0).contains(&figures.busy), "{policy}: {figures:?}");
                assert!(figures.same + figures.other_llc <= 100.0, "{policy}: {figures:?}");
            }
        }
    }

    /// The fields that `docs/json.md` lists under "guest simulate".
    #[test]
    fn the_fields_are_those_in_the_docs() {
        let docs = include_str!("../../../../docs/json.md");
        let section = docs.split("\n## ").find(|part| part.starts_with("guest simulate\n"));
        let rows = section.expect("docs/json.md has no section guest simulate").lines();
        let listed: std::collections::BTreeSet<String> = rows
            .filter_map(|line| line.strip_prefix("| `")?.split(" |").next())
            .flat_map(|names| names.split(',').map(|name| name.trim_matches([' ', '`']).to_owned()))
            .collect();
        let machine = guest_machine(comparison().machine).unwrap();
        let beside = Beside::of(row("eevdf", 60.0, 400), row("sim kernel", 70.5, 200));
        let written = report(&comparison(), &[], &machine, &[beside]);
        let fields = written.as_object().unwrap().keys().cloned().collect();
        assert_eq!(listed, fields, "left: docs/json.md, right: the code");
    }
}
