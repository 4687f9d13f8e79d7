//! Scheduler state: CPUs, tasks and queues at this moment. A scheduling policy reads it through `View` and
//! `KernelView`.
//!
//! Counts that policies ask for often, such as idle CPUs and queued tasks per shard, are updated with each change. An
//! event thus examines all CPUs only if the policy does. A `Cpu` takes at most 512 bytes.

use super::queue::{List, RunQueue};
use super::settings::{Order, Settings};
use super::task::{NONE, Task};
use crate::policy::KernelView;
use crate::policy::kernel::{AverageIdle, NewidleCost, Usage};
use std::cell::{Cell, RefCell};
use warmcore_sched::{Allowed, Distance, SchedDomains, StealDecision, StealOrder, View};
use warmcore_types::{CpuId, Nanos};

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

/// A CPU. The fields that a switch needs most come first, on three cache lines: state, clocks, queue.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Cpu {
    pub(crate) state: CpuState,
    /// It is idle, and a timer is set at which it will search for work.
    pub(crate) has_search_timer: bool,
    pub(crate) ticks: bool,
    /// Whether its search or idle time began with running out of tasks. A kick clears this.
    pub(crate) is_newly_idle: bool,
    /// It runs a task or searches, so it shares its core's execution units with its siblings.
    pub(crate) is_busy: bool,
    /// The task that runs on it will block right after the wake that is being decided.
    pub(crate) sleeps_next: bool,
    /// Decisions to steal in a row that could not be carried out.
    pub(crate) tries: u8,
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
    /// Up to this time the current task's run time is in its `vruntime`.
    pub(crate) vruntime_at: u64,
    pub(crate) min_vruntime: u64,
    /// When it last became busy or idle, or began or ended a search.
    pub(crate) state_since: u64,
    pub(crate) average_run: u64,
    pub(crate) average_idle: AverageIdle,

    pub(crate) hot_until: u64,
    pub(crate) queue: RunQueue,

    /// What the current search will result in; the CPU's `AWAKE` event ends the search. `None`: it does not search.
    /// `had`: the task that had the CPU before the search.
    pub(crate) found: Option<StealDecision>,
    pub(crate) had: u32,
    /// The cost of that search, in ns by distance. A wake on this CPU ends the search after one of these parts.
    pub(crate) parts: [u32; 6],

    pub(crate) counts: CpuCounts,
    pub(crate) imbalance_count: u32,
    /// About its searches, by distance. `failed`: those in vain in a row, and `balanced_at`: the time of the last one,
    /// both without searches right after running out of tasks. `newidle`: the highest cost; its index 0 is the
    /// examination of shared queues.
    pub(crate) failed: [u8; 6],
    pub(crate) newidle: [NewidleCost; 6],
    pub(crate) balanced_at: [u64; 6],
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

/// The CPUs that share the execution units of a core.
#[derive(Debug, Default)]
pub(crate) struct Core {
    /// Range of its CPUs in `SchedState::of_cores`.
    pub(crate) cpus: (u32, u32),
    /// Its CPUs that run a task or search.
    pub(crate) busy: u32,
    /// Its CPUs that are idle.
    pub(crate) idle: u32,
    pub(crate) idle_since: u64,
}

/// CPUs, tasks and queues at this moment.
#[derive(Debug)]
pub(crate) struct SchedState {
    pub(crate) machine: SchedDomains,
    pub(crate) now: u64,
    pub(crate) order: Order,
    pub(crate) long_run: Option<Nanos>,
    pub(crate) cpus: Vec<Cpu>,
    /// By CPU.
    summaries: Vec<CpuSummary>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) shards: Vec<Shard>,
    /// The shared queues, as many as the policy asks for and in its numbering. A task in one is queued on no CPU, or
    /// also on one.
    pub(crate) inject_queues: Vec<List<1>>,
    pub(crate) cores: Vec<Core>,
    /// The CPUs of all cores, core by core.
    of_cores: Vec<u32>,
    /// Idle CPUs.
    pub(crate) idle: u32,
    /// CPUs that search, that leave an idle state, or that are idle with a search timer.
    pub(crate) num_searching: u32,
    /// Queued tasks that are not pinned, and tasks that are only in a shared queue.
    pub(crate) waiting: u32,
    /// CPUs that have more than one task. `num_injected`: tasks in shared queues.
    pub(crate) overloaded: u32,
    pub(crate) num_injected: u32,
    /// Calls of `View::is_idle` since this was last reset: the CPUs that a wake examined, each as often as it did.
    pub(crate) cpus_examined: Cell<u32>,
    /// The CPU that searches. The next three fields are about that search: its sequence number, the CPUs examined so
    /// far by distance, and the shared queues that were examined.
    pub(crate) searching_cpu: Cell<Option<u32>>,
    search_seq: Cell<u32>,
    pub(crate) examined_by_distance: [Cell<u32>; 6],
    pub(crate) queues_examined: RefCell<Vec<u32>>,
    /// Facts about the wake that is being decided.
    pub(crate) wakee_was_on: Option<CpuId>,
    pub(crate) wakes_wide: bool,
}

