//! State: what the simulated kernel stores about its CPUs and the whole machine.
//!
//! Counts that policies ask for often, such as idle CPUs and queued tasks per shard, are updated with each change. An
//! event thus examines all CPUs only if the policy does.

use super::queue::{List, RunQueue};
use super::task::KernelTask;
use crate::memory::{LineId, Memory};
use crate::policy::KernelPolicy;
use crate::policy::kernel::{AverageIdle, NewidleCost, Usage};
use crate::simulation::state::{CpuState, State};
use crate::simulation::task::{NONE, Task};
use std::cell::{Cell, RefCell};
use warmcore_sched::{Allowed, SchedDomains, ShardMask, StealDecision};
use warmcore_types::CpuId;

/// What the kernel stores about a CPU. The fields that a switch needs most come first.
#[derive(Debug)]
pub struct KernelCpu {
    /// It is idle, and a timer is set at which it will search for work.
    has_search_timer: bool,
    /// Whether its search or idle time began with running out of tasks. A kick clears this.
    pub(crate) is_newly_idle: bool,
    /// The task that runs on it will block right after the wake that is being decided.
    pub(super) sleeps_next: bool,
    /// Decisions to steal in a row that could not be carried out.
    pub(super) tries: u8,
    /// Up to this time the current task's run time is in its `vruntime`.
    pub(super) vruntime_at: u64,
    pub(super) min_vruntime: u64,
    pub(crate) average_idle: AverageIdle,

    pub(super) hot_until: u64,
    pub(super) queue: RunQueue,

    /// What the current search will result in. `None`: it does not search. `had`: the task that had the CPU before the
    /// search.
    pub(crate) found: Option<StealDecision>,
    pub(super) had: u32,
    /// The cost of that search, in ns by distance. A wake on this CPU ends the search after one of these parts.
    pub(crate) parts: [u32; 6],

    pub(super) imbalance_count: u32,
    /// About its searches, by distance. `failed`: those in vain in a row, and `balanced_at`: the time of the last one,
    /// both without searches right after running out of tasks. `newidle`: the highest cost; its index 0 is the
    /// examination of shared queues.
    pub(super) failed: [u8; 6],
    pub(super) newidle: [NewidleCost; 6],
    pub(super) balanced_at: [u64; 6],
}

impl Default for KernelCpu {
    fn default() -> Self {
        Self {
            has_search_timer: false,
            is_newly_idle: false,
            sleeps_next: false,
            tries: 0,
            vruntime_at: 0,
            min_vruntime: INITIAL_VRUNTIME,
            average_idle: AverageIdle::default(),
            hot_until: 0,
            queue: RunQueue::default(),
            found: None,
            had: NONE,
            parts: [0; 6],
            imbalance_count: 0,
            failed: [0; 6],
            newidle: Default::default(),
            balanced_at: [0; 6],
        }
    }
}

/// The initial `vruntime` of a CPU: high enough that subtracting a credit does not underflow.
const INITIAL_VRUNTIME: u64 = 1 << 40;

/// The part of a CPU's state that policies read of many CPUs in a row, in a list of its own: four CPUs on a cache line.
#[derive(Debug, Clone, Default)]
pub(super) struct CpuSummary {
    pub(super) state: CpuState,
    /// The sequence number of the last search that examined this CPU.
    pub(super) seen_by_search: Cell<u32>,
    /// Tasks queued here, and the one that runs.
    pub(super) runs: u32,
    /// Tasks queued here that may also run elsewhere.
    pub(super) stealable: u32,
}

/// CPUs that share a queue.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) idle: ShardMask,
    /// CPUs with more than one task, running or queued.
    pub(crate) overloaded: u32,
    /// Cores whose first CPU is in this shard and of which all CPUs are idle.
    pub(crate) idle_cores: u32,
    /// How much its CPUs ran lately.
    pub(crate) usage: Usage,
}

