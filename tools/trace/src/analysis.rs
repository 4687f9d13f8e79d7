//! Analysis: what a recording says, as plain data.
//!
//! A page, a text and an export draw from these types, which say nothing of how they look. Times are in nanoseconds since
//! the recording began, shares are two counts, costs are integers: the same recording gives the same bytes.

mod cost;

use crate::origin::{ByOrigin, Origin};
pub use cost::{Basis, Cost, Estimate, MoveCost, Probed, Total};
use serde::Serialize;

/// What a recording says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Analysis {
    /// What was recorded.
    pub program: Program,
    /// How much of the program the figures below are of.
    pub coverage: Coverage,
    /// The one sentence.
    pub sentence: Sentence,
    /// Recorded polls by where the task's previous poll was.
    pub from_previous: ByOrigin,
    /// Recorded polls by where the task's waker was.
    pub from_waker: ByOrigin,
    /// The CPUs on which polls or wakers were seen, ascending: the rows of [`Timeline::busy_ns`].
    pub cpus: Vec<CpuRow>,
    /// The waker's core → the poll's core.
    pub matrix: Matrix,
    /// The tasks by where they were spawned, those with the most time in polls first.
    pub places: Vec<SpawnPlace>,
    /// Wake-to-poll delays.
    pub delays: Delays,
    /// When the CPUs were busy, and with tasks from where.
    pub timeline: Timeline,
    /// The threads that polled.
    pub threads: Vec<ThreadRow>,
    /// What moves of tasks cost.
    pub cost: Cost,
}

/// What was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Program {
    /// The command line.
    pub command: String,
    /// The process's number.
    pub pid: u32,
    /// When the recording began, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Time from the recording's beginning to its last event.
    pub length_ns: u64,
    /// How the recording ended.
    pub ending: Ending,
}

/// How a recording ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The program ended it, and said why.
    Ended(String),
    /// The file ends between two blocks: the process was killed, or still runs.
    Open,
    /// The file ends within a block, of which so many bytes are there.
    Cut(u64),
    /// The file is damaged: what is wrong with it, and where. What was before that place is in the analysis.
    Damaged(String),
}

/// How much of the program the figures are of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Polls in the recording.
    pub polls: u64,
    /// Polls of tasks that were left out by sampling.
    pub skipped: u64,
    /// Records that were dropped because a ring was full; nearly all are polls.
    pub dropped: u64,
    /// Time of all threads together, each from its first event to its last.
    pub threads_ns: u64,
    /// The part of `threads_ns` during which no record was dropped.
    pub covered_ns: u64,
    /// CPU time of all threads together, each from the thread's beginning, which may be before the recording's, to the last
    /// time it was read. `None`: the process could not read it.
    pub cpu_ns: Option<u64>,
    /// How many CPUs of the machine were busy, with the work of all processes, in thousandths of a CPU. `None`: the recording does not
    /// say it.
    pub machine_busy_permille: Option<u64>,
    /// Time in recorded polls.
    pub polled_ns: u64,
    /// When sampling changed: one task of 2^shift was recorded from then on. Empty: each task was recorded.
    pub sampling: Vec<Sampling>,
    /// Polls whose CPU is known.
    pub with_cpu: u64,
    /// Polls whose waker's CPU is known.
    pub with_waker: u64,
    /// Polls whose wake-to-poll delay is known.
    pub with_delay: u64,
    /// Polls that are not linked to the task's poll before, since records are missing between the two.
    pub unlinked: u64,
    /// Polls of tasks whose spawn is not in the recording.
    pub without_place: u64,
    /// Polls during which the thread changed its CPU.
    pub changed_cpu: u64,
    /// Online CPUs.
    pub cpus: u32,
    /// CPUs of these whose last-level cache is known.
    pub cpus_with_llc: u32,
    /// CPUs of these whose NUMA node and socket are known.
    pub cpus_with_node: u32,
    /// Tasks whose state was given up because too many were alive; a poll of one that comes back is not linked.
    pub forgotten_tasks: u64,
}

