//! Search: which tasks an idle CPU of the simulated kernel takes from others, and which ones a busy CPU takes.
//!
//! A search takes the time of the cache lines that it reads, and a stolen task the time of the lines that move with it. So
//! the queues may have changed when the CPU acts on the result of its search.
//!
//! # Source
//!
//! Linux `newidle_balance`, `load_balance`.

use super::KernelScheduler;
use super::switch::Next;
use crate::policy::{Enqueued, KernelPolicy};
use crate::random::{Purpose, below};
use crate::simulation::{Simulation, event_class};
use crate::trace::Observer;
use warmcore_sched::StealDecision;
use warmcore_types::{CpuId, Nanos};

/// The most attempts in a row to steal. An attempt fails if what the policy decided is not, or is no longer, possible.
const STEAL_ATTEMPTS_MAX: u8 = 4;

/// After `STEAL_ATTEMPTS_MAX` failed attempts the CPU searches again after this time.
const SEARCH_RETRY_NS: u64 = 1_000_000;

/// Ticks in a row whose balance must find tasks to take before tasks are moved.
const IMBALANCE_CHECKS: u32 = 3;

/// The nearest CPUs, of which the balance at a tick chooses one.
const NEIGHBOURS: usize = 8;

impl<P: KernelPolicy, O: Observer> Simulation<KernelScheduler<P>, O> {
    /// Searches as the policy decides. A search whose reads of cache lines take time ends with an event.
    pub(super) fn search(&mut self, cpu: u32) -> Next {
        loop {
            let found = self.ask_steal(cpu);
            let takes: u64 =
                self.state.cpus[cpu as usize].sched.parts.iter().map(|part| u64::from(*part)).sum();
            if takes > 0 {
                self.state.cpus[cpu as usize].sched.found = Some(found);
                self.begin_search_time(cpu, takes);
                return Next::Search;
            }
            if let Some(next) = self.apply_steal(cpu, found) {
                return next;
            }
        }
    }

    /// Ends a search. If a task was queued here meanwhile, it runs; otherwise the search's result is applied. If that is
    /// no longer possible, the CPU searches again.
    pub(super) fn finish_search(&mut self, cpu: u32, found: StealDecision) -> Next {
        self.end_search_time(cpu);
        self.dequeue(cpu, 0, None)
            .or_else(|| self.apply_steal(cpu, found))
            .unwrap_or_else(|| self.search(cpu))
    }

    /// Shortens a search to the part that is under way, because a task was woken on the searching CPU.
    pub(in crate::simulation) fn cut_search(&mut self, cpu: u32) {
        let now = self.state.now;
        let at = &mut self.state.cpus[cpu as usize];
        let mut end = at.since;
        for part in at.sched.parts {
            end += u64::from(part);
            if end >= now {
                break;
            }
        }
        if end < at.ends_at {
            at.ends_at = end;
            at.generation = at.generation.wrapping_add(1);
            let generation = at.generation;
            self.push_event(end, event_class::AWAKE, cpu, generation);
        }
    }

    /// Carries out what the policy decided. `None`: that was not possible, and the policy has to be asked again. After
    /// `STEAL_ATTEMPTS_MAX` such decisions the CPU goes idle instead.
    fn apply_steal(&mut self, cpu: u32, pull: StealDecision) -> Option<Next> {
        let (me, now) = (CpuId(cpu), self.state.now);
        let cost = match pull {
            StealDecision::Shard(queue) => {
                let cost = self.pop_inject(me, queue);
                let at = &mut self.state.cpus[cpu as usize];
                let looked = u64::from(at.sched.parts[0]);
                if let Some(cost) = cost {
                    at.sched.newidle[0].searched(Nanos(looked + cost), Nanos(now));
                }
                cost
            }
            StealDecision::From { cpu: from, at_most } => {
                let costs = (0..at_most.clamp(1, 256)).map_while(|_| self.steal(me, from));
                costs.reduce(|sum, cost| sum + cost)
            }
            StealDecision::Until(at) => return Some(Next::Idle(Some(at.0.max(now + 1)))),
            StealDecision::Nothing => return Some(Next::Idle(None)),
        };
        if let Some(cost) = cost {
            return self.dequeue(cpu, cost, None).or(Some(Next::Idle(None)));
        }
        let at = &mut self.state.cpus[cpu as usize];
        at.sched.tries += 1;
        (at.sched.tries >= STEAL_ATTEMPTS_MAX).then_some(Next::Idle(Some(now + SEARCH_RETRY_NS)))
    }

