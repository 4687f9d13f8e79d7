//! Task: what the simulated kernel stores about a task.

use crate::policy::kernel::Flips;
use crate::simulation::task::NONE;
use warmcore_sched::SleepHistory;

/// What the kernel stores about a task: queues, clocks, history.
#[derive(Debug)]
pub struct KernelTask {
    /// The (previous, next) task in each of the lists that it is in: 0, its CPU's queue; 1, a shared queue.
    pub(super) links: [(u32, u32); 2],
    /// The CPU on which it is queued. `inject_queue`: the shared queue that it is in.
    pub(crate) queued_on: u32,
    pub(crate) inject_queue: u32,
    /// The shared queue that it enters once the CPU on which it is queued is awake.
    pub(crate) enters: u32,
    /// The CPU on which it last ran before its latest wake.
    pub(super) was_on: u32,
    pub(super) vruntime_cpu: u32,
    /// Its run time on the clock of `vruntime_cpu`.
    pub(super) vruntime: u64,
    pub(super) sleeps: SleepHistory,
    /// When it last lost a CPU.
    pub(super) last_ran: u64,
    pub(super) flips: Flips,
}

impl Default for KernelTask {
    fn default() -> Self {
        Self {
            links: Default::default(),
            queued_on: NONE,
            inject_queue: NONE,
            enters: NONE,
            was_on: NONE,
            vruntime_cpu: NONE,
            vruntime: 0,
            sleeps: SleepHistory::default(),
            last_ran: 0,
            flips: Flips::default(),
        }
    }
}