impl SchedState {
    /// `queues`: the number of shared queues.
    pub(crate) fn new(
        machine: SchedDomains,
        core_of: &[u32],
        settings: &Settings,
        queues: usize,
        migration_cost: Nanos,
    ) -> Self {
        let cpu = |(i, core): (usize, &u32)| {
            let id = CpuId(i as u32);
            Cpu {
                current: NONE,
                core: *core,
                shard: machine.shard_of(id) as u32,
                kernel: machine.kernel_cpu(id),
                speed: 1000,
                min_vruntime: INITIAL_VRUNTIME,
                average_idle: AverageIdle::new(migration_cost),
                had: NONE,
                ..Cpu::default()
            }
        };
        let cpus: Vec<Cpu> = core_of.iter().enumerate().map(cpu).collect();
        let shard = |shard| Shard { idle: machine.cpus_of(shard).len() as u32, ..Shard::default() };
        let mut shards: Vec<Shard> = (0..machine.shards()).map(shard).collect();
        let mut of_cores: Vec<u32> = (0..core_of.len() as u32).collect();
        of_cores.sort_by_key(|cpu| (core_of[*cpu as usize], *cpu));
        let mut cores: Vec<Core> = Vec::new();
        cores.resize_with(core_of.iter().max().map_or(0, |core| *core as usize + 1), Core::default);
        let mut begin = 0;
        for all in of_cores.chunk_by(|a, b| core_of[*a as usize] == core_of[*b as usize]) {
            let core = &mut cores[core_of[all[0] as usize] as usize];
            core.cpus = (begin, begin + all.len() as u32);
            core.idle = all.len() as u32;
            begin = core.cpus.1;
            shards[cpus[all[0] as usize].shard as usize].idle_cores += 1;
        }
        Self {
            machine,
            now: 0,
            order: settings.order,
            long_run: settings.long_run,
            idle: cpus.len() as u32,
            summaries: vec![CpuSummary::default(); cpus.len()],
            cpus,
            tasks: Vec::new(),
            shards,
            inject_queues: vec![List::default(); queues],
            cores,
            of_cores,
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

    #[inline]
    pub(crate) fn cpu(&self, cpu: CpuId) -> &Cpu {
        &self.cpus[cpu.index()]
    }

    /// Bytes allocated for CPUs.
    pub(crate) fn cpu_bytes(&self) -> usize {
        self.cpus.capacity() * size_of::<Cpu>()
            + self.summaries.capacity() * size_of::<CpuSummary>()
            + self.shards.capacity() * size_of::<Shard>()
            + self.cores.capacity() * size_of::<Core>()
            + self.of_cores.capacity() * size_of::<u32>()
    }

    #[inline]
    pub(crate) fn task(&mut self, id: u32) -> &mut Task {
        &mut self.tasks[id as usize]
    }

    /// The CPUs of a core.
    #[inline]
    pub(crate) fn core(&self, core: u32) -> &[u32] {
        let (begin, end) = self.cores[core as usize].cpus;
        &self.of_cores[begin as usize..end as usize]
    }

    /// Begins a search by a CPU: the CPUs that it examines are counted until [`SchedState::end_search`].
    pub(crate) fn begin_search(&self, cpu: u32) {
        self.searching_cpu.set(Some(cpu));
        self.search_seq.set(self.search_seq.get().wrapping_add(1));
        self.examined_by_distance.iter().for_each(|looked| looked.set(0));
        self.queues_examined.borrow_mut().clear();
    }

    /// Ends the search. Returns how many CPUs it examined, by distance.
    pub(crate) fn end_search(&self) -> [u32; 6] {
        self.searching_cpu.set(None);
        self.examined_by_distance.each_ref().map(Cell::get)
    }

    /// Counts a CPU as examined, once per search: when it is examined again, its lines are in the searching CPU's
    /// cache.
    #[inline]
    fn count_examined(&self, cpu: CpuId) {
        let Some(me) = self.searching_cpu.get() else { return };
        let summary = &self.summaries[cpu.index()];
        if summary.seen_by_search.replace(self.search_seq.get()) != self.search_seq.get() {
            let looked = &self.examined_by_distance[self.machine.distance(CpuId(me), cpu) as usize];
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
        let runs = &mut self.summaries[cpu as usize].runs;
        let was_overloaded = *runs > 1;
        *runs = runs.wrapping_add(by);
        if was_overloaded != (*runs > 1) {
            let shard = &mut self.shards[self.cpus[cpu as usize].shard as usize];
            shard.overloaded = shard.overloaded.wrapping_add(by);
            self.overloaded = self.overloaded.wrapping_add(by);
        }
    }

    /// Whether an idle CPU has any reason to search. With fair order: a CPU that has more than one task (Linux
    /// `rd->overload`), or a task in a shared queue. In batches: a queued task that is not pinned.
    #[inline]
    pub(crate) fn has_surplus(&self) -> bool {
        match self.order {
            Order::Fair => self.overloaded > 0 || self.num_injected > 0,
            Order::Rounds => self.waiting > 0,
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
        let summary = &mut self.summaries[cpu as usize];
        summary.stealable = summary.stealable.wrapping_add(by);
        let at = &mut self.cpus[cpu as usize];
        if comes && at.queue.stealable == 0 {
            at.queue.backlog_since = self.now;
        }
        at.queue.stealable = at.queue.stealable.wrapping_add(by);
        if allowed != Allowed::Anywhere {
            at.queue.restricted = at.queue.restricted.wrapping_add(by);
        }
        let shard = &mut self.shards[at.shard as usize];
        shard.backlog = shard.backlog.wrapping_add(by);
        self.waiting = self.waiting.wrapping_add(by);
    }

    /// Queues a task on a CPU, with `is_lifo` in its LIFO slot; also in the shared queue `enters` if there is one.
    pub(crate) fn enqueue(&mut self, cpu: u32, id: u32, is_lifo: bool, enters: Option<usize>) {
        self.count_waiting(cpu, id, true);
        self.tasks[id as usize].queued_on = cpu;
        let queue = &mut self.cpus[cpu as usize].queue;
        if is_lifo {
            queue.push_lifo(&mut self.tasks, id);
        } else {
            queue.push(&mut self.tasks, id, self.order);
        }
        if let Some(queue) = enters {
            self.enter(id, queue);
        }
    }

    /// Also puts a task that is queued on a CPU into a shared queue.
    pub(crate) fn enter(&mut self, id: u32, queue: usize) {
        self.num_injected += 1;
        self.tasks[id as usize].inject_queue = queue as u32;
        self.inject_queues[queue].push(&mut self.tasks, id);
    }

    /// Puts a task that is queued on no CPU into a shared queue.
    pub(crate) fn push_inject(&mut self, queue: usize, id: u32) {
        self.enter(id, queue);
        self.waiting += 1;
    }

    /// The first task queued on this CPU that enters a shared queue once the CPU is awake, and that queue. Clears the
    /// task's `enters`.
    pub(crate) fn enters_late(&mut self, cpu: u32) -> Option<(u32, usize)> {
        let all = self.cpus[cpu as usize].queue.all(&self.tasks);
        let mut all = all.map(|id| (id, self.tasks[id as usize].enters));
        let (id, queue) = all.find(|(_, queue)| *queue != NONE)?;
        drop(all);
        self.tasks[id as usize].enters = NONE;
        Some((id, queue as usize))
    }

    /// Removes a task from all queues. Returns the shared queue that it was in.
    pub(crate) fn unqueue(&mut self, id: u32) -> Option<usize> {
        let task = &mut self.tasks[id as usize];
        let cpu = std::mem::replace(&mut task.queued_on, NONE);
        let queue = std::mem::replace(&mut task.inject_queue, NONE);
        task.enters = NONE;
        if queue != NONE {
            self.num_injected -= 1;
            self.inject_queues[queue as usize].remove(&mut self.tasks, id);
        }
        if cpu == NONE {
            self.waiting -= 1;
        } else {
            self.cpus[cpu as usize].queue.remove(&mut self.tasks, id);
            self.count_waiting(cpu, id, false);
        }
        (queue != NONE).then_some(queue as usize)
    }

    /// Removes the task that runs next on this CPU. Returns it, and the shared queue that it was also in.
    pub(crate) fn dequeue(
        &mut self,
        cpu: u32,
        max_lifo_polls: impl Fn(Nanos) -> u32,
        queue_order: impl Fn(Nanos) -> warmcore_sched::QueueOrder,
    ) -> Option<(u32, Option<usize>)> {
        let at = &mut self.cpus[cpu as usize];
        let average = Nanos(at.average_run);
        let id = at.queue.choose(&mut self.tasks, || max_lifo_polls(average), || queue_order(average))?;
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
        let may = |task: &Task| self.machine.allows(task.allowed, me);
        self.cpus[from.index()].queue.spare(&self.tasks, self.order, steal_order, may)
    }

    /// Removes the first task of a shared queue if it may run on `me`. Returns it, and the CPU on which it was
    /// queued.
    pub(crate) fn pop_inject(&mut self, queue: usize, me: CpuId) -> Option<(u32, Option<CpuId>)> {
        let id = self.first_for(queue, me)?;
        let on = self.tasks[id as usize].queued_on;
        self.unqueue(id);
        Some((id, (on != NONE).then_some(CpuId(on))))
    }

    fn first_for(&self, queue: usize, me: CpuId) -> Option<u32> {
        let first = self.inject_queues[queue].first();
        first.filter(|id| self.machine.allows(self.tasks[*id as usize].allowed, me))
    }

    /// Converts a task's `vruntime` from the clock of its last CPU to that of `to`, and raises it to `credit` below
    /// that clock if it is less. A task that was on no CPU yet begins at that clock.
    pub(crate) fn migrate_vruntime(&mut self, id: u32, to: u32, credit: u64) {
        let (task, min) = (&mut self.tasks[id as usize], self.cpus[to as usize].min_vruntime);
        match std::mem::replace(&mut task.vruntime_cpu, to) {
            NONE => task.vruntime = min,
            of if of != to => {
                task.vruntime = (task.vruntime + min).saturating_sub(self.cpus[of as usize].min_vruntime)
            }
            _ => {}
        }
        task.vruntime = task.vruntime.max(min.saturating_sub(credit));
    }

    /// Sets a CPU's state, updates the counts of running, idle and searching CPUs, and makes the CPU's pending event
    /// stale.
    pub(crate) fn set_cpu_state(&mut self, cpu: u32, state: CpuState, has_search_timer: bool) {
        let at = &mut self.cpus[cpu as usize];
        let (was_idle, is_idle) = (at.state == CpuState::Idle, state == CpuState::Idle);
        let was_searching = at.has_search_timer || at.state == CpuState::Coming;
        let will_search = has_search_timer || state == CpuState::Coming;
        let (did_run, runs) = (at.state == CpuState::Running, state == CpuState::Running);
        if did_run != runs {
            self.shards[at.shard as usize].usage.set_running(self.now, runs);
        }
        (at.state, at.has_search_timer) = (state, has_search_timer);
        self.summaries[cpu as usize].state = state;
        at.generation = at.generation.wrapping_add(1);
        if was_idle != is_idle {
            let by = if is_idle { 1u32 } else { u32::MAX };
            let shard = &mut self.shards[at.shard as usize];
            shard.idle = shard.idle.wrapping_add(by);
            self.idle = self.idle.wrapping_add(by);
            let core = &mut self.cores[at.core as usize];
            let all = core.cpus.1 - core.cpus.0;
            let was_whole = core.idle == all;
            core.idle = core.idle.wrapping_add(by);
            if was_whole != (core.idle == all) {
                let first = self.cpus[self.of_cores[core.cpus.0 as usize] as usize].shard;
                let whole = &mut self.shards[first as usize].idle_cores;
                *whole = whole.wrapping_add(by);
            }
        }
        if was_searching != will_search {
            self.num_searching = self.num_searching.wrapping_add(if will_search { 1 } else { u32::MAX });
        }
    }
}

impl View for SchedState {
    #[inline]
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.cpus_examined.set(self.cpus_examined.get() + 1);
        self.summaries[cpu.index()].state == CpuState::Idle
    }

    fn is_stuck(&self, cpu: CpuId) -> bool {
        let at = self.cpu(cpu);
        let is_long = |long: Nanos| self.now - at.on_since >= long.0;
        at.state == CpuState::Running && self.long_run.is_some_and(is_long)
    }

    #[inline]
    fn backlog(&self, cpu: CpuId) -> u32 {
        self.count_examined(cpu);
        self.summaries[cpu.index()].stealable
    }

    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        Nanos(self.cpu(cpu).queue.backlog_since)
    }

    fn waits_since(&self, me: CpuId, cpu: CpuId) -> Nanos {
        let oldest = self.spare(me, cpu, StealOrder::Oldest);
        Nanos(oldest.map_or(u64::MAX, |id| self.tasks[id as usize].queued_at))
    }

    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        let at = self.cpu(cpu);
        let of = |id: u32| self.tasks[id as usize].migration_cost;
        at.queue.peek().map_or(Nanos(0), of)
    }

    #[inline]
    fn hot_until(&self, cpu: CpuId) -> Nanos {
        Nanos(self.cpu(cpu).hot_until)
    }

    #[inline]
    fn shared_queue_len(&self, queue: usize) -> u32 {
        if self.searching_cpu.get().is_some() {
            self.queues_examined.borrow_mut().push(queue as u32);
        }
        self.inject_queues[queue].len
    }

    #[inline]
    fn idle_in(&self, shard: usize) -> u32 {
        self.shards[shard].idle
    }

    #[inline]
    fn has_backlog_in(&self, shard: usize) -> bool {
        let shard = &self.shards[shard];
        match self.order {
            Order::Fair => shard.overloaded > 0,
            Order::Rounds => shard.backlog > 0,
        }
    }

    fn can_steal(&self, me: CpuId, cpu: CpuId) -> bool {
        let queue = &self.cpu(cpu).queue;
        let may = |id: u32| self.machine.allows(self.tasks[id as usize].allowed, me);
        queue.stealable > queue.restricted || queue.restricted > 0 && queue.all(&self.tasks).any(may)
    }
}

impl KernelView for SchedState {
    fn can_steal_in(&self, me: CpuId, queue: usize) -> bool {
        self.first_for(queue, me).is_some()
    }

