//! Running: the time of a CPU: a step of its task, its siblings, ticks, and leaving an idle state.
//!
//! Threads of one core slow each other down: when one becomes busy or idle, the remaining time of its siblings' steps
//! changes. Two busy threads run at 620 thousandths each by default (`smt_speed_percent`). A step that got longer keeps
//! its event, which is then found to be too early; only a step that now ends before its event gets a new one.
//!
//! # Source
//!
//! Linux `scheduler_tick`, `task_tick_mm_cid`.

use super::scheduler::Scheduler;
use super::state::CpuState;
use super::step::StepOutcome;
use super::task::{NONE, TaskState};
use super::{Simulation, event_class};
use crate::program::TaskId;
use crate::random::{Purpose, below, jittered};
use crate::trace::{Observer, SwitchReason};
use warmcore_sched::WakeSource;
use warmcore_types::{CpuId, Nanos};

impl<S: Scheduler, O: Observer> Simulation<S, O> {
    /// Handles a step's event: ends the step if it is over, else pushes the event again. Returns whether it came too
    /// early, which counts as stale.
    pub(super) fn finish_step(&mut self, cpu: u32) -> bool {
        let at = &mut self.state.cpus[cpu as usize];
        if self.state.now < at.ends_at {
            at.event_at = at.ends_at;
            let (ends_at, generation) = (at.ends_at, at.generation);
            self.push_event(ends_at, event_class::STEP, cpu, generation);
            return true;
        }
        at.remaining_ns = 0;
        self.run_current(cpu, 0);
        false
    }

    /// Continues the current task, and the tasks after it, until one takes time or there is no next task.
    pub(super) fn run_current(&mut self, cpu: u32, mut overhead: u64) {
        for _ in 0..self.settings.steps_max {
            let switched = match self.advance(cpu, overhead) {
                StepOutcome::Run(ns) => return self.start_step(cpu, ns),
                StepOutcome::Switch(reason) => S::switch(self, cpu, reason),
            };
            match switched {
                Some(cost) => overhead = cost,
                None => return,
            }
        }
        self.error = Some(self.no_time_passed(self.state.cpus[cpu as usize].current));
    }

    /// Makes a blocked or new task runnable, before its scheduler queues it, and counts the wake.
    pub(super) fn mark_woken(&mut self, id: u32, waker: WakeSource) {
        let now = Nanos(self.state.now);
        self.observer.waking(now, waker, TaskId(id));
        let task = &mut self.state.tasks[id as usize];
        debug_assert!(
            !matches!(task.state, TaskState::Queued | TaskState::Running | TaskState::Dead),
            "{:?} is woken",
            task.state
        );
        task.state = TaskState::Queued;
        task.queued_at = now.0;
        task.counts.wakes += 1;
    }

    /// Gives a CPU to a task, which the scheduler has made its current one. `is_same`: the task had it just before, which
    /// counts as no switch.
    pub(super) fn give_cpu(&mut self, cpu: u32, id: u32, is_same: bool) {
        let now = self.state.now;
        self.set_busy(cpu, true);
        let at = &mut self.state.cpus[cpu as usize];
        debug_assert_eq!((at.state, at.current), (CpuState::Running, id));
        at.on_since = now;
        at.counts.switches += u64::from(!is_same);
        if !at.ticks && self.times.period > 0 {
            at.ticks = true;
            self.push_tick(cpu);
        }
        let task = &mut self.state.tasks[id as usize];
        task.state = TaskState::Running;
        task.ops = 0;
        let waited = now - task.queued_at;
        task.counts.wait_ns += waited;
        task.counts.wait_ns_max = task.counts.wait_ns_max.max(waited);
        task.counts.switches += u64::from(!is_same);
        let from = std::mem::replace(&mut task.prev_cpu, cpu);
        let (process, user) = (task.process, task.user);
        self.state.task(id).came_from = None;
        if from != NONE && from != cpu {
            let distance = self.state.machine.distance(CpuId(from), CpuId(cpu));
            let task = self.state.task(id);
            task.came_from = Some(distance);
            task.counts.moves_by_distance[distance as usize] += 1;
        }
        if process != NONE {
            self.processes[process as usize].enter(user, CpuId(cpu), Nanos(now));
        }
    }