    /// Asks the policy what to steal, and stores the cost of the search by distance in `Cpu::parts`.
    pub(in crate::simulation) fn ask_steal(&mut self, cpu: u32) -> StealDecision {
        let now = Nanos(self.state.now);
        let state = &self.state;
        state.begin_search(cpu);
        let pull = self.state.sched.policy.steal(&state.machine, state, CpuId(cpu), now);
        let looked = state.end_search();
        let (waiting, overloaded) = (state.sched.waiting > 0, state.sched.overloaded > 0);
        let others = state.cpus.len() as u32 - 1;
        let kernel = state.cpus[cpu as usize].kernel;
        let is_vain = waiting && !matches!(pull, StealDecision::From { .. } | StealDecision::Shard(_));
        let at = &mut self.state.cpus[cpu as usize];
        at.sched.parts = [0; 6];
        // Index 0 is the CPU that searches, which `others` does not count.
        let is_whole = looked[1..].iter().sum::<u32>() >= others;
        let is_gated = overloaded && is_vain && !is_whole;
        at.counts.gated += u64::from(is_gated && at.sched.is_newly_idle);
        for (distance, looks) in looked.into_iter().enumerate().filter(|(_, looks)| *looks > 0) {
            let cost = u64::from(looks) * self.times.search[distance] / 1000;
            at.sched.parts[distance] = u32::try_from(cost).unwrap_or(u32::MAX);
            at.sched.newidle[distance].searched(Nanos(cost), now);
            if !at.sched.is_newly_idle {
                at.sched.balanced_at[distance] = now.0;
                at.sched.failed[distance] =
                    if is_vain { at.sched.failed[distance].saturating_add(1) } else { 0 };
            }
        }
        // A shared queue's length is on the line of its lock.
        for queue in self.state.sched.queues_examined.get_mut() {
            let line = self.state.sched.queue_lines[*queue as usize];
            let took = self.memory.read_line(kernel, line, now);
            let at = &mut self.state.cpus[cpu as usize];
            at.sched.parts[0] = at.sched.parts[0].saturating_add(u32::try_from(took.0).unwrap_or(u32::MAX));
        }
        let at = &mut self.state.cpus[cpu as usize];
        at.sched.newidle[0].searched(Nanos(at.sched.parts[0].into()), now);
        pull
    }

    /// Moves a task from another CPU's queue to this one's. Returns how long that takes; `None` if none there may run
    /// here.
    fn steal(&mut self, me: CpuId, from: CpuId) -> Option<u64> {
        let (id, injected) = self.state.steal(me, from)?;
        let leaving = injected.map_or(0, |queue| self.lock_queue(me.0, queue));
        Some(self.steal_ns(me, from) + leaving + self.enqueue_stolen(me.0, id))
    }

    /// Moves the first task of a shared queue to this CPU's queue. Returns how long that takes; `None` if there is none
    /// or it may not run here.
    fn pop_inject(&mut self, me: CpuId, queue: usize) -> Option<u64> {
        let (id, on) = self.state.pop_inject(queue, me)?;
        Some(self.lock_queue(me.0, queue) + self.steal_ns(me, on) + self.enqueue_stolen(me.0, id))
    }

    /// The time for the cache lines that move with a task from another CPU's queue.
    fn steal_ns(&self, me: CpuId, from: CpuId) -> u64 {
        (self.times.take[self.state.machine.distance(me, from) as usize] + 500) / 1000
    }

    /// Queues a task that was taken from another CPU or a shared queue. Returns the cost of entering a shared queue.
    fn enqueue_stolen(&mut self, cpu: u32, id: u32) -> u64 {
        self.state.migrate_vruntime(id, cpu, u64::MAX);
        let allowed = self.state.tasks[id as usize].allowed;
        let queue = self.state.sched.policy.enters(&self.state.machine, CpuId(cpu), allowed, Enqueued::Moved);
        self.state.enqueue(cpu, id, queue);
        self.state.cpus[cpu as usize].counts.pulled += 1;
        queue.map_or(0, |queue| self.lock_queue(cpu, queue))
    }

    /// Takes the lock of a shared queue. Returns how long the transfer of the lock's line takes.
    pub(super) fn lock_queue(&mut self, cpu: u32, queue: usize) -> u64 {
        let kernel = self.state.cpus[cpu as usize].kernel;
        self.memory.write_line(kernel, self.state.sched.queue_lines[queue], Nanos(self.state.now)).0
    }

    /// The periodic balance of a busy CPU: compares its queue with that of one of the nearest CPUs, chosen at random. If
    /// this check and those before it, `IMBALANCE_CHECKS` in a row, found tasks to take, the last one takes them. Returns
    /// what that costs.
    pub(super) fn balance(&mut self, cpu: u32) -> u64 {
        let me = CpuId(cpu);
        let near = self.state.machine.cpus().saturating_sub(1).min(NEIGHBOURS);
        if near == 0 || self.state.sched.waiting == 0 {
            return 0;
        }
        let bits = self.random.bits(cpu.into(), Purpose::Neighbour, self.state.now);
        let Some(other) = self.state.machine.others(me).nth(below(bits, near as u64) as usize) else {
            return 0;
        };
        let mut cost = (self.times.search[self.state.machine.distance(me, other) as usize] + 500) / 1000;
        let come = self.state.sched.policy.balance(&self.state.machine, &self.state, me, other);
        let at = &mut self.state.cpus[cpu as usize];
        at.sched.imbalance_count = if come == 0 { 0 } else { at.sched.imbalance_count + 1 };
        if at.sched.imbalance_count < IMBALANCE_CHECKS {
            return cost;
        }
        at.sched.imbalance_count = 0;
        cost += (0..come).map_while(|_| self.steal(me, other)).sum::<u64>();
        cost
    }
}
