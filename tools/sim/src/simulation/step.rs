//! Step: what a running task does next.
//!
//! The times of steps add up until a step that affects other tasks: that step happens when the time has passed, at an
//! event of its own. Successive passes over memory are computed as if each began at the end of the one before, without
//! an event between them. The steps `run, wake, wait` take two events of the waker: the end of the run, and the end of
//! the wake's cost, if it has one.

use super::scheduler::Scheduler;
use super::task::{BlockedOn, NONE, TaskState};
use super::{Simulation, event_class};
use crate::memory::{Access, ExtentId, Pages};
use crate::program::{FOREVER, LENGTH_MAX, Op, ProgramError, TaskId};
use crate::trace::{Observer, SwitchReason};
use warmcore_types::{CpuId, Nanos};

/// A step at this time or later is an error: half of the clock's range, so that times added to it fit.
const CLOCK_MAX: u64 = 1 << 63;

/// A fork is an error while there are this many tasks, which take 2 GiB: so a program that forks without end gets this
/// error.
const TASKS_MAX: usize = 1 << 22;

/// What the current task does next.
pub(super) enum StepOutcome {
    /// It runs for this many ns at full speed, which is 0 ns for a step that takes no time.
    Run(u64),
    /// It loses the CPU.
    Switch(SwitchReason),
}

impl<S: Scheduler, O: Observer> Simulation<S, O> {
    /// Runs the current task's steps until one takes time or the task loses the CPU. `overhead`: what the CPU does
    /// before them. After an error the task blocks, and `Simulation::run` returns the error.
    pub(super) fn advance(&mut self, cpu: u32, overhead: u64) -> StepOutcome {
        let id = self.state.cpus[cpu as usize].current;
        self.advance_task(cpu, id, overhead)
    }

    /// As [`advance`](Self::advance), for a task that may be an outside thread; then `cpu` is `NONE`.
    pub(super) fn advance_task(&mut self, cpu: u32, id: u32, overhead: u64) -> StepOutcome {
        self.run_steps(cpu, id, overhead).unwrap_or_else(|error| {
            self.error = Some(error);
            self.state.task(id).state = TaskState::Blocked(BlockedOn::Wake);
            StepOutcome::Switch(SwitchReason::Blocked)
        })
    }