    /// Takes the CPU from its task. Returns the task. The scheduler queues it if it is still runnable.
    pub(super) fn take_cpu(&mut self, cpu: u32, reason: SwitchReason) -> u32 {
        let now = self.state.now;
        let at = &self.state.cpus[cpu as usize];
        let (id, ran) = (at.current, now - at.on_since);
        let task = &mut self.state.tasks[id as usize];
        task.counts.run_ns += ran;
        if reason == SwitchReason::Runnable {
            task.state = TaskState::Queued;
            task.queued_at = now;
        }
        let (process, user) = (task.process, task.user);
        if process != NONE {
            self.processes[process as usize].leave(user, CpuId(cpu), Nanos(now));
        }
        id
    }

    /// Removes a task that has ended from its process, and frees its index if it was forked and has no children left.
    pub(super) fn reap_task(&mut self, id: u32) {
        let task = &self.state.tasks[id as usize];
        debug_assert_eq!(task.state, TaskState::Dead);
        let (process, user) = (task.process, task.user);
        if process != NONE {
            self.processes[process as usize].part(user);
        }
        if task.is_forked {
            let (code, counts) = (task.code as usize, task.counts);
            self.codes[code].past.add(&counts);
            self.codes[code].past_tasks += 1;
            if self.state.tasks[id as usize].children == 0 {
                self.free.push(id);
            }
        }
    }

    /// Begins the time that a search of other queues takes; the CPU's `AWAKE` event ends it.
    pub(super) fn begin_search_time(&mut self, cpu: u32, takes: u64) {
        let now = self.state.now;
        self.set_busy(cpu, true);
        let at = &mut self.state.cpus[cpu as usize];
        at.counts.busy_ns += now - at.state_since;
        (at.state_since, at.since, at.ends_at) = (now, now, now + takes);
        at.is_searching = true;
        let generation = at.generation;
        self.push_event(now + takes, event_class::AWAKE, cpu, generation);
    }

    /// Ends the time of a search.
    pub(super) fn end_search_time(&mut self, cpu: u32) {
        let now = self.state.now;
        let at = &mut self.state.cpus[cpu as usize];
        at.counts.search_ns += now - at.state_since;
        at.state_since = now;
        at.is_searching = false;
    }

    /// Makes an idle CPU leave its idle state: counts that, and pushes the event of the end. `is_ipi`: an interrupt from
    /// elsewhere wakes it. `delay`: the time until that interrupt is sent.
    pub(super) fn leave_idle(&mut self, cpu: u32, delay: u64, is_ipi: bool) {
        // A CPU that its own timer wakes gets no interrupt from elsewhere, and `delay` would count the end of its idle
        // state twice.
        let wakeup = match self.settings.calls.unpark_latency.after(self.idle_ns(cpu)) {
            // The CPU is not idle: a thread outside has it.
            _ if self.threads.is_on(cpu) || self.arrivals.are_coming => 1,
            0 => self.times.kick + self.exit_latency(cpu),
            ns => self.varied(cpu, ns),
        };
        let takes = wakeup + if is_ipi { delay } else { 0 };
        let at = &mut self.state.cpus[cpu as usize];
        at.counts.ipis += u64::from(is_ipi);
        at.counts.idle_exits += 1;
        let generation = at.generation;
        self.push_event(self.state.now + takes, event_class::AWAKE, cpu, generation);
    }

    /// A time of a park or an unpark, which varies.
    pub(super) fn varied(&self, cpu: u32, ns: u64) -> u64 {
        let bits = self.random.bits(!u64::from(cpu), Purpose::Step, self.handled);
        jittered(bits, Nanos(ns), self.settings.calls.unpark_jitter).0
    }

    /// How long a CPU that is not busy has been idle.
    pub(super) fn idle_ns(&self, cpu: u32) -> u64 {
        self.state.now - self.state.cpus[cpu as usize].state_since
    }

