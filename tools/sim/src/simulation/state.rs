//! State: the CPUs and tasks of a simulation at this moment, whatever schedules them.
//!
//! A CPU has a step of a task, which takes time, and siblings that share its core's execution units. What only the
//! scheduler needs is in the fields `sched` of the state, a CPU and a task. A `Cpu` takes at most 512 bytes.

use super::scheduler::Scheduler;
use super::task::{NONE, Task};
use warmcore_sched::SchedDomains;
use warmcore_types::CpuId;

/// What a CPU is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CpuState {
    /// It is idle and parked.
    #[default]
    Idle,
    /// It is leaving its idle state after a wake, a kick or the end of its search timer, or it searches for work.
    Coming,
    /// It runs a task.
    Running,
}

/// Counts of one CPU since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct CpuCounts {
    /// Time in which it ran tasks, including the switches and ticks that delay them.
    pub busy_ns: u64,
    /// How often a task got the CPU, without the times when a task kept it.
    pub switches: u64,
    /// How often it got an interrupt from elsewhere: to leave its idle state, or to preempt for a wakee.
    pub ipis: u64,
    /// How often it left an idle state.
    pub idle_exits: u64,
    /// Timer ticks, which come only while it runs a task.
    pub ticks: u64,
    /// Tasks that it took from other CPUs' queues or from a shared queue.
    pub pulled: u64,
    /// Searches of other queues that it began right after it ran out of tasks, while the counts showed a surplus
    /// elsewhere.
    pub searches: u64,
    /// With fair order: of those, searches that found nothing and ended before every CPU was examined, although a CPU
    /// had more than one task. The usual reason is that the CPU's average idle time is shorter than the rest of the
    /// search.
    pub gated: u64,
    /// Time in which it searched.
    pub search_ns: u64,
}

/// A CPU. `C` is what the scheduler stores about it. The fields that a switch needs most come first.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Cpu<C> {
    pub(crate) state: CpuState,
    pub(crate) ticks: bool,
    /// It runs a task or searches, so it shares its core's execution units with its siblings.
    pub(crate) is_busy: bool,
    /// It searches: it waits for cache lines, whose transfer does not depend on its speed. The CPU's `AWAKE` event ends
    /// the search.
    pub(crate) is_searching: bool,
    pub(crate) current: u32,
    /// Generation of the pending step, wakeup or search event: events of other generations are stale.
    pub(crate) generation: u32,
    pub(crate) core: u32,
    pub(crate) shard: u32,
    pub(crate) kernel: CpuId,
    /// The speed of this thread, in thousandths of a core without a busy sibling.
    pub(crate) speed: u32,
    /// What remains of the current step at `since`, at full speed.
    pub(crate) remaining_ns: u64,
    pub(crate) since: u64,
    /// When the step ends. `event_at`: when the step's event is due, which is never later.
    pub(crate) ends_at: u64,
    pub(crate) event_at: u64,
    /// When the current task got the CPU.
    pub(crate) on_since: u64,
    /// When it last became busy or idle, or began or ended a search.
    pub(crate) state_since: u64,
    pub(crate) sched: C,
    pub(crate) counts: CpuCounts,
}

impl<C> Cpu<C> {
    /// Sets the CPU's state, and makes the CPU's pending event stale.
    #[inline]
    pub(crate) fn set_state(&mut self, state: CpuState) {
        self.state = state;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// The CPUs that share the execution units of a core.
#[derive(Debug, Default)]
pub(crate) struct Core {
    /// Range of its CPUs in `State::of_cores`.
    pub(crate) cpus: (u32, u32),
    /// Its CPUs that run a task or search.
    pub(crate) busy: u32,
    pub(crate) idle_since: u64,
}

/// CPUs and tasks at this moment.
#[derive(Debug)]
pub struct State<S: Scheduler> {
    pub(crate) machine: SchedDomains,
    pub(crate) now: u64,
    pub(crate) cpus: Vec<Cpu<S::Cpu>>,
    pub(crate) tasks: Vec<Task<S::Task>>,
    pub(crate) cores: Vec<Core>,
    /// The CPUs of all cores, core by core.
    pub(crate) of_cores: Vec<u32>,
    /// The scheduler, with what it stores about the whole machine.
    pub(crate) sched: S,
}

impl<S: Scheduler> State<S> {
    /// All CPUs are idle, and there are no tasks. `core_of`: the core of each CPU.
    pub(crate) fn new(machine: SchedDomains, core_of: &[u32], sched: S) -> Self {
        let cpu = |(i, core): (usize, &u32)| {
            let id = CpuId(i as u32);
            Cpu {
                current: NONE,
                core: *core,
                shard: machine.shard_of(id) as u32,
                kernel: machine.kernel_cpu(id),
                speed: 1000,
                ..Cpu::default()
            }
        };
        let cpus: Vec<Cpu<S::Cpu>> = core_of.iter().enumerate().map(cpu).collect();
        let mut of_cores: Vec<u32> = (0..core_of.len() as u32).collect();
        of_cores.sort_by_key(|cpu| (core_of[*cpu as usize], *cpu));
        let mut cores: Vec<Core> = Vec::new();
        cores.resize_with(core_of.iter().max().map_or(0, |core| *core as usize + 1), Core::default);
        let mut begin = 0;
        for all in of_cores.chunk_by(|a, b| core_of[*a as usize] == core_of[*b as usize]) {
            let core = &mut cores[core_of[all[0] as usize] as usize];
            core.cpus = (begin, begin + all.len() as u32);
            begin = core.cpus.1;
        }
        Self { machine, now: 0, cpus, tasks: Vec::new(), cores, of_cores, sched }
    }

    #[inline]
    pub(crate) fn cpu(&self, cpu: CpuId) -> &Cpu<S::Cpu> {
        &self.cpus[cpu.index()]
    }

    #[inline]
    pub(crate) fn task(&mut self, id: u32) -> &mut Task<S::Task> {
        &mut self.tasks[id as usize]
    }

    /// The CPUs of a core.
    #[inline]
    pub(crate) fn core(&self, core: u32) -> &[u32] {
        let (begin, end) = self.cores[core as usize].cpus;
        &self.of_cores[begin as usize..end as usize]
    }

    /// Bytes allocated for CPUs.
    pub(crate) fn cpu_bytes(&self) -> usize {
        self.cpus.capacity() * size_of::<Cpu<S::Cpu>>()
            + self.cores.capacity() * size_of::<Core>()
            + self.of_cores.capacity() * size_of::<u32>()
    }
}
