//! Equal tasks get equal shares of CPUs that are never idle, on simulated workers.
//!
//! The tasks yield for ever. Some CPUs are also used by other processes: an outside thread takes the worker's time for a part
//! of each period. A busy worker compares itself with a neighbour once in 1 ms and takes as many of its tasks as
//! [`Shares`] computes.

#[path = "../../../crates/sched/tests/common/mod.rs"]
mod common;

use common::drawn;
use common::script::Random;
use warmcore_sched::shares::{MOVES_SAVED, POLLS_PER_MOVE};
use warmcore_sched::{Allowed, Distance, Pace, PolicyKind, Shares};
use warmcore_sim::costs::Costs;
use warmcore_sim::program::{Length, Program};
use warmcore_sim::simulation::{Settings, Simulation};
use warmcore_types::{CpuId, Nanos};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// The highest allowed ratio of the largest number of polls of a task to the smallest.
const BAND: f64 = 1.25;

/// At most one poll in 100 follows a move.
const MOVED_MAX: f64 = 0.01;

/// The time that another process takes from a CPU: `part` of each period, at most so often.
#[derive(Clone, Copy)]
struct Taken {
    period: u64,
    part: u64,
    times: u32,
}

/// What the tasks did.
#[derive(Debug)]
struct Outcome {
    /// By task.
    polls: Vec<u64>,
    moves: u64,
    /// Moves after the first 100 ms. At first tasks are pinned, and workers have not measured their polls.
    late_moves: u64,
    searches: u64,
}

impl Outcome {
    fn spread(&self) -> f64 {
        *self.polls.iter().max().unwrap() as f64 / *self.polls.iter().min().unwrap() as f64
    }

    fn all_polls(&self) -> u64 {
        self.polls.iter().sum()
    }

    fn moved(&self) -> f64 {
        self.moves as f64 / self.all_polls() as f64
    }
}

/// Runs workers until `until`; `on[i]` tasks begin on CPU i, and a poll of task j takes `poll(j)` ns. `taken[i]`: what
/// another process takes of CPU i.
fn run(
    policy: PolicyKind,
    on: &[usize],
    poll: impl Fn(usize) -> u64,
    taken: &[Taken],
    until: u64,
) -> Outcome {
    let task = |task: usize, cpu| {
        let mark = task.to_string();
        let pinned = Program::new("task").on(Allowed::Cpu(cpu)).run(poll(task));
        let free = pinned.allow(Allowed::Anywhere).yield_now();
        free.forever(|p| p.run(poll(task)).mark(&mark).yield_now())
    };
    run_tasks(policy, on, task, taken, until)
}

fn run_tasks(
    policy: PolicyKind,
    on: &[usize],
    program: impl Fn(usize, CpuId) -> Program,
    taken: &[Taken],
    until: u64,
) -> Outcome {
    let topology = drawn(1, 1, on.len() as u32, 1);
    let settings = Settings { hz: 0, ..Settings::runtime() };
    let mut sim = Simulation::runtime(&topology, &Costs::of(&topology), settings, policy, 1);
    for Taken { period, part, times } in taken {
        // Outside thread i interrupts CPU i, then the next one with its next step, and so on: after a round CPU i again. Its
        // pauses differ, or it would keep step with the workers' looks at their neighbours.
        let pause = Length::Around(Nanos(period - part), 20);
        let process = Program::new("process")
            .outside()
            .daemon()
            .repeat(*times, |p| (1..on.len()).fold(p.run(*part), |p, _| p.run(1)).sleep(pause));
        sim.spawn(&process).unwrap();
    }
    let cpus = on.iter().zip(0..).flat_map(|(tasks, cpu)| std::iter::repeat_n(CpuId(cpu), *tasks));
    cpus.enumerate().for_each(|(task, cpu)| _ = sim.spawn(&program(task, cpu)).unwrap());
    let early = sim.run(Nanos(100 * MS)).unwrap();
    let report = sim.run(Nanos(until)).unwrap();
    Outcome {
        polls: (0..on.iter().sum()).map(|task: usize| report.mark(&task.to_string())).collect(),
        moves: report.total().moves(),
        late_moves: report.total().moves() - early.total().moves(),
        searches: report.cpus.iter().map(|cpu| cpu.searches + cpu.idle_exits).sum(),
    }
}

