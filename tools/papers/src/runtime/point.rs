//! A point: one load on one machine under the rules of one side, simulated, and the least that it could cost.
//!
//! The bound is computed, not simulated: no task waits, no task moves, and each task finds its data in its core's own cache. Its
//! CPU time of a round is the mean length of the steps, warm passes, and the cheapest polls and wakes of a side; its
//! 99th percentile is the mean length of the steps that follow each other. So no side can be below it by more than the lengths vary.

use super::loads::{self, DONE, Delay, LIGHT_PERCENT, Load, Round};
use std::collections::VecDeque;
use warmcore_sched::{PolicyKind, WakeSource};
use warmcore_sim::cases::{ProbeFile, Side as Probed};
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::{Access, Memory, Pages};
use warmcore_sim::policy::SimPolicyKind;
use warmcore_sim::program::{TaskAffinity, TaskId};
use warmcore_sim::random::{Purpose, Random, below, exponential};
use warmcore_sim::simulation::{
    ByIdle, CallCosts, Drivers, Observer, Outside, Report, Settings, Simulation, SwitchReason,
};
use warmcore_topo::{Distance, Topology};
use warmcore_types::{CpuId, Nanos};

/// The rules under which tasks are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Warmcore's runtime with its default policy, and a driver for the workers of each last-level cache.
    Warmcore,
    /// Tokio's rules: the waker's core, one injection queue, steals from any core, one driver.
    Tokio,
    /// A runtime per core: a task stays on its core.
    PerCore,
}

impl Side {
    /// All sides, in the order of a report.
    pub const ALL: [Self; 3] = [Self::Warmcore, Self::Tokio, Self::PerCore];

    /// Its name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warmcore => "Warmcore",
            Self::Tokio => "tokio's rules",
            Self::PerCore => "per core",
        }
    }

    fn policy(self) -> SimPolicyKind {
        match self {
            Self::Warmcore => SimPolicyKind::Product(PolicyKind::default()),
            Self::Tokio => SimPolicyKind::WorkSteal,
            Self::PerCore => SimPolicyKind::PrevCpu,
        }
    }

    fn drivers(self) -> Drivers {
        match self {
            Self::Warmcore => Drivers::Attendant,
            Self::Tokio => Drivers::FirstParked,
            Self::PerCore => Drivers::PerCore,
        }
    }

    /// What its calls cost. How long a parked worker takes to come back is the machine's matter.
    fn calls(self, probe: &ProbeFile) -> CallCosts {
        let side = if self == Self::Warmcore { Probed::Warmcore } else { Probed::Tokio };
        CallCosts { unpark_latency: ByIdle::default(), ..probe.calls(side) }
    }
}

/// A machine, and how loads run on it.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its CPUs, on each of which is a worker.
    pub topology: Topology,
    /// What its operations cost.
    pub costs: Costs,
    /// What calls of the runtimes cost. `None`: nothing.
    pub probe: Option<ProbeFile>,
    /// Whether tasks have data.
    pub has_data: bool,
    /// The virtual CPU time that is simulated of all CPUs together after the warm-up, in ns.
    pub cpu_ns: u64,
}

/// What a load did, or the least that it could.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Thousands of rounds per second.
    pub k_per_second: f64,
    /// The 99th percentile of [`Load::delay`], in ns.
    pub p99_ns: f64,
    /// The part of the polls after a move below one last-level cache, in percent.
    pub near: f64,
    /// The part after a move to another last-level cache.
    pub far: f64,
    /// CPU time per round, in ns.
    pub cpu_ns: f64,
}

/// The operations of a poll after which a task yields, as in tokio.
const OP_BUDGET: u32 = 128;

/// The least and the most virtual time that is measured, and the least before it, in ns.
const MEASURED: [u64; 2] = [10_000_000, 400_000_000];
const WARM_UP: u64 = 12_000_000;

impl Setup {
    /// What the CPUs can do, in ns of a core whose sibling is idle per ns.
    pub fn capacity(&self) -> f64 {
        let smt = self.costs.get("smt_speed_percent").map_or(100.0, |percent| percent.milli as f64 / 1000.0);
        let mut of_core = vec![0_u32; self.topology.cores.len()];
        self.topology.cpus.iter().for_each(|cpu| of_core[cpu.core.index()] += 1);
        // A thread beyond the first adds as much as the second does.
        let core = |threads: &u32| match threads {
            0 => 0.0,
            threads => 1.0 + f64::from(threads - 1) * (2.0 * smt / 100.0 - 1.0),
        };
        of_core.iter().map(core).sum()
    }

