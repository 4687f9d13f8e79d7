//! Outside threads: threads that are no workers of the simulated runtime, and run beside them.
//!
//! An outside thread runs one program, or several in turn as an event loop does. Its programs wake and fork tasks and
//! wait, but no scheduler of the simulation places them. A task that they wake is woken from outside
//! ([`Scheduler::wake_from_outside`]). The wake of a thread that sleeps takes the waker a system call and the thread a
//! latency ([`Outside`]).
//!
//! A thread needs a CPU, which it does not share: the CPU where it ran last, if that is idle, else any idle one. If all are
//! busy, it waits at its CPU until the worker there parks, or until that worker's time slice is over. Then the thread
//! preempts the worker, whose poll takes longer by the time that the thread runs. A worker that is unparked where a thread
//! runs waits until the thread sleeps or its slice is over, as the kernel's fair class does it since 6.12. If another CPU is idle the
//! kernel runs the worker there; here the thread goes there, which is the same.
//!
//! Only the scheduler of a runtime makes workers wait.
//!
//! # Arrivals
//! Of a recorded program it is known when wakes from outside came, and not which thread they came from ([`Arrivals`]). A task that waits for a wake
//! becomes ready in its driver then, and the worker that serves the driver wakes it, as for a socket or a timer. A recorded wake
//! is what a worker did after it had left its idle state, so a worker that is parked in its driver leaves that at once. If the task does not
//! wait, one later wait of it ends at once: no arrival is lost.

use super::call_costs::ByIdle;
use super::scheduler::Scheduler;
use super::state::CpuState;
use super::step::StepOutcome;
use super::task::{BlockedOn, NONE, TaskState};
use super::{Simulation, event_class};
use crate::program::{Program, ProgramError, TaskId};
use crate::trace::{Observer, SwitchReason};
use std::collections::VecDeque;
use warmcore_sched::Distance;
use warmcore_types::Nanos;

/// Threads outside, and how the kernel treats them and the workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outside {
    /// What the wake of a sleeping thread costs its waker, in ns: a system call.
    pub wake: ByIdle,
    /// From the wake to the thread's first instruction, in ns.
    pub latency: ByIdle,
    /// What going to sleep takes a thread, in ns.
    pub sleep: u64,
    /// How long the kernel lets a thread run while another one waits, in ns. 0: a thread that waits preempts at once.
    pub slice: u64,
    /// Which worker waits for sockets and timers.
    pub drivers: Drivers,
}

/// Which worker waits for sockets and timers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Drivers {
    /// Each worker for its own: a task's timer belongs to the worker that polled the task, and all sockets belong to the
    /// first worker, where the accepting task runs.
    #[default]
    Own,
    /// One for all workers of a shard, the attendant: as workers of the runtime that share a driver
    /// ([`Attendance`](warmcore_driver::Attendance)). A worker that is awake looks now and then.
    Attendant,
    /// One for all workers, whichever parks first: tokio's.
    FirstParked,
    /// Each worker has its own, for the timers and sockets of the tasks that it polled: a runtime per core.
    PerCore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asleep {
        since: u64,
    },
    /// It has no program to run, and is on its way to sleep.
    Parking,
    Waking,
    /// It waits at its CPU.
    Waiting,
    Running {
        since: u64,
    },
}

/// A thread. Its programs that can run are in `ready`.
#[derive(Debug)]
struct Thread {
    number: Option<u32>,
    ready: VecDeque<u32>,
    state: State,
    cpu: u32,
    /// Generation of its pending event.
    generation: u32,
}

/// What the threads do to one CPU.
#[derive(Debug, Default)]
struct OnCpu {
    running: Option<u32>,
    waiting: VecDeque<u32>,
    /// The worker of this CPU was unparked, and waits for the thread that runs.
    worker_waits: bool,
    worker_since: u64,
}

/// All threads.
#[derive(Debug, Default)]
pub(super) struct Threads {
    all: Vec<Thread>,
    cpus: Vec<OnCpu>,
    /// For how long threads ran in place of workers that were in a poll, which count as busy meanwhile.
    preempted_ns: u64,
}

