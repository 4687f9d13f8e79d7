//! A driver per worker, or one that all workers of a last-level cache share, and tokio's rules: sockets of 2 to 16 workers, simulated.
//!
//! The costs are those of a probe (`warmcore predict probe`): polls, wakes, parks, unparks, polls of the driver, the same for
//! all; requests take as long as HTTP requests of tokio's, and each connection has data that follow its task. Requests arrive at random
//! times, and nothing waits for the answers, so the load is given: a part of what all CPUs can do. The clients are on another
//! machine. Each point is the mean of some seeds. `cargo test --release -p warmcore-sim --test drivers -- --nocapture` prints them.
//!
//! Not simulated: the kernel's locks for one epoll instance that is polled while packets arrive, and the network's interrupts.

use std::path::Path;
use warmcore_sched::PolicyKind;
use warmcore_sim::cases::{ProbeFile, Side};
use warmcore_sim::memory::{Access, Pages};
use warmcore_sim::policy::SimPolicyKind;
use warmcore_sim::program::{Length, Program, TaskAffinity, TaskId};
use warmcore_sim::simulation::{Drivers, Observer, Outside, Report, Settings, Simulation, SwitchReason};
use warmcore_types::{CpuId, Nanos};

const PROBE: &str = "../../reports/2026-11-22-amd-epyc-2cpu/predicted/probe-2.json";

/// Connections per worker, and the data of each, in KiB.
const CONNECTIONS: u32 = 8;
const KIB: u32 = 16;

const MS: u64 = 1_000_000;

/// Before the measured time costs are learned.
const WARM_UP: u64 = 100 * MS;
const MEASURED: u64 = 100 * MS;
const SEEDS: u64 = 3;

const HOME: SimPolicyKind = SimPolicyKind::Product(PolicyKind::Home);

/// How long each request waited, from its arrival at the socket to the poll of its task.
#[derive(Default)]
struct Delays {
    /// By task: when a request arrived that is not polled yet.
    due: Vec<Option<u64>>,
    delays: Vec<u64>,
}

impl Observer for Delays {
    fn due(&mut self, now: Nanos, task: TaskId) {
        let task = task.0 as usize;
        self.due.resize(self.due.len().max(task + 1), None);
        self.due[task] = Some(now.0);
    }

    fn switch(&mut self, now: Nanos, _: CpuId, _: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        let due = next.and_then(|next| self.due.get_mut(next.0 as usize)?.take());
        self.delays.extend(due.filter(|_| now.0 > WARM_UP).map(|due| now.0 - due));
    }
}

/// What a load did.
#[derive(Debug, Clone, Copy, Default)]
struct Point {
    /// CPU time a request, in ns.
    cpu: f64,
    /// The part of the requests after a move of their task.
    moved: f64,
    /// Quantiles of the delays, in ns.
    p50: f64,
    p99: f64,
}

fn simulate(
    probe: &ProbeFile,
    (policy, drivers): (SimPolicyKind, Drivers),
    cpus: u32,
    percent: u64,
    seed: u64,
) -> Point {
    let (topology, costs) = probe.machine((1, cpus)).unwrap();
    let outside = Outside { drivers, ..Default::default() };
    let calls = probe.calls(Side::Tokio);
    let settings = Settings { calls, outside, learns_moves: true, ..Settings::runtime() };
    let mut sim = Simulation::runtime_watched(&topology, &costs, settings, policy, seed, Delays::default());
    let request = probe.steps(Side::Tokio).request;
    let gap = Length::Exponential(Nanos(request * u64::from(CONNECTIONS) * 100 / percent));
    for i in 0..CONNECTIONS * cpus {
        let socket = format!("request {i}");
        let serve = |p: Program| {
            let p = p.receive(&socket).run(Length::Around(Nanos(request), 10));
            p.touch_own(KIB, Pages::Touched, Access::Write).mark("done")
        };
        let arrive = |p: Program| p.sleep(gap).send_to_socket(&socket, u32::MAX);
        sim.spawn(&Program::new(format!("connection {i}")).forever(serve)).unwrap();
        sim.spawn(&Program::new(format!("network {i}")).outside().forever(arrive)).unwrap();
    }
    let [before, after] = [WARM_UP, WARM_UP + MEASURED].map(|until| sim.run(Nanos(until)).unwrap());
    let mut delays = sim.into_observer().delays;
    delays.sort_unstable();
    let quantile = |percent: usize| delays[delays.len() * percent / 100] as f64;
    let since = |count: fn(&Report) -> u64| (count(&after) - count(&before)) as f64;
    let done = since(|report| report.mark("done"));
    let busy = since(|report| report.cpus.iter().map(|cpu| cpu.busy_ns).sum());
    let moves = since(|report| report.total().moves());
    Point { cpu: busy / done, moved: moves / done, p50: quantile(50), p99: quantile(99) }
}

