//! Equal tasks get equal shares of CPUs that are never idle, by a scripted clock.
//!
//! Each simulated CPU gives the tasks of its queue one poll after the other; each poll takes a given time, and longer
//! while the script gives the CPU to another process. As in the runtime, a CPU looks at a neighbour when it reads its
//! clock and 1 ms has passed since its last look. It takes as many tasks of the neighbour's backlog as [`Shares`]
//! returns, chosen at random.

mod common;

use common::{drawn, whole};
use std::collections::VecDeque;
use warmcore_sched::shares::{MOVES_SAVED, NEIGHBOURS, POLLS_PER_MOVE};
use warmcore_sched::{Pace, Policy, PolicyKind, SchedDomains, Shares};
use warmcore_types::CpuId;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// The time between two looks at a neighbour.
const LOOK: u64 = MS;

/// A CPU reads its clock after about as many polls as take this time, at random one more. With the same number each
/// time it could find the same one of three tasks queued at each look.
const MAINTENANCE: u64 = 200 * US;

/// How long a CPU is idle before it steals a task.
const MIN_STEAL_DELAY: u64 = 200 * US;

/// The highest allowed ratio of the largest number of polls of a task to the smallest.
const BAND: f64 = 1.25;

/// At most one poll in 100 follows a move.
const MOVED_MAX: f64 = 0.01;

/// xorshift64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % n
    }
}

/// The times at which a CPU runs another process: the first part of each period, between `from` and `to`.
#[derive(Clone, Copy)]
struct Stolen {
    cpu: usize,
    period: u64,
    part: u64,
    from: u64,
    to: u64,
}

struct Cpu {
    now: u64,
    queue: VecDeque<usize>,
    pace: Pace,
    shares: Shares,
    look_at: u64,
    /// Polls until the CPU reads the clock.
    left: u64,
    /// When the current poll, of the queue's first task, ends. `None`: no poll runs.
    ends_at: Option<u64>,
}

struct World {
    machine: SchedDomains,
    /// Whether a CPU that is never idle takes tasks from its neighbours.
    takes_shares: bool,
    cpus: Vec<Cpu>,
    polls: Vec<u64>,
    prev_cpu: Vec<Option<usize>>,
    poll: Vec<u64>,
    moved: u64,
    rng: Rng,
    stolen: Vec<Stolen>,
}

impl World {
    /// Without a policy only an idle CPU takes tasks from another. `on[i]` tasks begin on CPU i. A poll of task j takes
    /// `poll(j)` ns.
    fn new(policy: Option<PolicyKind>, on: &[usize], poll: impl Fn(usize) -> u64) -> Self {
        let machine = whole(&drawn(1, 1, on.len() as u32, 1));
        let mut first = 0;
        let cpus = on
            .iter()
            .map(|tasks| {
                let queue = (first..first + tasks).collect();
                first += tasks;
                let (pace, shares) = (Pace::default(), Shares::default());
                Cpu { now: 0, queue, pace, shares, look_at: LOOK, left: 1, ends_at: None }
            })
            .collect();
        let poll: Vec<u64> = (0..first).map(poll).collect();
        let (polls, prev_cpu) = (vec![0; first], vec![None; first]);
        let (moved, rng, stolen) = (0, Rng(0x9E37_79B9_7F4A_7C15), vec![]);
        let takes_shares = policy.is_some_and(|policy| policy.shares());
        Self { machine, takes_shares, cpus, polls, prev_cpu, poll, moved, rng, stolen }
    }

    /// The time at which the CPU has worked for `work` ns, if it begins at `from`.
    fn worked(&self, cpu: usize, from: u64, mut work: u64) -> u64 {
        let mut now = from;
        loop {
            let stolen = self.stolen.iter().find(|s| {
                s.cpu == cpu && (s.from..s.to).contains(&now) && (now - s.from) % s.period < s.part
            });
            if let Some(s) = stolen {
                now += s.part - (now - s.from) % s.period;
                continue;
            }
            let next =
                self.stolen.iter().filter(|s| s.cpu == cpu && now < s.to).map(|s| match now < s.from {
                    true => s.from,
                    false => s.from + (now - s.from).next_multiple_of(s.period),
                });
            let free = next.filter(|at| *at > now).min().map_or(u64::MAX, |at| at - now);
            if work <= free {
                return now + work;
            }
            work -= free;
            now += free;
        }
    }

