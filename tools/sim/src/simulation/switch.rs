//! Switch: which task has a CPU, and what happens when it gets or loses it.
//!
//! A CPU without a task takes one from its own queue, to which it first moves the first task of its shard's shared
//! queue if that one is queued on no CPU, or steals one as the policy decides; otherwise it goes idle. A search takes
//! the time of the cache lines that it reads, and a stolen task the time of the lines that move with it. So the queues
//! may have changed when the CPU acts on the result of its search.
//!
//! Threads of one core slow each other down: when one becomes busy or idle, the remaining time of its siblings' steps
//! changes. Two busy threads run at 620 thousandths each by default (`smt_speed_percent`). A step that got longer keeps
//! its event, which is then found to be too early; only a step that now ends before its event gets a new one.
//!
//! # Source
//!
//! Linux `__schedule`, `pick_next_task_fair`, `newidle_balance`, `scheduler_tick`, `task_tick_mm_cid`; `worker.rs` of
//! the runtime for shared queues, batches and `balance`.

use super::sched_state::CpuState;
use super::settings::Order;
use super::step::StepOutcome;
use super::task::{NONE, TaskState};
use super::{Simulation, event_class};
use crate::policy::{Enqueued, SimPolicy};
use crate::program::TaskId;
use crate::random::{Purpose, below};
use crate::trace::{Observer, SwitchReason};
use warmcore_sched::StealDecision;
use warmcore_types::{CpuId, Nanos};

/// The most attempts in a row to steal. An attempt fails if what the policy decided is not, or is no longer, possible.
const STEAL_ATTEMPTS_MAX: u8 = 4;

/// After `STEAL_ATTEMPTS_MAX` failed attempts the CPU searches again after this time.
const SEARCH_RETRY_NS: u64 = 1_000_000;

/// Checks in a row that must find a neighbour to take tasks from before tasks are moved.
const IMBALANCE_CHECKS: u32 = 3;

/// The nearest CPUs that `balance` chooses from.
const NEIGHBOURS: usize = 8;

/// What a CPU does next.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// Runs this task, after this many ns.
    Run(u32, u64),
    /// Searches; the CPU's `AWAKE` event applies the result.
    Search,
    /// Goes idle, and searches at this time if there is one.
    Idle(Option<u64>),
}

impl Next {
    /// The same, but a task runs later by `ns`. A search or an idle time does not change.
    fn after(self, ns: u64) -> Self {
        match self {
            Self::Run(id, taking) => Self::Run(id, taking + ns),
            other => other,
        }
    }
}

impl<P: SimPolicy, O: Observer> Simulation<P, O> {
    /// Handles a step's event: ends the step if it is over, else pushes the event again. Returns whether it came too
    /// early, which counts as stale.
    pub(super) fn finish_step(&mut self, cpu: u32) -> bool {
        let at = &mut self.sched.cpus[cpu as usize];
        if self.sched.now < at.ends_at {
            at.event_at = at.ends_at;
            let (ends_at, generation) = (at.ends_at, at.generation);
            self.push_event(ends_at, event_class::STEP, cpu, generation);
            return true;
        }
        at.remaining_ns = 0;
        self.run_current(cpu, 0);
        false
    }

    /// Handles the event that a CPU has left its idle state, or that its search is over.
    pub(super) fn finish_wakeup(&mut self, cpu: u32) {
        let mut entering = 0;
        while let Some((id, queue)) = self.sched.enters_late(cpu) {
            entering += self.lock_queue(cpu, queue);
            self.sched.enter(id, queue);
        }
        let next = match self.sched.cpus[cpu as usize].found.take() {
            Some(found) => self.finish_search(cpu, found),
            None => self.pick_next_task(cpu, None, false),
        };
        let next = next.after(entering);
        self.switch_to(cpu, None, next);
        if matches!(next, Next::Run(..)) && self.settings.notify_at_once {
            // A CPU that found a task makes the next CPU search, now that it no longer searches itself.
            self.notify_idle_cpu(cpu);
        }
    }