    /// A pass over data in the core's own cache, in ns.
    fn warm_pass_ns(&self, kib: u32) -> f64 {
        let (mut memory, cpu) = (Memory::new(&self.costs, &self.topology), self.topology.cpus[0].id);
        let data = memory.extent(u64::from(kib) * 1024, Pages::Touched, None);
        memory.touch(cpu, data, Access::Write, Nanos(0));
        memory.touch(cpu, data, Access::Write, Nanos(0)).0 as f64
    }

    /// The least CPU time of a round, and the least time of its longest way, in ns.
    fn least(&self, round: Round) -> (f64, f64) {
        let pass = if self.has_data { self.warm_pass_ns(round.kib) } else { 0.0 };
        let call = |side: &Side| {
            let calls = self.probe.as_ref().map(|probe| side.calls(probe)).unwrap_or_default();
            calls.poll + calls.wake
        };
        let call = Side::ALL.iter().map(call).min().unwrap_or(0);
        let of =
            |work: u64, passes: u64, polls: u64| work as f64 + passes as f64 * pass + (polls * call) as f64;
        (
            of(round.work_ns, round.passes, round.polls),
            of(round.path_ns, round.path_passes, round.path_passes.min(round.polls)),
        )
    }

    /// Arrivals per ns at which a load needs this part of the CPUs.
    pub(super) fn arrivals_per_ns(&self, load: Load, percent: u64) -> f64 {
        let (round, percent) = match load {
            Load::Noisy => (Load::light_round(), LIGHT_PERCENT),
            _ => (load.round(), percent),
        };
        let busy = self.least(round).0 * load.rounds_per_arrival() as f64;
        self.capacity() * percent as f64 / 100.0 / busy
    }

    /// The least that a load costs.
    pub fn bound(&self, load: Load, percent: u64) -> Point {
        let (busy, path) = self.least(load.round());
        let capacity = self.capacity();
        let (per_ns, path, cpu_ns) = match load {
            Load::Noisy => {
                let (light_busy, light_path) = self.least(Load::light_round());
                let light = self.arrivals_per_ns(load, percent) * light_busy;
                let hogs =
                    if percent == 100 { f64::INFINITY } else { loads::hogs(self.cpus(), percent) as f64 };
                let per_ns = hogs.min(capacity - light) / busy;
                (per_ns, light_path, busy + light / per_ns)
            }
            _ => (capacity * percent as f64 / 100.0 / busy, path, busy),
        };
        Point { k_per_second: per_ns * 1e6, p99_ns: path, near: 0.0, far: 0.0, cpu_ns }
    }

    fn cpus(&self) -> usize {
        self.topology.cpus.len()
    }

    /// Simulates a load.
    ///
    /// # Panics
    /// If the load can't run, which is an error in this crate.
    pub fn simulate(&self, load: Load, percent: u64, side: Side, seed: u64) -> Point {
        let cpus = self.cpus();
        let measured = (self.cpu_ns / cpus as u64).clamp(MEASURED[0], MEASURED[1]);
        let warm_up = WARM_UP + measured / 4;
        let end = warm_up + measured;
        let calls = self.probe.as_ref().map(|probe| side.calls(probe)).unwrap_or_default();
        let outside = Outside { drivers: side.drivers(), ..Outside::default() };
        let learns_moves = self.has_data;
        let op_budget = Some(OP_BUDGET);
        let settings = Settings { calls, outside, learns_moves, op_budget, ..Settings::runtime() };

        let members = load.members(cpus, percent, self.has_data);
        let clients: Vec<u32> =
            (0..).zip(&members).filter(|(_, member)| member.is_client).map(|(i, _)| i).collect();
        let is_closed = percent == 100 && !matches!(load, Load::Skewed | Load::Noisy);
        let arrivals = match is_closed {
            true => Vec::new(),
            false => self.arrivals(load, percent, &clients, end, seed),
        };
        let watch = Watch::of(load, members.len(), &arrivals, warm_up);
        let (topology, costs) = (&self.topology, &self.costs);
        let mut sim = Simulation::runtime_watched(topology, costs, settings, side.policy(), seed, watch);
        for member in members {
            let program = match side {
                Side::PerCore => member.program.on(cpu_of(topology, member.place)),
                _ => member.program,
            };
            sim.spawn(&program).unwrap_or_else(|e| panic!("{e}"));
        }
        if !is_closed {
            sim.let_requests_arrive(arrivals, Nanos(end + 1));
        }
        let [before, after] = [warm_up, end].map(|at| sim.run(Nanos(at)).unwrap_or_else(|e| panic!("{e}")));
        sim.into_observer().point(&before, &after)
    }

