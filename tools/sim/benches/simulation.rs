//! The speed of a simulation: pairs that wake each other, on a machine of 224 CPUs and on machines of 16 to 8192 CPUs.
//!
//! As many pairs as CPUs; each task runs 8 µs ± 10 %, wakes the other and waits: 16 µs of CPU a round trip. The best of
//! some rounds, since the rest is noise of the machine. Stale events are shown, but not counted as events. `cargo bench
//! --bench simulation -- profile` runs Linux's placement on the first machine only, in 20 rounds; `profile-8192` the
//! largest; `growth` those of 16 to 8192 CPUs.

use std::sync::LazyLock;
use std::time::Instant;
use warmcore_sched::PolicyKind;
use warmcore_sim::costs::Costs;
use warmcore_sim::policy::{Kernel, SimPolicy, SimPolicyKind};
use warmcore_sim::program::{Length, Program};
use warmcore_sim::simulation::{KernelScheduler, Report, Settings, Simulation};
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::Nanos;

/// The virtual time that a round simulates, summed over the CPUs, in ns.
const CPU_NS: u64 = 6_000_000_000;

/// Simulated before the measurement, until every task has been placed.
const SETTLED: Nanos = Nanos(3_000_000);

fn pairs<P: SimPolicy>(
    topology: &Topology,
    costs: &Costs,
    settings: Settings,
    policy: P,
) -> Simulation<KernelScheduler<P>> {
    let mut sim = Simulation::new(topology, costs, settings, policy, 1);
    let run = Length::Around(Nanos(8_000), 10);
    for i in 0..topology.cpus.len() {
        let (client, server) = (format!("client {i}"), format!("server {i}"));
        let of = Program::new(&client).forever(|p| p.run(run).wake_sync(&*server).wait().mark("trips"));
        sim.spawn(&of).expect("it is right");
        let of = Program::new(&server).forever(|p| p.wait().run(run).wake_sync(&*client));
        sim.spawn(&of).expect("it is right");
    }
    sim
}

/// This process's CPU time if the kernel provides it, since other processes may run meanwhile; else the clock's time.
fn cpu_seconds() -> f64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let ran = stat.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
    ran.map_or_else(|| BEGIN.elapsed().as_secs_f64(), |ns| ns as f64 / 1e9)
}

fn measure<P: SimPolicy + Copy>(
    name: &str,
    topology: &Topology,
    costs: &Costs,
    settings: Settings,
    policy: P,
    rounds: usize,
) {
    let until = CPU_NS / topology.cpus.len() as u64;
    let mut best: Option<(f64, Report, (usize, usize, usize))> = None;
    for _ in 0..rounds {
        let mut sim = pairs(topology, costs, settings.clone(), policy);
        let before = sim.run(SETTLED).expect("it is right");
        let begin = cpu_seconds();
        let mut report = sim.run(Nanos(SETTLED.0 + until)).expect("it is right");
        let took = cpu_seconds() - begin;
        report.events -= before.events;
        report.stale -= before.stale;
        if best.as_ref().is_none_or(|(least, ..)| took < *least) {
            best = Some((took, report, sim.bytes()));
        }
    }
    let (took, report, (cpus, tasks, pending)) = best.expect("a round");
    let total = report.total();
    println!(
        "{name:34}{:>9.2} M events/s {:>5.0} ns  {:>9} events {:>5.1} % stale  {:>5.1} % moved  {:>4} B/CPU {:>4} B/task {:>4} B/task pending",
        report.events as f64 / took / 1e6,
        took * 1e9 / report.events as f64,
        report.events,
        100.0 * report.stale as f64 / (report.events + report.stale) as f64,
        100.0 * total.moves() as f64 / total.wakes.max(1) as f64,
        cpus / topology.cpus.len(),
        tasks / report.tasks.len(),
        pending / report.tasks.len(),
    );
}

fn main() {
    let machine = "spr_224cpu_2p";
    let topology = Topology::from_machine(MACHINES, machine).expect("it is there");
    let costs = Costs::from_machine(MACHINES, machine).expect("it is right");
    let kernel = Kernel::default();
    if std::env::args().any(|arg| arg == "profile") {
        return measure("kernel, 224 CPUs", &topology, &costs, Settings::kernel(), kernel, 20);
    }
    if std::env::args().any(|arg| arg == "profile-8192") {
        return growth(&[8192], 1);
    }
    if std::env::args().any(|arg| arg == "growth") {
        return growth(&[16, 64, 224, 1024, 4096, 8192], 3);
    }
    measure("kernel, 224 CPUs", &topology, &costs, Settings::kernel(), kernel, 5);
    let hot = Kernel { hot_windows: true, ..kernel };
    measure("kernel with hot windows, 224 CPUs", &topology, &costs, Settings::kernel(), hot, 5);
    for policy in SimPolicyKind::all() {
        measure(&format!("{policy}, 224 CPUs"), &topology, &costs, Settings::runtime(), policy, 3);
    }
    growth(&[16, 64, 224, 1024, 4096, 8192], 3);
}

fn growth(sizes: &[u32], rounds: usize) {
    let kernel = Kernel::default();
    for cpus in sizes.iter().copied() {
        // Sixteen CPUs an LLC, at most 64 LLCs a socket.
        let llcs = cpus / 16;
        let sockets = (llcs / 64).max(1);
        let text = format!(
            "[drawn]\nsockets = {sockets}\nl3_per_socket = {}\ncores_per_l3 = 8\nsmt = 2\n",
            llcs / sockets
        );
        let topology = Topology::from_machine(&text, "drawn").expect("it fits");
        let costs = Costs::of(&topology);
        measure(&format!("kernel, {cpus} CPUs"), &topology, &costs, Settings::kernel(), kernel, rounds);
        let home = PolicyKind::Home;
        measure(&format!("home, {cpus} CPUs"), &topology, &costs, Settings::runtime(), home, rounds);
    }
}