    /// Continues the current task, and the tasks after it, until one takes time or there is no next task.
    pub(super) fn run_current(&mut self, cpu: u32, mut overhead: u64) {
        loop {
            match self.advance(cpu, overhead) {
                StepOutcome::Run(ns) => return self.start_step(cpu, ns),
                StepOutcome::Switch(reason) => {
                    let (prev, next) = self.replace_task(cpu, reason);
                    if reason == SwitchReason::Exited {
                        self.reap_task(prev);
                    }
                    let cost = self.context_switch(cpu, Some((prev, reason)), next);
                    if self.settings.notify_at_once && self.sched.cpus[cpu as usize].queue.stealable > 0 {
                        self.notify_idle_cpu(cpu);
                    }
                    match cost {
                        Some(cost) => overhead = cost,
                        None => return,
                    }
                }
            }
        }
    }

    /// Switches to the chosen task and runs it.
    fn switch_to(&mut self, cpu: u32, prev: Option<(u32, SwitchReason)>, next: Next) {
        if let Some(cost) = self.context_switch(cpu, prev, next) {
            self.run_current(cpu, cost);
        }
    }

    /// Takes the CPU from its task, and chooses what the CPU does next. Returns both.
    fn replace_task(&mut self, cpu: u32, reason: SwitchReason) -> (u32, Next) {
        let prev = self.put_prev_task(cpu, reason);
        let next = self.pick_next_task(cpu, Some(prev), reason == SwitchReason::Runnable);
        match self.sched.tasks[prev as usize].inject_queue {
            NONE => (prev, next),
            // The task that lost the CPU was put into a shared queue, which takes time.
            queue => (prev, next.after(self.lock_queue(cpu, queue as usize))),
        }
    }

    /// Switches the CPU to the chosen task, or starts a search, or idles the CPU. Returns what the switch costs if
    /// the task has to begin a new step.
    fn context_switch(&mut self, cpu: u32, prev: Option<(u32, SwitchReason)>, next: Next) -> Option<u64> {
        let now = Nanos(self.sched.now);
        let found = match next {
            Next::Run(id, _) => Some(id),
            Next::Idle(_) | Next::Search => None,
        };
        if prev.is_some() || found.is_some() {
            let prev = prev.map(|(id, reason)| (TaskId(id), reason));
            self.observer.switch(now, CpuId(cpu), prev, found.map(TaskId));
        }
        let at = &mut self.sched.cpus[cpu as usize];
        let had = std::mem::replace(&mut at.had, NONE);
        let (id, taking) = match next {
            Next::Run(id, taking) => (id, taking),
            Next::Search => {
                // When the search is over, the index of a task that has ended may belong to another task.
                at.had = prev.filter(|(_, reason)| *reason != SwitchReason::Exited).map_or(had, |(id, _)| id);
                return None;
            }
            Next::Idle(search_at) => {
                self.idle(cpu, search_at);
                return None;
            }
        };
        let is_same = prev.map_or(had, |(id, _)| id) == id;
        let cost = match prev {
            _ if is_same => 0,
            Some((_, SwitchReason::Runnable)) => self.times.involuntary,
            Some(_) => self.times.voluntary,
            // The CPU has searched since it ran out of tasks.
            None if at.is_newly_idle => self.times.voluntary,
            None => 0,
        };
        let cost = cost + taking;
        self.set_next_task(cpu, id, is_same);
        let remaining_ns = std::mem::take(&mut self.sched.task(id).remaining_ns);
        if remaining_ns > 0 {
            self.start_step(cpu, remaining_ns + cost);
            return None;
        }
        Some(cost)
    }

    /// Gives a CPU to a task. `is_same`: the task had it just before, which counts as no switch.
    fn set_next_task(&mut self, cpu: u32, id: u32, is_same: bool) {
        let now = self.sched.now;
        self.set_busy(cpu, true);
        self.sched.set_cpu_state(cpu, CpuState::Running, false);
        self.sched.set_current(cpu, id);
        let at = &mut self.sched.cpus[cpu as usize];
        (at.on_since, at.vruntime_at) = (now, now);
        at.counts.switches += u64::from(!is_same);
        at.average_idle.found_task();
        if !at.ticks && self.times.period > 0 {
            at.ticks = true;
            self.push_tick(cpu);
        }
        let task = &mut self.sched.tasks[id as usize];
        task.state = TaskState::Running;
        let waited = now - task.queued_at;
        task.counts.wait_ns += waited;
        task.counts.wait_ns_max = task.counts.wait_ns_max.max(waited);
        task.counts.switches += u64::from(!is_same);
        let from = std::mem::replace(&mut task.prev_cpu, cpu);
        let (process, user) = (task.process, task.user);
        if from != NONE && from != cpu {
            let distance = self.sched.machine.distance(CpuId(from), CpuId(cpu));
            let task = self.sched.task(id);
            task.counts.moves_by_distance[distance as usize] += 1;
            task.accrued_cost = Nanos(0);
        }
        if process != NONE {
            self.processes[process as usize].enter(user, CpuId(cpu), Nanos(now));
        }
    }

