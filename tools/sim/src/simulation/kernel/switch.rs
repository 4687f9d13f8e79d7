//! Switch: which task has a CPU of the simulated kernel, and what happens when it gets or loses it.
//!
//! A CPU without a task takes the first one of its own queue; if that is empty it searches (`search`), and goes idle if it
//! finds none.
//!
//! # Source
//!
//! Linux `__schedule`, `pick_next_task_fair`, `scheduler_tick`.

use super::KernelScheduler;
use crate::policy::{Enqueued, KernelPolicy};
use crate::program::TaskId;
use crate::simulation::state::CpuState;
use crate::simulation::task::NONE;
use crate::simulation::{Simulation, event_class};
use crate::trace::{Observer, SwitchReason};
use warmcore_types::{CpuId, Nanos};

/// What a CPU does next.
#[derive(Debug, Clone, Copy)]
pub(super) enum Next {
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

impl<P: KernelPolicy, O: Observer> Simulation<KernelScheduler<P>, O> {
    /// Handles the event that a CPU has left its idle state, or that its search is over.
    pub(super) fn finish_wakeup(&mut self, cpu: u32) {
        let mut entering = 0;
        while let Some((id, queue)) = self.state.enters_late(cpu) {
            entering += self.lock_queue(cpu, queue);
            self.state.enter(id, queue);
        }
        let next = match self.state.cpus[cpu as usize].sched.found.take() {
            Some(found) => self.finish_search(cpu, found),
            None => self.pick_next_task(cpu, None, false),
        };
        let next = next.after(entering);
        self.switch_to(cpu, None, next);
    }

    /// Takes the CPU from its task, and chooses what the CPU does next. Returns what the switch costs if a task has to
    /// begin a new step.
    pub(super) fn switch(&mut self, cpu: u32, reason: SwitchReason) -> Option<u64> {
        let (prev, next) = self.replace_task(cpu, reason);
        if reason == SwitchReason::Exited {
            self.reap_task(prev);
        }
        self.context_switch(cpu, Some((prev, reason)), next)
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
        match self.state.tasks[prev as usize].sched.inject_queue {
            NONE => (prev, next),
            // The task that lost the CPU was put into a shared queue, which takes time.
            queue => (prev, next.after(self.lock_queue(cpu, queue as usize))),
        }
    }