    fn run_steps(&mut self, cpu: u32, id: u32, overhead: u64) -> Result<StepOutcome, ProgramError> {
        // An outside thread passes over no memory.
        let kernel = self.state.cpus.get(cpu as usize).map_or(CpuId(0), |cpu| cpu.kernel);
        if self.state.now >= CLOCK_MAX {
            return Err(self.wrong(
                id,
                "the clock is at its end, 292 years",
                "let the sim run for a shorter time",
            ));
        }
        self.state.task(id).run_until = u64::MAX;
        // `pending`: time that passes before the next step. `ran`: part of it is a run. `worked`: part of it is a run
        // or a pass over memory.
        let (mut pending, mut ran, mut worked) = (overhead, false, false);
        for _ in 0..self.settings.steps_max {
            if pending >= LENGTH_MAX.0 {
                return Ok(StepOutcome::Run(pending));
            }
            let task = &self.state.tasks[id as usize];
            let (code, step) = (task.code, task.step);
            let now = Nanos(self.state.now.saturating_add(pending));
            let Some(op) = self.ops(code).get(step as usize).copied() else {
                if pending > 0 {
                    return Ok(StepOutcome::Run(pending));
                }
                self.end(cpu, id)?;
                return Ok(StepOutcome::Switch(SwitchReason::Exited));
            };
            let is_touch = matches!(
                op,
                Op::Touch(..) | Op::TouchOwn { .. } | Op::TouchCid(_) | Op::ReadLine(_) | Op::WriteLine(_)
            );
            // Whether the step happens only when the pending time has passed.
            let is_due_later = match op {
                Op::Run(_) | Op::RunFor(_) | Op::Begin { .. } => false,
                Op::End(_) | Op::Mark(_) => worked && pending > 0,
                Op::Allow(_) => ran,
                _ if is_touch => ran,
                _ => pending > 0,
            };
            if is_due_later {
                return Ok(StepOutcome::Run(pending));
            }
            worked |= is_touch;
            match op {
                Op::Run(length) => {
                    pending += self.draw(id, length);
                    (ran, worked) = (true, true);
                }
                Op::RunFor(length) => {
                    pending += self.draw(id, length);
                    let until = self.state.now.saturating_add(pending);
                    let task = self.state.task(id);
                    (task.step, task.run_until) = (task.step + 1, until);
                    return Ok(StepOutcome::Run(pending));
                }
                Op::Touch(extent, how) => pending += self.memory.touch(kernel, extent, how, now).0,
                Op::TouchOwn { kib, pages, how } => {
                    pending += self.touch_own(kernel, id, (kib, pages, how), now)
                }
                Op::TouchCid(how) => {
                    let task = &self.state.tasks[id as usize];
                    debug_assert_eq!(task.prev_cpu, cpu);
                    let process = &mut self.processes[task.process as usize];
                    pending += process.touch(task.user, &mut self.memory, kernel, how, now).0;
                }
                Op::ReadLine(line) => pending += self.memory.read_line(kernel, line, now).0,
                Op::WriteLine(line) => pending += self.memory.write_line(kernel, line, now).0,
                Op::Begin { times, end } => {
                    let task = self.state.task(id);
                    if times == 0 {
                        task.step = end;
                        continue;
                    }
                    task.loops[usize::from(task.depth)] = times;
                    task.depth += 1;
                }
                Op::End(begin) => {
                    let task = self.state.task(id);
                    let left = &mut task.loops[usize::from(task.depth) - 1];
                    if *left == FOREVER || *left > 1 {
                        *left -= u32::from(*left != FOREVER);
                        task.step = begin;
                    } else {
                        task.depth -= 1;
                    }
                }
                Op::BeginPoll { refill } => {
                    self.observer.poll_began(Nanos(self.state.now), CpuId(cpu), TaskId(id));
                    pending += self.refill_ns(id, refill);
                }
                Op::Mark(mark) => {
                    let (name, passed) = &mut self.marks[mark as usize];
                    *passed += 1;
                    self.observer.marked(now, TaskId(id), name);
                }
                Op::Allow(place) => self.allow(id, self.codes[code as usize].affinities[place as usize]),
                Op::Wake { task, is_sync } => pending += self.wake_for_wait(task.0, cpu, is_sync),
                Op::Fork(_) if self.free.is_empty() && self.state.tasks.len() >= TASKS_MAX => {
                    let fact = format!("forks one task more, and there are {TASKS_MAX}");
                    return Err(self.wrong(id, fact, "let it join those before"));
                }
                Op::Fork(child) => pending += self.fork(cpu, id, child),
                Op::Signal(wait_queue) => pending += self.wake_waiters(cpu, wait_queue, 1),
                Op::Broadcast(wait_queue) => pending += self.wake_waiters(cpu, wait_queue, u32::MAX),
                Op::Send { channel, is_socket, .. } => pending += self.send(cpu, channel, is_socket),
                Op::Take(channel) => pending += self.take_message(cpu, channel),
                Op::Unlock(wait_queue) => pending += self.unlock(cpu, id, wait_queue)?,
                Op::Charge(account, units) => {
                    if !self.accounts.charge(account, CpuId(cpu), units) {
                        let refused = self.codes[code as usize].refused.entry((id, account.0)).or_default();
                        *refused = refused.saturating_add(units);
                    }
                    pending += self.settings.charge.0;
                }
                Op::Uncharge(account, units) => {
                    let units = units - self.take_refused(id, account.0, units);
                    if units > 0 {
                        if !self.accounts.uncharge(account, CpuId(cpu), units) {
                            let fact = format!("gives back {units} units, and so many are not charged");
                            return Err(self.wrong(id, fact, "charge before"));
                        }
                        pending += self.settings.charge.0;
                    }
                }
                _ => match self.run_blocking_op(cpu, id, op)? {
                    StepOutcome::Run(cost) => pending += cost,
                    switch => {
                        self.state.task(id).step += 1;
                        return Ok(switch);
                    }
                },
            }
            self.state.task(id).step += 1;
        }
        Err(self.no_time_passed(id))
    }

    /// The error of a program that continues without time passing.
    pub(super) fn no_time_passed(&self, id: u32) -> ProgramError {
        let fact = format!("{} steps, and no time has passed", self.settings.steps_max);
        self.wrong(id, fact, "let it run, sleep or wait in its loop")
    }

