//! Replay: a part of a recorded program, on a runtime that is simulated.
//!
//! A [`Window`] has what each task did, poll by poll: how long it ran, and which tasks it woke meanwhile. So wakes of one task by
//! another are a closed loop, whose times are the simulation's. Wakes from outside (sockets, timers, threads without tasks) arrive
//! when they did in the recording. Where the task's poll before has not ended by then, they come as long after its end as they did in the
//! recording: what that poll waits for, such as a timer, it begins to wait for then. A window has neither CPUs nor workers: where a task runs is the simulated policy's decision.
//!
//! A recorded poll's length includes what its wakes cost on the recorded runtime, and a replay adds what they cost on the simulated
//! one. Who replays has to find the part of the length that is the task's own ([`TaskKind::own_per_mille`]).

use crate::costs::Costs;
use crate::error::Error;
use crate::policy::SimPolicyKind;
use crate::program::{Length, Program, TaskId};
use crate::simulation::{Observer, Settings, Simulation, SwitchReason};
use warmcore_sched::WakeSource;
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

#[cfg(test)]
mod tests;

/// A step of a recorded task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A poll begins, after a wake.
    Poll,
    /// The task runs for so long.
    Run(Nanos),
    /// It wakes a task: an index into [`Window::tasks`].
    Wake(u32),
    /// The poll ends, and the task has further ones.
    Wait,
    /// As `Wait`, and the next wake comes from outside.
    WaitUntil {
        /// When it came in the recording, since the window's beginning.
        at: Nanos,
        /// How long after the end of the poll that was: if `at` has passed, it comes so long after this end.
        after: Nanos,
    },
}

/// What a task did in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Tasks of one kind were spawned at one place.
    pub kind: u32,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// A part of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window {
    /// How long it is.
    pub length: Nanos,
    /// The tasks that were polled in it.
    pub tasks: Vec<Task>,
    /// Other wakes from outside, ascending, of tasks that were not polled before in the window, or were polled then: when, and of which
    /// task.
    pub arrivals: Vec<(Nanos, u32)>,
}

impl Window {
    /// From the window's beginning to the first poll that is counted: caches of the simulated scheduler have to fill first, and it
    /// has to learn what polls and moves cost.
    pub fn warm_up(&self) -> Nanos {
        Nanos(self.length.0 / 4)
    }

    /// When wakes came from outside, in no order.
    pub fn from_outside(&self) -> impl Iterator<Item = Nanos> {
        let step = |step: &Step| if let Step::WaitUntil { at, .. } = step { Some(*at) } else { None };
        let waits = self.tasks.iter().flat_map(move |task| task.steps.iter().filter_map(step));
        self.arrivals.iter().map(|(at, _)| *at).chain(waits)
    }
}

/// What is the same for all tasks of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskKind {
    /// How much longer a poll takes if the task's poll before was on another core.
    pub refill: Nanos,
    /// The part of a poll's length that is the task's own, in thousandths.
    pub own_per_mille: u64,
}

/// A runtime on a machine.
#[derive(Debug, Clone)]
pub struct Host {
    /// The machine: a worker for each CPU.
    pub topology: Topology,
    /// What its operations cost.
    pub costs: Costs,
    /// What the runtime's calls cost, and which worker waits for sockets.
    pub settings: Settings,
    /// Where tasks run.
    pub policy: SimPolicyKind,
    /// How many CPUs other threads use meanwhile, in thousandths: those of other processes, and the program's own that are no workers.
    pub others_per_mille: u64,
    /// Whether the workers find that other threads run on the CPUs of those that are parked.
    pub others_run: bool,
}

/// What was counted after the warm-up, in a replay or in the recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// For how long.
    pub elapsed_ns: u64,
    /// CPU time of all workers together.
    pub cpu_ns: u64,
    /// Polls.
    pub polls: u64,
    /// Polls after a poll of the same task.
    pub followed: u64,
    /// Of these, on the same core.
    pub same_core: u64,
    /// Times from a wake to the beginning of the poll, of tasks that were not woken in a poll of their own.
    pub delays_ns: Vec<u64>,
    /// Wakes from outside.
    pub arrivals: u64,
    /// By kind: polls, and time in them, in the warm-up too.
    pub by_kind: Vec<(u64, u64)>,
}

impl Counts {
    /// Adds the counts of another window.
    pub fn add(&mut self, more: &Self) {
        self.elapsed_ns += more.elapsed_ns;
        self.cpu_ns += more.cpu_ns;
        self.polls += more.polls;
        self.followed += more.followed;
        self.same_core += more.same_core;
        self.arrivals += more.arrivals;
        self.delays_ns.extend(&more.delays_ns);
        self.by_kind.resize(self.by_kind.len().max(more.by_kind.len()), (0, 0));
        for (sum, kind) in self.by_kind.iter_mut().zip(&more.by_kind) {
            *sum = (sum.0 + kind.0, sum.1 + kind.1);
        }
    }

    /// A quantile of the delays, in thousandths. 0 without any.
    pub fn delay(&self, per_mille: usize) -> u64 {
        let mut delays = self.delays_ns.clone();
        if delays.is_empty() {
            return 0;
        }
        let at = (delays.len() - 1) * per_mille / 1000;
        *delays.select_nth_unstable(at).1
    }
}

