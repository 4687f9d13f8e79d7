//! Warmcore's runtime, tokio's rules and a runtime per core, on 2 CPUs to a whole machine, under six loads (`runtime/loads.rs`)
//! that need 25 to 100 % of the CPUs.
//!
//! All sides are simulated on the scheduler core, with the same tasks, lengths and requests for a seed. Warmcore is what
//! a program gets by default; tokio's rules are `SimPolicyKind::WorkSteal`; in a runtime per core a task stays on its core, requests
//! and timers arrive there, and nothing is stolen: tasks are dealt out to the cores in turn, a client and its server to one core.
//! A point is simulated for a given CPU time of all CPUs together, so each has about as many rounds (`runtime/point.rs`).
//!
//! What calls cost was probed on two CPUs of a virtual machine. What lines, idle states and SMT cost is the machine's. Nothing was
//! published, so nothing is claimed; each row stands beside a bound, in which no task waits or moves.
//!
//! Not simulated: the kernel's locks of an epoll instance that many workers share, interrupts of a network, other processes, clocks
//! of the cores, and how the runtime's own instructions and data compete for the caches.

use super::{Numbers, Options, Row, Table};
use point::Setup;
use std::collections::BTreeSet;
use warmcore_sim::cases::ProbeFile;
use warmcore_sim::machine::SimMachine;
use warmcore_types::CpuId;

mod loads;
mod point;
#[cfg(test)]
mod tests;

pub use loads::{Delay, Load};
pub use point::{Point, Side};

/// The machine, if none is named: two sockets of 96 cores with 12 last-level caches each, 384 CPUs.
pub const MACHINE: &str = "epyc9654_2p";

/// What calls of the runtimes cost.
const PROBE: &str = include_str!("../../../reports/2026-11-22-amd-epyc-2cpu/predicted/probe-2.json");

/// The numbers of CPUs, and those of a quick run; the whole machine is always one.
const SIZES: [usize; 5] = [2, 8, 24, 96, 192];
const QUICK_SIZES: [usize; 2] = [2, 24];

/// The parts of the CPUs that the loads need, in percent.
const PERCENTS: [u64; 4] = [25, 50, 75, 100];
const QUICK_PERCENTS: [u64; 2] = [50, 100];

/// The virtual CPU time that is measured at a point, in ns: some 10⁵ rounds.
const CPU_NS: u64 = 2_000_000_000;
const QUICK_CPU_NS: u64 = 200_000_000;

/// A figure of a point: its name in a row, its unit, and the number.
pub type Figure = (&'static str, &'static str, fn(&Point) -> f64);

/// The figures of a point.
pub const FIGURES: [Figure; 5] = [
    ("rounds", "k/s", |point| point.k_per_second),
    ("p99", "ns", |point| point.p99_ns),
    ("moved below one cache", "percent", |point| point.near),
    ("moved to another cache", "percent", |point| point.far),
    ("CPU per round", "ns", |point| point.cpu_ns),
];

/// The table's name.
pub const NAME: &str = "runtime";

impl Numbers for Point {
    fn numbers(&self) -> Vec<f64> {
        FIGURES.iter().map(|(_, _, of)| of(self)).collect()
    }

    fn of_numbers(numbers: &[f64]) -> Option<Self> {
        let [k_per_second, p99_ns, near, far, cpu_ns] = *numbers else { return None };
        Some(Self { k_per_second, p99_ns, near, far, cpu_ns })
    }
}

/// A machine of the first CPUs of another one: those of one thread per core come first.
fn prefix(machine: &SimMachine, cpus: usize) -> SimMachine {
    let mut topology = machine.topology.clone();
    let mut seen = vec![0_usize; topology.cores.len()];
    let mut order: Vec<(usize, CpuId)> = Vec::new();
    for cpu in &topology.cpus {
        let thread = &mut seen[cpu.core.index()];
        order.push((*thread, cpu.id));
        *thread += 1;
    }
    order.sort_unstable();
    let chosen: BTreeSet<CpuId> = order.into_iter().take(cpus).map(|(_, cpu)| cpu).collect();
    topology.cpus.retain(|cpu| chosen.contains(&cpu.id));
    SimMachine { topology, ..machine.clone() }
}

/// The numbers of CPUs for a machine.
fn sizes(all: usize, quick: bool) -> Vec<usize> {
    let sizes: &[usize] = if quick { &QUICK_SIZES } else { &SIZES };
    sizes.iter().copied().filter(|cpus| *cpus < all).chain([all]).collect()
}

