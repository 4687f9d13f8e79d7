//! Under Home no CPU idles for long while a task waits, and tasks move no more often than needed for that.
//!
//! Simulated workers run the scheduler core, and [`Watch`] measures. A CPU stays idle beside one waiting task for at most
//! the migration cost × (distance factor + 1), or `MIN_STEAL_DELAY` if that is more, plus one poll (a busy worker notifies
//! others between two polls, or when a poll gets long), plus four unparks. The distance factor is 1 within an LLC, 2 between
//! LLCs of a node, 3 between nodes of a socket, 4 between sockets.
//!
//! While tasks spread from one CPU, or if some may not run everywhere, add [`EVENT_INTERVAL`]: a worker with many tasks
//! notifies others that often, and a worker that comes notifies the next one only if tasks are left where it found its own.

#[path = "../../../crates/sched/tests/common/mod.rs"]
mod common;

use common::drawn;
use warmcore_sched::{Allowed, Home, Policy, SchedDomains, TargetQueue};
use warmcore_sim::costs::Costs;
use warmcore_sim::policy::SimPolicyKind;
use warmcore_sim::program::{Length, Program, TaskId};
use warmcore_sim::simulation::{ByIdle, CallCosts, Observer, Settings, Simulation, SwitchReason};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, LlcId, Nanos};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Where all tasks begin on one CPU, most measurements begin at this time, after the tasks have spread over the CPUs.
const SETTLED: u64 = 10 * MS;
const END: u64 = 20 * MS;

/// From an unpark to the worker's first instruction.
const UNPARK: u64 = 10 * US;

/// A poll is long after this time; then a worker is notified of the tasks behind it.
const LONG: u64 = MS;

/// The same constants as the core's: a task waits at least this long before it is stolen, and a worker with many tasks
/// notifies another one this often.
const MIN_STEAL_DELAY: u64 = 200 * US;
const EVENT_INTERVAL: u64 = 200 * US;

/// The most unparks between the time when a task may be stolen and its poll: each unparked worker may unpark another.
const UNPARKS: u64 = 4;

/// A machine that is evenly loaded moves at most this part of its wakes.
const MOVED_MAX: f64 = 0.01;

/// As `MOVED_MAX`, if changing tasks wake each other and half of them wait. Some CPUs run out of tasks now and then, and steal.
const MOVED_BY_MESSAGES_MAX: f64 = 0.03;

/// As `MOVED_MAX`, if polls take up to 1 ms. A migration costs at most 400 µs, so a task that waits for such a poll
/// gains by moving.
const MOVED_LONG_MAX: f64 = 0.08;

struct Machine {
    name: &'static str,
    topology: Topology,
    /// The distance factor of the two CPUs that are farthest from each other.
    distance_factor: u64,
}

impl Machine {
    fn cpus(&self) -> usize {
        self.topology.cpus.len()
    }
}

fn machines() -> [Machine; 5] {
    let machine = |name, [sockets, llcs, cores, smt]: [u32; 4], offline: &[u32], distance_factor| {
        let mut topology = drawn(sockets, llcs, cores, smt);
        topology.cpus.retain(|cpu| !offline.contains(&cpu.id.0));
        Machine { name, topology, distance_factor }
    };
    [
        machine("24 LLCs", [2, 12, 2, 1], &[], 4),
        machine("11 LLCs", [1, 11, 2, 1], &[], 2),
        machine("SMT", [1, 1, 6, 2], &[], 1),
        machine("five of eight CPUs offline", [1, 2, 4, 1], &[1, 4, 5, 6, 7], 2),
        machine("one CPU", [1, 1, 1, 1], &[], 1),
    ]
}

/// The tasks of a machine with so many CPUs.
struct Load {
    name: &'static str,
    poll_max: u64,
    tasks: fn(usize) -> Vec<Program>,
}

/// A task that repeats this for ever.
fn task(body: impl FnOnce(Program) -> Program) -> Program {
    Program::new("task").forever(body)
}

fn timer(least: u64, most: u64, sleep: (u64, u64)) -> Program {
    task(|p| p.run(least..=most).sleep(sleep.0..=sleep.1))
}

/// A task that is woken, runs, and wakes its partner.
fn half_pair(i: usize, poll: std::ops::RangeInclusive<u64>) -> Program {
    let (mine, others) = (format!("to {i}"), format!("to {}", i ^ 1));
    match i % 2 {
        0 => task(|p| p.run(Length::from(poll)).send(&others, 1).receive(&mine)),
        _ => task(|p| p.receive(&mine).run(Length::from(poll)).send(&others, 1)),
    }
}

fn many(n: usize, task: impl Fn(usize) -> Program) -> Vec<Program> {
    (0..n).map(task).collect()
}

