//! Warmcore's placement beside Linux's on 2 × 96 cores that are mostly idle, simulated: the work done in a given time.
//!
//! The machine is two EPYC 9654 without their SMT siblings: 24 last-level caches with eight cores each. Under Linux's placement
//! the tasks are threads of a simulated kernel; under Warmcore's they are tasks of a runtime whose workers share a driver below each
//! last-level cache, and whose own calls take no time, since no probe of such a machine is at hand. Each program rests between its rounds
//! so that all of it needs the given part of the machine; the ratio is that of the rounds done, the geometric mean of some seeds.
//! `cargo test --release -p warmcore-sim --test placement -- --nocapture` prints it.

use warmcore_sched::PolicyKind;
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::{Access, Pages};
use warmcore_sim::policy::Kernel;
use warmcore_sim::program::{Length, Program};
use warmcore_sim::simulation::{Drivers, Outside, Scheduler, Settings, Simulation};
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::Nanos;

const MACHINE: &str = "epyc9654_2p";
const CORES: u64 = 192;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The time before the measured one, in which costs are learned, and both together.
const WARM_UP: u64 = 50 * MS;
const END: u64 = 100 * MS;
const SEEDS: u64 = 3;

/// A part of a round: about so long, and a pass over 64 KiB of the task's own.
fn work(program: Program, ns: u64) -> Program {
    program.run(Length::Around(Nanos(ns), 50)).touch_own(64, Pages::Touched, Access::Write)
}

/// The rest after a round that takes `ns` and needs `busy` ns of CPU time, if `tasks` such rounds need this part of the machine.
fn rest(ns: u64, busy: u64, tasks: u64, percent: u64) -> Length {
    Length::Exponential(Nanos((busy * tasks * 100 / (percent * CORES)).saturating_sub(ns).max(1)))
}

/// Clients that each ask a server of their own.
fn requests(percent: u64) -> Vec<Program> {
    let pair = |i| {
        let (request, answer) = (format!("request {i}"), format!("answer {i}"));
        let ask = |p: Program| work(p, 20 * US).send(&request, 1).receive(&answer).mark("done");
        let serve = |p: Program| work(p.receive(&request), 20 * US).send(&answer, 1);
        [
            Program::new(format!("client {i}"))
                .forever(|p| ask(p.sleep(rest(50 * US, 40 * US, CORES, percent)))),
            Program::new(format!("server {i}")).forever(serve),
        ]
    };
    (0..CORES).flat_map(pair).collect()
}

/// Pipelines of four stages.
fn pipelines(percent: u64) -> Vec<Program> {
    let pipeline = |i| {
        let channel = |stage: u64| format!("stage {i}.{stage}");
        let source =
            |p: Program| work(p.sleep(rest(20 * US, 60 * US, CORES, percent)), 15 * US).send(&channel(1), 8);
        let stage = |n: u64| {
            let next = |p: Program| if n < 3 { p.send(&channel(n + 1), 8) } else { p.mark("done") };
            Program::new(format!("stage {i}.{n}")).forever(|p| next(work(p.receive(&channel(n)), 15 * US)))
        };
        [Program::new(format!("source {i}")).forever(source), stage(1), stage(2), stage(3)]
    };
    (0..CORES).flat_map(pipeline).collect()
}

fn timers(percent: u64) -> Vec<Program> {
    let nap = rest(20 * US, 20 * US, 4 * CORES, percent);
    let timer = |i| Program::new(format!("timer {i}")).forever(|p| work(p.sleep(nap), 20 * US).mark("done"));
    (0..4 * CORES).map(timer).collect()
}

/// Tasks that fork eight and join them.
fn fork_join(percent: u64) -> Vec<Program> {
    let root = |i| {
        let child = work(Program::new(format!("child {i}")), 100 * US);
        let round = |p: Program| (0..8).fold(p, |p, _| p.fork(child.clone())).join().mark("done");
        let rest = rest(150 * US, 900 * US, CORES / 2, percent);
        Program::new(format!("root {i}")).forever(|p| round(work(p.sleep(rest), 10 * US)))
    };
    (0..CORES / 2).map(root).collect()
}

/// A parallel build: each job forks a compiler that computes for milliseconds and waits for files now and then.
fn build(percent: u64) -> Vec<Program> {
    let job = |i| {
        let compiler = Program::new(format!("compiler {i}"))
            .repeat(10, |p| work(p, 300 * US).sleep(Length::Exponential(Nanos(30 * US))));
        Program::new(format!("job {i}")).forever(|p| work(p.fork(compiler).join(), 50 * US).mark("done"))
    };
    (0..CORES * percent / 100).map(job).collect()
}

/// A program for a part of the machine, in percent.
type Load = fn(u64) -> Vec<Program>;

/// The least ratio, for every load.
const LEAST: f64 = 0.97;

/// Rounds done in the measured time.
fn done<S: Scheduler>(mut sim: Simulation<S>, programs: &[Program]) -> f64 {
    programs.iter().for_each(|program| _ = sim.spawn(program).unwrap());
    let [before, after] = [WARM_UP, END].map(|until| sim.run(Nanos(until)).unwrap().mark("done"));
    (after - before) as f64
}

#[test]
fn a_load_gets_about_as_much_done_as_under_linuxs_placement() {
    let mut topology = Topology::from_machine(MACHINES, MACHINE).unwrap();
    topology.cpus.truncate(CORES as usize);
    let costs = Costs::from_machine(MACHINES, MACHINE).unwrap();
    let outside = Outside { drivers: Drivers::Attendant, ..Outside::default() };
    let settings = Settings { outside, learns_moves: true, ..Settings::runtime() };
    let loads: [(&str, Load); 5] = [
        ("request and response", requests),
        ("pipelines", pipelines),
        ("timers", timers),
        ("fork and join", fork_join),
        ("a build", build),
    ];
    let mut missed = String::new();
    for (name, programs) in loads {
        for percent in [5, 20, 40, 60] {
            let programs = programs(percent);
            let ratio = |seed| {
                let home = PolicyKind::Home;
                let ours = Simulation::runtime(&topology, &costs, settings.clone(), home, seed);
                let linux = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), seed);
                done(ours, &programs) / done(linux, &programs)
            };
            let log: f64 = (0..SEEDS).map(|seed| ratio(seed).ln()).sum();
            let mean = (log / SEEDS as f64).exp();
            println!("| {name} | {percent} % | {mean:.3} |");
            if mean < LEAST {
                missed += &format!("{name}, {percent} %: {mean:.3}\n");
            }
        }
    }
    assert!(missed.is_empty(), "{missed}");
}