    /// Runs a step that may block the task, or that yields.
    fn run_blocking_op(&mut self, cpu: u32, id: u32, op: Op) -> Result<StepOutcome, ProgramError> {
        let now = self.state.now;
        let at_once = Ok(StepOutcome::Run(0));
        if let Op::EndPollUntil { at, after } = op {
            let due = if now <= at.0 { at.0 } else { now.saturating_add(after.0) };
            self.push_event(due, event_class::ARRIVAL, id, 0);
        }
        let state = match op {
            Op::Wait => {
                let task = self.state.task(id);
                if task.permits > 0 {
                    task.permits -= 1;
                    return at_once;
                }
                TaskState::Blocked(BlockedOn::Wake)
            }
            Op::EndPoll | Op::EndPollUntil { .. } if self.state.tasks[id as usize].permits > 0 => {
                self.state.task(id).permits -= 1;
                S::prepare_yield(self, cpu);
                return Ok(StepOutcome::Switch(SwitchReason::Runnable));
            }
            Op::EndPoll | Op::EndPollUntil { .. } => TaskState::Blocked(BlockedOn::Wake),
            Op::Sleep(length) => match self.draw(id, length) {
                0 => return at_once,
                ns => self.sleep_until(id, now.saturating_add(ns)),
            },
            Op::Timer { period, is_absolute, slot } => {
                let last = &mut self.state.task(id).timers[usize::from(slot)];
                let due = if *last == u64::MAX { now } else { *last }.saturating_add(period.0);
                *last = if due > now || is_absolute { due } else { now };
                if due <= now {
                    return at_once;
                }
                self.sleep_until(id, due)
            }
            Op::Yield => {
                S::prepare_yield(self, cpu);
                return Ok(StepOutcome::Switch(SwitchReason::Runnable));
            }
            Op::Join => match self.state.tasks[id as usize].children {
                0 => return at_once,
                _ => TaskState::Blocked(BlockedOn::Children),
            },
            Op::Lock(wait_queue) => {
                let at = &mut self.wait_queues[wait_queue as usize];
                if at.owner == NONE {
                    at.owner = id;
                    return at_once;
                }
                self.push_waiter(id, wait_queue)
            }
            Op::WaitOn { condition, lock } => {
                // What waking the next holder of the lock costs is not charged.
                self.unlock(cpu, id, lock)?;
                self.push_waiter(id, condition)
            }
            Op::Suspend(condition) => self.push_waiter(id, condition),
            Op::Spend => return Ok(self.spend_op(cpu, id)),
            Op::Reserve(channel) => return Ok(self.reserve(id, channel)),
            Op::Await(channel) => return Ok(self.await_message(id, channel)),
            Op::Barrier { name, parties } => {
                if self.wait_queues[name as usize].waiting + 1 >= parties {
                    return Ok(StepOutcome::Run(self.wake_waiters(cpu, name, u32::MAX)));
                }
                self.push_waiter(id, name)
            }
            other => unreachable!("{other:?} is linked"),
        };
        self.state.task(id).state = state;
        Ok(StepOutcome::Switch(SwitchReason::Blocked))
    }

    /// Puts a task into a wait queue. Returns the task's state.
    pub(super) fn push_waiter(&mut self, id: u32, wait_queue: u32) -> TaskState {
        self.wait_queues[wait_queue as usize].push(&mut self.state.tasks, id);
        TaskState::Blocked(BlockedOn::WaitQueue(wait_queue))
    }

    /// Wakes a task for its `wait`. If it is in none and has not ended, one later `wait` of it returns at once. Returns
    /// the cost for the waker.
    fn wake_for_wait(&mut self, id: u32, by: u32, is_sync: bool) -> u64 {
        match self.state.tasks[id as usize].state {
            TaskState::Blocked(BlockedOn::Wake) => self.wake_from(id, by, is_sync),
            TaskState::Dead => 0,
            _ => {
                let task = self.state.task(id);
                task.permits = task.permits.saturating_add(1);
                0
            }
        }
    }

    /// Wakes the first waiters of a wait queue, at most this many. Returns the cost.
    pub(super) fn wake_waiters(&mut self, cpu: u32, wait_queue: u32, at_most: u32) -> u64 {
        let mut cost = 0;
        for _ in 0..at_most {
            let Some(waiter) = self.wait_queues[wait_queue as usize].pop(&self.state.tasks) else { break };
            cost += self.wake_from(waiter, cpu, false);
        }
        cost
    }

    fn sleep_until(&mut self, id: u32, at: u64) -> TaskState {
        self.push_event(at, event_class::TIMER, id, 0);
        TaskState::Sleeping
    }