impl Threads {
    /// The thread of a new program. `number`: that of the thread which runs several programs.
    pub(super) fn thread_of(&mut self, number: Option<u32>, cpus: usize) -> u32 {
        self.cpus.resize_with(cpus, OnCpu::default);
        let known = self.all.iter().position(|thread| number.is_some() && thread.number == number);
        let thread = known.unwrap_or(self.all.len());
        if thread == self.all.len() {
            let (state, cpu) = (State::Asleep { since: 0 }, (thread % cpus) as u32);
            self.all.push(Thread { number, ready: VecDeque::new(), state, cpu, generation: 0 });
        }
        thread as u32
    }

    /// Whether a thread runs on this CPU.
    pub(super) fn is_on(&self, cpu: u32) -> bool {
        self.cpus.get(cpu as usize).is_some_and(|on| on.running.is_some())
    }
}

impl<S: Scheduler, O: Observer> Simulation<S, O> {
    /// For how long threads ran in place of workers that were in a poll; [`CpuCounts::busy_ns`](super::CpuCounts::busy_ns) has that time.
    pub(crate) fn preempted_ns(&self) -> u64 {
        self.threads.preempted_ns
    }

    /// Makes a blocked, sleeping or new task runnable, by the task that runs on `cpu` or, if that is `NONE`, by an
    /// outside thread. Returns the cost for the waker.
    pub(super) fn wake_from(&mut self, id: u32, cpu: u32, is_sync: bool) -> u64 {
        if self.state.tasks[id as usize].is_outside {
            return self.wake_outside(id);
        }
        match cpu {
            NONE => S::wake_from_outside(self, id),
            _ => S::wake_by(self, id, cpu, is_sync),
        }
    }

    /// Makes a program of an outside thread runnable. Returns the cost for the waker, if the thread sleeps.
    pub(super) fn wake_outside(&mut self, id: u32) -> u64 {
        let is_timer = self.state.tasks[id as usize].state == TaskState::Sleeping;
        self.state.task(id).state = TaskState::Queued;
        let number = self.state.tasks[id as usize].thread;
        let thread = &mut self.threads.all[number as usize];
        thread.ready.push_back(id);
        let State::Asleep { since } = thread.state else { return 0 };
        thread.state = State::Waking;
        let (idle, costs) = (self.state.now - since, self.settings.outside);
        let has_idle_cpu = (0..self.state.cpus.len()).any(|cpu| self.is_free(cpu as u32));
        let latency = if is_timer || !has_idle_cpu { 0 } else { costs.latency.after(idle) };
        self.push_thread_event(number, self.state.now + latency);
        if is_timer { 0 } else { costs.wake.after(if has_idle_cpu { idle } else { 0 }) }
    }

    fn push_thread_event(&mut self, number: u32, at: u64) {
        let thread = &mut self.threads.all[number as usize];
        thread.generation = thread.generation.wrapping_add(1);
        let generation = thread.generation;
        self.push_event(at, event_class::OUTSIDE, number, generation);
    }

    /// Handles the event of a thread. Returns whether it was stale.
    pub(super) fn run_thread(&mut self, number: u32, generation: u32) -> bool {
        let thread = &self.threads.all[number as usize];
        if thread.generation != generation {
            return true;
        }
        let cpu = thread.cpu;
        match thread.state {
            State::Waking => self.place_thread(number),
            State::Running { .. } => self.continue_thread(number),
            State::Parking if !thread.ready.is_empty() => self.begin_thread(number, cpu),
            State::Parking => {
                self.threads.all[number as usize].state = State::Asleep { since: self.state.now };
                self.threads.cpus[cpu as usize].running = None;
                self.fill_cpu(cpu);
            }
            // The slice of the worker is over, unless another thread runs there.
            State::Waiting if self.threads.cpus[cpu as usize].running.is_some() => {}
            State::Waiting => {
                self.threads.cpus[cpu as usize].waiting.retain(|waiting| *waiting != number);
                self.begin_thread(number, cpu);
            }
            State::Asleep { .. } => return true,
        }
        false
    }

    /// Whether neither a worker nor a thread needs the CPU.
    fn is_free(&self, cpu: u32) -> bool {
        let on = &self.threads.cpus[cpu as usize];
        self.state.cpus[cpu as usize].state == CpuState::Idle
            && on.running.is_none()
            && on.waiting.is_empty()
            && !on.worker_waits
    }