/// Replays a window. `load_per_mille`: arrivals come so much more often. `kinds` are those of [`Task::kind`].
///
/// # Errors
/// A window that is no program: it wakes a task that it does not have.
pub fn replay(
    window: &Window,
    kinds: &[TaskKind],
    host: &Host,
    load_per_mille: u64,
    seed: u64,
) -> Result<Counts, Error> {
    let at =
        |recorded: Nanos| Nanos((u128::from(recorded.0) * 1000 / u128::from(load_per_mille.max(1))) as u64);
    let [warm_up, end] = [at(window.warm_up()), at(window.length)];
    let watch = Watch {
        warm_up,
        core_of: host.topology.cpus.iter().map(|cpu| cpu.core.0).collect(),
        tasks: window.tasks.iter().map(|task| Watched::of(task.kind)).collect(),
        counts: Counts { by_kind: vec![(0, 0); kinds.len()], ..Counts::default() },
    };
    let Host { topology, costs, settings, policy, others_per_mille, others_run } = host;
    let mut sim = Simulation::runtime_watched(topology, costs, settings.clone(), *policy, seed, watch);
    sim.set_others_run(*others_run);
    for task in &window.tasks {
        sim.spawn_asleep(&program(task, kinds[task.kind as usize], at))?;
    }
    for other in others(*others_per_mille) {
        sim.spawn(&other)?;
    }
    sim.let_arrive(
        window.arrivals.iter().map(|(when, task)| (at(*when), TaskId(*task))).collect(),
        Nanos(end.0 + 1),
    );
    let mut cpu_ns = |until| -> Result<u64, Error> {
        let report = sim.run(until)?;
        let busy: u64 = report.cpus.iter().map(|cpu| cpu.busy_ns + cpu.search_ns).sum();
        Ok(busy.saturating_sub(sim.preempted_ns()))
    };
    let (before, after) = (cpu_ns(warm_up)?, cpu_ns(end)?);
    let mut counts = sim.into_observer().counts;
    counts.arrivals = window.from_outside().filter(|at| *at >= window.warm_up()).count() as u64;
    counts.elapsed_ns = end.0 - warm_up.0;
    counts.cpu_ns = after.saturating_sub(before);
    Ok(counts)
}

/// Threads that use so many CPUs: one that always runs for each whole CPU, and one that runs for about 100 µs now and then.
fn others(per_mille: u64) -> Vec<Program> {
    const RUNS: Nanos = Nanos(100_000);
    let about = |ns| Length::Around(Nanos(ns), 50);
    let always = Program::new("other").outside().forever(|p| p.run(about(RUNS.0)));
    let mut others = vec![always; (per_mille / 1000) as usize];
    let part = per_mille % 1000;
    if let Some(sleeps) = (RUNS.0 * (1000 - part)).checked_div(part) {
        others.push(Program::new("other").outside().forever(|p| p.run(about(RUNS.0)).sleep(about(sleeps))));
    }
    others
}

/// `at`: a time of the recording, or a length, in the replay.
fn program(task: &Task, kind: TaskKind, at: impl Fn(Nanos) -> Nanos) -> Program {
    let own = |ns: Nanos| ns.0 * kind.own_per_mille / 1000;
    let step = |program: Program, step: &Step| match *step {
        Step::Poll => program.begin_poll(kind.refill),
        Step::Run(ns) => program.run(own(ns)),
        Step::Wake(task) => program.wake(TaskId(task)),
        Step::Wait => program.end_poll(),
        Step::WaitUntil { at: when, after } => program.end_poll_until(at(when), at(after)),
    };
    task.steps.iter().fold(Program::new(format!("{} task", task.kind)), step)
}

#[derive(Debug, Clone, Copy)]
struct Watched {
    kind: u32,
    core: Option<u32>,
    woken: Option<Nanos>,
    began: Nanos,
}

impl Watched {
    fn of(kind: u32) -> Self {
        Self { kind, core: None, woken: None, began: Nanos(0) }
    }
}

/// Counts polls.
struct Watch {
    warm_up: Nanos,
    core_of: Vec<u32>,
    tasks: Vec<Watched>,
    counts: Counts,
}

impl Observer for Watch {
    fn waking(&mut self, now: Nanos, _: WakeSource, wakee: TaskId) {
        self.tasks[wakee.0 as usize].woken = Some(now);
    }

    fn switch(&mut self, now: Nanos, _: CpuId, prev: Option<(TaskId, SwitchReason)>, _: Option<TaskId>) {
        if let Some((task, _)) = prev {
            let Watched { kind, began, .. } = self.tasks[task.0 as usize];
            let (polls, ns) = &mut self.counts.by_kind[kind as usize];
            (*polls, *ns) = (*polls + 1, *ns + (now.0 - began.0));
        }
    }

    fn poll_began(&mut self, now: Nanos, cpu: CpuId, task: TaskId) {
        let core = self.core_of[cpu.index()];
        let task = &mut self.tasks[task.0 as usize];
        task.began = now;
        let (before, woken) = (task.core.replace(core), task.woken.take());
        if now < self.warm_up {
            return;
        }
        let counts = &mut self.counts;
        counts.polls += 1;
        counts.followed += u64::from(before.is_some());
        counts.same_core += u64::from(before == Some(core));
        counts.delays_ns.extend(woken.map(|woken| now.0 - woken.0));
    }
}
