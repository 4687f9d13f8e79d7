//! Workloads: what the tasks of a scenario do.
//!
//! A task's work is time on the guest's clock that is charged to its thread, not a number of instructions: in the guest all virtual
//! CPUs share one clock. Durations vary around their mean, drawn from the seed: tasks with equal durations would march in step, and
//! a scheduler would look better or worse than it is by chance.

mod clock;
mod hogs;
mod mailbox;
mod messages;
mod pairs;
mod pipeline;
mod places;
mod process;
mod sections;
mod storm;

use anyhow::{Context, ensure};
use process::Process;
use serde::{Deserialize, Serialize};
use std::process::Command;

pub use sections::SectionCounts;
pub use storm::{RUN, run as run_for_us};

/// What the tasks do. Durations are in µs, and vary by half of themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Work {
    /// Pairs of a client and a server. The client runs, asks, waits for the answer, and sleeps.
    Pairs(pairs::Pairs),
    /// Items go through tasks in a row, each of which works on them.
    Pipeline(pipeline::Pipeline),
    /// Programs are started as `make -j` does: fork, exec, a short run, exit.
    Storm(storm::Storm),
    /// Tasks that never sleep, and a task that mostly does.
    Hogs(hogs::Hogs),
    /// Tasks that sleep and run, each of which may use one CPU only.
    Pinned(places::Pinned),
    /// Tasks whose allowed CPUs change while they run and sleep.
    Moved(places::Moved),
    /// CPUs go offline and come back while pairs work.
    Hotplug(places::Hotplug),
    /// Threads that hand messages to many workers and wait for all answers.
    Messages(messages::Messages),
    /// Threads that run a short section again and again, without longer time slices and with them.
    Sections(sections::Sections),
    /// A program of the guest, or of the machine on which the guest is made.
    Program {
        /// The program and its arguments.
        command: Vec<String>,
        /// The package that has the program, for the error if the machine lacks it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        package: String,
        /// Files that the program reads, from the guest's root.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        files: Vec<String>,
        /// End it after so long. 0: it ends by itself.
        #[serde(default)]
        end_ms: u64,
    },
}

/// What a workload says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// How many rounds, items, programs or messages were done.
    pub done: u64,
    /// How many should have been.
    pub of: u64,
    /// The CPU time that each hog got, in µs, by what its weight entitles it to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares_us: Vec<u64>,
    /// Wake-up delays that the tasks saw themselves, in µs: the median and the 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<(u64, u64)>,
    /// What happened to sections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sections: Option<SectionCounts>,
}

impl Work {
    /// Does it, and returns what was done. The calling process has no further threads.
    ///
    /// # Errors
    /// A task could not be started, or ended early.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        match self {
            Self::Pairs(pairs) => pairs.run(seed),
            Self::Pipeline(pipeline) => pipeline.run(seed),
            Self::Storm(storm) => storm.run(seed),
            Self::Hogs(hogs) => hogs.run(seed),
            Self::Pinned(pinned) => pinned.run(seed),
            Self::Moved(moved) => moved.run(seed),
            Self::Hotplug(hotplug) => hotplug.run(seed),
            Self::Messages(messages) => messages.run(seed),
            Self::Sections(sections) => sections.run(seed),
            Self::Program { command, end_ms, .. } => program(command, *end_ms),
        }
    }
}

/// Runs a program of the guest to its end.
fn program(command: &[String], end_ms: u64) -> anyhow::Result<Done> {
    let (name, args) = command.split_first().context("a program without a name")?;
    let mut child = Command::new(name).args(args).spawn().with_context(|| format!("can't start {name}"))?;
    if end_ms > 0 {
        std::thread::sleep(std::time::Duration::from_millis(end_ms));
        child.kill()?;
        child.wait()?;
    } else {
        let status = child.wait()?;
        ensure!(status.success(), "{name} ended with {status}");
    }
    Ok(Done { done: 1, of: 1, ..Done::default() })
}

/// Waits for all tasks; the sum of what they did.
fn join(tasks: Vec<Process>) -> anyhow::Result<u64> {
    tasks.into_iter().map(Process::join).sum()
}