/// A simulated kernel: a run queue per CPU in fair order, ticks, time slices, preemption by wakees, and a policy that
/// places tasks.
pub struct KernelScheduler<P> {
    pub(crate) policy: P,
    /// By CPU.
    pub(super) summaries: Vec<CpuSummary>,
    pub(super) shards: Vec<Shard>,
    /// By core: its idle CPUs.
    idle_of_core: Vec<u32>,
    /// The shared queues, as many as the policy asks for and in its numbering. A task in one is also queued on a CPU.
    pub(crate) inject_queues: Vec<List<1>>,
    /// By shared queue: the cache line of its lock and list head.
    pub(super) queue_lines: Vec<LineId>,
    /// Idle CPUs.
    pub(super) idle: u32,
    /// CPUs that search, that leave an idle state, or that are idle with a search timer.
    pub(super) num_searching: u32,
    /// Queued tasks that are not pinned.
    pub(super) waiting: u32,
    /// CPUs that have more than one task. `num_injected`: tasks in shared queues.
    pub(super) overloaded: u32,
    pub(super) num_injected: u32,
    /// Calls of `View::is_idle` since this was last reset: the CPUs that a wake examined, each as often as it did.
    pub(super) cpus_examined: Cell<u32>,
    /// The CPU that searches. The next three fields are about that search: its sequence number, the CPUs examined so
    /// far by distance, and the shared queues that were examined.
    pub(super) searching_cpu: Cell<Option<u32>>,
    pub(super) search_seq: Cell<u32>,
    pub(super) examined_by_distance: [Cell<u32>; 6],
    pub(super) queues_examined: RefCell<Vec<u32>>,
    /// Facts about the wake that is being decided.
    pub(super) wakee_was_on: Option<CpuId>,
    pub(super) wakes_wide: bool,
}

impl<P: KernelPolicy> KernelScheduler<P> {
    pub(super) fn new(policy: P, machine: &SchedDomains, memory: &mut Memory) -> Self {
        let cpus = machine.cpus();
        let all = |shard| machine.cpus_of(shard).iter().fold(0, |all, cpu| all | machine.bit(*cpu));
        let shard = |shard| Shard { idle: all(shard), ..Shard::default() };
        let queues = policy.queues(machine);
        Self {
            policy,
            summaries: vec![CpuSummary::default(); cpus],
            shards: (0..machine.shards()).map(shard).collect(),
            idle_of_core: Vec::new(),
            inject_queues: vec![List::default(); queues],
            queue_lines: (0..queues).map(|_| memory.line()).collect(),
            idle: cpus as u32,
            num_searching: 0,
            waiting: 0,
            overloaded: 0,
            num_injected: 0,
            cpus_examined: Cell::new(0),
            searching_cpu: Cell::new(None),
            search_seq: Cell::new(0),
            examined_by_distance: Default::default(),
            queues_examined: RefCell::new(Vec::new()),
            wakee_was_on: None,
            wakes_wide: false,
        }
    }
}

impl<P: KernelPolicy> State<KernelScheduler<P>> {
    /// The kernel's part of a state in which all CPUs are idle.
    pub(super) fn start(&mut self) {
        for core in &self.cores {
            self.sched.idle_of_core.push(core.cpus.1 - core.cpus.0);
            if let Some(first) = self.of_cores.get(core.cpus.0 as usize).filter(|_| core.cpus.0 < core.cpus.1)
            {
                self.sched.shards[self.cpus[*first as usize].shard as usize].idle_cores += 1;
            }
        }
        let migration_cost = self.sched.policy.sysctl_migration_cost();
        self.cpus.iter_mut().for_each(|cpu| cpu.sched.average_idle = AverageIdle::new(migration_cost));
    }

    /// Bytes allocated for CPUs, besides those of the simulation.
    pub(super) fn kernel_bytes(&self) -> usize {
        self.sched.summaries.capacity() * size_of::<CpuSummary>()
            + self.sched.shards.capacity() * size_of::<Shard>()
            + self.sched.idle_of_core.capacity() * size_of::<u32>()
    }

    /// Begins a search by a CPU: the CPUs that it examines are counted until [`State::end_search`].
    pub(crate) fn begin_search(&self, cpu: u32) {
        self.sched.searching_cpu.set(Some(cpu));
        self.sched.search_seq.set(self.sched.search_seq.get().wrapping_add(1));
        self.sched.examined_by_distance.iter().for_each(|looked| looked.set(0));
        self.sched.queues_examined.borrow_mut().clear();
    }

    /// Ends the search. Returns how many CPUs it examined, by distance.
    pub(crate) fn end_search(&self) -> [u32; 6] {
        self.sched.searching_cpu.set(None);
        self.sched.examined_by_distance.each_ref().map(Cell::get)
    }