/// The mean of the seeds.
fn point(name: &str, rules: (SimPolicyKind, Drivers), cpus: u32, percent: u64) -> Point {
    let probe = ProbeFile::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(PROBE)).unwrap();
    let mut mean = Point::default();
    for seed in 0..SEEDS {
        let Point { cpu, moved, p50, p99 } = simulate(&probe, rules, cpus, percent, seed);
        let add = |sum: &mut f64, value: f64| *sum += value / SEEDS as f64;
        add(&mut mean.cpu, cpu);
        add(&mut mean.moved, moved);
        add(&mut mean.p50, p50);
        add(&mut mean.p99, p99);
    }
    let Point { cpu, moved, p50, p99 } = mean;
    println!("| {cpus} | {percent} % | {name} | {p50:.0} | {p99:.0} | {cpu:.0} | {moved:.2} |");
    mean
}

/// While CPUs are idle, a shared driver answers as soon as tokio's rules do, for no more CPU time. With a driver per worker, sockets
/// wait for the polls of the one worker that accepted them.
#[test]
fn with_a_shared_driver_requests_wait_no_longer_than_under_tokios_rules() {
    for cpus in [8, 16] {
        for percent in [10, 30, 60] {
            let of = |name, rules| point(name, rules, cpus, percent);
            let own = of("own", (HOME, Drivers::Own));
            let shared = of("shared", (HOME, Drivers::Attendant));
            let tokio = of("tokio's rules", (SimPolicyKind::WorkSteal, Drivers::FirstParked));
            let at = format!("{cpus} workers, {percent} %");
            assert!(
                shared.p50 < 1.05 * tokio.p50 && shared.p99 < 1.1 * tokio.p99,
                "{at}: {shared:?} {tokio:?}"
            );
            assert!(
                shared.cpu < 1.07 * tokio.cpu && shared.moved < tokio.moved,
                "{at}: {shared:?} {tokio:?}"
            );
            assert!(own.p50 > 1.3 * shared.p50 && own.p99 > 1.3 * shared.p99, "{at}: {own:?} {shared:?}");
        }
    }
}

/// Of two workers the idle one is the last, and is kicked for light requests that wait for four times as long as that takes: fewer
/// requests move, they take less CPU time than under tokio's rules, and wait longer.
#[test]
fn of_two_workers_one_serves_requests_alone_while_they_wait_for_less_than_four_kicks() {
    for (percent, least_cpu, p50, p99) in [(10, 0.9, 1.5, 1.3), (30, 0.9, 1.7, 2.7), (60, 1.0, 1.5, 1.7)] {
        let shared = point("shared", (HOME, Drivers::Attendant), 2, percent);
        let tokio = point("tokio's rules", (SimPolicyKind::WorkSteal, Drivers::FirstParked), 2, percent);
        assert!(shared.cpu < least_cpu * tokio.cpu && shared.moved < tokio.moved, "{percent} %");
        assert!(shared.p50 < p50 * tokio.p50 && shared.p99 < p99 * tokio.p99, "{percent} %");
    }
}

/// When each mark was passed.
#[derive(Default)]
struct Marks(Vec<(u64, String)>);

impl Observer for Marks {
    fn marked(&mut self, now: Nanos, _: TaskId, mark: &str) {
        self.0.push((now.0, mark.to_owned()));
    }
}

/// A request first wakes the worker of its driver from an idle state: where each core has a driver, that is the core of the
/// task; where sockets belong to the first worker, it is that one too.
#[test]
fn a_request_wakes_the_core_of_its_task_alone_if_each_core_has_a_driver() {
    const REQUESTS: u64 = 10;
    let probe = ProbeFile::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(PROBE)).unwrap();
    let (topology, costs) = probe.machine((1, 2)).unwrap();
    for (drivers, first_wakes) in [(Drivers::PerCore, false), (Drivers::Own, true)] {
        let settings = Settings { outside: Outside { drivers, ..Default::default() }, ..Settings::runtime() };
        let policy = SimPolicyKind::PrevCpu;
        let mut sim = Simulation::runtime_watched(&topology, &costs, settings, policy, 1, Marks::default());
        let serve = Program::new("task").on(TaskAffinity::Cpu(topology.cpus[1].id));
        let task = sim.spawn(&serve.forever(|p| p.wait().run(1_000).mark("done"))).unwrap();
        let arrivals: Vec<(Nanos, TaskId)> = (1..=REQUESTS).map(|at| (Nanos(at * MS), task)).collect();
        let end = Nanos((REQUESTS + 1) * MS);
        sim.let_requests_arrive(arrivals.clone(), end);
        let before = sim.run(Nanos(MS / 2)).unwrap();
        let after = sim.run(end).unwrap();
        let exits = |cpu: usize| after.cpus[cpu].idle_exits - before.cpus[cpu].idle_exits;
        assert_eq!((exits(0) >= REQUESTS, exits(1) >= REQUESTS), (first_wakes, true), "{drivers:?}");
        let marks = sim.into_observer().0;
        assert_eq!(marks.len() as u64, REQUESTS, "{drivers:?}");
        for ((done, mark), (arrived, _)) in marks.iter().zip(arrivals) {
            // The run, and before it the end of the idle state.
            assert!(mark == "done" && *done > arrived.0 + 1_000, "{drivers:?}: {done} {arrived:?}");
        }
    }
}
