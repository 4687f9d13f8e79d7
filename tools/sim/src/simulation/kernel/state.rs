//! State: what the simulated kernel stores, and what it shows of that to a scheduling policy through `View` and
//! `KernelView`.
//!
//! Counts that policies ask for often, such as idle CPUs and queued tasks per shard, are updated with each change. An
//! event thus examines all CPUs only if the policy does.

use super::queue::{List, RunQueue};
use crate::memory::{LineId, Memory};
use crate::policy::kernel::{AverageIdle, Flips, NewidleCost, Usage};
use crate::policy::{KernelView, SimPolicy};
use crate::simulation::settings::{Order, Settings};
use crate::simulation::state::{CpuState, State};
use crate::simulation::task::{NONE, Task};
use std::cell::{Cell, RefCell};
use warmcore_sched::{Allowed, Distance, SchedDomains, SleepHistory, StealDecision, StealOrder, View};
use warmcore_types::{CpuId, Nanos};

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
    pub(super) average_run: u64,
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
            average_run: 0,
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

/// What the kernel stores about a task: queues, clocks, history.
#[derive(Debug)]
pub struct KernelTask {
    /// The (previous, next) task in each of the lists that it is in: 0, a list of its CPU's queue; 1, a shared queue.
    pub(super) links: [(u32, u32); 2],
    /// The CPU on which it is queued. `inject_queue`: the shared queue that it is in.
    pub(crate) queued_on: u32,
    pub(crate) inject_queue: u32,
    /// The shared queue that it enters once the CPU on which it is queued is awake.
    pub(crate) enters: u32,
    /// The CPU on which it last ran before its latest wake.
    pub(super) was_on: u32,
    pub(super) woken_from: u32,
    pub(super) vruntime_cpu: u32,
    /// Which of its CPU's lists it is in.
    pub(super) list: u8,
    /// Its run time on the clock of `vruntime_cpu`.
    pub(super) vruntime: u64,
    pub(super) migration_cost: Nanos,
    pub(super) sleeps: SleepHistory,
    pub(super) accrued_cost: Nanos,
    /// When it last lost a CPU.
    pub(super) last_ran: u64,
    /// The average time that it runs from one block to the next.
    pub(super) average_run: u64,
    /// How long it ran since it last blocked.
    pub(super) burst: u64,
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
            woken_from: NONE,
            vruntime_cpu: NONE,
            list: 0,
            vruntime: 0,
            migration_cost: Nanos(0),
            sleeps: SleepHistory::default(),
            accrued_cost: Nanos(0),
            last_ran: 0,
            average_run: 0,
            burst: 0,
            flips: Flips::default(),
        }
    }
}

/// The initial `vruntime` of a CPU: high enough that subtracting a credit does not underflow.
const INITIAL_VRUNTIME: u64 = 1 << 40;

/// The part of a CPU's state that policies read of many CPUs in a row, in a list of its own: four CPUs on a cache line.
#[derive(Debug, Clone, Default)]
struct CpuSummary {
    state: CpuState,
    /// The sequence number of the last search that examined this CPU.
    seen_by_search: Cell<u32>,
    /// Tasks queued here, and the one that runs.
    runs: u32,
    /// Tasks queued here that may also run elsewhere.
    stealable: u32,
}

/// CPUs that share a queue.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) idle: u32,
    /// Stealable tasks queued on its CPUs, whether or not they are also in its shared queue.
    pub(crate) backlog: u32,
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
    pub(super) order: Order,
    long_run: Option<Nanos>,
    /// By CPU.
    summaries: Vec<CpuSummary>,
    pub(super) shards: Vec<Shard>,
    /// By core: its idle CPUs.
    idle_of_core: Vec<u32>,
    /// The shared queues, as many as the policy asks for and in its numbering. A task in one is queued on no CPU, or
    /// also on one.
    pub(crate) inject_queues: Vec<List<1>>,
    /// By shared queue: the cache line of its lock and list head.
    pub(super) queue_lines: Vec<LineId>,
    /// Idle CPUs.
    pub(super) idle: u32,
    /// CPUs that search, that leave an idle state, or that are idle with a search timer.
    pub(super) num_searching: u32,
    /// Queued tasks that are not pinned, and tasks that are only in a shared queue.
    pub(super) waiting: u32,
    /// CPUs that have more than one task. `num_injected`: tasks in shared queues.
    pub(super) overloaded: u32,
    pub(super) num_injected: u32,
    /// Calls of `View::is_idle` since this was last reset: the CPUs that a wake examined, each as often as it did.
    pub(super) cpus_examined: Cell<u32>,
    /// The CPU that searches. The next three fields are about that search: its sequence number, the CPUs examined so
    /// far by distance, and the shared queues that were examined.
    searching_cpu: Cell<Option<u32>>,
    search_seq: Cell<u32>,
    examined_by_distance: [Cell<u32>; 6],
    pub(super) queues_examined: RefCell<Vec<u32>>,
    /// Facts about the wake that is being decided.
    pub(super) wakee_was_on: Option<CpuId>,
    pub(super) wakes_wide: bool,
}

