//! Under Home no CPU sleeps for long while a task waits, and tasks move no more often than needed for that.
//!
//! `common/model.rs` simulates the CPUs. A CPU stays idle beside one waiting task for at most the migration cost times
//! (distance factor + 1), or `MIN_STEAL_DELAY` if that is more, plus one poll (the policy is asked for a CPU to kick
//! after each poll, and when a poll gets long), plus four kicks. The distance factor is 1 within an LLC, 2 between LLCs
//! of a node, 3 between nodes of a socket, 4 between sockets.

mod common;

use common::drawn;
use common::model::{LONG, Model, Outcome, Task, Then, WAKEUP_COST};
use warmcore_sched::{Allowed, Home, Policy, PolicyKind};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, LlcId, Nanos};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Where all tasks begin on one CPU, most measurements begin at this time, after the tasks have spread over the CPUs.
const SETTLED: u64 = 10 * MS;
const END: u64 = 20 * MS;

/// The same constant as Home's: a task waits at least this long before it is stolen, however small its migration cost,
/// unless its CPU has a long poll or many waiting tasks.
const MIN_STEAL_DELAY: u64 = 200 * US;

/// The most kicks between the time when a task may be stolen and its poll: each kicked CPU may kick another.
const KICKS: u64 = 4;

/// A machine that is evenly loaded moves at most this part of its wakes.
const MOVED_MAX: f64 = 0.01;

/// As `MOVED_MAX`, if tasks wake each other at random and half of them wait. Some CPUs run out of tasks now and then,
/// and steal.
const MOVED_BY_MESSAGES_MAX: f64 = 0.03;

/// As `MOVED_MAX`, if polls take up to 1 ms. A migration costs at most 400 µs, so a task that waits for such a poll
/// gains by moving.
const MOVED_LONG_MAX: f64 = 0.08;

struct TestMachine {
    name: &'static str,
    topology: Topology,
    offline: &'static [u32],
    /// The distance factor of the two CPUs that are farthest from each other.
    distance_factor: u64,
}

impl TestMachine {
    fn cpus(&self) -> u32 {
        self.topology.cpus.len() as u32
    }

    fn online(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.cpus()).filter(|cpu| !self.offline.contains(cpu))
    }
}

fn machines() -> [TestMachine; 5] {
    let machine = |name, [sockets, llcs, cores, smt]: [u32; 4], offline, distance_factor| TestMachine {
        name,
        topology: drawn(sockets, llcs, cores, smt),
        offline,
        distance_factor,
    };
    [
        machine("24 LLCs", [2, 12, 2, 1], &[], 4),
        machine("11 LLCs", [1, 11, 2, 1], &[], 2),
        machine("SMT", [1, 1, 6, 2], &[], 1),
        machine("five of eight CPUs offline", [1, 2, 4, 1], &[1, 4, 5, 6, 7], 2),
        machine("one CPU", [1, 1, 1, 1], &[], 1),
    ]
}

/// Tasks for a machine of so many CPUs.
struct Load {
    name: &'static str,
    poll_max: u64,
    tasks: fn(u32) -> Vec<Task>,
}

