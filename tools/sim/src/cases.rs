//! Cases: ten cases of `warmcore bench` as programs, to predict their ratios from a probe of a machine.
//!
//! Each case has the tasks, messages, working sets and threads of the measured one: `wake` has the cases of
//! `bench wake`, `http` that of `bench http`. What a step of a task takes and what a call of a scheduler costs comes
//! from a [`ProbeFile`]. Nothing comes from a measurement of the cases themselves.
//!
//! [`CASES`] are the ten by which the model is judged. [`UNMEASURED`] had not been measured, or their published numbers had
//! not been read, when the model was made.
//!
//! A case is simulated on the scheduler core with Warmcore's policy and with tokio's rules (`SimPolicyKind::WorkSteal`), for a while of virtual time after a warm-up.
//! Random lengths differ by seed: each step of a task varies by up to 10 %, since a machine repeats no step exactly.
//!
//! # Not simulated
//!
//! Preemption of workers by other processes, interrupts, the frequency of the CPUs; the allocator; how instructions and
//! data of the runtime itself compete for the caches; the kernel's choice of a CPU for a thread (each worker has its
//! own). [`Outside`](crate::simulation::Outside) says how threads beside the workers are simulated.

use crate::error::Error;
use crate::policy::SimPolicyKind;
use crate::program::{Length, Program, TaskId};
use crate::simulation::{Report, Scheduler, Settings, Simulation};
use crate::trace::{Observer, SwitchReason};
use std::collections::BTreeMap;
use warmcore_sched::{PolicyKind, WakeSource};
use warmcore_types::{CpuId, Nanos};

mod http;
mod probe;
#[cfg(test)]
mod tests;
mod wake;

pub use probe::{ProbeFile, Probed, SCHEMA, StepCosts};

/// A runtime whose cases are simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Warmcore's runtime with its default policy.
    Warmcore,
    /// Tokio's multi-threaded runtime with default settings.
    Tokio,
}

/// What is read off a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// How often per second tasks pass the mark of this name.
    Rate(&'static str),
    /// The 99th percentile of the time from a wake of the task of this name to its run, in ns.
    DelayP99(&'static str),
}

/// What a simulation of a case counts after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    /// The metric of the case: per second, or ns.
    pub metric: f64,
    /// The part of the polls that were on another CPU than their task's last one.
    pub moved: f64,
    /// The run time of the slowest of several equal tasks ÷ their mean; 1 if the case has no such tasks.
    pub slowest: f64,
}

/// A case of `warmcore bench`.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name there.
    pub name: &'static str,
    /// The name of its metric there.
    pub metric: &'static str,
    measures: Metric,
    programs: fn(&StepCosts) -> Vec<Program>,
    /// The virtual time that is measured.
    measure: Nanos,
}

/// The cases, in the order of a report.
pub const CASES: [Case; 10] = [
    Case::new("pingpong.channel.1", "round trips", |steps| wake::pingpong(steps, 1)),
    Case::new("pingpong.channel.16", "round trips", |steps| wake::pingpong(steps, 16)),
    Case::new("messaging.1", "messages", |steps| wake::messaging(steps, 1)),
    Case::new("messaging.4", "messages", |steps| wake::messaging(steps, 4)),
    Case::new("warm.yield.chase.4x256K", "touches", |_| wake::warm_yield(4, 256)),
    Case::new("warm.message.chase.4x256K", "touches", |steps| wake::warm_message(steps, 4, 256)),
    Case::noisy("noisy.20us", |steps| wake::noisy(steps, 20_000)),
    Case::new("spawn.task", "spawned and joined", |steps| wake::spawn(steps, false)),
    Case::new("spawn.outside", "spawned and joined", |steps| wake::spawn(steps, true)),
    Case::new("hello.8", "requests", http::hello),
];

/// Other cases, with other parameters.
pub const UNMEASURED: [Case; 5] = [
    Case::new("pingpong.channel.4", "round trips", |steps| wake::pingpong(steps, 4)),
    Case::new("messaging.2", "messages", |steps| wake::messaging(steps, 2)),
    Case::new("warm.yield.chase.8x512K", "touches", |_| wake::warm_yield(8, 512)),
    Case::new("warm.message.chase.8x512K", "touches", |steps| wake::warm_message(steps, 8, 512)),
    Case::noisy("noisy.50us", |steps| wake::noisy(steps, 50_000)),
];

/// The mark of a case with a rate.
const DONE: &str = "done";

/// The virtual time before the measured one.
const WARM_UP: Nanos = Nanos(5_000_000);

/// The part of a step's length by which the step varies, in percent.
const JITTER: u32 = 10;

/// A step of this mean length.
fn about(ns: u64) -> Length {
    Length::Around(Nanos(ns), JITTER)
}

impl Case {
    const fn new(name: &'static str, metric: &'static str, programs: fn(&StepCosts) -> Vec<Program>) -> Self {
        Self { name, metric, measures: Metric::Rate(DONE), programs, measure: Nanos(30_000_000) }
    }

    /// A case whose metric is the delay of a task, which is woken once per ms.
    const fn noisy(name: &'static str, programs: fn(&StepCosts) -> Vec<Program>) -> Self {
        let measure = Nanos(2_000_000_000);
        Self { measures: Metric::DelayP99("quick"), measure, ..Self::new(name, "p99", programs) }
    }