fn loads() -> [Load; 9] {
    let load = |name, poll_max, tasks| Load { name, poll_max, tasks };
    [
        load("two that yield per CPU", 16 * US, |n| {
            many(2 * n, |_| task(|p| p.run(15 * US..=16 * US).yield_now()))
        }),
        load("some that yield after up to 1 ms", MS, |n| {
            many(n / 2 + 1, |_| task(|p| p.run(16 * US..=MS).yield_now()))
        }),
        load("timers", 100 * US, |n| many(2 * n, |_| timer(16 * US, 100 * US, (100 * US, 300 * US)))),
        load("small timers", 10 * US, |n| many(4 * n, |_| timer(US, 10 * US, (20 * US, 60 * US)))),
        load("long polls among short ones", 5 * MS, |n| {
            many(2 * n, |i| match i % 4 {
                0 => timer(3 * MS, 5 * MS, (MS, 2 * MS)),
                _ => timer(16 * US, 60 * US, (100 * US, 900 * US)),
            })
        }),
        load("pairs", 17 * US, |n| many(2 * n, |i| half_pair(i, 16 * US..=17 * US))),
        load("messages to the task that has waited longest", 40 * US, |n| {
            let message = |p: Program| p.run(16 * US..=40 * US).signal("message").suspend("message");
            many(n.max(4) + 4, |i| match i {
                0..4 => Program::new("task").suspend("message").forever(message),
                _ => task(message),
            })
        }),
        load("forks", 60 * US, |n| {
            let child = || Program::new("child").run(20 * US..=60 * US);
            let fork = |p: Program| (0..8).fold(p.run(16 * US..=40 * US), |p, _| p.fork(child()));
            many(n / 4 + 1, |_| task(|p| fork(p).sleep(1200 * US)))
        }),
        load("half of them kept in one LLC or on one CPU", 100 * US, |n| {
            let timer = || timer(16 * US, 100 * US, (100 * US, 300 * US));
            many(2 * n, |i| match i % 4 {
                0 => timer().named("on a CPU").on(Allowed::Cpu(CpuId(0))),
                1 => timer().named("in an LLC").on(Allowed::Llc(LlcId(0))),
                _ => timer(),
            })
        }),
    ]
}

/// Measures how long CPUs idle while tasks wait, from the time `from` on.
struct Watch {
    from: u64,
    domains: SchedDomains,
    allowed: Vec<Allowed>,
    /// Since when a task waits.
    waits: Vec<Option<u64>>,
    /// Since when a CPU is idle. A CPU that is unparked or searches counts as idle until it runs a task.
    idle: Vec<Option<u64>>,
    /// Polls of each task, in all.
    polls: Vec<u64>,
    /// The longest that a CPU stayed idle while the same task waited that might have run there.
    idle_beside_work: u64,
}

impl Watch {
    fn new(machine: &Machine, from: u64) -> Self {
        let idle = vec![Some(0); machine.cpus()];
        let domains = common::whole(&machine.topology);
        Self { from, domains, allowed: vec![], waits: vec![], idle, polls: vec![], idle_beside_work: 0 }
    }

    /// A task that waited until `now` shows how long any CPU was idle beside it, and a CPU that was idle until `now` how
    /// long any task waited beside it.
    fn begin(&mut self, now: u64, cpu: usize, task: usize) {
        let waited = self.waits[task].take().expect("it was queued");
        self.polls[task] += 1;
        let allowed = self.allowed[task];
        let may = |cpu: usize| self.domains.allows(allowed, CpuId(cpu as u32));
        let idle = (0..self.idle.len()).filter(|cpu| may(*cpu)).filter_map(|cpu| self.idle[cpu]).min();
        let beside_task = idle.map(|since| now - since.max(waited));
        let tasks = self.waits.iter().zip(&self.allowed);
        let oldest =
            tasks.filter(|(_, allowed)| **allowed == Allowed::Anywhere).filter_map(|(at, _)| *at).min();
        let beside_cpu = self.idle[cpu].take().zip(oldest).map(|(since, at)| now - since.max(at));
        if now >= self.from {
            self.idle_beside_work = self.idle_beside_work.max(beside_task.max(beside_cpu).unwrap_or(0));
        }
    }
}

impl Observer for Watch {
    fn task_created(&mut self, _now: Nanos, task: TaskId, name: &str) {
        let allowed = match name {
            "on a CPU" | "root" => Allowed::Cpu(CpuId(0)),
            "in an LLC" => Allowed::Llc(LlcId(0)),
            _ => Allowed::Anywhere,
        };
        if task.0 as usize == self.waits.len() {
            self.allowed.push(allowed);
            self.waits.push(None);
            self.polls.push(0);
        }
        self.allowed[task.0 as usize] = allowed;
    }