impl<P: SimPolicy> KernelScheduler<P> {
    pub(super) fn new(policy: P, machine: &SchedDomains, settings: &Settings, memory: &mut Memory) -> Self {
        let cpus = machine.cpus();
        let shard = |shard| Shard { idle: machine.cpus_of(shard).len() as u32, ..Shard::default() };
        let queues = policy.queues(machine);
        Self {
            policy,
            order: settings.order,
            long_run: settings.long_run,
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

impl<P: SimPolicy> State<KernelScheduler<P>> {
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

    /// Counts a CPU as examined, once per search: when it is examined again, its lines are in the searching CPU's
    /// cache.
    #[inline]
    fn count_examined(&self, cpu: CpuId) {
        let Some(me) = self.sched.searching_cpu.get() else { return };
        let summary = &self.sched.summaries[cpu.index()];
        if summary.seen_by_search.replace(self.sched.search_seq.get()) != self.sched.search_seq.get() {
            let looked = &self.sched.examined_by_distance[self.machine.distance(CpuId(me), cpu) as usize];
            looked.set(looked.get() + 1);
        }
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

    /// Whether an idle CPU has any reason to search. With fair order: a CPU that has more than one task (Linux
    /// `rd->overload`), or a task in a shared queue. In batches: a queued task that is not pinned.
    #[inline]
    pub(crate) fn has_surplus(&self) -> bool {
        match self.sched.order {
            Order::Fair => self.sched.overloaded > 0 || self.sched.num_injected > 0,
            Order::Rounds => self.sched.waiting > 0,
        }
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
        if comes && at.sched.queue.stealable == 0 {
            at.sched.queue.backlog_since = self.now;
        }
        at.sched.queue.stealable = at.sched.queue.stealable.wrapping_add(by);
        if allowed != Allowed::Anywhere {
            at.sched.queue.restricted = at.sched.queue.restricted.wrapping_add(by);
        }
        let shard = &mut self.sched.shards[at.shard as usize];
        shard.backlog = shard.backlog.wrapping_add(by);
        self.sched.waiting = self.sched.waiting.wrapping_add(by);
    }

    /// Queues a task on a CPU, with `is_lifo` in its LIFO slot; also in the shared queue `enters` if there is one.
    pub(crate) fn enqueue(&mut self, cpu: u32, id: u32, is_lifo: bool, enters: Option<usize>) {
        self.count_waiting(cpu, id, true);
        self.tasks[id as usize].sched.queued_on = cpu;
        let queue = &mut self.cpus[cpu as usize].sched.queue;
        if is_lifo {
            queue.push_lifo(&mut self.tasks, id);
        } else {
            queue.push(&mut self.tasks, id, self.sched.order);
        }
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

    /// Puts a task that is queued on no CPU into a shared queue.
    pub(crate) fn push_inject(&mut self, queue: usize, id: u32) {
        self.enter(id, queue);
        self.sched.waiting += 1;
    }

    /// The first task queued on this CPU that enters a shared queue once the CPU is awake, and that queue. Clears the
    /// task's `enters`.
    pub(crate) fn enters_late(&mut self, cpu: u32) -> Option<(u32, usize)> {
        let all = self.cpus[cpu as usize].sched.queue.all(&self.tasks);
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
        if cpu == NONE {
            self.sched.waiting -= 1;
        } else {
            self.cpus[cpu as usize].sched.queue.remove(&mut self.tasks, id);
            self.count_waiting(cpu, id, false);
        }
        (queue != NONE).then_some(queue as usize)
    }

    /// Removes the task that runs next on this CPU. Returns it, and the shared queue that it was also in.
    pub(crate) fn dequeue(&mut self, cpu: u32) -> Option<(u32, Option<usize>)> {
        let at = &mut self.cpus[cpu as usize];
        let average = Nanos(at.sched.average_run);
        let id = at.sched.queue.choose(
            &mut self.tasks,
            || self.sched.policy.max_lifo_polls(average),
            || self.sched.policy.queue_order(average),
        )?;
        Some((id, self.unqueue(id)))
    }

    /// Removes a task that may run on `me` from another CPU's queue. Returns it, and the shared queue that it was
    /// also in.
    pub(crate) fn steal(
        &mut self,
        me: CpuId,
        from: CpuId,
        steal_order: StealOrder,
    ) -> Option<(u32, Option<usize>)> {
        let id = self.spare(me, from, steal_order)?;
        Some((id, self.unqueue(id)))
    }

    fn spare(&self, me: CpuId, from: CpuId, steal_order: StealOrder) -> Option<u32> {
        let may = |task: &Task<KernelTask>| self.machine.allows(task.allowed, me);
        self.cpus[from.index()].sched.queue.spare(&self.tasks, self.sched.order, steal_order, may)
    }

    /// Removes the first task of a shared queue if it may run on `me`. Returns it, and the CPU on which it was
    /// queued.
    pub(crate) fn pop_inject(&mut self, queue: usize, me: CpuId) -> Option<(u32, Option<CpuId>)> {
        let id = self.first_for(queue, me)?;
        let on = self.tasks[id as usize].sched.queued_on;
        self.unqueue(id);
        Some((id, (on != NONE).then_some(CpuId(on))))
    }

    fn first_for(&self, queue: usize, me: CpuId) -> Option<u32> {
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
            shard.idle = shard.idle.wrapping_add(by);
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

impl<P: SimPolicy> View for State<KernelScheduler<P>> {
    #[inline]
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.sched.cpus_examined.set(self.sched.cpus_examined.get() + 1);
        self.sched.summaries[cpu.index()].state == CpuState::Idle
    }

    fn is_stuck(&self, cpu: CpuId) -> bool {
        let at = self.cpu(cpu);
        let is_long = |long: Nanos| self.now - at.on_since >= long.0;
        at.state == CpuState::Running && self.sched.long_run.is_some_and(is_long)
    }

    #[inline]
    fn backlog(&self, cpu: CpuId) -> u32 {
        self.count_examined(cpu);
        self.sched.summaries[cpu.index()].stealable
    }

    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        Nanos(self.cpu(cpu).sched.queue.backlog_since)
    }

    fn waits_since(&self, me: CpuId, cpu: CpuId) -> Nanos {
        let oldest = self.spare(me, cpu, StealOrder::Oldest);
        Nanos(oldest.map_or(u64::MAX, |id| self.tasks[id as usize].queued_at))
    }

    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        let at = self.cpu(cpu);
        let of = |id: u32| self.tasks[id as usize].sched.migration_cost;
        at.sched.queue.peek().map_or(Nanos(0), of)
    }

    #[inline]
    fn hot_until(&self, cpu: CpuId) -> Nanos {
        Nanos(self.cpu(cpu).sched.hot_until)
    }

    #[inline]
    fn shared_queue_len(&self, queue: usize) -> u32 {
        if self.sched.searching_cpu.get().is_some() {
            self.sched.queues_examined.borrow_mut().push(queue as u32);
        }
        self.sched.inject_queues[queue].len
    }

    #[inline]
    fn idle_in(&self, shard: usize) -> u32 {
        self.sched.shards[shard].idle
    }

    #[inline]
    fn has_backlog_in(&self, shard: usize) -> bool {
        let shard = &self.sched.shards[shard];
        match self.sched.order {
            Order::Fair => shard.overloaded > 0,
            Order::Rounds => shard.backlog > 0,
        }
    }

    fn can_steal(&self, me: CpuId, cpu: CpuId) -> bool {
        let queue = &self.cpu(cpu).sched.queue;
        let may = |id: u32| self.machine.allows(self.tasks[id as usize].allowed, me);
        queue.stealable > queue.restricted || queue.restricted > 0 && queue.all(&self.tasks).any(may)
    }
}

impl<P: SimPolicy> KernelView for State<KernelScheduler<P>> {
    fn can_steal_in(&self, me: CpuId, queue: usize) -> bool {
        self.first_for(queue, me).is_some()
    }

    fn sleeps_next(&self, cpu: CpuId) -> bool {
        self.cpu(cpu).sched.sleeps_next
    }

    #[inline]
    fn runs(&self, cpu: CpuId) -> u32 {
        self.count_examined(cpu);
        self.sched.summaries[cpu.index()].runs
    }

    fn wakee_was_on(&self) -> Option<CpuId> {
        self.sched.wakee_was_on
    }

    fn wakes_wide(&self) -> bool {
        self.sched.wakes_wide
    }

    #[inline]
    fn has_idle_core_in(&self, shard: usize) -> bool {
        self.sched.shards[shard].idle_cores > 0
    }

    fn usage_in(&self, shard: usize) -> Option<u64> {
        Some(self.sched.shards[shard].usage.now(self.now))
    }

    fn average_idle(&self, cpu: CpuId) -> Nanos {
        self.cpu(cpu).sched.average_idle.average()
    }

    fn newidle_cost(&self, cpu: CpuId, within: Distance) -> Nanos {
        self.cpu(cpu).sched.newidle[within as usize].most()
    }

    fn is_newly_idle(&self, cpu: CpuId) -> bool {
        self.cpu(cpu).sched.is_newly_idle
    }

    fn last_ran(&self, cpu: CpuId) -> Nanos {
        let (queue, is_there) =
            (&self.cpu(cpu).sched.queue, |task: &Task<KernelTask>| task.prev_cpu == cpu.0);
        let spare = queue.spare(&self.tasks, self.sched.order, StealOrder::Last, |task| !task.is_pinned());
        let task = spare.map(|id| &self.tasks[id as usize]).filter(|task| is_there(task));
        Nanos(task.map_or(0, |task| task.sched.last_ran))
    }

    fn balanced_at(&self, cpu: CpuId, within: Distance) -> Nanos {
        Nanos(self.cpu(cpu).sched.balanced_at[within as usize])
    }

    fn balances_failed(&self, cpu: CpuId, within: Distance) -> u32 {
        self.cpu(cpu).sched.failed[within as usize].into()
    }
}