    fn run(&mut self, until: u64) {
        while let Some(i) =
            (0..self.cpus.len()).min_by_key(|i| self.next_of(*i)).filter(|i| self.next_of(*i) < until)
        {
            self.cpus[i].now = self.next_of(i);
            if self.cpus[i].ends_at.take().is_some() {
                self.end_poll(i);
            } else if self.cpus[i].queue.is_empty() {
                self.idle(i);
            }
            self.begin_poll(i);
        }
    }

    fn next_of(&self, i: usize) -> u64 {
        let cpu = &self.cpus[i];
        cpu.ends_at.unwrap_or(if cpu.queue.is_empty() { cpu.now + MIN_STEAL_DELAY } else { cpu.now })
    }

    fn idle(&mut self, i: usize) {
        self.cpus[i].pace.parks += 1;
        let from = (0..self.cpus.len()).max_by_key(|j| self.cpus[*j].queue.len()).unwrap();
        self.take(i, from, 1);
    }

    fn begin_poll(&mut self, i: usize) {
        if let Some(task) = self.cpus[i].queue.front().copied() {
            self.cpus[i].ends_at = Some(self.worked(i, self.cpus[i].now, self.poll[task]));
        }
    }

    fn end_poll(&mut self, i: usize) {
        let task = self.cpus[i].queue.pop_front().expect("it polled one");
        self.polls[task] += 1;
        self.moved += u64::from(self.prev_cpu[task].replace(i).is_some_and(|prev_cpu| prev_cpu != i));
        self.cpus[i].queue.push_back(task);
        self.cpus[i].pace.polls += 1;
        self.cpus[i].left -= 1;
        if self.cpus[i].left > 0 {
            return;
        }
        self.cpus[i].left = (MAINTENANCE / self.poll[task]).max(1) + self.rng.below(2) as u64;
        if self.cpus[i].now >= self.cpus[i].look_at && self.takes_shares {
            self.cpus[i].look_at = self.cpus[i].now + LOOK;
            let near = (self.cpus.len() - 1).min(NEIGHBOURS);
            let which = self.rng.below(near);
            let me = CpuId(i as u32);
            let other = self.machine.others(me).nth(which).unwrap();
            let distance = self.machine.distance(me, other);
            let (here, there) = (self.pace(i), self.pace(other.index()));
            let come = self.cpus[i].shares.look(which, here, there, distance);
            let came = self.take(i, other.index(), come);
            self.cpus[i].shares.moved(came);
        }
    }

    fn pace(&self, i: usize) -> Pace {
        Pace { queued: self.cpus[i].queue.len() as u32, ..self.cpus[i].pace }
    }

    /// Moves up to `at_most` tasks. Returns how many of them had run before.
    fn take(&mut self, to: usize, from: usize, at_most: u32) -> u32 {
        // If a poll runs, it is of the queue's first task, which can't be taken.
        let runs = usize::from(self.cpus[from].ends_at.is_some());
        let mut had_run = 0;
        for _ in 0..at_most {
            let waiting = self.cpus[from].queue.len() - runs;
            if to == from || waiting == 0 {
                break;
            }
            let at = runs + self.rng.below(waiting);
            let task = self.cpus[from].queue.remove(at).unwrap();
            self.cpus[to].queue.push_back(task);
            had_run += u32::from(self.prev_cpu[task].is_some());
        }
        had_run
    }

    fn spread(&self) -> f64 {
        spread(&self.polls)
    }

    fn moved(&self) -> f64 {
        self.moved as f64 / self.polls.iter().sum::<u64>() as f64
    }
}

