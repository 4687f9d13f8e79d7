//! View: what the simulated kernel shows of its state to a policy.
//!
//! `View` has what a runtime knows too, `KernelView` what only a kernel knows. Each CPU that a policy asks about is counted,
//! because the simulation charges for the cache lines.

use super::KernelScheduler;
use crate::policy::{KernelPolicy, KernelView};
use crate::simulation::state::{CpuState, State};
use warmcore_sched::{Distance, ShardMask, View};
use warmcore_types::{CpuId, Nanos};

impl<P: KernelPolicy> State<KernelScheduler<P>> {
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
}

impl<P: KernelPolicy> View for State<KernelScheduler<P>> {
    #[inline]
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.sched.cpus_examined.set(self.sched.cpus_examined.get() + 1);
        self.sched.summaries[cpu.index()].state == CpuState::Idle
    }

    /// A kernel has no limit for one poll.
    fn is_stuck(&self, _cpu: CpuId) -> bool {
        false
    }

    #[inline]
    fn backlog(&self, cpu: CpuId) -> u32 {
        self.count_examined(cpu);
        self.sched.summaries[cpu.index()].stealable
    }

    /// 0: only policies of runtimes ask.
    fn backlog_since(&self, _cpu: CpuId) -> Nanos {
        Nanos(0)
    }

    /// 0: only policies of runtimes ask.
    fn migration_cost_at(&self, _cpu: CpuId) -> Nanos {
        Nanos(0)
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
    fn idle_in(&self, shard: usize) -> ShardMask {
        self.sched.shards[shard].idle
    }

    #[inline]
    fn backlogs_in(&self, shard: usize) -> ShardMask {
        if self.sched.shards[shard].overloaded > 0 { ShardMask::MAX } else { 0 }
    }

    fn can_steal(&self, me: CpuId, cpu: CpuId) -> bool {
        let queue = &self.cpu(cpu).sched.queue;
        let may = |id: u32| self.machine.allows(self.tasks[id as usize].allowed, me);
        queue.stealable > queue.restricted || queue.restricted > 0 && queue.iter(&self.tasks).any(may)
    }
}

impl<P: KernelPolicy> KernelView for State<KernelScheduler<P>> {
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
        let coldest = self.cpu(cpu).sched.queue.coldest(&self.tasks, |task| !task.is_pinned());
        let task = coldest.map(|id| &self.tasks[id as usize]).filter(|task| task.prev_cpu == cpu.0);
        Nanos(task.map_or(0, |task| task.sched.last_ran))
    }

    fn balanced_at(&self, cpu: CpuId, within: Distance) -> Nanos {
        Nanos(self.cpu(cpu).sched.balanced_at[within as usize])
    }

    fn balances_failed(&self, cpu: CpuId, within: Distance) -> u32 {
        self.cpu(cpu).sched.failed[within as usize].into()
    }
}
