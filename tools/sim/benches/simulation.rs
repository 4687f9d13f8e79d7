//! The speed of a simulation: pairs that wake each other, on a machine of 224 CPUs and on machines of 16 to 8192 CPUs.
//!
//! As many pairs as CPUs; each task runs 8 µs ± 10 %, wakes the other and waits: 16 µs of CPU a round trip. The best of
//! some rounds, since the rest is noise of the machine. Stale events are shown, but not counted as events. A step of a
//! program is one event under each policy, but a kernel and a runtime have different events besides, so the speed is also
//! shown as wakes per second: a wake is one run of a task in all of them.
//!
//! `cargo bench --bench simulation -- profile` runs Linux's placement on the first machine only, in 20 rounds;
//! `profile-home` Home's; `profile-8192` Home's on the largest; `growth` those of 16 to 8192 CPUs.

use std::sync::LazyLock;
use std::time::Instant;
use warmcore_sched::PolicyKind;
use warmcore_sim::costs::Costs;
use warmcore_sim::policy::{Kernel, SimPolicyKind};
use warmcore_sim::program::{Length, Program};
use warmcore_sim::simulation::{Scheduler, Settings, Simulation};
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::Nanos;

/// The virtual time that a round simulates, summed over the CPUs, in ns.
const CPU_NS: u64 = 6_000_000_000;

const HOME: SimPolicyKind = SimPolicyKind::Product(PolicyKind::Home);

/// Simulated before the measurement, until every task has been placed.
const SETTLED: Nanos = Nanos(3_000_000);

/// Adds the pairs to a machine without tasks.
fn spawn_pairs<S: Scheduler>(sim: &mut Simulation<S>, pairs: usize) {
    let run = Length::Around(Nanos(8_000), 10);
    for i in 0..pairs {
        let (client, server) = (format!("client {i}"), format!("server {i}"));
        let of = Program::new(&client).forever(|p| p.run(run).wake_sync(&*server).wait().mark("trips"));
        sim.spawn(&of).expect("it is right");
        let of = Program::new(&server).forever(|p| p.wait().run(run).wake_sync(&*client));
        sim.spawn(&of).expect("it is right");
    }
}

/// This process's CPU time if the kernel provides it, since other processes may run meanwhile; else the clock's time.
fn cpu_seconds() -> f64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let ran = stat.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
    ran.map_or_else(|| BEGIN.elapsed().as_secs_f64(), |ns| ns as f64 / 1e9)
}

/// A machine, and what its operations cost.
type Machine<'a> = (&'a Topology, &'a Costs);

fn kernel(name: &str, of: Machine<'_>, policy: Kernel, rounds: usize) {
    let name = format!("{name}, {} CPUs", of.0.cpus.len());
    measure(&name, of.0, rounds, || Simulation::new(of.0, of.1, Settings::kernel(), policy, 1));
}

fn runtime(policy: SimPolicyKind, of: Machine<'_>, rounds: usize) {
    let name = format!("{policy}, {} CPUs", of.0.cpus.len());
    measure(&name, of.0, rounds, || Simulation::runtime(of.0, of.1, Settings::runtime(), policy, 1));
}

fn measure<S: Scheduler>(name: &str, topology: &Topology, rounds: usize, new: impl Fn() -> Simulation<S>) {
    let until = CPU_NS / topology.cpus.len() as u64;
    let (mut best, mut least) = (None, f64::INFINITY);
    for _ in 0..rounds {
        let mut sim = new();
        spawn_pairs(&mut sim, topology.cpus.len());
        let before = sim.run(SETTLED).expect("it is right");
        let begin = cpu_seconds();
        let mut report = sim.run(Nanos(SETTLED.0 + until)).expect("it is right");
        let took = cpu_seconds() - begin;
        report.events -= before.events;
        report.stale -= before.stale;
        let wakes = report.total().wakes - before.total().wakes;
        if took < least {
            (best, least) = (Some((wakes, report, sim.bytes())), took);
        }
    }
    let (took, (wakes, report, (cpus, tasks, pending))) = (least, best.expect("a round"));
    let total = report.total();
    println!(
        "{name:34}{:>9.2} M events/s {:>5.0} ns {:>7.2} M wakes/s  {:>9} events {:>5.1} % stale  {:>5.1} % moved  {:>4} B/CPU {:>4} B/task {:>4} B/task pending",
        report.events as f64 / took / 1e6,
        took * 1e9 / report.events as f64,
        wakes as f64 / took / 1e6,
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
    let (of, linux) = ((&topology, &costs), Kernel::default());
    let is_asked = |what: &str| std::env::args().any(|arg| arg == what);
    if is_asked("profile") {
        return kernel("kernel", of, linux, 20);
    }
    if is_asked("profile-home") {
        return runtime(HOME, of, 20);
    }
    if is_asked("profile-8192") {
        return growth(&[8192], false, 3);
    }
    if !is_asked("growth") {
        kernel("kernel", of, linux, 5);
        kernel("kernel with hot windows", of, Kernel { hot_windows: true, ..linux }, 5);
        SimPolicyKind::all().into_iter().for_each(|policy| runtime(policy, of, 3));
    }
    growth(&[16, 64, 224, 1024, 4096, 8192], true, 3);
}

fn growth(sizes: &[u32], with_kernel: bool, rounds: usize) {
    for cpus in sizes.iter().copied() {
        // Sixteen CPUs an LLC, at most 64 LLCs a socket.
        let llcs = cpus / 16;
        let sockets = (llcs / 64).max(1);
        let text = format!(
            "[drawn]\nsockets = {sockets}\nl3_per_socket = {}\ncores_per_l3 = 8\nsmt = 2\n",
            llcs / sockets
        );
        let topology = Topology::from_machine(&text, "drawn").expect("it fits");
        let of = (&topology, &Costs::of(&topology));
        if with_kernel {
            kernel("kernel", of, Kernel::default(), rounds);
        }
        runtime(HOME, of, rounds);
    }
}
