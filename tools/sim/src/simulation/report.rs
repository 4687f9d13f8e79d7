//! Report: the results of a simulation so far.
//!
//! A report has counts per task and per CPU, marks and events. In a deadlock, it has what each blocked task waits for,
//! and which tasks could end the wait. Forked tasks that have ended are summed by their program's name. The hash
//! depends on every event, in order and time.

use super::Simulation;
use super::scheduler::Scheduler;
use super::state::CpuCounts;
use super::task::{BlockedOn, NONE, TaskCounts, TaskState};
use crate::memory;
use crate::program::Op;
use crate::trace::Observer;
use serde::Serialize;
use std::fmt;
use warmcore_types::Nanos;

/// What a task waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// To be woken.
    Wake,
    /// For its children to end.
    Children,
    /// For this lock.
    Lock(String),
    /// For a signal of this condition.
    Signal(String),
    /// For other tasks to reach this barrier.
    Barrier(String),
}

/// A task that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Its name.
    pub task: String,
    /// What it waits for.
    pub for_what: WaitsFor,
    /// The tasks that could end the wait: the holder of the lock, the children, or tasks whose program has a step that
    /// ends it. At most eight.
    pub whom: Vec<String>,
    /// The location of the step at which it waits.
    pub place: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let task = &self.task;
        match &self.for_what {
            WaitsFor::Wake => write!(f, "`{task}` waits to be woken")?,
            WaitsFor::Children => write!(f, "`{task}` waits for its children to end")?,
            WaitsFor::Lock(name) => write!(f, "`{task}` waits for the lock `{name}`")?,
            WaitsFor::Signal(name) => write!(f, "`{task}` waits for a signal of `{name}`")?,
            WaitsFor::Barrier(name) => write!(f, "`{task}` waits at the barrier `{name}`")?,
        }
        let whom = self.whom.iter().map(|whom| format!("`{whom}`")).collect::<Vec<_>>().join(" or ");
        match &self.for_what {
            _ if whom.is_empty() => write!(f, ", and no task is left that could end that")?,
            WaitsFor::Lock(_) if self.whom == [task.as_str()] => write!(f, ", which it holds itself")?,
            WaitsFor::Lock(_) => write!(f, ", which {whom} holds")?,
            _ => write!(f, ", which {whom} could end")?,
        }
        write!(f, " ({})", self.place)
    }
}

/// How a simulation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All tasks that are not daemons have ended.
    Ended,
    /// The time given to `run` is over.
    TimeIsUp,
    /// No event is left, and these tasks wait.
    Deadlock(Vec<Waiting>),
}

/// The results of a task, or of all forked tasks of one name that have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskReport {
    /// The name of its program.
    pub name: String,
    /// How many tasks these are: 1, or the number of forked tasks that have ended.
    pub tasks: u64,
    /// The counts, summed over these tasks.
    #[serde(flatten)]
    pub counts: TaskCounts,
}

/// The results of a simulation so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// How the run ended.
    pub outcome: Outcome,
    /// The virtual time.
    #[serde(rename = "now_ns", serialize_with = "number")]
    pub now: Nanos,
    /// The number of events, without stale ones.
    pub events: u64,
    /// The number of stale events: those that were no longer valid when they were due.
    pub stale: u64,
    /// A hash of all events, in order.
    pub hash: u64,
    /// How often each mark was passed.
    pub marks: Vec<(String, u64)>,
    /// By task, except for forked tasks that have ended; after these, one per name of such tasks.
    pub tasks: Vec<TaskReport>,
    /// By CPU, in the topology's order.
    pub cpus: Vec<CpuCounts>,
    /// What happened in the caches.
    pub memory: memory::Counts,
}

fn number<S: serde::Serializer>(time: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.0)
}

impl Report {
    /// Whether all tasks that are not daemons have ended.
    pub fn is_complete(&self) -> bool {
        self.outcome == Outcome::Ended
    }

    /// How often a mark was passed.
    pub fn mark(&self, name: &str) -> u64 {
        self.marks.iter().find(|(of, _)| of == name).map_or(0, |(_, count)| *count)
    }

    /// How often per second a mark was passed, in thousandths.
    pub fn milli_per_second(&self, name: &str) -> u64 {
        let count = u128::from(self.mark(name));
        (count * 1_000_000_000_000 / u128::from(self.now.0.max(1))) as u64
    }

    /// The sum over all tasks.
    pub fn total(&self) -> TaskCounts {
        let mut total = TaskCounts::default();
        self.tasks.iter().for_each(|task| total.add(&task.counts));
        total
    }

    /// The share of the CPUs' time in which they ran tasks, in thousandths.
    pub fn busy_per_mille(&self) -> u64 {
        let busy: u128 = self.cpus.iter().map(|cpu| u128::from(cpu.busy_ns)).sum();
        (busy * 1000 / (u128::from(self.now.0.max(1)) * self.cpus.len().max(1) as u128)) as u64
    }

    /// A line for each of the first twelve tasks that wait: what the task waits for; then, if more tasks wait, a line
    /// with their number. `None` if there is no deadlock.
    pub fn deadlock(&self) -> Option<String> {
        let Outcome::Deadlock(waiting) = &self.outcome else { return None };
        let mut lines: Vec<String> = waiting.iter().take(LINES_MAX).map(Waiting::to_string).collect();
        if waiting.len() > LINES_MAX {
            lines.push(format!("and {} more wait", waiting.len() - LINES_MAX));
        }
        Some(lines.join("\n"))
    }
}