    fn queued(&mut self, now: Nanos, task: TaskId, _at: TargetQueue) {
        self.waits[task.0 as usize] = Some(now.0);
    }

    fn switch(&mut self, now: Nanos, cpu: CpuId, prev: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        if let Some((task, SwitchReason::Runnable)) = prev {
            self.waits[task.0 as usize] = Some(now.0);
        }
        match next {
            Some(task) => self.begin(now.0, cpu.index(), task.0 as usize),
            None => self.idle[cpu.index()] = self.idle[cpu.index()].or(Some(now.0)),
        }
    }
}

/// What came of a run.
#[derive(Debug)]
struct Outcome {
    wakes: u64,
    polls: u64,
    /// Tasks that were never polled.
    never_polled: usize,
    /// Polls elsewhere than the last one.
    moves: u64,
    unparks: u64,
    idle_beside_work: u64,
}

/// Runs tasks until `until`, and counts from `from` on. `on_one_cpu`: a task on the first CPU spawns them, instead of a
/// thread that is no worker.
fn simulate(
    machine: &Machine,
    policy: impl Policy,
    tasks: Vec<Program>,
    on_one_cpu: bool,
    [from, until]: [u64; 2],
) -> Outcome {
    let calls = CallCosts { unpark_latency: ByIdle([(0, UNPARK); 5]), ..CallCosts::default() };
    // Without ticks, and siblings do not slow each other down: a poll takes as long as its program says.
    let settings = Settings { hz: 0, smt_per_mille: Some(1000), calls, ..Settings::runtime() };
    let costs = Costs::of(&machine.topology);
    let watch = Watch::new(machine, from);
    let mut sim = Simulation::runtime_watched(&machine.topology, &costs, settings, policy, 1, watch);
    if on_one_cpu {
        let root = Program::new("root").on(Allowed::Cpu(CpuId(0)));
        sim.spawn(&tasks.into_iter().fold(root, Program::fork)).unwrap();
    } else {
        tasks.iter().for_each(|task| _ = sim.spawn(task).unwrap());
    }
    let before = sim.run(Nanos(from)).unwrap();
    let after = sim.run(Nanos(until)).unwrap();
    let watch = sim.into_observer();
    let (counts, early) = (after.total(), before.total());
    Outcome {
        wakes: counts.wakes - early.wakes,
        polls: watch.polls.iter().sum(),
        never_polled: watch.polls.iter().filter(|polls| **polls == 0).count(),
        moves: counts.moves() - early.moves(),
        unparks: after.cpus.iter().map(|cpu| cpu.ipis).sum(),
        idle_beside_work: watch.idle_beside_work,
    }
}

/// How long a CPU may stay idle while the same task waits.
fn bound(distance_factor: u64, poll_max: u64) -> u64 {
    let migration_cost = Policy::migration_cost(&Home::DEFAULT, Nanos(poll_max)).0;
    let steal_delay = (migration_cost * (distance_factor + 1)).max(MIN_STEAL_DELAY);
    steal_delay + poll_max.min(LONG) + UNPARKS * UNPARK
}