    /// Sets the task that has a CPU, or none. Returns the previous one.
    #[inline]
    pub(crate) fn set_current(&mut self, cpu: u32, id: u32) -> u32 {
        let before = std::mem::replace(&mut self.cpus[cpu as usize].current, id);
        match (before != NONE, id != NONE) {
            (false, true) => self.count_runs(cpu, 1),
            (true, false) => self.count_runs(cpu, u32::MAX),
            _ => {}
        }
        before
    }

    /// Adds a task to a CPU's count, or subtracts one if `by` is `u32::MAX`.
    #[inline]
    fn count_runs(&mut self, cpu: u32, by: u32) {
        let runs = &mut self.sched.summaries[cpu as usize].runs;
        let was_overloaded = *runs > 1;
        *runs = runs.wrapping_add(by);
        if was_overloaded != (*runs > 1) {
            let shard = &mut self.sched.shards[self.cpus[cpu as usize].shard as usize];
            shard.overloaded = shard.overloaded.wrapping_add(by);
            self.sched.overloaded = self.sched.overloaded.wrapping_add(by);
        }
    }

    /// Whether an idle CPU has any reason to search: a CPU that has more than one task (Linux `rd->overload`), or a task
    /// in a shared queue.
    #[inline]
    pub(crate) fn has_surplus(&self) -> bool {
        self.sched.overloaded > 0 || self.sched.num_injected > 0
    }

    /// Adds a task to the counts of tasks queued on a CPU, or subtracts it.
    fn count_waiting(&mut self, cpu: u32, id: u32, comes: bool) {
        let allowed = self.tasks[id as usize].allowed;
        let by = if comes { 1u32 } else { u32::MAX };
        self.count_runs(cpu, by);
        if matches!(allowed, Allowed::Cpu(_)) {
            return;
        }
        let summary = &mut self.sched.summaries[cpu as usize];
        summary.stealable = summary.stealable.wrapping_add(by);
        let at = &mut self.cpus[cpu as usize];
        at.sched.queue.stealable = at.sched.queue.stealable.wrapping_add(by);
        if allowed != Allowed::Anywhere {
            at.sched.queue.restricted = at.sched.queue.restricted.wrapping_add(by);
        }
        self.sched.waiting = self.sched.waiting.wrapping_add(by);
    }

    /// Queues a task on a CPU; also in the shared queue `enters` if there is one.
    pub(crate) fn enqueue(&mut self, cpu: u32, id: u32, enters: Option<usize>) {
        self.count_waiting(cpu, id, true);
        self.tasks[id as usize].sched.queued_on = cpu;
        self.cpus[cpu as usize].sched.queue.push(&mut self.tasks, id);
        if let Some(queue) = enters {
            self.enter(id, queue);
        }
    }

    /// Also puts a task that is queued on a CPU into a shared queue.
    pub(crate) fn enter(&mut self, id: u32, queue: usize) {
        self.sched.num_injected += 1;
        self.tasks[id as usize].sched.inject_queue = queue as u32;
        self.sched.inject_queues[queue].push(&mut self.tasks, id);
    }

    /// The first task queued on this CPU that enters a shared queue once the CPU is awake, and that queue. Clears the
    /// task's `enters`.
    pub(crate) fn enters_late(&mut self, cpu: u32) -> Option<(u32, usize)> {
        let all = self.cpus[cpu as usize].sched.queue.iter(&self.tasks);
        let mut all = all.map(|id| (id, self.tasks[id as usize].sched.enters));
        let (id, queue) = all.find(|(_, queue)| *queue != NONE)?;
        drop(all);
        self.tasks[id as usize].sched.enters = NONE;
        Some((id, queue as usize))
    }

    /// Removes a task from all queues. Returns the shared queue that it was in.
    pub(crate) fn unqueue(&mut self, id: u32) -> Option<usize> {
        let task = &mut self.tasks[id as usize];
        let cpu = std::mem::replace(&mut task.sched.queued_on, NONE);
        let queue = std::mem::replace(&mut task.sched.inject_queue, NONE);
        task.sched.enters = NONE;
        if queue != NONE {
            self.sched.num_injected -= 1;
            self.sched.inject_queues[queue as usize].remove(&mut self.tasks, id);
        }
        self.cpus[cpu as usize].sched.queue.remove(&mut self.tasks, id);
        self.count_waiting(cpu, id, false);
        (queue != NONE).then_some(queue as usize)
    }