fn loads() -> [Load; 9] {
    fn many(n: u32, task: impl Fn(usize) -> Task) -> Vec<Task> {
        (0..n as usize).map(task).collect()
    }
    [
        Load {
            name: "two that yield per CPU",
            poll_max: 16 * US,
            tasks: |n| many(2 * n, |_| Task::new((15 * US, 16 * US), Then::Yield)),
        },
        Load {
            name: "some that yield after up to 1 ms",
            poll_max: MS,
            tasks: |n| many(n / 2 + 1, |_| Task::new((16 * US, MS), Then::Yield)),
        },
        Load {
            name: "timers",
            poll_max: 100 * US,
            tasks: |n| many(2 * n, |_| Task::new((16 * US, 100 * US), Then::Sleep(100 * US, 300 * US))),
        },
        Load {
            name: "small timers",
            poll_max: 10 * US,
            tasks: |n| many(4 * n, |_| Task::new((US, 10 * US), Then::Sleep(20 * US, 60 * US))),
        },
        Load {
            name: "long polls among short ones",
            poll_max: 5 * MS,
            tasks: |n| {
                many(2 * n, |i| match i % 4 {
                    0 => Task::new((3 * MS, 5 * MS), Then::Sleep(MS, 2 * MS)),
                    _ => Task::new((16 * US, 60 * US), Then::Sleep(100 * US, 900 * US)),
                })
            },
        },
        Load {
            name: "pairs",
            poll_max: 17 * US,
            tasks: |n| many(2 * n, |i| Task::new((16 * US, 17 * US), Then::Pass(i ^ 1))),
        },
        Load {
            name: "messages to random tasks",
            poll_max: 40 * US,
            tasks: |n| many(n.max(4), |_| Task::new((16 * US, 40 * US), Then::Message(4))),
        },
        Load {
            name: "forks",
            poll_max: 60 * US,
            tasks: |n| many(n / 4 + 1, |_| Task::new((16 * US, 40 * US), Then::Fork(8, 20 * US, 60 * US))),
        },
        Load {
            name: "half of them kept in one LLC or on one CPU",
            poll_max: 100 * US,
            tasks: |n| {
                many(2 * n, |i| {
                    let allowed = match i % 4 {
                        0 => Allowed::Cpu(CpuId(0)),
                        1 => Allowed::Llc(LlcId(0)),
                        _ => Allowed::Anywhere,
                    };
                    Task::new((16 * US, 100 * US), Then::Sleep(100 * US, 300 * US)).kept(allowed)
                })
            },
        },
    ]
}

/// How long a CPU may stay idle while the same task waits.
fn bound(machine: &TestMachine, load: &Load) -> u64 {
    let migration_cost = Home::DEFAULT.migration_cost(Nanos(load.poll_max)).0;
    // The policy is asked after each poll, and when a poll gets long; it kicks no CPU before a task may be stolen.
    let asked = load.poll_max.min(LONG);
    (migration_cost * (machine.distance_factor + 1)).max(MIN_STEAL_DELAY) + asked + KICKS * WAKEUP_COST
}

fn run(policy: PolicyKind, machine: &TestMachine, load: &Load, from: u64) -> Outcome {
    let tasks = (load.tasks)(machine.cpus());
    Model::new(&machine.topology, policy, machine.offline, tasks).run(Some(CpuId(0)), from, END)
}