    fn place_thread(&mut self, number: u32) {
        let last = self.threads.all[number as usize].cpu;
        let all = 0..self.state.cpus.len() as u32;
        match std::iter::once(last).chain(all).find(|cpu| self.is_free(*cpu)) {
            Some(cpu) => self.begin_thread(number, cpu),
            None => self.queue_thread(number, last),
        }
    }

    /// The thread waits until the CPU is free, or until the worker's slice there is over.
    fn queue_thread(&mut self, number: u32, cpu: u32) {
        let (now, slice) = (self.state.now, self.settings.outside.slice);
        self.threads.all[number as usize].state = State::Waiting;
        self.threads.all[number as usize].cpu = cpu;
        let on = &mut self.threads.cpus[cpu as usize];
        on.waiting.push_back(number);
        // A slice without a thread that waits is followed by another one.
        let ran = (now - on.worker_since).checked_rem(slice).unwrap_or(0);
        self.push_thread_event(number, now + slice - ran);
    }

    fn begin_thread(&mut self, number: u32, cpu: u32) {
        let now = self.state.now;
        self.threads.cpus[cpu as usize].running = Some(number);
        let thread = &mut self.threads.all[number as usize];
        (thread.cpu, thread.state) = (cpu, State::Running { since: now });
        self.push_thread_event(number, now);
    }

    /// Runs the programs of a thread until a step takes time, or all of them wait.
    fn continue_thread(&mut self, number: u32) {
        loop {
            let thread = &mut self.threads.all[number as usize];
            let (cpu, State::Running { since }) = (thread.cpu, thread.state) else { return };
            let (now, slice) = (self.state.now, self.settings.outside.slice);
            let on = &mut self.threads.cpus[cpu as usize];
            let Some(id) = thread.ready.front().copied() else {
                thread.state = State::Parking;
                return self.push_thread_event(number, now + self.settings.outside.sleep);
            };
            let preempts = self.state.cpus[cpu as usize].state == CpuState::Running;
            if (on.worker_waits || preempts) && slice > 0 && now - since >= slice {
                (on.running, on.worker_since) = (None, now);
                if on.worker_waits {
                    self.resume_worker(cpu);
                }
                return self.queue_thread(number, cpu);
            }
            self.state.task(id).state = TaskState::Running;
            match self.advance_task(NONE, id, 0) {
                StepOutcome::Run(ns) => {
                    if preempts {
                        self.delay(cpu, ns);
                        self.threads.preempted_ns += ns;
                    }
                    return self.push_thread_event(number, now + ns);
                }
                StepOutcome::Switch(reason) => {
                    let ready = &mut self.threads.all[number as usize].ready;
                    ready.pop_front();
                    match reason {
                        SwitchReason::Runnable => ready.push_back(id),
                        SwitchReason::Exited => self.reap_task(id),
                        SwitchReason::Blocked => {}
                    }
                }
            }
        }
    }

    /// Whether the worker of `cpu`, which was unparked, has to wait for a thread that runs there.
    pub(super) fn has_to_wait(&mut self, cpu: u32) -> bool {
        let now = self.state.now;
        let Some(on) = self.threads.cpus.get_mut(cpu as usize) else { return false };
        on.worker_since = now;
        let Some(number) = on.running else { return false };
        if let Some(other) = (0..self.state.cpus.len() as u32).find(|cpu| self.is_free(*cpu)) {
            self.move_thread(number, other);
            return false;
        }
        self.threads.cpus[cpu as usize].worker_waits = true;
        true
    }

    fn move_thread(&mut self, number: u32, to: u32) {
        let from = std::mem::replace(&mut self.threads.all[number as usize].cpu, to);
        self.threads.cpus[from as usize].running = None;
        self.threads.cpus[to as usize].running = Some(number);
    }

    fn resume_worker(&mut self, cpu: u32) {
        let on = &mut self.threads.cpus[cpu as usize];
        (on.worker_waits, on.worker_since) = (false, self.state.now);
        S::finish_wakeup(self, cpu);
    }