impl Coverage {
    /// Polls of the program: recorded, left out and dropped.
    pub fn all_polls(&self) -> u64 {
        self.polls + self.skipped + self.dropped
    }

    /// The share of the threads' time during which no record was dropped, in thousandths, rounded down.
    pub fn covered_permille(&self) -> u64 {
        permille(self.covered_ns, self.threads_ns)
    }
}

/// `part` of `whole` in thousandths, rounded down. 0 of nothing is 0.
pub fn permille(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1000).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

/// A change of sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sampling {
    /// When.
    pub at_ns: u64,
    /// One task of 2^shift was recorded.
    pub shift: u32,
}

/// The one sentence: "x % of the polls that followed another poll of their task ran on another core than that one, y % on
/// another L3; that costs z CPUs ± …; n % of the time is covered". `Display` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sentence {
    /// Polls that followed another poll of their task, both on a known CPU: what `other_core` and `other_llc` are shares of.
    pub polls: u64,
    /// Polls of which it is not known whether they followed one, or where.
    pub unknown: u64,
    /// Of `polls`, those on another core than the poll before.
    pub other_core: u64,
    /// Of `polls`, those at another last-level cache than the poll before. `None`: the caches are not known.
    pub other_llc: Option<u64>,
    /// What that costs.
    pub cost: Total,
    /// The share of the time that is covered, in thousandths.
    pub covered_permille: u64,
    /// The share of the program's polls that were recorded, in thousandths.
    pub recorded_permille: u64,
    /// Whether the file could be read to its end: it is neither cut nor damaged.
    pub is_whole: bool,
}

/// A CPU on which a poll or a waker was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CpuRow {
    /// The CPU's number.
    pub cpu: u32,
    /// Its core, if the recording says where the CPU is; so the other three.
    pub core: Option<u32>,
    /// Its last-level cache.
    pub llc: Option<u32>,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Its socket.
    pub socket: Option<u32>,
    /// Polls that began there.
    pub polls: u64,
    /// Time in these polls.
    pub busy_ns: u64,
}

/// How often a waker on one core led to a poll on another, or the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// The cores, in the order of their last-level caches and nodes. A CPU whose core is not known is alone in one.
    pub cores: Vec<MatrixCore>,
    /// The cells with the most polls: `from` is the waker's core, `to` the poll's, as indices into `cores`.
    pub cells: Vec<MatrixCell>,
    /// Polls in cells that are left out, because there are very many cells.
    pub others: u64,
}

/// A core of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MatrixCore {
    /// Its CPUs that were seen.
    pub cpus: Vec<u32>,
    /// Its last-level cache, if known.
    pub llc: Option<u32>,
    /// Its NUMA node, if known.
    pub node: Option<u32>,
}

/// A cell of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MatrixCell {
    /// The waker's core.
    pub from: u32,
    /// The poll's core.
    pub to: u32,
    /// Polls.
    pub polls: u64,
}

/// The tasks that were spawned at one place in the source, with one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SpawnPlace {
    /// Where: file:line:column. `None`: the spawn of these tasks is not in the recording.
    pub location: Option<String>,
    /// The name of these tasks, if they have one. "…" stands for all further names of a place with very many.
    pub name: Option<String>,
    /// Tasks that were polled.
    pub tasks: u64,
    /// Their recorded polls.
    pub polls: u64,
    /// By where the task's previous poll was.
    pub from_previous: ByOrigin,
    /// By where the task's waker was.
    pub from_waker: ByOrigin,
    /// Time in these polls.
    pub polled_ns: u64,
    /// Wake-to-poll delays.
    pub delay: Quantiles,
    /// Durations of polls.
    pub duration: Quantiles,
    /// What a move costs, for each origin from which one of these tasks moved. The nearest is first.
    pub costs: Vec<MoveCost>,
    /// What the moves of these tasks cost together.
    pub cost: Total,
}