    /// Simulates the case on a runtime and the probed machine. Returns its metric: per second, or ns.
    ///
    /// # Errors
    /// A probe of a machine that can't be simulated, or a deadlock of the case.
    pub fn simulate(&self, probe: &ProbeFile, side: Side, seed: u64) -> Result<f64, Error> {
        self.simulate_on(probe, side, seed, (1, probe.machine.cpus)).map(|simulated| simulated.metric)
    }

    /// As [`simulate`](Self::simulate), on a machine with so many last-level caches and so many CPUs below each.
    ///
    /// # Errors
    /// As there.
    pub fn simulate_on(
        &self,
        probe: &ProbeFile,
        side: Side,
        seed: u64,
        size: (u32, u32),
    ) -> Result<Simulated, Error> {
        let (topology, costs) = probe.machine(size)?;
        let (calls, outside) = (probe.calls(side), probe.outside(side));
        let settings = Settings { calls, outside, op_budget: Some(OP_BUDGET), ..Settings::runtime() };
        let policy = match side {
            Side::Warmcore => SimPolicyKind::Product(PolicyKind::default()),
            Side::Tokio => SimPolicyKind::WorkSteal,
        };
        let delays = Delays::default();
        let sim = Simulation::runtime_watched(&topology, &costs, settings, policy, seed, delays);
        // On more CPUs more happens in the same time; how long one task waits is another matter.
        let measure = match self.measures {
            Metric::Rate(_) => {
                Nanos(self.measure.0 * u64::from(probe.machine.cpus) / u64::from(size.0 * size.1))
            }
            Metric::DelayP99(_) => self.measure,
        };
        self.run(probe, side, sim, measure)
    }

    fn run<S: Scheduler>(
        &self,
        probe: &ProbeFile,
        side: Side,
        mut sim: Simulation<S, Delays>,
        measure: Nanos,
    ) -> Result<Simulated, Error> {
        for program in (self.programs)(&probe.steps(side)) {
            sim.spawn(&program)?;
        }
        let before = sim.run(WARM_UP)?;
        let after = sim.run(Nanos(WARM_UP.0 + measure.0))?;
        if let Some(waiting) = after.deadlock() {
            return Err(Error::new(
                self.name,
                format!("nothing happens any more: {waiting}"),
                "mend the case",
            ));
        }
        let metric = match self.measures {
            Metric::Rate(mark) => {
                (after.mark(mark) - before.mark(mark)) as f64 * 1e9 / (after.now.0 - before.now.0) as f64
            }
            Metric::DelayP99(task) => sim.into_observer().p99(task),
        };
        let (total, of_warm_up) = (after.total(), before.total());
        let switches = (total.switches - of_warm_up.switches) as f64;
        let moved = (total.moves() - of_warm_up.moves()) as f64 / switches.max(1.0);
        Ok(Simulated { metric, moved, slowest: slowest(&before, &after) })
    }
}

/// Of tasks whose names differ in their number alone: the least run time of one ÷ the mean, in the kind of tasks where that is
/// lowest. Without tasks that end.
fn slowest(before: &Report, after: &Report) -> f64 {
    let by_name = |report: &Report| {
        let mut names: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for task in &report.tasks {
            let (tasks, ran) = names.entry(task.name.clone()).or_default();
            (*tasks, *ran) = (*tasks + task.tasks, *ran + task.counts.run_ns);
        }
        names
    };
    let (early, late) = (by_name(before), by_name(after));
    let mut kinds: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (name, (tasks, ran)) in &late {
        let early = early.get(name).filter(|early| (early.0, *tasks) == (1, 1));
        let kind = kinds.entry(name.split(' ').next().unwrap_or_default()).or_default();
        kind.extend(early.map(|early| ran - early.1));
    }
    let several = kinds.into_values().filter(|ran| ran.len() > 1 && ran.iter().any(|ran| *ran > 0));
    let share = |ran: Vec<u64>| {
        let least = ran.iter().copied().fold(u64::MAX, u64::min);
        (least * ran.len() as u64) as f64 / ran.iter().sum::<u64>() as f64
    };
    several.map(share).fold(1.0, f64::min)
}

/// The operations of a poll after which tokio's channels make a task yield. Warmcore has the same budget for each poll
/// of a task that was made to yield.
const OP_BUDGET: u32 = 128;

/// Records the time from each wake of a task to its next run.
#[derive(Debug, Default)]
struct Delays {
    /// By task: its name, when it was woken and does not run yet, and its delays so far.
    tasks: Vec<(String, Option<u64>, Vec<u64>)>,
}

impl Delays {
    /// The 99th percentile of the delays of the task of this name.
    fn p99(self, name: &str) -> f64 {
        let named = self.tasks.into_iter().find(|task| task.0 == name);
        let mut delays = named.map(|task| task.2).unwrap_or_default();
        delays.sort_unstable();
        delays.get(delays.len() * 99 / 100).map_or(f64::NAN, |ns| *ns as f64)
    }
}

impl Observer for Delays {
    fn waking(&mut self, now: Nanos, _: WakeSource, wakee: TaskId) {
        self.tasks[wakee.0 as usize].1 = Some(now.0);
    }

    fn switch(&mut self, now: Nanos, _: CpuId, _: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        let Some(next) = next else { return };
        let task = &mut self.tasks[next.0 as usize];
        if let Some(woken) = task.1.take() {
            task.2.push(now.0 - woken);
        }
    }

    fn task_created(&mut self, _: Nanos, task: TaskId, name: &str) {
        let at = task.0 as usize;
        if at == self.tasks.len() {
            self.tasks.push((name.to_owned(), None, Vec::new()));
        } else {
            self.tasks[at] = (name.to_owned(), None, Vec::new());
        }
    }
}