    /// Hands a lock to the first waiter, or frees it if there is none. Returns the cost.
    fn unlock(&mut self, cpu: u32, id: u32, wait_queue: u32) -> Result<u64, ProgramError> {
        let at = &mut self.wait_queues[wait_queue as usize];
        if at.owner != id {
            let fact = format!("gives back the lock `{}`, which it has not", at.name);
            return Err(self.wrong(id, fact, "lock it before"));
        }
        let next = at.pop(&self.state.tasks);
        at.owner = next.unwrap_or(NONE);
        Ok(next.map_or(0, |next| self.wake_from(next, cpu, false)))
    }

    /// A pass over the first `kib` KiB of a task's own working set.
    fn touch_own(&mut self, cpu: CpuId, id: u32, (kib, pages, how): (u32, Pages, Access), now: Nanos) -> u64 {
        // One extent per size: the part that this size has beyond the next smaller one.
        let (memory, task) = (&mut self.memory, &mut self.state.tasks[id as usize]);
        let sizes = &self.codes[task.code as usize].own_kib;
        if task.own.is_none() {
            let mut below = 0;
            for size in sizes {
                let part = memory.extent(u64::from(size - below) * 1024, pages, None);
                task.own.get_or_insert(part);
                below = *size;
            }
        }
        let first = task.own.expect("the sizes are those of the steps").0;
        let parts = sizes.iter().take_while(|size| **size <= kib).zip(first..);
        parts.map(|(_, part)| memory.touch(cpu, ExtentId(part), how, now).0).sum()
    }

    fn fork(&mut self, cpu: u32, id: u32, child: u32) -> u64 {
        let task = self.state.task(id);
        task.forks += 1;
        task.children += 1;
        let entity = self.random.child(task.entity, task.forks);
        let delay = self.codes[child as usize].program.delay;
        let child = self.make(child, entity, id);
        match delay.map_or(0, |delay| self.draw(child, delay)) {
            0 => self.wake_from(child, cpu, false),
            delay => {
                self.push_event(self.state.now.saturating_add(delay), event_class::BEGIN, child, 0);
                0
            }
        }
    }

    /// How many of the units that a task uncharges were never charged, because the charge was refused. They count as
    /// uncharged from now on.
    fn take_refused(&mut self, id: u32, account: u32, units: u64) -> u64 {
        let refused = &mut self.codes[self.state.tasks[id as usize].code as usize].refused;
        let Some(left) = refused.get_mut(&(id, account)) else { return 0 };
        let taken = units.min(*left);
        *left -= taken;
        if *left == 0 {
            refused.remove(&(id, account));
        }
        taken
    }

    /// Ends a task that has run all its steps. Holding a lock is an error, since the lock would stay locked for ever.
    fn end(&mut self, cpu: u32, id: u32) -> Result<(), ProgramError> {
        let code = &mut self.codes[self.state.tasks[id as usize].code as usize];
        for (wait_queue, step) in &code.locks {
            let lock = &self.wait_queues[*wait_queue as usize];
            if lock.owner == id {
                let fact = format!("takes the lock `{}`, and its task ends with it", lock.name);
                return Err(ProgramError::new(code.program.at(*step), fact, "unlock it before"));
            }
        }
        while let Some((key, _)) = code.refused.range((id, 0)..=(id, u32::MAX)).next() {
            let key = *key;
            code.refused.remove(&key);
        }
        let task = self.state.task(id);
        task.state = TaskState::Dead;
        let (parent, is_daemon) = (task.parent, task.is_daemon);
        self.num_alive_tasks -= u64::from(!is_daemon);
        if parent == NONE {
            return Ok(());
        }
        let task = self.state.task(parent);
        task.children -= 1;
        match task.state {
            TaskState::Blocked(BlockedOn::Children) if task.children == 0 => {
                _ = self.wake_from(parent, cpu, false)
            }
            // Its index was kept until its children ended.
            TaskState::Dead if task.children == 0 && task.is_forked => self.free.push(parent),
            _ => {}
        }
        Ok(())
    }

    /// An error about the step of a task.
    fn wrong(&self, id: u32, fact: impl Into<String>, next: &str) -> ProgramError {
        let task = &self.state.tasks[id as usize];
        ProgramError::new(self.codes[task.code as usize].program.at(task.step as usize), fact, next)
    }
}