    /// When requests arrive at the clients, ascending.
    fn arrivals(
        &self,
        load: Load,
        percent: u64,
        clients: &[u32],
        end: u64,
        seed: u64,
    ) -> Vec<(Nanos, TaskId)> {
        let per_ns = self.arrivals_per_ns(load, percent);
        // At most half a CPU of one core whose sibling is idle, if all CPUs had as much as they can do.
        let shares = loads::shares(load, clients.len(), 0.5 / self.capacity());
        let random = Random::new(seed);
        // The clients in a random order, so that those with most requests are anywhere.
        let mut order = clients.to_vec();
        for at in (1..order.len()).rev() {
            let with = below(random.bits(ORDER, Purpose::Load, at as u64), at as u64 + 1);
            order.swap(at, with as usize);
        }
        let mut arrivals = Vec::new();
        for (client, share) in order.into_iter().zip(shares) {
            let mean = Nanos((1.0 / (per_ns * share)).round() as u64);
            let mut at = 0;
            for count in 0.. {
                at += exponential(random.bits(u64::from(client), Purpose::Load, count), mean).0.max(1);
                if at > end {
                    break;
                }
                arrivals.push((Nanos(at), TaskId(client)));
            }
        }
        arrivals.sort_unstable();
        arrivals
    }
}

/// The entity of the clients' order.
const ORDER: u64 = 1 << 40;

/// The CPU of a place: places are dealt out to the CPUs in turn.
fn cpu_of(topology: &Topology, place: usize) -> TaskAffinity {
    TaskAffinity::Cpu(topology.cpus[place % topology.cpus.len()].id)
}

/// Measures rounds and delays.
struct Watch {
    load: Load,
    warm_up: u64,
    /// By task: the requests that arrived and whose rounds are not over, and when its last round ended.
    arrived: Vec<VecDeque<u64>>,
    last: Vec<Option<u64>>,
    /// By task: when it was woken and is not polled yet, if that is timed.
    woken: Vec<Option<u64>>,
    is_timed: Vec<bool>,
    delays: Vec<u64>,
    polls: u64,
}

impl Watch {
    fn of(load: Load, tasks: usize, arrivals: &[(Nanos, TaskId)], warm_up: u64) -> Self {
        let mut arrived = vec![VecDeque::new(); tasks];
        arrivals.iter().for_each(|(at, task)| arrived[task.0 as usize].push_back(at.0));
        let (last, woken, is_timed) = (vec![None; tasks], vec![None; tasks], vec![false; tasks]);
        Self { load, warm_up, arrived, last, woken, is_timed, delays: Vec::new(), polls: 0 }
    }

    fn point(mut self, before: &Report, after: &Report) -> Point {
        self.delays.sort_unstable();
        let p99_ns = self.delays.get(self.delays.len() * 99 / 100).map_or(f64::NAN, |ns| *ns as f64);
        let since = |of: &dyn Fn(&Report) -> u64| (of(after) - of(before)) as f64;
        let rounds = since(&|report| report.mark(DONE));
        let busy = since(&|report| report.cpus.iter().map(|cpu| cpu.busy_ns + cpu.search_ns).sum());
        let moves = |at: &dyn Fn(usize) -> bool| {
            let of = |report: &Report| {
                let by_distance = report.total().moves_by_distance;
                by_distance.iter().enumerate().filter(|(i, _)| at(*i)).map(|(_, moves)| moves).sum()
            };
            since(&of) * 100.0 / self.polls.max(1) as f64
        };
        let llc = Distance::Llc as usize;
        Point {
            k_per_second: rounds * 1e6 / (after.now.0 - before.now.0) as f64,
            p99_ns,
            near: moves(&|distance| distance <= llc),
            far: moves(&|distance| distance > llc),
            cpu_ns: busy / rounds,
        }
    }
}

impl Observer for Watch {
    fn task_created(&mut self, _: Nanos, task: TaskId, name: &str) {
        self.is_timed[task.0 as usize] = self.load.delay() == Delay::Poll && name.starts_with("receiver");
    }

    fn waking(&mut self, now: Nanos, _: WakeSource, wakee: TaskId) {
        if self.is_timed[wakee.0 as usize] {
            self.woken[wakee.0 as usize] = Some(now.0);
        }
    }

    fn switch(&mut self, now: Nanos, _: CpuId, _: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        let Some(next) = next else { return };
        let woken = self.woken[next.0 as usize].take();
        if now.0 > self.warm_up {
            self.polls += 1;
            self.delays.extend(woken.map(|woken| now.0 - woken));
        }
    }

    fn marked(&mut self, now: Nanos, task: TaskId, mark: &str) {
        if self.load.delay() != Delay::Round || mark != self.load.timed_mark() {
            return;
        }
        let task = task.0 as usize;
        let began = self.arrived[task].pop_front().or(self.last[task]);
        self.last[task] = Some(now.0);
        let began = began.filter(|_| now.0 > self.warm_up);
        self.delays.extend(began.map(|began| now.0 - began));
    }
}