    /// Removes the task that runs next on this CPU. Returns it, and the shared queue that it was also in.
    pub(crate) fn dequeue(&mut self, cpu: u32) -> Option<(u32, Option<usize>)> {
        let id = self.cpus[cpu as usize].sched.queue.first()?;
        Some((id, self.unqueue(id)))
    }

    /// Removes a task that may run on `me` from another CPU's queue. Returns it, and the shared queue that it was
    /// also in.
    pub(crate) fn steal(&mut self, me: CpuId, from: CpuId) -> Option<(u32, Option<usize>)> {
        let may = |task: &Task<KernelTask>| self.machine.allows(task.allowed, me);
        let id = self.cpus[from.index()].sched.queue.coldest(&self.tasks, may)?;
        Some((id, self.unqueue(id)))
    }

    /// Removes the first task of a shared queue if it may run on `me`. Returns it, and the CPU on which it was
    /// queued.
    pub(crate) fn pop_inject(&mut self, queue: usize, me: CpuId) -> Option<(u32, CpuId)> {
        let id = self.first_for(queue, me)?;
        let on = self.tasks[id as usize].sched.queued_on;
        self.unqueue(id);
        Some((id, CpuId(on)))
    }

    pub(super) fn first_for(&self, queue: usize, me: CpuId) -> Option<u32> {
        let first = self.sched.inject_queues[queue].first();
        first.filter(|id| self.machine.allows(self.tasks[*id as usize].allowed, me))
    }

    /// Converts a task's `vruntime` from the clock of its last CPU to that of `to`, and raises it to `credit` below
    /// that clock if it is less. A task that was on no CPU yet begins at that clock.
    pub(crate) fn migrate_vruntime(&mut self, id: u32, to: u32, credit: u64) {
        let (task, min) = (&mut self.tasks[id as usize], self.cpus[to as usize].sched.min_vruntime);
        match std::mem::replace(&mut task.sched.vruntime_cpu, to) {
            NONE => task.sched.vruntime = min,
            of if of != to => {
                task.sched.vruntime =
                    (task.sched.vruntime + min).saturating_sub(self.cpus[of as usize].sched.min_vruntime)
            }
            _ => {}
        }
        task.sched.vruntime = task.sched.vruntime.max(min.saturating_sub(credit));
    }

    /// Sets a CPU's state, updates the counts of running, idle and searching CPUs, and makes the CPU's pending event
    /// stale.
    pub(crate) fn set_cpu_state(&mut self, cpu: u32, state: CpuState, has_search_timer: bool) {
        let at = &mut self.cpus[cpu as usize];
        let (was_idle, is_idle) = (at.state == CpuState::Idle, state == CpuState::Idle);
        let was_searching = at.sched.has_search_timer || at.state == CpuState::Coming;
        let will_search = has_search_timer || state == CpuState::Coming;
        let (did_run, runs) = (at.state == CpuState::Running, state == CpuState::Running);
        if did_run != runs {
            self.sched.shards[at.shard as usize].usage.set_running(self.now, runs);
        }
        at.set_state(state);
        at.sched.has_search_timer = has_search_timer;
        self.sched.summaries[cpu as usize].state = state;
        if was_idle != is_idle {
            let by = if is_idle { 1u32 } else { u32::MAX };
            let shard = &mut self.sched.shards[at.shard as usize];
            shard.idle ^= self.machine.bit(CpuId(cpu));
            self.sched.idle = self.sched.idle.wrapping_add(by);
            let core = &self.cores[at.core as usize];
            let all = core.cpus.1 - core.cpus.0;
            let idle_of_core = &mut self.sched.idle_of_core[at.core as usize];
            let was_whole = *idle_of_core == all;
            *idle_of_core = idle_of_core.wrapping_add(by);
            if was_whole != (*idle_of_core == all) {
                let first = self.cpus[self.of_cores[core.cpus.0 as usize] as usize].shard;
                let whole = &mut self.sched.shards[first as usize].idle_cores;
                *whole = whole.wrapping_add(by);
            }
        }
        if was_searching != will_search {
            self.sched.num_searching =
                self.sched.num_searching.wrapping_add(if will_search { 1 } else { u32::MAX });
        }
    }
}