#[test]
fn under_home_no_cpu_sleeps_for_long_beside_a_task_that_waits() {
    let mut wrong = String::new();
    for (machine, load) in machines().iter().flat_map(|machine| loads().map(|load| (machine, load))) {
        let outcome = run(PolicyKind::Home, machine, &load, SETTLED);
        let (idle, bound) = (outcome.idle_beside_work, bound(machine, &load));
        println!("{:28}{:44}{:>6} µs of {:>6}", machine.name, load.name, idle / US, bound / US);
        if idle > bound {
            wrong += &format!("{}, {}: {idle} ns, at most {bound}: {outcome:?}\n", machine.name, load.name);
        }
        assert!(outcome.polls > 0, "{}, {}", machine.name, load.name);
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn tasks_on_one_cpu_start_all_others_one_kick_after_the_other() {
    for (machine, load) in machines().iter().flat_map(|machine| loads().map(|load| (machine, load))) {
        let outcome = run(PolicyKind::Home, machine, &load, 0);
        let ramp = machine.online().count() as u64 * 2 * WAKEUP_COST;
        let (idle, bound) = (outcome.idle_beside_work, bound(machine, &load) + ramp);
        println!("{:28}{:44}{:>6} µs of {:>6}", machine.name, load.name, idle / US, bound / US);
        assert!(idle <= bound, "{}, {}: {idle} ns, at most {bound}: {outcome:?}", machine.name, load.name);
    }
}

#[test]
fn an_evenly_loaded_machine_moves_few_tasks() {
    for machine in machines() {
        for (name, per_cpu, poll, sleep) in [
            ("timers", 2, (16 * US, 100 * US), (100 * US, 300 * US)),
            ("small timers", 4, (2 * US, 10 * US), (40 * US, 120 * US)),
            ("long polls", 2, (200 * US, MS), (MS, 3 * MS)),
        ] {
            let online: Vec<u32> = machine.online().collect();
            let tasks = (0..per_cpu * online.len())
                .map(|i| Task::new(poll, Then::Sleep(sleep.0, sleep.1)).at_home(online[i % online.len()]))
                .collect();
            let model = Model::new(&machine.topology, PolicyKind::Home, machine.offline, tasks);
            let outcome = model.run(None, 5 * MS, 40 * MS);
            let moved = outcome.moves as f64 / outcome.wakes as f64;
            println!("{:28}{name:14}{:>7} wakes, {:.3} % moved", machine.name, outcome.wakes, moved * 100.0);
            let most = if poll.1 == MS { MOVED_LONG_MAX } else { MOVED_MAX };
            assert!(moved <= most, "{}, {name}: {outcome:?}", machine.name);
        }
    }
}

/// Each CPU has a task that runs and a task that waits, and the tasks wake each other at random. No task gains by
/// moving.
#[test]
fn a_task_with_random_wakers_stays_on_its_cpu() {
    for machine in machines() {
        let online: Vec<u32> = machine.online().collect();
        let n = 8 * online.len();
        let task = |i: usize| {
            let task = Task::new((16 * US, 24 * US), Then::Message(n)).at_home(online[i / 2 % online.len()]);
            if i.is_multiple_of(2) { task } else { task.waiting() }
        };
        let tasks = (0..n).map(task).collect();
        let model = Model::new(&machine.topology, PolicyKind::Home, machine.offline, tasks);
        let outcome = model.run(None, 5 * MS, 40 * MS);
        let moved = outcome.moves as f64 / outcome.wakes as f64;
        println!("{:28}{:>7} wakes, {:.3} % moved", machine.name, outcome.wakes, moved * 100.0);
        assert!(moved <= MOVED_BY_MESSAGES_MAX, "{}: {outcome:?}", machine.name);
    }
}

#[test]
fn two_tasks_that_talk_meet_on_one_cpu_and_stay() {
    for machine in machines() {
        let pairs = machine.online().count() as u32;
        let tasks = (0..2 * pairs as usize).map(|i| Task::new((4 * US, 5 * US), Then::Pass(i ^ 1))).collect();
        let model = Model::new(&machine.topology, PolicyKind::Home, machine.offline, tasks);
        let outcome = model.run(Some(CpuId(0)), SETTLED, END);
        println!("{:28}{:?}", machine.name, outcome);
        assert!(outcome.moves as f64 <= MOVED_MAX * outcome.wakes as f64, "{}: {outcome:?}", machine.name);
    }
}

/// A CPU that sleeps until a given time searches then without a kick. Of two tasks on one CPU, the other CPU steals one
/// as soon as it may, although no task is woken any more.
#[test]
fn a_cpu_that_sleeps_until_a_time_searches_then_without_a_kick() {
    let topology = drawn(1, 1, 2, 1);
    let tasks = vec![Task::new((30 * US, 31 * US), Then::Yield), Task::new((30 * US, 31 * US), Then::Yield)];
    let outcome = Model::new(&topology, PolicyKind::Home, &[], tasks).run(Some(CpuId(0)), 0, 10 * MS);
    assert!(outcome.moves <= 1 && outcome.kicks <= 2, "{outcome:?}");
    assert!(outcome.polls > 600, "both run at once: {outcome:?}");
}

#[test]
fn a_lost_kick_costs_only_a_wait_while_a_cpu_works() {
    for machine in machines().into_iter().take(3) {
        let tasks = (0..2 * machine.cpus())
            .map(|_| Task::new((16 * US, 100 * US), Then::Sleep(100 * US, 300 * US)))
            .collect();
        let mut model = Model::new(&machine.topology, PolicyKind::Home, machine.offline, tasks);
        model.lose_one_kick_in = 4;
        let outcome = model.run(Some(CpuId(0)), 0, END);
        println!("{:28}{:?}", machine.name, outcome);
        assert!(outcome.idle_beside_work < 4 * MS, "{}: {outcome:?}", machine.name);
    }
}

/// A scheduler must not lose the last kick: [`StealDecision::Nothing`](warmcore_sched::StealDecision) has no time at
/// which to search again.
#[test]
fn a_lost_kick_loses_the_task_if_all_cpus_are_parked() {
    let tasks = vec![Task::new((16 * US, 17 * US), Then::Yield).at_home(1)];
    let mut model = Model::new(&drawn(1, 1, 2, 1), PolicyKind::Home, &[], tasks);
    model.lose_one_kick_in = 1;
    let outcome = model.run(None, 0, END);
    assert_eq!((outcome.polls, outcome.stranded), (0, 1), "{outcome:?}");
}