    fn sleeps_next(&self, cpu: CpuId) -> bool {
        self.cpu(cpu).sleeps_next
    }

    #[inline]
    fn runs(&self, cpu: CpuId) -> u32 {
        self.count_examined(cpu);
        self.summaries[cpu.index()].runs
    }

    fn wakee_was_on(&self) -> Option<CpuId> {
        self.wakee_was_on
    }

    fn wakes_wide(&self) -> bool {
        self.wakes_wide
    }

    #[inline]
    fn has_idle_core_in(&self, shard: usize) -> bool {
        self.shards[shard].idle_cores > 0
    }

    fn usage_in(&self, shard: usize) -> Option<u64> {
        Some(self.shards[shard].usage.now(self.now))
    }

    fn average_idle(&self, cpu: CpuId) -> Nanos {
        self.cpu(cpu).average_idle.average()
    }

    fn newidle_cost(&self, cpu: CpuId, within: Distance) -> Nanos {
        self.cpu(cpu).newidle[within as usize].most()
    }

    fn is_newly_idle(&self, cpu: CpuId) -> bool {
        self.cpu(cpu).is_newly_idle
    }

    fn last_ran(&self, cpu: CpuId) -> Nanos {
        let (queue, is_there) = (&self.cpu(cpu).queue, |task: &Task| task.prev_cpu == cpu.0);
        let spare = queue.spare(&self.tasks, self.order, StealOrder::Last, |task| !task.is_pinned());
        let task = spare.map(|id| &self.tasks[id as usize]).filter(|task| is_there(task));
        Nanos(task.map_or(0, |task| task.last_ran))
    }

    fn balanced_at(&self, cpu: CpuId, within: Distance) -> Nanos {
        Nanos(self.cpu(cpu).balanced_at[within as usize])
    }

    fn balances_failed(&self, cpu: CpuId, within: Distance) -> u32 {
        self.cpu(cpu).failed[within as usize].into()
    }
}