    /// A thread or the worker of `cpu` sleeps: gives the CPU to the worker, if that waits, or to a thread.
    pub(super) fn fill_cpu(&mut self, cpu: u32) {
        let Some(on) = self.threads.cpus.get_mut(cpu as usize) else { return };
        if on.running.is_some() {
            return;
        }
        if on.worker_waits {
            return self.resume_worker(cpu);
        }
        if self.state.cpus[cpu as usize].state != CpuState::Idle {
            return;
        }
        let nearest = std::iter::once(cpu).chain(0..self.threads.cpus.len() as u32);
        let waits = |cpu: &u32| !self.threads.cpus[*cpu as usize].waiting.is_empty();
        if let Some(from) = nearest.clone().find(waits) {
            let number = self.threads.cpus[from as usize].waiting.pop_front().expect("it is not empty");
            return self.begin_thread(number, cpu);
        }
        let keeps_out = |cpu: &u32| self.threads.cpus[*cpu as usize].worker_waits;
        if let Some(other) = nearest.clone().find(keeps_out)
            && let Some(number) = self.threads.cpus[other as usize].running
        {
            self.move_thread(number, cpu);
            self.resume_worker(other);
        }
    }
}

/// Arrivals, ascending, and how many of them have come.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    all: Vec<(Nanos, TaskId)>,
    next: usize,
    /// They are those of a recording.
    are_recorded: bool,
    /// Recorded arrivals are being handled.
    pub(super) are_coming: bool,
}

impl<S: Scheduler, O: Observer> Simulation<S, O> {
    /// Creates a task that waits to be woken, and whose steps follow that wake.
    pub(crate) fn spawn_asleep(&mut self, program: &Program) -> Result<TaskId, ProgramError> {
        program.check()?;
        let code = self.load(program)?;
        let id = self.make(code, self.spawned, NONE);
        self.spawned += 1;
        self.state.task(id).state = TaskState::Blocked(BlockedOn::Wake);
        Ok(TaskId(id))
    }

    /// Sets the recorded arrivals, which ascend. The simulation has an event at `end` too, so that it does not end before.
    pub(crate) fn let_arrive(&mut self, arrivals: Vec<(Nanos, TaskId)>, end: Nanos) {
        self.let_requests_arrive(arrivals, end);
        self.arrivals.are_recorded = true;
    }

    /// Sets when requests arrive at which tasks, in ascending order. Each ends one [`Program::wait`] of its task, whose driver
    /// wakes it as for a socket; a worker that is parked there first leaves its idle state. The simulation has an event at `end`
    /// too, so that it does not end before.
    pub fn let_requests_arrive(&mut self, arrivals: Vec<(Nanos, TaskId)>, end: Nanos) {
        debug_assert!(arrivals.is_sorted_by_key(|(at, _)| *at));
        self.push_event(end.0, event_class::ARRIVALS, 0, 0);
        if let Some((first, _)) = arrivals.first() {
            self.push_event(first.0, event_class::ARRIVALS, 0, 0);
        }
        self.arrivals = Arrivals { all: arrivals, ..Arrivals::default() };
    }

    /// Lets all arrive that are due.
    pub(super) fn next_arrivals(&mut self) {
        while let Some((at, TaskId(id))) = self.arrivals.all.get(self.arrivals.next).copied() {
            if at.0 > self.state.now {
                return self.push_event(at.0, event_class::ARRIVALS, 0, 0);
            }
            self.arrivals.next += 1;
            self.arrive(id, self.arrivals.are_recorded);
        }
    }

    /// One arrives at a task.
    pub(super) fn arrive(&mut self, id: u32, is_recorded: bool) {
        let task = self.state.task(id);
        match task.state {
            TaskState::Blocked(BlockedOn::Wake) => {
                task.state = TaskState::Blocked(BlockedOn::Driver);
                self.arrivals.are_coming = is_recorded;
                S::expire(self, id);
                self.arrivals.are_coming = false;
            }
            TaskState::Dead => {}
            _ => task.permits = task.permits.saturating_add(1),
        }
    }

    /// How much longer a task's poll takes for where its poll before was: `refill` is for a CPU under the same last-level cache.
    pub(super) fn refill_ns(&self, id: u32, refill: Nanos) -> u64 {
        let line = |distance: Distance| u128::from(self.times.push[distance as usize].max(1));
        match self.state.tasks[id as usize].came_from {
            None => 0,
            Some(far) => (u128::from(refill.0) * line(far) / line(Distance::Llc)) as u64,
        }
    }
}
