//! Task: one run of a program.
//!
//! Model.   Where it is in its program, what it waits for, where it ran last, and what placement remembers of it.
//! Number.  At most 512 bytes, which a test holds.
//! Writers. The simulation.

use crate::memory::ExtentId;
use crate::policy::kernel::Flips;
use crate::program::{LOOPS_MAX, TIMERS};
use warmcore_sched::{Allowed, SleepHistory};
use warmcore_types::{CpuId, Nanos};

/// No task, no CPU.
pub(crate) const NONE: u32 = u32::MAX;

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TaskState {
    /// Not begun.
    #[default]
    New,
    /// Waits for a CPU.
    Queued,
    /// Has one.
    Running,
    /// Until a time.
    Sleeping,
    /// Until somebody wakes it.
    Blocked(BlockedOn),
    /// Its place may be another's.
    Dead,
}

/// What a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockedOn {
    Wake,
    Children,
    WaitQueue(u32),
}

/// What came of a task so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[repr(C)]
pub struct TaskCounts {
    /// On a CPU.
    pub run_ns: u64,
    /// Ready, and without a CPU.
    pub wait_ns: u64,
    /// The longest wait.
    pub wait_ns_max: u64,
    /// How often it got a CPU that another had, or nobody.
    pub switches: u64,
    /// How often it was woken.
    pub wakes: u64,
    /// How far from where it ran last it was put then, by [`warmcore_sched::Distance`].
    pub wakes_by_distance: [u64; 6],
    /// How often it began elsewhere than where it ran last, by distance; the first is 0.
    pub moves_by_distance: [u64; 6],
    /// How often it was interrupted for another.
    pub preemptions: u64,
}

impl TaskCounts {
    /// How often it began elsewhere than where it ran last.
    pub fn moves(&self) -> u64 {
        self.moves_by_distance.iter().sum()
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.run_ns += more.run_ns;
        self.wait_ns += more.wait_ns;
        self.wait_ns_max = self.wait_ns_max.max(more.wait_ns_max);
        self.switches += more.switches;
        self.wakes += more.wakes;
        self.preemptions += more.preemptions;
        for i in 0..6 {
            self.wakes_by_distance[i] += more.wakes_by_distance[i];
            self.moves_by_distance[i] += more.moves_by_distance[i];
        }
    }
}

/// One run of a program. What a wake and a switch need stands first, on five lines: where it is and waits; its clocks;
/// its program; its counts; whom it wakes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Task {
    pub(crate) state: TaskState,
    pub(crate) allowed: Allowed,
    /// Its neighbours in the lists that it is in: (before, behind).
    pub(crate) links: [(u32, u32); 2],
    pub(crate) prev_cpu: u32,
    /// On which CPU it waits, and in which shard's queue.
    pub(crate) queued_on: u32,
    pub(crate) inject_queue: u32,
    /// Which shared queue it enters once the CPU where it waits is awake.
    pub(crate) enters: u32,
    /// Where it was when it was woken the last time.
    pub(crate) was_on: u32,
    pub(crate) woken_from: u32,
    pub(crate) vruntime_cpu: u32,
    pub(crate) process: u32,
    /// In which of its CPU's lists it is.
    pub(crate) list: u8,
    pub(crate) depth: u8,
    pub(crate) is_daemon: bool,
    pub(crate) is_forked: bool,

    pub(crate) queued_at: u64,
    /// What it has run, as this CPU counts.
    pub(crate) vruntime: u64,
    /// What is left of the step that it was interrupted in.
    pub(crate) remaining_ns: u64,
    pub(crate) migration_cost: Nanos,
    pub(crate) sleeps: SleepHistory,
    pub(crate) accrued_cost: Nanos,
    pub(crate) code: u32,
    pub(crate) step: u32,

    /// When it last had a CPU.
    pub(crate) last_ran: u64,
    /// What it runs for at a time.
    pub(crate) average_run: u64,
    /// What it has run since it last woke.
    pub(crate) burst: u64,
    /// What its random numbers are drawn for, and how many were.
    pub(crate) entity: u64,
    pub(crate) draws: u64,
    pub(crate) loops: [u32; LOOPS_MAX],

    pub(crate) counts: TaskCounts,
    pub(crate) flips: Flips,

    /// Wakes that it has not waited for yet.
    pub(crate) permits: u32,
    /// Of the queue of a lock or condition.
    pub(crate) wait_next: u32,
    pub(crate) user: u32,
    pub(crate) parent: u32,
    pub(crate) children: u32,
    pub(crate) own: Option<ExtentId>,
    pub(crate) timers: [u64; TIMERS],
    pub(crate) forks: u64,
}

impl Task {
    pub(crate) fn new(code: u32, entity: u64, allowed: Allowed) -> Self {
        Self {
            state: TaskState::New,
            allowed,
            prev_cpu: NONE,
            links: [(NONE, NONE); 2],
            list: 0,
            queued_on: NONE,
            inject_queue: NONE,
            enters: NONE,
            last_ran: 0,
            was_on: NONE,
            flips: Flips::default(),
            queued_at: 0,
            vruntime: 0,
            vruntime_cpu: NONE,
            remaining_ns: 0,
            migration_cost: Nanos(0),
            sleeps: SleepHistory::default(),
            average_run: 0,
            burst: 0,
            accrued_cost: Nanos(0),
            woken_from: NONE,
            permits: 0,
            code,
            step: 0,
            loops: [0; LOOPS_MAX],
            depth: 0,
            is_daemon: false,
            wait_next: NONE,
            process: NONE,
            user: NONE,
            own: None,
            entity,
            draws: 0,
            timers: [u64::MAX; TIMERS],
            parent: NONE,
            children: 0,
            forks: 0,
            is_forked: false,
            counts: TaskCounts::default(),
        }
    }

    pub(crate) fn prev_cpu(&self) -> Option<CpuId> {
        (self.prev_cpu != NONE).then_some(CpuId(self.prev_cpu))
    }

    /// It may run on one CPU alone.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.allowed, Allowed::Cpu(_))
    }
}