    /// How long an idle CPU takes to leave its idle state. The kernel is assumed to have predicted the idle time.
    pub(super) fn exit_latency(&self, cpu: u32) -> u64 {
        self.memory.costs().cstate_after(Nanos(self.idle_ns(cpu))).map_or(0, |state| state.exit.0)
    }

    /// Records whether a CPU is busy. If that changes, the other threads of its core become slower or faster.
    pub(super) fn set_busy(&mut self, cpu: u32, is_busy: bool) {
        let now = self.state.now;
        let at = &mut self.state.cpus[cpu as usize];
        if at.is_busy == is_busy {
            return;
        }
        at.is_busy = is_busy;
        if !is_busy {
            at.counts.busy_ns += now - at.state_since;
        }
        at.state_since = now;
        let (kernel, number) = (at.kernel, at.core);
        let core = &mut self.state.cores[number as usize];
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
        for i in 0..self.state.core(number).len() {
            let sibling = self.state.core(number)[i];
            if sibling == cpu {
                self.state.cpus[cpu as usize].speed = speed;
            } else if self.state.cpus[sibling as usize].is_busy {
                self.change_speed(sibling, speed);
            }
        }
    }

    pub(super) fn change_speed(&mut self, cpu: u32, speed: u32) {
        let at = &mut self.state.cpus[cpu as usize];
        if at.speed == speed {
            return;
        }
        if at.is_searching {
            at.speed = speed;
            return;
        }
        self.charge_step(cpu);
        let at = &mut self.state.cpus[cpu as usize];
        at.speed = speed;
        self.schedule_step_end(cpu);
    }

    /// Subtracts from the step's remaining time what was done until now.
    pub(super) fn charge_step(&mut self, cpu: u32) {
        let now = self.state.now;
        let at = &mut self.state.cpus[cpu as usize];
        let took = now.saturating_sub(at.since);
        let done = if at.speed == 1000 { took } else { took * u64::from(at.speed) / 1000 };
        at.remaining_ns = at.remaining_ns.saturating_sub(done);
        at.since = now.max(at.since);
    }

    /// Computes when the step ends at the current speed, and pushes an event if that is earlier than the pending one.
    pub(super) fn schedule_step_end(&mut self, cpu: u32) {
        let at = &mut self.state.cpus[cpu as usize];
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
    pub(super) fn start_step(&mut self, cpu: u32, ns: u64) {
        let at = &mut self.state.cpus[cpu as usize];
        (at.remaining_ns, at.since, at.event_at) = (ns, self.state.now, u64::MAX);
        self.schedule_step_end(cpu);
        S::begin_step(self, cpu, ns);
    }

    /// Lengthens the current step by `ns`, in which the CPU does something else.
    pub(super) fn delay(&mut self, cpu: u32, ns: u64) {
        if ns > 0 {
            self.charge_step(cpu);
            self.state.cpus[cpu as usize].remaining_ns += ns;
            self.schedule_step_end(cpu);
        }
    }

    fn push_tick(&mut self, cpu: u32) {
        let (now, period) = (self.state.now, self.times.period);
        // All CPUs tick at the same time, except for the latency of the interrupt.
        let count = now / period + 1;
        let late = below(self.random.bits(cpu.into(), Purpose::Tick, count), self.times.tick_spread + 1);
        self.push_event(count * period + late, event_class::TICK, cpu, 0);
    }

    /// Handles a timer tick. Returns whether the event was stale because no task runs on the CPU; then the ticks of the
    /// CPU end until it runs a task again.
    pub(super) fn tick(&mut self, cpu: u32) -> bool {
        if !self.is_running(cpu) {
            self.state.cpus[cpu as usize].ticks = false;
            return true;
        }
        self.push_tick(cpu);
        let now = self.state.now;
        let at = &mut self.state.cpus[cpu as usize];
        at.counts.ticks += 1;
        let mut cost = self.times.tick;
        let process = self.state.tasks[at.current as usize].process;
        if process != NONE {
            let every = self.settings.compaction;
            let cpus = &self.state.cpus;
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
        S::tick(self, cpu);
        false
    }

    pub(super) fn is_running(&self, cpu: u32) -> bool {
        self.state.cpus[cpu as usize].state == CpuState::Running
    }
}
