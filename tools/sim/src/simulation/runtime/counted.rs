//! Counted: a policy that counts what it reads of other workers, so that the simulation can charge for the cache lines.
//!
//! A wake reads one line of each worker that it asks about, each time. A search reads the lines of each worker once: when
//! the policy asks again, they are in the searching CPU's cache.

use std::cell::{Cell, RefCell};
use warmcore_sched::{
    FarSearch, Policy, QueueOrder, SchedDomains, ShardMask, StealDecision, StealOrder, TargetQueue, View,
    Wake, WakeDecision,
};
use warmcore_types::{CpuId, Nanos};

/// What a search did.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Whether workers that are asked about are counted, and for which worker.
    searching: Cell<Option<CpuId>>,
    /// By worker: the number of the last search that read its lines.
    seen: Vec<Cell<u32>>,
    number: Cell<u32>,
    by_distance: [Cell<u32>; 6],
    queues: RefCell<Vec<u32>>,
    /// How many workers the wakes asked about.
    asked: Cell<u32>,
    /// Where the last wake went.
    placed: Cell<Option<TargetQueue>>,
    /// From where the last search stole, and how many tasks could be stolen there.
    victim: Cell<Option<(CpuId, u32)>>,
}

impl Reads {
    /// Begins a wake.
    #[inline]
    pub(super) fn begin_wake(&self) {
        self.asked.set(0);
        self.placed.set(None);
    }

    /// The number of workers that the policy asked about since the wake began, and where the policy placed the task.
    /// `None`: the policy was not asked.
    #[inline]
    pub(super) fn end_wake(&self) -> (u32, Option<TargetQueue>) {
        (self.asked.get(), self.placed.get())
    }

    /// Begins a search.
    pub(super) fn begin_search(&self, worker: CpuId) {
        self.searching.set(Some(worker));
        self.number.set(self.number.get().wrapping_add(1));
        self.by_distance.iter().for_each(|read| read.set(0));
        self.queues.borrow_mut().clear();
        self.victim.set(None);
    }

    /// Ends a search. Returns the number of workers whose lines it read, by distance, and the worker from which it stole,
    /// with the number of tasks that waited there before.
    pub(super) fn end_search(&self) -> ([u32; 6], Option<(CpuId, u32)>) {
        self.searching.set(None);
        (self.by_distance.each_ref().map(Cell::get), self.victim.get())
    }

    /// One of the shared queues whose length the last search read.
    pub(super) fn pop_queue(&self) -> Option<u32> {
        self.queues.borrow_mut().pop()
    }

    #[inline]
    fn read(&self, machine: &SchedDomains, cpu: CpuId) {
        self.asked.set(self.asked.get() + 1);
        let Some(me) = self.searching.get() else { return };
        if self.seen[cpu.index()].replace(self.number.get()) != self.number.get() {
            let read = &self.by_distance[machine.distance(me, cpu) as usize];
            read.set(read.get() + 1);
        }
    }
}

/// A policy, and counts of what it read.
#[derive(Debug)]
pub(super) struct Counted<P> {
    policy: P,
    pub(super) reads: Reads,
}

impl<P: Policy> Counted<P> {
    pub(super) fn new(policy: P, workers: usize) -> Self {
        let reads = Reads { seen: vec![Cell::new(0); workers], ..Reads::default() };
        Self { policy, reads }
    }

    /// The injection queue from which a worker takes.
    #[inline]
    pub(super) fn queue_of(&self, machine: &SchedDomains, cpu: CpuId) -> usize {
        self.policy.inject_queue_of(machine, cpu)
    }
}

/// A view that counts the workers that a policy asks about.
struct CountingView<'a, V> {
    view: &'a V,
    machine: &'a SchedDomains,
    reads: &'a Reads,
}