/// Quantiles of times, exact to three in a hundred; the largest is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Number of times; 0 if none is known, and then the rest is 0.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// A hundredth is longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Wake-to-poll delays: from the wake of a task to the start of its poll.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Delays {
    /// Of all tasks together.
    pub all: Quantiles,
    /// The histogram, ascending, without a gap from the first bucket that holds a poll to the last.
    pub buckets: Vec<DelayBucket>,
    /// Time in which the threads could run and the kernel gave them no CPU. `None`: the process could not read it.
    pub run_delay_ns: Option<u64>,
    /// How often a thread lost its CPU although it could run. `None` as above.
    pub involuntary_switches: Option<u64>,
    /// The longest delays, the longest first.
    pub longest: Vec<LongDelay>,
    /// Delays beside an idle worker. `None`: not known, because polls are missing in the recording.
    pub beside_idle: Option<BesideIdle>,
}

/// Of delays of at least 0.2 ms, the longest parts during which one worker polled nothing, if that is 0.2 ms or more too. A worker counts
/// although the task may not run there, and although it has been woken and waits for a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BesideIdle {
    /// The number of such delays, and the quantiles of these parts.
    pub times: Quantiles,
    /// Their histogram, as [`Delays::buckets`]. The kernel may explain a part if it kept the idle worker's thread waiting for a CPU
    /// for as long.
    pub buckets: Vec<DelayBucket>,
}

/// A bucket of delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DelayBucket {
    /// The shortest delay of the bucket.
    pub from_ns: u64,
    /// The shortest delay of the next bucket.
    pub to_ns: u64,
    /// Polls with such a delay.
    pub polls: u64,
    /// Those of them that the kernel may explain: in the interval of about a second in which the poll ran, the kernel kept
    /// its thread waiting for a CPU for at least `to_ns`. For the others, that wait is too short to explain the delay alone.
    pub maybe_kernel: u64,
}

/// A poll that came late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LongDelay {
    /// From the wake to the poll's start.
    pub delay_ns: u64,
    /// The poll's start.
    pub at_ns: u64,
    /// How long the poll took.
    pub duration_ns: u64,
    /// The task.
    pub task: u32,
    /// Where the task was spawned: an index into [`Analysis::places`].
    pub place: u32,
    /// The thread: an index into [`Analysis::threads`].
    pub thread: u16,
    /// The worker that the thread ran, if known.
    pub worker: Option<u32>,
    /// The poll's CPU, if known.
    pub cpu: Option<u32>,
    /// The waker's CPU, if known.
    pub waker_cpu: Option<u32>,
    /// Where the task came from.
    pub origin: Origin,
}

/// Time in polls, by CPU, time and origin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The length of a bin.
    pub bin_ns: u64,
    /// Number of bins, at most 600.
    pub bins: u32,
    /// `[cpu][bin]`: time in polls by where the task's previous poll was; CPUs as in [`Analysis::cpus`].
    pub busy_ns: Vec<Vec<ByOrigin>>,
    /// `[bin]`: time of all threads together in which records are missing.
    pub missing_ns: Vec<u64>,
}

/// A thread that polled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadRow {
    /// Its name.
    pub name: String,
    /// Its number in the system.
    pub tid: u32,
    /// The worker that it ran last, if known.
    pub worker: Option<u32>,
    /// Recorded polls.
    pub polls: u64,
    /// Records that were dropped.
    pub dropped: u64,
    /// Polls that were left out by sampling.
    pub skipped: u64,
    /// Time in recorded polls.
    pub polled_ns: u64,
    /// Recorded polls by where the task's previous poll was.
    pub from_previous: ByOrigin,
    /// How often a poll began on another CPU than the thread's poll before: the kernel moved the thread.
    pub cpu_changes: u64,
    /// What the kernel counted, interval by interval, at most 600; empty if the process could not read it. The first interval
    /// begins with the thread.
    pub kernel: Vec<KernelInterval>,
}

/// What the kernel counted for a thread from the interval before to `until_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KernelInterval {
    /// The end of the interval.
    pub until_ns: u64,
    /// Time on a CPU.
    pub cpu_ns: u64,
    /// Time in which the thread could run and had no CPU.
    pub run_delay_ns: u64,
    /// How often the thread lost its CPU although it could run.
    pub involuntary_switches: u64,
}