    /// Switches the CPU to the chosen task, or starts a search, or idles the CPU. Returns what the switch costs if
    /// the task has to begin a new step.
    fn context_switch(&mut self, cpu: u32, prev: Option<(u32, SwitchReason)>, next: Next) -> Option<u64> {
        let now = Nanos(self.state.now);
        let found = match next {
            Next::Run(id, _) => Some(id),
            Next::Idle(_) | Next::Search => None,
        };
        if prev.is_some() || found.is_some() {
            let prev = prev.map(|(id, reason)| (TaskId(id), reason));
            self.observer.switch(now, CpuId(cpu), prev, found.map(TaskId));
        }
        let at = &mut self.state.cpus[cpu as usize];
        let had = std::mem::replace(&mut at.sched.had, NONE);
        let (id, taking) = match next {
            Next::Run(id, taking) => (id, taking),
            Next::Search => {
                // When the search is over, the index of a task that has ended may belong to another task.
                at.sched.had =
                    prev.filter(|(_, reason)| *reason != SwitchReason::Exited).map_or(had, |(id, _)| id);
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
            None if at.sched.is_newly_idle => self.times.voluntary,
            None => 0,
        };
        let cost = cost + taking;
        self.set_next_task(cpu, id, is_same);
        let task = self.state.task(id);
        let left = task.run_until.saturating_sub(now.0);
        let remaining_ns = std::mem::take(&mut task.remaining_ns).min(left);
        if remaining_ns > 0 {
            self.start_step(cpu, remaining_ns + cost);
            return None;
        }
        Some(cost)
    }

    /// Gives a CPU to a task. `is_same`: the task had it just before, which counts as no switch.
    fn set_next_task(&mut self, cpu: u32, id: u32, is_same: bool) {
        self.state.set_cpu_state(cpu, CpuState::Running, false);
        self.state.set_current(cpu, id);
        let at = &mut self.state.cpus[cpu as usize].sched;
        at.vruntime_at = self.state.now;
        at.average_idle.found_task();
        self.give_cpu(cpu, id, is_same);
    }

    /// Takes the CPU from its task. Returns the task.
    fn put_prev_task(&mut self, cpu: u32, reason: SwitchReason) -> u32 {
        let now = self.state.now;
        self.update_vruntime(cpu);
        let id = self.take_cpu(cpu, reason);
        self.state.set_current(cpu, NONE);
        let at = &mut self.state.cpus[cpu as usize].sched;
        let allowed = self.state.tasks[id as usize].allowed;
        let task = &mut self.state.tasks[id as usize].sched;
        task.last_ran = now;
        match reason {
            // A CPU is kept for its last task only if no task is queued there.
            SwitchReason::Blocked if at.queue.len() > 0 => task.sleeps.since = Nanos(now),
            SwitchReason::Blocked => at.hot_until = task.sleeps.sleep_on(Nanos(now), Nanos(at.hot_until)).0,
            SwitchReason::Runnable => {
                let machine = &self.state.machine;
                let queue = self.state.sched.policy.enters(machine, CpuId(cpu), allowed, Enqueued::PutBack);
                self.state.enqueue(cpu, id, queue);
            }
            SwitchReason::Exited => {}
        }
        id
    }

    /// Adds what the current task ran since the last update to its `vruntime`.
    fn update_vruntime(&mut self, cpu: u32) {
        let now = self.state.now;
        let at = &mut self.state.cpus[cpu as usize];
        let task = &mut self.state.tasks[at.current as usize];
        task.sched.vruntime += now - at.sched.vruntime_at;
        at.sched.vruntime_at = now;
        let v = task.sched.vruntime;
        let least = at.sched.queue.least_vruntime(&self.state.tasks).map_or(v, |least| least.min(v));
        at.sched.min_vruntime = at.sched.min_vruntime.max(least);
    }

    /// Chooses what a CPU does next. `had`: the task that just had it. `is_interrupted`: that task is still runnable.
    fn pick_next_task(&mut self, cpu: u32, had: Option<u32>, is_interrupted: bool) -> Next {
        if let Some(next) = self.dequeue(cpu, 0, had) {
            return next;
        }
        let (now, has_surplus) = (Nanos(self.state.now), self.state.has_surplus());
        let at = &mut self.state.cpus[cpu as usize];
        at.sched.is_newly_idle = had.is_some();
        if had.is_some() {
            at.sched.average_idle.idle(now);
        }
        if is_interrupted || !has_surplus {
            // By the counts no task can be stolen, or a runnable task was just put back: the policy is not asked.
            return Next::Idle(None);
        }
        at.counts.searches += u64::from(had.is_some());
        at.sched.tries = 0;
        // While it searches, the CPU neither runs nor is idle.
        self.state.set_cpu_state(cpu, CpuState::Coming, false);
        self.search(cpu)
    }

    /// Takes the next task queued here, for `cost` and the cost of leaving a shared queue. A task that keeps its CPU
    /// (`had`) does not pay for leaving.
    pub(super) fn dequeue(&mut self, cpu: u32, cost: u64, had: Option<u32>) -> Option<Next> {
        let (id, queue) = self.state.dequeue(cpu)?;
        let injected = queue.filter(|_| had != Some(id));
        let leaving = injected.map_or(0, |queue| self.lock_queue(cpu, queue));
        Some(Next::Run(id, cost + leaving))
    }

    /// Makes a CPU idle. `search_at`: when it searches, unless a task is woken on it before.
    fn idle(&mut self, cpu: u32, search_at: Option<u64>) {
        self.set_busy(cpu, false);
        self.state.cpus[cpu as usize].state_since = self.state.now;
        self.state.set_cpu_state(cpu, CpuState::Idle, search_at.is_some());
        if let Some(at) = search_at {
            let generation = self.state.cpus[cpu as usize].generation;
            self.push_event(at, event_class::SEARCH, cpu, generation);
        }
    }

    /// A tick: an idle CPU may be notified of the tasks that are queued here, tasks may be moved here, and a task that
    /// has used up its slice is preempted.
    pub(super) fn scheduler_tick(&mut self, cpu: u32) {
        self.update_vruntime(cpu);
        let now = self.state.now;
        let at = &self.state.cpus[cpu as usize];
        let on_since = at.on_since;
        let stealable = at.sched.queue.stealable > 0;
        let waits = at.sched.queue.len() > 0;
        if stealable {
            self.notify_idle_cpu(cpu);
        }
        let moving = self.balance(cpu);
        self.delay(cpu, moving);
        if waits && self.settings.slice.is_some_and(|slice| now - on_since >= slice.0) {
            self.preempt(cpu);
        }
    }

    /// Preempts the task `id` if it still runs on the CPU and another task is queued there. Returns whether the event
    /// was stale.
    pub(super) fn preempt_for(&mut self, cpu: u32, id: u32) -> bool {
        let at = &self.state.cpus[cpu as usize];
        let runs = at.state == CpuState::Running && at.current == id && at.sched.queue.len() > 0;
        if runs {
            self.preempt(cpu);
        }
        !runs
    }

    /// Puts the current task back into the queue and switches to the next one, which may be the same.
    fn preempt(&mut self, cpu: u32) {
        self.charge_step(cpu);
        let remaining_ns = std::mem::take(&mut self.state.cpus[cpu as usize].remaining_ns);
        let current = self.state.cpus[cpu as usize].current;
        let task = self.state.task(current);
        task.remaining_ns = remaining_ns;
        let (prev, next) = self.replace_task(cpu, SwitchReason::Runnable);
        if !matches!(next, Next::Run(id, _) if id == prev) {
            self.state.task(prev).counts.preemptions += 1;
        }
        self.switch_to(cpu, Some((prev, SwitchReason::Runnable)), next);
    }
}