impl<V: View> View for CountingView<'_, V> {
    #[inline]
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.reads.read(self.machine, cpu);
        self.view.is_idle(cpu)
    }
    fn is_offline(&self, cpu: CpuId) -> bool {
        self.view.is_offline(cpu)
    }
    fn is_stuck(&self, cpu: CpuId) -> bool {
        self.view.is_stuck(cpu)
    }
    #[inline]
    fn backlog(&self, cpu: CpuId) -> u32 {
        if self.reads.searching.get().is_some() {
            self.reads.read(self.machine, cpu);
        }
        self.view.backlog(cpu)
    }
    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        self.view.backlog_since(cpu)
    }
    fn still_for(&self, cpu: CpuId, now: Nanos) -> Nanos {
        self.view.still_for(cpu, now)
    }
    fn waits_since(&self, me: CpuId, cpu: CpuId) -> Nanos {
        self.view.waits_since(me, cpu)
    }
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        self.view.migration_cost_at(cpu)
    }
    fn far_cost_at(&self, cpu: CpuId) -> Nanos {
        self.view.far_cost_at(cpu)
    }
    fn mean_poll_at(&self, cpu: CpuId) -> Nanos {
        self.view.mean_poll_at(cpu)
    }
    fn wakeup_cost(&self, cpu: CpuId) -> Nanos {
        self.view.wakeup_cost(cpu)
    }
    fn hot_until(&self, cpu: CpuId) -> Nanos {
        self.view.hot_until(cpu)
    }
    #[inline]
    fn shared_queue_len(&self, queue: usize) -> u32 {
        if self.reads.searching.get().is_some() {
            self.reads.queues.borrow_mut().push(queue as u32);
        }
        self.view.shared_queue_len(queue)
    }
    fn idle_in(&self, shard: usize) -> ShardMask {
        self.view.idle_in(shard)
    }
    fn others_run(&self) -> bool {
        self.view.others_run()
    }
    fn backlogs_in(&self, shard: usize) -> ShardMask {
        self.view.backlogs_in(shard)
    }
    fn far_search(&self, me: CpuId) -> FarSearch {
        self.view.far_search(me)
    }
    fn can_steal(&self, me: CpuId, cpu: CpuId) -> bool {
        self.view.can_steal(me, cpu)
    }
}

impl<P: Policy> Policy for Counted<P> {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        let placed = self.policy.wake(machine, &CountingView { view, machine, reads: &self.reads }, wake);
        self.reads.placed.set(Some(placed.to));
        placed
    }
    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        let counting = CountingView { view, machine, reads: &self.reads };
        let decision = self.policy.steal(machine, &counting, me, now);
        if let StealDecision::From { cpu, .. } = decision {
            self.reads.victim.set(Some((cpu, view.backlog(cpu))));
        }
        decision
    }
    fn steal_order(&self) -> StealOrder {
        self.policy.steal_order()
    }
    fn notify_threshold(&self, average_poll: Nanos, migration_cost: Nanos, spare: Option<Nanos>) -> u32 {
        self.policy.notify_threshold(average_poll, migration_cost, spare)
    }
    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        self.policy.cpu_to_notify(machine, view, at, now)
    }
    fn takes_over(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        me: CpuId,
        cpu: CpuId,
        now: Nanos,
    ) -> bool {
        self.policy.takes_over(machine, view, me, cpu, now)
    }
    fn shares(&self) -> bool {
        self.policy.shares()
    }
    fn queue_order(&self, migration_cost: Nanos) -> QueueOrder {
        self.policy.queue_order(migration_cost)
    }
    fn max_lifo_polls(&self, average_poll: Nanos, migration_cost: Nanos) -> u32 {
        self.policy.max_lifo_polls(average_poll, migration_cost)
    }
    fn steals_lifo_slot(&self) -> bool {
        self.policy.steals_lifo_slot()
    }
    fn closes_lifo_slot(&self) -> bool {
        self.policy.closes_lifo_slot()
    }
    fn serves_alone(&self, poll: Nanos, waiting: u32, wakeup_cost: Nanos) -> bool {
        self.policy.serves_alone(poll, waiting, wakeup_cost)
    }
    fn notifies(&self, waiting: u32, threshold: u32, in_slot: bool) -> bool {
        self.policy.notifies(waiting, threshold, in_slot)
    }
    fn defers_yields(&self) -> bool {
        self.policy.defers_yields()
    }
    fn inject_interval(&self, average_poll: Nanos) -> u32 {
        self.policy.inject_interval(average_poll)
    }
    fn inject_queue_of(&self, machine: &SchedDomains, cpu: CpuId) -> usize {
        self.policy.inject_queue_of(machine, cpu)
    }
    fn event_interval(&self) -> Option<u32> {
        self.policy.event_interval()
    }
    fn max_searching(&self, workers: u32) -> u32 {
        self.policy.max_searching(workers)
    }
    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        self.policy.migration_cost(average_poll)
    }
}