/// Initial distributions of the tasks over two CPUs.
fn distributions(tasks: usize) -> Vec<[usize; 2]> {
    let most = tasks - 1;
    let mut all = vec![[most, 1], [tasks * 3 / 4, tasks - tasks * 3 / 4], [tasks / 2, tasks - tasks / 2]];
    all.retain(|[a, b]| *a > 0 && *b > 0);
    all.dedup();
    all
}

const POLLS: [u64; 3] = [2 * US, 60 * US, 500 * US];

#[test]
fn equal_tasks_get_equal_shares() {
    let mut wrong = String::new();
    for policy in [PolicyKind::Home, PolicyKind::SharedQueue] {
        for tasks in [2, 3, 4, 5, 16, 63, 64] {
            for (on, poll) in distributions(tasks).into_iter().flat_map(|on| POLLS.map(|poll| (on, poll))) {
                // With an odd number of tasks the surplus task goes from CPU to CPU, so the shares need longer to become
                // equal. With short polls there are so many polls that less time is enough.
                let (until, at_most) = if tasks % 2 == 0 { (2 * S, 4) } else { (20 * S, 40) };
                let done = run(policy, &on, |_| poll, &[], until / (200 * US / poll).clamp(1, at_most));
                let (spread, moved) = (done.spread(), done.moved());
                println!("{policy:14}{on:?} {:>4} µs: {spread:.3}, {:.3} % moved", poll / US, moved * 100.0);
                if spread > BAND || moved > MOVED_MAX {
                    wrong += &format!("{policy} {on:?} {} µs: {spread:.3}, {moved:.4} moved\n", poll / US);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Shows that the test above can fail: these tasks may not move.
#[test]
fn pinned_tasks_stay_where_they_began() {
    let pinned = |task: usize, cpu| {
        let body = |p: Program| p.run(60 * US).mark(&task.to_string()).yield_now();
        Program::new("task").on(Allowed::Cpu(cpu)).forever(body)
    };
    let done = run_tasks(PolicyKind::Home, &[3, 1], pinned, &[], 2 * S);
    assert!(done.spread() > 2.9 && done.moves == 0, "{done:?}");
}

#[test]
fn even_queues_on_even_cpus_move_nothing() {
    for (each, poll) in [1, 2, 5, 32].into_iter().flat_map(|each| POLLS.map(|poll| (each, poll))) {
        let done = run(PolicyKind::Home, &[each; 4], |_| poll, &[], 2 * S / (200 * US / poll).clamp(1, 5));
        assert_eq!(done.late_moves, 0, "{each} tasks each, {poll} ns: {:?}", done.polls);
    }
}

#[test]
fn a_cpu_that_other_processes_use_slows_all_tasks_alike() {
    let mut wrong = String::new();
    for tasks in [3, 4, 8, 33, 64] {
        for poll in [20 * US, 500 * US] {
            for (name, period, part, times) in [
                ("half", 6 * MS, 3 * MS, 100_000),
                ("a quarter", 4 * MS, MS, 100_000),
                ("half, at first", 6 * MS, 3 * MS, 167),
            ] {
                let on = [tasks / 2, tasks - tasks / 2];
                let done = run(PolicyKind::Home, &on, |_| poll, &[Taken { period, part, times }], 4 * S);
                let (spread, moved) = (done.spread(), done.moved());
                println!(
                    "{tasks:>3} × {:>4} µs, {name}: {spread:.3}, {:.3} % moved, {} polls",
                    poll / US,
                    moved * 100.0,
                    done.all_polls()
                );
                let most = MOVED_MAX + 2.0 * MOVES_SAVED as f64 / done.all_polls() as f64;
                if spread > BAND || moved > most {
                    wrong += &format!("{tasks} × {} µs, {name}: {spread:.3}, {moved:.4} moved\n", poll / US);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// No worker takes more than one task per `POLLS_PER_MOVE` polls that it does, plus `MOVES_SAVED`, besides the tasks that it
/// steals while it is idle.
#[test]
fn moves_are_few_whatever_happens() {
    for seed in 1..20 {
        let mut random = Random(seed);
        let on: Vec<usize> = (0..2 + random.below(5)).map(|_| 1 + random.below(9) as usize).collect();
        let lengths: Vec<u64> = (0..on.iter().sum()).map(|_| (2 + random.below(498)) * US).collect();
        let taken: Vec<Taken> = on
            .iter()
            .map(|_| {
                let period = (1 + random.below(40)) * MS;
                Taken { period, part: 1 + random.below(period * 3 / 4), times: 100_000 }
            })
            .collect();
        let done = run(PolicyKind::Home, &on, |task| lengths[task], &taken, S);
        let most = done.all_polls() / POLLS_PER_MOVE + on.len() as u64 * (MOVES_SAVED + 1) + done.searches;
        println!("seed {seed}: {} of {most} moved, {} polls", done.moves, done.all_polls());
        assert!(done.moves <= most, "seed {seed}: {} moved of {}, {most} may", done.moves, done.all_polls());
    }
}

/// How many tasks move in a number of looks at a neighbour that has one task, while this CPU has `tasks`. Between two
/// looks this CPU does `polls_here` polls and the neighbour `polls_there`.
fn moves_of_an_only_task(tasks: u32, polls_here: u64, polls_there: u64) -> u32 {
    let mut shares = Shares::default();
    let pace = |polls, queued| Pace { polls, parks: 0, queued };
    let look = |look: u64| {
        let (here, there) = (pace(look * polls_here, tasks), pace(look * polls_there, 1));
        shares.look(0, here, there, Distance::Llc)
    };
    (0..10_000).map(look).sum()
}

#[test]
fn the_only_task_of_a_cpu_stays_if_its_round_is_the_shorter_one() {
    assert_eq!(
        moves_of_an_only_task(1, 100, 90),
        0,
        "two tasks on two CPUs: together they would get 50 each"
    );
    assert_eq!(moves_of_an_only_task(1, 100, 51), 0);
    assert_eq!(moves_of_an_only_task(2, 100, 34), 0, "a third of 100");
    assert!(moves_of_an_only_task(1, 100, 40) > 0, "half of this CPU is more than all of that one");
    assert!(moves_of_an_only_task(1, 100, 0) > 0, "a CPU that does nothing");
}

/// How many tasks move in 2000 looks of two CPUs at each other, whose queues are as long as `queued` says at each look. Both CPUs
/// do 250 polls between two looks.
fn moves_between(queued: impl Fn(u64) -> [u32; 2]) -> u32 {
    let mut both = [Shares::default(), Shares::default()];
    let look = |look: u64| {
        let pace = queued(look).map(|queued| Pace { polls: 250 * look, parks: 0, queued });
        both[0].look(0, pace[0], pace[1], Distance::Llc) + both[1].look(0, pace[1], pace[0], Distance::Llc)
    };
    (0..2_000).map(look).sum()
}

#[test]
fn queues_that_are_long_and_short_in_turn_move_little_and_one_that_stays_long_moves() {
    let mut random = Random(1);
    let lengths: Vec<[u32; 2]> =
        (0..2_000).map(|_| [0; 2].map(|_: u32| 20 + random.below(21) as u32)).collect();
    let moved = moves_between(|look| lengths[look as usize]);
    assert!(moved < 100, "{moved} in 2000 looks");
    assert!(moves_between(|look| if look < 6 { [20, 40] } else { [30, 30] }) >= 8, "six looks that agree");
}

/// Four groups of 20 tasks that send to each of 20 others, on two workers, as in `warmcore bench wake messaging`.
#[test]
fn tasks_that_send_to_each_other_are_hardly_parted() {
    let message = Length::Around(Nanos(100), 50);
    let group = |group: usize| {
        let channel = |to| format!("to {group}.{to}");
        let receive = |i| Program::new("receiver").forever(|p| p.receive(&channel(i)).run(message));
        let send_all = |p: Program| (0..20).fold(p, |p, to| p.run(message).send(&channel(to), 64));
        (0..20).flat_map(|i| [receive(i), Program::new("sender").forever(send_all)]).collect::<Vec<_>>()
    };
    for seed in 1..=3 {
        let topology = drawn(1, 1, 2, 1);
        let settings = Settings { hz: 0, ..Settings::runtime() };
        let mut sim = Simulation::runtime(&topology, &Costs::of(&topology), settings, PolicyKind::Home, seed);
        (0..4).flat_map(group).for_each(|program| _ = sim.spawn(&program).unwrap());
        let early = sim.run(Nanos(100 * MS)).unwrap();
        let report = sim.run(Nanos(300 * MS)).unwrap();
        let wakes = report.total().wakes - early.total().wakes;
        let moves = report.total().moves() - early.total().moves();
        println!("{moves} moves, {wakes} wakes");
        assert!(moves * 50 < wakes, "seed {seed}: {moves} moves, {wakes} wakes");
    }
}
