//! Task: one run of a program.
//!
//! A task has its position in the program, what it is blocked on, the CPU on which it last ran, and its history for
//! placement. It takes at most 512 bytes, which a test checks.
//!
//! A wait queue has the tasks that are blocked on a lock, a condition or a barrier: first in, first out, and linked
//! through the tasks. An unlocked lock goes to its first waiter.

use crate::memory::ExtentId;
use crate::program::{LOOPS_MAX, TIMERS};
use warmcore_sched::{Allowed, Distance};
use warmcore_types::CpuId;

/// No task, or no CPU.
pub(crate) const NONE: u32 = u32::MAX;

/// What a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TaskState {
    /// It has not begun.
    #[default]
    New,
    /// It is runnable, and waits for a CPU.
    Queued,
    /// It has a CPU.
    Running,
    /// It sleeps until a timer expires.
    Sleeping,
    /// It is blocked until another task wakes it.
    Blocked(BlockedOn),
    /// It has ended. If it was forked, its index may be used again.
    Dead,
}

/// What a task is blocked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockedOn {
    Wake,
    /// A socket or timer of its own is ready, and the driver has not woken it yet. Further wakes are for later waits.
    Driver,
    Children,
    WaitQueue(u32),
}

/// Counts of one task since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[repr(C)]
pub struct TaskCounts {
    /// Time on a CPU.
    pub run_ns: u64,
    /// Time in which it was runnable without a CPU.
    pub wait_ns: u64,
    /// The longest of these waits.
    pub wait_ns_max: u64,
    /// How often it got a CPU, without the times when it kept its CPU.
    pub switches: u64,
    /// How often it was woken.
    pub wakes: u64,
    /// How often a wake queued it on a CPU, by the distance of that CPU from the one on which it last ran
    /// ([`warmcore_sched::Distance`]).
    pub wakes_by_distance: [u64; 6],
    /// How often it began to run on another CPU than before, by distance. Index 0 is always 0.
    pub moves_by_distance: [u64; 6],
    /// How often it was preempted.
    pub preemptions: u64,
}

impl TaskCounts {
    /// How often it began to run on another CPU than before.
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

/// One run of a program. `T` is what the scheduler stores about it. The fields that a wake and a switch need come first.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Task<T> {
    pub(crate) state: TaskState,
    pub(crate) allowed: Allowed,
    pub(crate) prev_cpu: u32,
    pub(crate) process: u32,
    /// How far the CPU before `prev_cpu` is from it. `None`: it is the same.
    pub(crate) came_from: Option<Distance>,
    pub(crate) depth: u8,
    pub(crate) is_daemon: bool,
    pub(crate) is_forked: bool,
    /// It is a thread that is no worker.
    pub(crate) is_outside: bool,
    pub(crate) queued_at: u64,
    /// What remains of the step in which it was preempted, or the cost of its yield.
    pub(crate) remaining_ns: u64,
    /// When its step ends even if it was preempted meanwhile. `u64::MAX`: once all of it has run.
    pub(crate) run_until: u64,
    pub(crate) sched: T,
    pub(crate) code: u32,
    pub(crate) step: u32,

    /// The entity for which its random numbers are drawn. `draws`: how many were drawn.
    pub(crate) entity: u64,
    pub(crate) draws: u64,
    pub(crate) loops: [u32; LOOPS_MAX],

    pub(crate) counts: TaskCounts,

    /// Wakes outside of a `wait`, each of which a later `wait` uses up.
    pub(crate) permits: u32,
    /// The next task in the wait queue of a lock, condition or barrier.
    pub(crate) wait_next: u32,
    pub(crate) user: u32,
    pub(crate) parent: u32,
    pub(crate) children: u32,
    pub(crate) own: Option<ExtentId>,
    pub(crate) timers: [u64; TIMERS],
    pub(crate) forks: u64,
    /// Operations on channels since it got its CPU.
    pub(crate) ops: u32,
    /// 0: it has none.
    pub(crate) tenant: u64,
    /// The thread that runs it, if it is outside.
    pub(crate) thread: u32,
}

impl<T: Default> Task<T> {
    pub(crate) fn new(code: u32, entity: u64, allowed: Allowed) -> Self {
        Self {
            allowed,
            prev_cpu: NONE,
            process: NONE,
            code,
            entity,
            wait_next: NONE,
            user: NONE,
            parent: NONE,
            timers: [u64::MAX; TIMERS],
            run_until: u64::MAX,
            ..Self::default()
        }
    }
}

impl<T> Task<T> {
    pub(crate) fn prev_cpu(&self) -> Option<CpuId> {
        (self.prev_cpu != NONE).then_some(CpuId(self.prev_cpu))
    }

    /// Whether it may run on one CPU only.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.allowed, Allowed::Cpu(_))
    }
}

/// The tasks that are blocked on a lock, a condition or a barrier.
#[derive(Debug, Clone)]
pub(crate) struct WaitQueue {
    pub(crate) name: String,
    first: u32,
    last: u32,
    pub(crate) waiting: u32,
    /// The task that holds the lock.
    pub(crate) owner: u32,
}

impl WaitQueue {
    pub(crate) fn new(name: String) -> Self {
        Self { name, first: NONE, last: NONE, waiting: 0, owner: NONE }
    }

    pub(crate) fn push<T>(&mut self, tasks: &mut [Task<T>], id: u32) {
        tasks[id as usize].wait_next = NONE;
        if self.last == NONE {
            self.first = id
        } else {
            tasks[self.last as usize].wait_next = id
        }
        self.last = id;
        self.waiting += 1;
    }

    pub(crate) fn pop<T>(&mut self, tasks: &[Task<T>]) -> Option<u32> {
        let id = (self.first != NONE).then_some(self.first)?;
        self.first = tasks[id as usize].wait_next;
        if self.first == NONE {
            self.last = NONE;
        }
        self.waiting -= 1;
        Some(id)
    }
}
