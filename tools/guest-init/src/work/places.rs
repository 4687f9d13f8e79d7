//! Tasks whose allowed CPUs are few, change, or go offline.

use super::clock::Around;
use super::pairs::Pairs;
use super::process::Process;
use super::{Done, join};
use anyhow::Context;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Tasks that may use one CPU each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pinned {
    /// How many; task `i` has CPU `i % cpus`.
    pub tasks: usize,
    /// CPUs that they use.
    pub cpus: usize,
    /// How often each one runs.
    pub rounds: u64,
    /// How long it runs.
    pub run_us: u64,
    /// How long it sleeps then.
    pub sleep_us: u64,
}

impl Pinned {
    /// Until all have done their rounds.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        let Self { rounds, run_us, sleep_us, .. } = *self;
        let task = |task: usize| {
            let (cpu, mut around) = (task % self.cpus.max(1), Around::of(seed, task as u64));
            Process::spawn(&format!("pinned{task}"), move || {
                allow(&[cpu])?;
                for _ in 0..rounds {
                    around.run(run_us);
                    around.sleep(sleep_us);
                }
                Ok(rounds)
            })
        };
        let tasks = (0..self.tasks).map(task).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Done { done: join(tasks)?, of: self.tasks as u64 * rounds, ..Done::default() })
    }
}

/// Tasks whose allowed CPUs change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    /// How many.
    pub tasks: usize,
    /// CPUs of the machine.
    pub cpus: usize,
    /// How often the CPUs of each one change: in turn to one, to two, and to all.
    pub changes: u64,
    /// How long it runs after each change.
    pub run_us: u64,
    /// How long it sleeps then.
    pub sleep_us: u64,
}

impl Moved {
    /// Until all have done their changes.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        let Self { changes, run_us, sleep_us, cpus, .. } = *self;
        let task = |task: usize| {
            let mut around = Around::of(seed, task as u64);
            Process::spawn(&format!("moved{task}"), move || {
                let all: Vec<usize> = (0..cpus).collect();
                for change in 0..changes {
                    match change % 3 {
                        0 => allow(&[around.below(cpus)])?,
                        1 => allow(&[around.below(cpus), around.below(cpus)])?,
                        _ => allow(&all)?,
                    }
                    around.run(run_us);
                    around.sleep(sleep_us);
                }
                Ok(changes)
            })
        };
        let tasks = (0..self.tasks).map(task).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Done { done: join(tasks)?, of: self.tasks as u64 * changes, ..Done::default() })
    }
}

/// Lets this thread use these CPUs alone.
fn allow(cpus: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).with_context(|| format!("can't be bound to CPUs {cpus:?}"))
}

/// CPUs go offline and come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hotplug {
    /// Which CPUs: one after the other goes offline, and comes back.
    pub cpus: Vec<usize>,
    /// How long one is away, and how long it is there before the next goes, in ms.
    pub ms: u64,
    /// The pairs that work meanwhile.
    pub beside: Pairs,
}

impl Hotplug {
    /// Until all pairs have done their rounds.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        let (cpus, ms) = (self.cpus.clone(), self.ms);
        let switch = Process::spawn("hotplug", move || {
            for cpu in cpus {
                for state in ["0", "1"] {
                    std::thread::sleep(std::time::Duration::from_millis(ms));
                    let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
                    std::fs::write(&file, state).with_context(|| format!("can't write {state} to {file}"))?;
                }
            }
            Ok(0)
        })?;
        let done = self.beside.run(seed)?;
        switch.join()?;
        Ok(done)
    }
}
