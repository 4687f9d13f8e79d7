//! Replay: a part of a recorded program, on a runtime that is simulated.
//!
//! A [`Window`] has what each task did, poll by poll: how long it ran, and which tasks it woke meanwhile. So wakes of one task by
//! another are a closed loop, whose times are the simulation's. Wakes from outside (sockets, timers, threads without tasks) arrive
//! when they did in the recording. A window has neither CPUs nor workers: where a task runs is the simulated policy's decision.
//!
//! A recorded poll's length includes what its wakes cost on the recorded runtime, and a replay adds what they cost on the simulated
//! one. [`calibrate`] finds the part of the length that is the task's own.

use crate::costs::Costs;
use crate::error::Error;
use crate::policy::SimPolicyKind;
use crate::program::{Program, TaskId};
use crate::simulation::{Observer, Settings, Simulation, SwitchReason};
use warmcore_sched::WakeSource;
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

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
    /// Wakes from outside, ascending: when, and of which task.
    pub arrivals: Vec<(Nanos, u32)>,
}

impl Window {
    /// From the window's beginning to the first poll that is counted: caches of the simulated scheduler have to fill first, and it
    /// has to learn what polls and moves cost.
    pub fn warm_up(&self) -> Nanos {
        Nanos(self.length.0 / 4)
    }
}

/// What is the same for all tasks of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
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
    kinds: &[Kind],
    host: &Host,
    load_per_mille: u64,
    seed: u64,
) -> Result<Counts, Error> {
    let at = |recorded: Nanos| Nanos((u128::from(recorded.0) * 1000 / u128::from(load_per_mille.max(1))) as u64);
    let [warm_up, end] = [at(window.warm_up()), at(window.length)];
    let watch = Watch {
        warm_up,
        core_of: host.topology.cpus.iter().map(|cpu| cpu.core.0).collect(),
        tasks: window.tasks.iter().map(|task| Watched::of(task.kind)).collect(),
        counts: Counts { by_kind: vec![(0, 0); kinds.len()], ..Counts::default() },
    };
    let Host { topology, costs, settings, policy } = host;
    let mut sim = Simulation::runtime_watched(topology, costs, settings.clone(), *policy, seed, watch);
    for task in &window.tasks {
        sim.spawn_asleep(&program(task, kinds[task.kind as usize]))?;
    }
    sim.let_arrive(window.arrivals.iter().map(|(when, task)| (at(*when), TaskId(*task))).collect(), Nanos(end.0 + 1));
    let before = sim.run(warm_up)?;
    let after = sim.run(end)?;
    let cpu_ns = |report: &crate::simulation::Report| -> u64 {
        report.cpus.iter().map(|cpu| cpu.busy_ns + cpu.search_ns).sum()
    };
    let mut counts = sim.into_observer().counts;
    counts.elapsed_ns = end.0 - warm_up.0;
    counts.cpu_ns = cpu_ns(&after) - cpu_ns(&before);
    Ok(counts)
}

fn program(task: &Task, kind: Kind) -> Program {
    let own = |ns: Nanos| ns.0 * kind.own_per_mille / 1000;
    let step = |program: Program, step: &Step| match *step {
        Step::Poll => program.begin_poll(kind.refill),
        Step::Run(ns) => program.run(own(ns)),
        Step::Wake(task) => program.wake(TaskId(task)),
        Step::Wait => program.end_poll(),
    };
    task.steps.iter().fold(Program::new(format!("{} task", task.kind)), step)
}

/// The kinds with the part of their polls that is their own, so that polls of a replay under the recorded policy are as long as the
/// recorded ones, of which `recorded` has the number and the time by kind.
///
/// # Errors
/// As [`replay`].
pub fn calibrate(
    windows: &[Window],
    recorded: &[(u64, u64)],
    mut kinds: Vec<Kind>,
    host: &Host,
) -> Result<Vec<Kind>, Error> {
    /// A further round changes less than the seed does.
    const ROUNDS: u64 = 2;
    for round in 0..ROUNDS {
        let mut counts = Counts::default();
        for (window, seed) in windows.iter().zip(0..) {
            counts.add(&replay(window, &kinds, host, 1000, seed ^ round << 32)?);
        }
        let simulated = counts.by_kind.iter();
        for ((kind, (polls, ns)), (simulated, simulated_ns)) in kinds.iter_mut().zip(recorded).zip(simulated) {
            let (Some(length), Some(found)) = (ns.checked_div(*polls), simulated_ns.checked_div(*simulated)) else {
                continue;
            };
            // The task's own part of a poll is what is left of the recorded length without what the runtime added.
            let own = length * kind.own_per_mille / 1000;
            let left = length.saturating_sub(found.saturating_sub(own));
            kind.own_per_mille = (left * 1000).checked_div(length).unwrap_or(1000).clamp(OWN_MIN, 1000);
        }
    }
    Ok(kinds)
}

/// At least this part of a poll is the task's own, in thousandths.
const OWN_MIN: u64 = 50;

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