    /// Takes the CPU from its task. Returns the task.
    fn put_prev_task(&mut self, cpu: u32, reason: SwitchReason) -> u32 {
        let now = self.sched.now;
        self.update_vruntime(cpu);
        let id = self.sched.set_current(cpu, NONE);
        let at = &mut self.sched.cpus[cpu as usize];
        let ran = now - at.on_since;
        let task = &mut self.sched.tasks[id as usize];
        task.counts.run_ns += ran;
        task.last_ran = now;
        task.burst += ran;
        let (process, user) = (task.process, task.user);
        if reason != SwitchReason::Runnable {
            let burst = std::mem::take(&mut task.burst);
            let average = |old: u64| if old == 0 { burst } else { old - old / 8 + burst / 8 };
            task.average_run = average(task.average_run);
            at.average_run = average(at.average_run);
            task.migration_cost = self.policy.migration_cost(Nanos(task.average_run));
        }
        match reason {
            SwitchReason::Blocked if self.settings.keep_idle_only && at.queue.len() > 0 => {
                task.sleeps.since = Nanos(now)
            }
            SwitchReason::Blocked => at.hot_until = task.sleeps.sleep_on(Nanos(now), Nanos(at.hot_until)).0,
            SwitchReason::Runnable => {
                task.state = TaskState::Queued;
                task.queued_at = now;
                let (machine, allowed) = (&self.sched.machine, task.allowed);
                let queue = self.policy.enters(machine, CpuId(cpu), allowed, Enqueued::PutBack);
                self.sched.enqueue(cpu, id, false, queue);
            }
            SwitchReason::Exited => {}
        }
        if process != NONE {
            self.processes[process as usize].leave(user, CpuId(cpu), Nanos(now));
        }
        id
    }

    /// Adds what the current task ran since the last update to its `vruntime`.
    fn update_vruntime(&mut self, cpu: u32) {
        let now = self.sched.now;
        let at = &mut self.sched.cpus[cpu as usize];
        let task = &mut self.sched.tasks[at.current as usize];
        task.vruntime += now - at.vruntime_at;
        at.vruntime_at = now;
        let v = task.vruntime;
        let least = at.queue.least_vruntime(&self.sched.tasks).map_or(v, |least| least.min(v));
        at.min_vruntime = at.min_vruntime.max(least);
    }

    /// Chooses what a CPU does next. `had`: the task that just had it. `is_interrupted`: that task is still runnable.
    fn pick_next_task(&mut self, cpu: u32, had: Option<u32>, is_interrupted: bool) -> Next {
        if let Some(next) = self.pick_local(cpu, had) {
            return next;
        }
        let (now, has_surplus) = (Nanos(self.sched.now), self.sched.has_surplus());
        let at = &mut self.sched.cpus[cpu as usize];
        at.is_newly_idle = had.is_some();
        if had.is_some() {
            at.average_idle.idle(now);
        }
        if is_interrupted || !has_surplus {
            // By the counts no task can be stolen, or a runnable task was just put back: the policy is not asked.
            return Next::Idle(None);
        }
        at.counts.searches += u64::from(had.is_some());
        at.tries = 0;
        // While it searches, the CPU neither runs nor is idle.
        self.sched.set_cpu_state(cpu, CpuState::Coming, false);
        self.search(cpu)
    }

    /// Takes the task that is to run next from this CPU's queue, after moving the first task of the shard's shared
    /// queue here if that one is queued on no CPU. `had`: the task that had the CPU.
    fn pick_local(&mut self, cpu: u32, had: Option<u32>) -> Option<Next> {
        let shard = self.sched.cpus[cpu as usize].shard as usize;
        let mut cost = 0;
        if self.has_unassigned_task(shard) {
            // Takes one task at a time. The runtime takes several at once, to take the lock only once for them.
            cost = self.pop_inject(CpuId(cpu), shard).unwrap_or(0);
        }
        self.dequeue(cpu, cost, had)
    }