/// The probe of the calls.
fn probe() -> ProbeFile {
    ProbeFile::parse(PROBE, "probe-2.json").unwrap_or_else(|e| panic!("{e}"))
}

/// The table of one machine.
///
/// # Panics
///
/// If the machine file lacks [`MACHINE`], or a load can't run.
pub fn table(options: &Options) -> Table {
    let machine = options.machine_or(MACHINE);
    let probe = probe();
    let cpu_ns = if options.quick { QUICK_CPU_NS } else { CPU_NS };
    let percents: &[u64] = if options.quick { &QUICK_PERCENTS } else { &PERCENTS };
    let mut points = Vec::new();
    for cpus in sizes(machine.topology.cpus.len(), options.quick) {
        let SimMachine { topology, costs, .. } = prefix(&machine, cpus);
        let setup = Setup { topology, costs, probe: Some(probe.clone()), has_data: true, cpu_ns };
        for load in Load::ALL {
            points.extend(percents.iter().map(|percent| (setup.clone(), load, *percent)));
        }
    }
    let runs: Vec<(&Setup, Load, u64, Side)> = points
        .iter()
        .flat_map(|(setup, load, percent)| Side::ALL.map(|side| (setup, *load, *percent, side)))
        .collect();
    let by_seed = options
        .sweep(&runs, |(setup, load, percent, side), seed| setup.simulate(*load, *percent, *side, seed));
    let mut rows = Vec::new();
    for (at, (setup, load, percent, side)) in runs.iter().enumerate() {
        let bound = setup.bound(*load, *percent);
        let begin =
            format!("{} CPUs, {}, {percent} %, {}", setup.topology.cpus.len(), load.name(), side.name());
        for (figure, unit, of) in FIGURES {
            // A task of a runtime per core can't move.
            if *side == Side::PerCore && figure.starts_with("moved") {
                continue;
            }
            let numbers = by_seed.iter().map(|seed| of(&seed[at])).collect();
            rows.push(Row::of(format!("{begin}, {figure}"), unit, numbers).beside_null(of(&bound)));
        }
    }
    Table {
        name: NAME.into(),
        machine: machine.name.clone(),
        source: "not published: three ways to place tasks, beside a bound in which no task waits or moves"
            .into(),
        rows,
        notes: notes(&machine, &probe, options.machine.is_none()),
    }
}

/// Notes on the table of a machine.
fn notes(machine: &SimMachine, probe: &ProbeFile, is_default: bool) -> Vec<String> {
    let mut notes = vec![
        "Numbers without an effect are a bound, computed: no task waits or moves, data are warm, and polls and wakes cost what \
         the cheapest side's do. A part of the CPUs in percent is of what they can do by that bound, with SMT siblings counted for \
         what they add."
            .to_owned(),
        "p99 is of the time from a request's arrival to the end of its round, of messaging groups from a receiver's wake to its \
         poll, of a noisy neighbour of the light tasks' rounds. At 100 % rounds follow each other; for skewed connections requests \
         come as fast as the bound serves them, so queues grow as long as it is simulated, and p99 says little."
            .to_owned(),
        "Moves are a part of all polls. In a runtime per core there are none. Tasks of a noisy neighbour have no tenants."
            .to_owned(),
        format!(
            "What calls cost was probed on {} CPUs of {} under a hypervisor ({}), Warmcore's for Warmcore, tokio's for the others. Unparking is \
             dearer there than without a hypervisor. How long a parked worker takes to run is the machine's cost of an interrupt and of \
             its idle state.",
            probe.machine.cpus, probe.machine.cpu, probe.when
        ),
        "Not simulated: locks of an epoll instance that workers share, interrupts of a network, other processes, clock frequencies, and \
         the runtime's own instructions and data in the caches. Lengths of polls and sizes of data are estimates in round numbers."
            .to_owned(),
    ];
    if machine.name == MACHINE {
        notes.push(
            "2 to 192 CPUs are the first cores of the machine, one thread each (192: 2 x 96 cores); 384 are all, with SMT siblings."
                .to_owned(),
        );
    }
    // `Table::concluded` adds those of a machine that was named.
    notes.extend(is_default.then(|| machine.notes()).into_iter().flatten());
    notes
}