fn spread(shares: &[u64]) -> f64 {
    *shares.iter().max().unwrap() as f64 / *shares.iter().min().unwrap() as f64
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
                let mut world = World::new(Some(policy), &on, |_| poll);
                // With an odd number of tasks the surplus task goes from CPU to CPU, so the shares need ten times as
                // long to become equal. With short polls there are so many polls that less time is enough.
                let until = if tasks % 2 == 0 { 2 * S } else { 20 * S };
                world.run(until / (100 * US / poll).clamp(1, 5));
                let (spread, moved) = (world.spread(), world.moved());
                println!("{policy:14}{on:?} {:>4} µs: {spread:.3}, {:.3} % moved", poll / US, moved * 100.0);
                if spread > BAND || moved > MOVED_MAX {
                    wrong += &format!("{policy} {on:?} {} µs: {spread:.3}, {moved:.4} moved\n", poll / US);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Shows that the test above can fail.
#[test]
fn without_shares_tasks_stay_where_they_began() {
    let mut world = World::new(None, &[3, 1], |_| 60 * US);
    world.run(2 * S);
    assert!(world.spread() > 2.9 && world.moved == 0, "{:?}", world.polls);
}

#[test]
fn even_queues_on_even_cpus_move_nothing() {
    for (each, poll) in [1, 2, 5, 32].into_iter().flat_map(|each| POLLS.map(|poll| (each, poll))) {
        let mut world = World::new(Some(PolicyKind::Home), &[each; 4], |_| poll);
        world.run(2 * S);
        assert_eq!(world.moved, 0, "{each} tasks each, {poll} ns: {:?}", world.polls);
    }
}

#[test]
fn a_cpu_that_other_processes_use_slows_all_tasks_alike() {
    let mut wrong = String::new();
    for tasks in [3, 4, 8, 33, 64] {
        for poll in [20 * US, 500 * US] {
            for (name, part, to) in
                [("half", 3 * MS, u64::MAX), ("a quarter", MS, u64::MAX), ("half, at first", 3 * MS, S)]
            {
                let mut world = World::new(Some(PolicyKind::Home), &[tasks / 2, tasks - tasks / 2], |_| poll);
                let period = if name == "a quarter" { 4 * MS } else { 6 * MS };
                world.stolen.push(Stolen { cpu: 0, period, part, from: 0, to });
                world.run(4 * S);
                let (spread, moved) = (world.spread(), world.moved());
                println!(
                    "{tasks:>3} × {:>4} µs, {name}: {spread:.3}, {:.3} % moved",
                    poll / US,
                    moved * 100.0
                );
                let most = MOVED_MAX + 2.0 * MOVES_SAVED as f64 / world.polls.iter().sum::<u64>() as f64;
                if spread > BAND || moved > most {
                    wrong += &format!("{tasks} × {} µs, {name}: {spread:.3}, {moved:.4} moved\n", poll / US);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Whatever the script does, no CPU takes more than one task per `POLLS_PER_MOVE` polls that it does, plus
/// `MOVES_SAVED`, besides the tasks that it steals while it is idle.
#[test]
fn moves_are_few_whatever_happens() {
    for seed in 1..20 {
        let mut rng = Rng(0x1234_5678_9ABC_DEF1_u64.wrapping_mul(seed));
        let on: Vec<usize> = (0..2 + rng.below(5)).map(|_| 1 + rng.below(9)).collect();
        let lengths: Vec<u64> = (0..on.iter().sum()).map(|_| (2 + rng.below(498) as u64) * US).collect();
        let mut world = World::new(Some(PolicyKind::Home), &on, |task| lengths[task]);
        for cpu in 0..on.len() {
            let period = (1 + rng.below(40) as u64) * MS;
            let part = rng.below(period as usize * 3 / 4) as u64;
            world.stolen.push(Stolen { cpu, period, part, from: 0, to: u64::MAX });
        }
        world.run(S);
        let polls: u64 = world.polls.iter().sum();
        let parks: u64 = world.cpus.iter().map(|cpu| cpu.pace.parks).sum();
        let most = polls / POLLS_PER_MOVE + on.len() as u64 * (MOVES_SAVED + 1) + parks;
        assert!(world.moved <= most, "seed {seed}: {} moved of {polls}, {most} may", world.moved);
    }
}

/// How many tasks move in a number of looks at a neighbour that has one task, while this CPU has `tasks`. Between two
/// looks this CPU does `polls_here` polls and the neighbour `polls_there`.
fn moves_of_an_only_task(tasks: u32, polls_here: u64, polls_there: u64) -> u32 {
    let mut shares = Shares::default();
    let pace = |polls, queued| Pace { polls, parks: 0, queued };
    let look = |look: u64| {
        let (here, there) = (pace(look * polls_here, tasks), pace(look * polls_there, 1));
        shares.look(0, here, there, warmcore_sched::Distance::Llc)
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