/// Runs all loads on all machines, each within its bound and what `ramp` adds for a load and a number of CPUs.
fn check_idle_time(from: u64, ramp: fn(&str, u64) -> u64) {
    let mut wrong = String::new();
    for (machine, load) in machines().iter().flat_map(|machine| loads().map(|load| (machine, load))) {
        let outcome = simulate(machine, Home::DEFAULT, (load.tasks)(machine.cpus()), true, [from, END]);
        let bound = bound(machine.distance_factor, load.poll_max) + ramp(load.name, machine.cpus() as u64);
        let idle = outcome.idle_beside_work;
        println!("{:28}{:44}{:>6} µs of {:>6}", machine.name, load.name, idle / US, bound / US);
        if idle > bound || outcome.never_polled > 0 {
            wrong += &format!("{}, {}: {idle} ns, at most {bound}: {outcome:?}\n", machine.name, load.name);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn under_home_no_cpu_idles_for_long_beside_a_task_that_waits() {
    check_idle_time(SETTLED, |load, _| if load.contains("kept in one LLC") { EVENT_INTERVAL } else { 0 });
}

/// Of a pair the task that waits for the other one keeps its new worker busy for no time, so that worker steals again. With
/// 22 CPUs the last one begins after 1.4 ms.
#[test]
fn tasks_on_one_cpu_start_all_others_one_unpark_after_the_other() {
    check_idle_time(0, |load, cpus| match load {
        "pairs" => cpus * (EVENT_INTERVAL + UNPARK),
        _ => EVENT_INTERVAL + cpus * 2 * UNPARK,
    });
}

/// A task that is polled first on the CPU with this index, may run anywhere from then on, and is queued there.
fn begin_on(machine: &Machine, index: usize) -> Program {
    let pinned = Program::new("task").on(Allowed::Cpu(machine.topology.cpus[index].id));
    pinned.run(20 * US).allow(Allowed::Anywhere).yield_now()
}

fn check_moves(what: &str, machine: &Machine, tasks: Vec<Program>, most: f64) {
    let outcome = simulate(machine, Home::DEFAULT, tasks, false, [5 * MS, 40 * MS]);
    let moved = outcome.moves as f64 / outcome.wakes as f64;
    println!("{:28}{what:14}{:>7} wakes, {:.3} % moved", machine.name, outcome.wakes, moved * 100.0);
    assert!(outcome.wakes > 0 && moved <= most, "{}, {what}: {outcome:?}", machine.name);
}

#[test]
fn an_evenly_loaded_machine_moves_few_tasks() {
    for machine in machines() {
        for (name, per_cpu, poll, sleep) in [
            ("timers", 2, 16 * US..=100 * US, 100 * US..=300 * US),
            ("small timers", 4, 2 * US..=10 * US, 40 * US..=120 * US),
            ("long polls", 2, 200 * US..=MS, MS..=3 * MS),
        ] {
            let task = |i| {
                let (poll, sleep) = (Length::from(poll.clone()), Length::from(sleep.clone()));
                begin_on(&machine, i % machine.cpus()).forever(|p| p.run(poll).sleep(sleep))
            };
            let most = if *poll.end() == MS { MOVED_LONG_MAX } else { MOVED_MAX };
            check_moves(name, &machine, many(per_cpu * machine.cpus(), task), most);
        }
    }
}

/// Each CPU has four tasks that run and four that wait, and each poll wakes the task that has waited longest, wherever that
/// is. No task gains by moving.
#[test]
fn a_task_with_changing_wakers_stays_on_its_cpu() {
    let message = |p: Program| p.run(16 * US..=24 * US).signal("message").suspend("message");
    for machine in machines() {
        let n = machine.cpus();
        let tasks = many(8 * n, |i| match (begin_on(&machine, i / 2 % n), i % 2) {
            (begin, 0) => begin.forever(message),
            (begin, _) => begin.suspend("message").forever(message),
        });
        check_moves("messages", &machine, tasks, MOVED_BY_MESSAGES_MAX);
    }
}

#[test]
fn two_tasks_that_talk_meet_on_one_cpu_and_stay() {
    for machine in machines() {
        let tasks = many(2 * machine.cpus(), |i| half_pair(i, 4 * US..=5 * US));
        let outcome = simulate(&machine, Home::DEFAULT, tasks, true, [SETTLED, END]);
        println!("{:28}{outcome:?}", machine.name);
        assert!(outcome.moves as f64 <= MOVED_MAX * outcome.wakes as f64, "{}: {outcome:?}", machine.name);
    }
}

/// A worker that sleeps until a given time searches then without being unparked. Of two tasks on one CPU, the other CPU
/// steals one as soon as it may, although no task is woken any more.
#[test]
fn a_worker_that_sleeps_until_a_time_searches_then() {
    let machine = Machine { name: "two", topology: drawn(1, 1, 2, 1), distance_factor: 1 };
    let tasks = vec![task(|p| p.run(30 * US..=31 * US).yield_now()); 2];
    let outcome = simulate(&machine, Home::DEFAULT, tasks, true, [0, 10 * MS]);
    // Until the first CPU has measured its polls, the first eight, it notifies the other one at each yield.
    assert!(outcome.moves <= 1 && outcome.unparks <= 10, "{outcome:?}");
    assert!(outcome.polls > 600, "both run at once: {outcome:?}");
}

#[test]
fn under_prev_cpu_a_cpu_idles_beside_a_task_that_waits() {
    let machine = Machine { name: "four", topology: drawn(1, 1, 4, 1), distance_factor: 1 };
    // PrevCpu gives each CPU as many tasks. Those of two CPUs end.
    let task = |i: usize| {
        let polls = if i % 4 < 2 { 4 } else { 100_000 };
        Program::new("task").repeat(polls, |p| p.run(15 * US..=16 * US).yield_now())
    };
    let [home, prev_cpu] = [SimPolicyKind::all()[0], SimPolicyKind::PrevCpu]
        .map(|policy| simulate(&machine, policy, many(240, task), false, [SETTLED, END]));
    let bound = bound(machine.distance_factor, 16 * US);
    assert!(home.idle_beside_work <= bound, "{home:?}");
    assert!(prev_cpu.idle_beside_work > 2 * bound, "{prev_cpu:?}");
    assert!(prev_cpu.moves == 0 && home.polls > prev_cpu.polls, "{home:?}; {prev_cpu:?}");
}
