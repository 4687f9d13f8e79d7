//! No CPU sleeps for long beside a task that waits, and tasks move no more than that takes.
//!
//! Model.   `common/model.rs`: imagined CPUs in imagined time.
//! Number.  Under Home a CPU stays idle beside one waiting task for at most the migration cost times (distance factor + 1), or the
//!          policy's patience, and a poll, since help is asked for after each, and four kicks. Farness is 1 within an LLC, 2 on a node, 4 across the machine.

mod common;

use common::drawn;
use common::model::{LONG, Model, Outcome, Task, Then, WAKEUP_COST};
use warmcore_sched::{Allowed, Home, Policy, PolicyKind};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, LlcId, Nanos};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// When things have settled.
const SETTLED: u64 = 10 * MS;
const END: u64 = 20 * MS;

/// Home lets a few light tasks wait for so long, whatever they carry.
const MIN_STEAL_DELAY: u64 = 200 * US;

/// Kicks between the time when somebody may be taken and when he is: of who asked first, and of who is next.
const KICKS: u64 = 4;

/// A machine evenly loaded moves at most this part of its wakes.
const MOVED_MAX: f64 = 0.01;

/// This part, if anybody wakes anybody, and the half of the tasks wait: some CPUs run dry now and then, and pull.
const MOVED_BY_MESSAGES_MAX: f64 = 0.03;

/// And this part, if polls take up to 1 ms: a migration cost is 400 µs at most, so who waits behind such a poll had better
/// move.
const MOVED_LONG_MAX: f64 = 0.08;

struct TestMachine {
    name: &'static str,
    topology: Topology,
    offline: &'static [u32],
    /// Of the two CPUs that are farthest from each other.
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
            name: "messages to anybody",
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

/// How long a CPU may stay idle beside the same waiting task.
fn bound(machine: &TestMachine, load: &Load) -> u64 {
    let migration_cost = Home.migration_cost(Nanos(load.poll_max)).0;
    // Help is asked for after each poll, and when one gets long; it is refused while nothing is due.
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
fn from_one_cpu_all_are_set_to_work_one_kick_after_the_other() {
    for (machine, load) in machines().iter().flat_map(|machine| loads().map(|load| (machine, load))) {
        let outcome = run(PolicyKind::Home, machine, &load, 0);
        let ramp = machine.online().count() as u64 * 2 * WAKEUP_COST;
        let (idle, bound) = (outcome.idle_beside_work, bound(machine, &load) + ramp);
        println!("{:28}{:44}{:>6} µs of {:>6}", machine.name, load.name, idle / US, bound / US);
        assert!(idle <= bound, "{}, {}: {idle} ns, at most {bound}: {outcome:?}", machine.name, load.name);
    }
}

#[test]
fn a_machine_evenly_loaded_moves_hardly_anybody() {
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

/// On each CPU as many as run and wait, and each wakes anybody: nobody is worth going to.
#[test]
fn who_is_woken_by_anybody_stays_at_home() {
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
fn a_pair_comes_together_and_stays() {
    for machine in machines() {
        let pairs = machine.online().count() as u32;
        let tasks = (0..2 * pairs as usize).map(|i| Task::new((4 * US, 5 * US), Then::Pass(i ^ 1))).collect();
        let model = Model::new(&machine.topology, PolicyKind::Home, machine.offline, tasks);
        let outcome = model.run(Some(CpuId(0)), SETTLED, END);
        println!("{:28}{:?}", machine.name, outcome);
        assert!(outcome.moves as f64 <= MOVED_MAX * outcome.wakes as f64, "{}: {outcome:?}", machine.name);
    }
}

/// A CPU that was told a time gets there by itself: two tasks on one CPU, one of which the other CPU takes when
/// it is due, though nobody ever kicks again.
#[test]
fn who_was_told_a_time_looks_then_without_a_kick() {
    let topology = drawn(1, 1, 2, 1);
    let tasks = vec![Task::new((30 * US, 31 * US), Then::Yield), Task::new((30 * US, 31 * US), Then::Yield)];
    let outcome = Model::new(&topology, PolicyKind::Home, &[], tasks).run(Some(CpuId(0)), 0, 10 * MS);
    assert!(outcome.moves <= 1 && outcome.kicks <= 2, "{outcome:?}");
    assert!(outcome.polls > 600, "both run at once: {outcome:?}");
}

#[test]
fn a_lost_kick_costs_a_wait_and_no_more_while_anybody_works() {
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

/// A host must not lose the last one: [`StealDecision::Nothing`](warmcore_sched::StealDecision) has no time at which to look again.
#[test]
fn if_all_sleep_a_lost_kick_loses_the_task() {
    let tasks = vec![Task::new((16 * US, 17 * US), Then::Yield).at_home(1)];
    let mut model = Model::new(&drawn(1, 1, 2, 1), PolicyKind::Home, &[], tasks);
    model.lose_one_kick_in = 1;
    let outcome = model.run(None, 0, END);
    assert_eq!((outcome.polls, outcome.stranded), (0, 1), "{outcome:?}");
}