    /// Whether the first task of the shard's shared queue is queued on no CPU. A task that is also queued on a CPU
    /// runs in that CPU's order.
    fn has_unassigned_task(&self, shard: usize) -> bool {
        let first = self.sched.inject_queues[shard].first();
        first.is_some_and(|id| self.sched.tasks[id as usize].queued_on == NONE)
    }

    /// Takes the next task queued here, for `cost` and the cost of leaving a shared queue. A task that keeps its CPU
    /// (`had`) does not pay for leaving.
    fn dequeue(&mut self, cpu: u32, cost: u64, had: Option<u32>) -> Option<Next> {
        let (sched, policy) = (&mut self.sched, &self.policy);
        let (id, queue) = sched.dequeue(
            cpu,
            |average| policy.max_lifo_polls(average),
            |average| policy.queue_order(average),
        )?;
        let injected = queue.filter(|_| had != Some(id));
        let leaving = injected.map_or(0, |queue| self.lock_queue(cpu, queue));
        Some(Next::Run(id, cost + leaving))
    }

    /// Takes the lock of a shared queue. Returns how long the transfer of the lock's line takes.
    pub(super) fn lock_queue(&mut self, cpu: u32, queue: usize) -> u64 {
        let kernel = self.sched.cpus[cpu as usize].kernel;
        self.memory.write_line(kernel, self.queue_lines[queue], Nanos(self.sched.now)).0
    }

    /// Moves the first task of a shared queue to this CPU's queue. Returns how long that takes; `None` if there is none
    /// or it may not run here.
    fn pop_inject(&mut self, me: CpuId, queue: usize) -> Option<u64> {
        let (id, on) = self.sched.pop_inject(queue, me)?;
        if on.is_none() && self.settings.order == Order::Fair {
            // It was woken onto no CPU, so the sleeper's credit is limited now, by this CPU's clock.
            self.sched.migrate_vruntime(id, me.0, self.settings.sleeper_credit.0);
        }
        let from = on.or(self.sched.tasks[id as usize].prev_cpu());
        let cost = self.lock_queue(me.0, queue) + from.map_or(0, |from| self.steal_ns(me, from));
        Some(cost + self.enqueue_stolen(me.0, id))
    }

    /// Moves a task from another CPU's queue to this one's. Returns how long that takes; `None` if none there may run
    /// here.
    fn steal(&mut self, me: CpuId, from: CpuId) -> Option<u64> {
        let (id, injected) = self.sched.steal(me, from, self.policy.steal_order())?;
        let leaving = injected.map_or(0, |queue| self.lock_queue(me.0, queue));
        Some(self.steal_ns(me, from) + leaving + self.enqueue_stolen(me.0, id))
    }

    /// The time for the cache lines that move with a task from another CPU's queue.
    fn steal_ns(&self, me: CpuId, from: CpuId) -> u64 {
        (self.times.take[self.sched.machine.distance(me, from) as usize] + 500) / 1000
    }

    /// Queues a task that was taken from another CPU or a shared queue. Returns the cost of entering a shared queue.
    fn enqueue_stolen(&mut self, cpu: u32, id: u32) -> u64 {
        self.sched.migrate_vruntime(id, cpu, u64::MAX);
        let allowed = self.sched.tasks[id as usize].allowed;
        let queue = self.policy.enters(&self.sched.machine, CpuId(cpu), allowed, Enqueued::Moved);
        self.sched.enqueue(cpu, id, false, queue);
        self.sched.cpus[cpu as usize].counts.pulled += 1;
        queue.map_or(0, |queue| self.lock_queue(cpu, queue))
    }

    /// Searches as the policy decides. A search whose reads of cache lines take time ends with an event.
    fn search(&mut self, cpu: u32) -> Next {
        loop {
            let found = self.ask_steal(cpu);
            let now = self.sched.now;
            let takes: u64 = self.sched.cpus[cpu as usize].parts.iter().map(|part| u64::from(*part)).sum();
            if takes > 0 {
                self.set_busy(cpu, true);
                let at = &mut self.sched.cpus[cpu as usize];
                at.counts.busy_ns += now - at.state_since;
                (at.state_since, at.since, at.ends_at) = (now, now, now + takes);
                at.found = Some(found);
                let generation = at.generation;
                self.push_event(now + takes, event_class::AWAKE, cpu, generation);
                return Next::Search;
            }
            if let Some(next) = self.apply_steal(cpu, found) {
                return next;
            }
        }
    }