/// The most waiting tasks that a text lists.
const LINES_MAX: usize = 12;

/// The most tasks listed that could end a wait.
const WHOM_MAX: usize = 8;

impl<S: Scheduler, O: Observer> Simulation<S, O> {
    /// The results so far.
    pub(super) fn report(&mut self) -> Report {
        let now = self.state.now;
        let outcome = match () {
            () if self.num_alive_tasks == 0 && self.has_end => Outcome::Ended,
            () if self.events.next_at().is_some() => Outcome::TimeIsUp,
            () => Outcome::Deadlock(self.waiting()),
        };
        let mut tasks: Vec<TaskReport> = Vec::new();
        for task in self.state.tasks.iter().filter(|task| !(task.is_forked && task.state == TaskState::Dead))
        {
            let mut counts = task.counts;
            match task.state {
                TaskState::Running if !task.is_outside => {
                    counts.run_ns += now - self.state.cpus[task.prev_cpu as usize].on_since
                }
                TaskState::Queued => {
                    let waited = now - task.queued_at;
                    counts.wait_ns += waited;
                    counts.wait_ns_max = counts.wait_ns_max.max(waited);
                }
                _ => {}
            }
            tasks.push(TaskReport { name: self.name_of(task.code), tasks: 1, counts });
        }
        let alive = tasks.len();
        for code in self.codes.iter().filter(|code| code.past_tasks > 0) {
            let known = tasks[alive..].iter().position(|past| past.name == code.program.name);
            let at = known.map_or(tasks.len(), |at| alive + at);
            if at == tasks.len() {
                tasks.push(TaskReport {
                    name: code.program.name.clone(),
                    tasks: 0,
                    counts: TaskCounts::default(),
                });
            }
            tasks[at].tasks += code.past_tasks;
            tasks[at].counts.add(&code.past);
        }
        let cpu = |cpu: &super::state::Cpu<S::Cpu>| CpuCounts {
            busy_ns: cpu.counts.busy_ns
                + if cpu.is_busy && !cpu.is_searching { now - cpu.state_since } else { 0 },
            search_ns: cpu.counts.search_ns + if cpu.is_searching { now - cpu.state_since } else { 0 },
            ..cpu.counts
        };
        Report {
            outcome,
            now: Nanos(now),
            events: self.handled,
            stale: self.stale,
            hash: self.hash,
            marks: self.marks.clone(),
            tasks,
            cpus: self.state.cpus.iter().map(cpu).collect(),
            memory: self.memory.counts(),
        }
    }

    fn name_of(&self, code: u32) -> String {
        self.codes[code as usize].program.name.clone()
    }

    fn waiting(&self) -> Vec<Waiting> {
        let tasks = &self.state.tasks;
        let alive = || (0..tasks.len() as u32).filter(|id| tasks[*id as usize].state != TaskState::Dead);
        let name = |id: u32| self.name_of(tasks[id as usize].code);
        let ops = |id: u32| self.ops(tasks[id as usize].code);
        let named = |would: &dyn Fn(u32) -> bool| -> Vec<String> {
            alive().filter(|id| would(*id)).take(WHOM_MAX).map(name).collect()
        };
        let mut all = Vec::new();
        for id in alive() {
            let TaskState::Blocked(what) = tasks[id as usize].state else { continue };
            let (for_what, whom) = match what {
                BlockedOn::Wake | BlockedOn::Driver => {
                    let wakes = |op: &Op| matches!(op, Op::Wake { task, .. } if task.0 == id);
                    (WaitsFor::Wake, named(&|other| ops(other).iter().any(wakes)))
                }
                BlockedOn::Children => {
                    (WaitsFor::Children, named(&|other| tasks[other as usize].parent == id))
                }
                BlockedOn::WaitQueue(wait_queue) => {
                    let at = &self.wait_queues[wait_queue as usize];
                    let tells = |op: &Op| match op {
                        Op::Signal(of) | Op::Broadcast(of) => *of == wait_queue,
                        Op::Barrier { name, .. } => *name == wait_queue,
                        _ => false,
                    };
                    let whom = match at.owner {
                        NONE => named(&|other| other != id && ops(other).iter().any(tells)),
                        owner => vec![name(owner)],
                    };
                    let name = at.name.clone();
                    // It waits at the step before `Task::step`.
                    let for_what =
                        match (tasks[id as usize].step as usize).checked_sub(1).map(|step| ops(id)[step]) {
                            Some(Op::Barrier { .. }) => WaitsFor::Barrier(name),
                            Some(Op::Lock(_)) => WaitsFor::Lock(name),
                            _ => WaitsFor::Signal(name),
                        };
                    (for_what, whom)
                }
            };
            let task = &tasks[id as usize];
            let place = self.codes[task.code as usize].program.at((task.step as usize).saturating_sub(1));
            all.push(Waiting { task: name(id), for_what, whom, place });
        }
        all
    }

    /// Bytes allocated for CPUs, for tasks, and for pending events, without the model of memory.
    pub fn bytes(&self) -> (usize, usize, usize) {
        let state = &self.state;
        let cpus = state.cpu_bytes() + S::bytes(state);
        let tasks = state.tasks.capacity() * size_of::<super::task::Task<S::Task>>();
        (cpus, tasks, self.events.bytes())
    }

    /// When the next event is due, for callers that run a simulation in parts.
    pub fn next_at(&mut self) -> Option<Nanos> {
        self.events.next_at()
    }
}