    /// Ends a search. If a task was queued here meanwhile, or on no CPU in the shard's shared queue, it runs; otherwise
    /// the search's result is applied. If that is no longer possible, the CPU searches again.
    fn finish_search(&mut self, cpu: u32, found: StealDecision) -> Next {
        let now = self.sched.now;
        let at = &mut self.sched.cpus[cpu as usize];
        at.counts.search_ns += now - at.state_since;
        at.state_since = now;
        self.pick_local(cpu, None)
            .or_else(|| self.apply_steal(cpu, found))
            .unwrap_or_else(|| self.search(cpu))
    }

    /// Shortens a search to the part that is under way, because a task was woken on the searching CPU.
    pub(super) fn cut_search(&mut self, cpu: u32) {
        let now = self.sched.now;
        let at = &mut self.sched.cpus[cpu as usize];
        let mut end = at.since;
        for part in at.parts {
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
        let (me, now) = (CpuId(cpu), self.sched.now);
        let cost = match pull {
            StealDecision::Shard(queue) => {
                let cost = self.pop_inject(me, queue);
                let at = &mut self.sched.cpus[cpu as usize];
                let looked = u64::from(at.parts[0]);
                if let Some(cost) = cost {
                    at.newidle[0].searched(Nanos(looked + cost), Nanos(now));
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
        let at = &mut self.sched.cpus[cpu as usize];
        at.tries += 1;
        (at.tries >= STEAL_ATTEMPTS_MAX).then_some(Next::Idle(Some(now + SEARCH_RETRY_NS)))
    }

    /// Asks the policy what to steal, and stores the cost of the search by distance in `Cpu::parts`.
    pub(super) fn ask_steal(&mut self, cpu: u32) -> StealDecision {
        let now = Nanos(self.sched.now);
        let sched = &self.sched;
        sched.begin_search(cpu);
        let pull = self.policy.steal(&sched.machine, sched, CpuId(cpu), now);
        let looked = sched.end_search();
        let (waiting, overloaded) = (sched.waiting > 0, sched.overloaded > 0);
        let others = sched.cpus.len() as u32 - 1;
        let kernel = sched.cpus[cpu as usize].kernel;
        let is_vain = waiting && !matches!(pull, StealDecision::From { .. } | StealDecision::Shard(_));
        let at = &mut self.sched.cpus[cpu as usize];
        at.parts = [0; 6];
        // Index 0 is the CPU that searches, which `others` does not count.
        let is_whole = looked[1..].iter().sum::<u32>() >= others;
        let is_gated = self.settings.order == Order::Fair && overloaded && is_vain && !is_whole;
        at.counts.gated += u64::from(is_gated && at.is_newly_idle);
        for (distance, looks) in looked.into_iter().enumerate().filter(|(_, looks)| *looks > 0) {
            let cost = u64::from(looks) * self.times.search[distance] / 1000;
            at.parts[distance] = u32::try_from(cost).unwrap_or(u32::MAX);
            at.newidle[distance].searched(Nanos(cost), now);
            if !at.is_newly_idle {
                at.balanced_at[distance] = now.0;
                at.failed[distance] = if is_vain { at.failed[distance].saturating_add(1) } else { 0 };
            }
        }
        // A shared queue's length is on the line of its lock.
        for queue in self.sched.queues_examined.get_mut() {
            let line = self.queue_lines[*queue as usize];
            let took = self.memory.read_line(kernel, line, now);
            let at = &mut self.sched.cpus[cpu as usize];
            at.parts[0] = at.parts[0].saturating_add(u32::try_from(took.0).unwrap_or(u32::MAX));
        }
        let at = &mut self.sched.cpus[cpu as usize];
        at.newidle[0].searched(Nanos(at.parts[0].into()), now);
        pull
    }

    /// Makes a CPU idle. `search_at`: when it searches, unless a task is woken on it before.
    fn idle(&mut self, cpu: u32, search_at: Option<u64>) {
        self.set_busy(cpu, false);
        self.sched.cpus[cpu as usize].state_since = self.sched.now;
        self.sched.set_cpu_state(cpu, CpuState::Idle, search_at.is_some());
        if let Some(at) = search_at {
            let generation = self.sched.cpus[cpu as usize].generation;
            self.push_event(at, event_class::SEARCH, cpu, generation);
        }
    }

    /// Records whether a CPU is busy. If that changes, the other threads of its core become slower or faster.
    fn set_busy(&mut self, cpu: u32, is_busy: bool) {
        let now = self.sched.now;
        let at = &mut self.sched.cpus[cpu as usize];
        if at.is_busy == is_busy {
            return;
        }
        at.is_busy = is_busy;
        if !is_busy {
            at.counts.busy_ns += now - at.state_since;
        }
        at.state_since = now;
        let (kernel, number) = (at.kernel, at.core);
        let core = &mut self.sched.cores[number as usize];
        if is_busy {
            if core.busy == 0 {
                self.memory.slept(kernel, Nanos(now - core.idle_since));
            }
            core.busy += 1;
        } else {
            core.busy -= 1;
            core.idle_since = now;
        }
        let speed = self.times.speed[(core.busy.max(1) as usize - 1).min(7)];
        for i in 0..self.sched.core(number).len() {
            let sibling = self.sched.core(number)[i];
            if sibling == cpu {
                self.sched.cpus[cpu as usize].speed = speed;
            } else if self.sched.cpus[sibling as usize].is_busy {
                self.change_speed(sibling, speed);
            }
        }
    }

    pub(super) fn change_speed(&mut self, cpu: u32, speed: u32) {
        let at = &mut self.sched.cpus[cpu as usize];
        if at.speed == speed {
            return;
        }
        if at.found.is_some() {
            // A search waits for cache lines. Their transfer does not depend on the CPU's speed, so the search's end
            // stays.
            at.speed = speed;
            return;
        }
        self.charge_step(cpu);
        let at = &mut self.sched.cpus[cpu as usize];
        at.speed = speed;
        self.schedule_step_end(cpu);
    }

    /// Subtracts from the step's remaining time what was done until now.
    fn charge_step(&mut self, cpu: u32) {
        let now = self.sched.now;
        let at = &mut self.sched.cpus[cpu as usize];
        let took = now.saturating_sub(at.since);
        let done = if at.speed == 1000 { took } else { took * u64::from(at.speed) / 1000 };
        at.remaining_ns = at.remaining_ns.saturating_sub(done);
        at.since = now.max(at.since);
    }

    /// Computes when the step ends at the current speed, and pushes an event if that is earlier than the pending one.
    fn schedule_step_end(&mut self, cpu: u32) {
        let at = &mut self.sched.cpus[cpu as usize];
        let takes = if at.speed == 1000 {
            at.remaining_ns
        } else {
            (at.remaining_ns * 1000).div_ceil(at.speed.into())
        };
        at.ends_at = at.since + takes;
        if at.ends_at < at.event_at {
            at.generation = at.generation.wrapping_add(1);
            at.event_at = at.ends_at;
            let (ends_at, generation) = (at.ends_at, at.generation);
            self.push_event(ends_at, event_class::STEP, cpu, generation);
        }
    }

    /// Begins a step that takes `ns` at full speed.
    fn start_step(&mut self, cpu: u32, ns: u64) {
        let at = &mut self.sched.cpus[cpu as usize];
        (at.remaining_ns, at.since, at.event_at) = (ns, self.sched.now, u64::MAX);
        self.schedule_step_end(cpu);
    }

    fn push_tick(&mut self, cpu: u32) {
        let (now, period) = (self.sched.now, self.times.period);
        // All CPUs tick at the same time, except for the latency of the interrupt.
        let count = now / period + 1;
        let late = below(self.random.bits(cpu.into(), Purpose::Tick, count), self.times.tick_spread + 1);
        self.push_event(count * period + late, event_class::TICK, cpu, 0);
    }

    /// Handles a timer tick. Returns whether the event was stale because no task runs on the CPU; then the ticks of the
    /// CPU end until it runs a task again.
    pub(super) fn tick(&mut self, cpu: u32) -> bool {
        if !self.is_running(cpu) {
            self.sched.cpus[cpu as usize].ticks = false;
            return true;
        }
        self.push_tick(cpu);
        self.update_vruntime(cpu);
        let now = self.sched.now;
        let at = &mut self.sched.cpus[cpu as usize];
        at.counts.ticks += 1;
        let (id, on_since) = (at.current, at.on_since);
        let mut cost = self.times.tick;
        let process = self.sched.tasks[id as usize].process;
        if process != NONE {
            let every = self.settings.compaction;
            let cpus = &self.sched.cpus;
            // The clock of an idle CPU shows the time at which it went idle.
            let clock = |there: CpuId| {
                let at = &cpus[there.index()];
                Nanos(if at.is_busy { now } else { at.state_since })
            };
            if self.processes[process as usize].tick(Nanos(now), every, clock) {
                cost += self.times.scan * cpus.len() as u64;
            }
        }
        self.delay(cpu, cost);
        let at = &self.sched.cpus[cpu as usize];
        let stealable = at.queue.stealable > 0;
        let waits = at.queue.len() > 0 || self.has_unassigned_task(at.shard as usize);
        if stealable {
            self.notify_idle_cpu(cpu);
        }
        let moving = self.balance(cpu);
        self.delay(cpu, moving);
        if waits && self.settings.slice.is_some_and(|slice| now - on_since >= slice.0) {
            self.preempt(cpu);
        }
        false
    }

    /// Lengthens the current step by `ns`, in which the CPU does something else.
    pub(super) fn delay(&mut self, cpu: u32, ns: u64) {
        if ns > 0 {
            self.charge_step(cpu);
            self.sched.cpus[cpu as usize].remaining_ns += ns;
            self.schedule_step_end(cpu);
        }
    }

    /// Compares this CPU's queue with that of one of the nearest CPUs, chosen at random. If this check and those before
    /// it, `IMBALANCE_CHECKS` in a row, found tasks to take, the last one takes them. Returns what that costs.
    fn balance(&mut self, cpu: u32) -> u64 {
        let me = CpuId(cpu);
        let near = self.sched.machine.cpus().saturating_sub(1).min(NEIGHBOURS);
        if near == 0 || self.sched.waiting == 0 {
            return 0;
        }
        let bits = self.random.bits(cpu.into(), Purpose::Neighbour, self.sched.now);
        let Some(other) = self.sched.machine.others(me).nth(below(bits, near as u64) as usize) else {
            return 0;
        };
        let mut cost = (self.times.search[self.sched.machine.distance(me, other) as usize] + 500) / 1000;
        let come = self.policy.balance(&self.sched.machine, &self.sched, me, other);
        let at = &mut self.sched.cpus[cpu as usize];
        at.imbalance_count = if come == 0 { 0 } else { at.imbalance_count + 1 };
        if at.imbalance_count < IMBALANCE_CHECKS {
            return cost;
        }
        at.imbalance_count = 0;
        cost += (0..come).map_while(|_| self.steal(me, other)).sum::<u64>();
        cost
    }

    /// Preempts the task `id` if it still runs on the CPU and another task is queued there. Returns whether the event
    /// was stale.
    pub(super) fn preempt_for(&mut self, cpu: u32, id: u32) -> bool {
        let at = &self.sched.cpus[cpu as usize];
        let runs = at.state == CpuState::Running && at.current == id && at.queue.len() > 0;
        if runs {
            self.preempt(cpu);
        }
        !runs
    }

    /// Puts the current task back into the queue and switches to the next one, which may be the same.
    fn preempt(&mut self, cpu: u32) {
        self.charge_step(cpu);
        let remaining_ns = std::mem::take(&mut self.sched.cpus[cpu as usize].remaining_ns);
        let current = self.sched.cpus[cpu as usize].current;
        let task = self.sched.task(current);
        task.remaining_ns = remaining_ns;
        let (prev, next) = self.replace_task(cpu, SwitchReason::Runnable);
        if !matches!(next, Next::Run(id, _) if id == prev) {
            self.sched.task(prev).counts.preemptions += 1;
        }
        self.switch_to(cpu, Some((prev, SwitchReason::Runnable)), next);
    }

    /// Removes a task that has ended from its process, and frees its index if it was forked and has no children left.
    fn reap_task(&mut self, id: u32) {
        let task = &self.sched.tasks[id as usize];
        debug_assert_eq!(task.state, TaskState::Dead);
        let (process, user) = (task.process, task.user);
        if process != NONE {
            self.processes[process as usize].part(user);
        }
        if task.is_forked {
            let (code, counts) = (task.code as usize, task.counts);
            self.codes[code].past.add(&counts);
            self.codes[code].past_tasks += 1;
            if self.sched.tasks[id as usize].children == 0 {
                self.free.push(id);
            }
        }
    }
}
