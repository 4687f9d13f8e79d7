//! Step: what a running task does next.
//!
//! The times of steps add up until a step that affects other tasks: that step happens when the time has passed, at an
//! event of its own. Successive passes over memory are computed as if each began at the end of the one before,
//! without an event between them. So `run, wake, wait` costs two events: the end of the run, and the end of the
//! wake's cost.

use super::observe::{Observer, SwitchReason};
use super::task::{BlockedOn, NONE, TaskState};
use super::{Simulation, Target, event_class};
use crate::memory::ExtentId;
use crate::policy::SimPolicy;
use crate::program::{FOREVER, LENGTH_MAX, Op, ProgramError};
use warmcore_types::{CpuId, Nanos};

/// The clock stops here, at half of its range, so that times added to it fit.
const CLOCK_MAX: u64 = 1 << 63;

/// The most tasks at the same time. A program that forks without end gets an error at this number, which takes 2 GiB.
const TASKS_MAX: usize = 1 << 22;

/// What the current task does next.
pub(super) enum StepOutcome {
    /// It runs for this many ns at full speed.
    Run(u64),
    /// It loses the CPU.
    Switch(SwitchReason),
}

impl<P: SimPolicy, O: Observer> Simulation<P, O> {
    /// Runs the current task's steps until one takes time. `overhead`: what the CPU does before them.
    pub(super) fn advance(&mut self, cpu: u32, overhead: u64) -> StepOutcome {
        let id = self.sched.cpus[cpu as usize].current;
        let kernel = self.sched.cpus[cpu as usize].kernel;
        if self.sched.now >= CLOCK_MAX {
            self.stop(id, "the clock is at its end, 292 years", "let the sim run for a shorter time");
            return self.fail(id);
        }
        // `pending`: time that passes before the next step. `ran`: part of it is a run. `worked`: part of it is any
        // step.
        let (mut pending, mut ran, mut worked) = (overhead, false, false);
        for _ in 0..self.settings.steps_max {
            if pending >= LENGTH_MAX.0 {
                return StepOutcome::Run(pending);
            }
            let task = &self.sched.tasks[id as usize];
            let (code, step) = (task.code as usize, task.step);
            let now = Nanos(self.sched.now.saturating_add(pending));
            let Some(op) = self.op_at(code as u32, step) else {
                if pending > 0 {
                    return StepOutcome::Run(pending);
                }
                if !self.end(cpu, id) {
                    return self.fail(id);
                }
                return StepOutcome::Switch(SwitchReason::Exited);
            };
            match op {
                Op::Run(length) => {
                    pending += self.draw(id, length);
                    (ran, worked) = (true, true);
                }
                Op::Touch(..)
                | Op::TouchOwn { .. }
                | Op::TouchCid(_)
                | Op::ReadLine(_)
                | Op::WriteLine(_) => {
                    if ran {
                        return StepOutcome::Run(pending);
                    }
                    pending += self.touch(cpu, kernel, id, op, now);
                    worked = true;
                }
                Op::Begin { times, end } => {
                    let task = self.sched.task(id);
                    if times == 0 {
                        task.step = end;
                        continue;
                    }
                    task.loops[usize::from(task.depth)] = times;
                    task.depth += 1;
                }
                Op::End(begin) => {
                    if worked && pending > 0 {
                        return StepOutcome::Run(pending);
                    }
                    let task = self.sched.task(id);
                    let left = &mut task.loops[usize::from(task.depth) - 1];
                    if *left == FOREVER || *left > 1 {
                        *left -= u32::from(*left != FOREVER);
                        task.step = begin;
                    } else {
                        task.depth -= 1;
                    }
                }
                Op::Mark(mark) => {
                    if worked && pending > 0 {
                        return StepOutcome::Run(pending);
                    }
                    self.marks[mark as usize].1 += 1;
                }
                Op::Allow(place) => {
                    if ran {
                        return StepOutcome::Run(pending);
                    }
                    self.allow(id, self.codes[code].affinities[place as usize]);
                }
                _ if pending > 0 => return StepOutcome::Run(pending),
                Op::Wake { task, is_sync } => pending += self.wake_for_wait(task.0, cpu, is_sync),
                Op::Fork(_) if self.free.is_empty() && self.sched.tasks.len() >= TASKS_MAX => {
                    let fact = format!("forks one task more, and there are {TASKS_MAX}");
                    self.stop(id, &fact, "let it join those before");
                    return self.fail(id);
                }
                Op::Fork(child) => pending += self.fork(cpu, id, child),
                Op::Signal(wait_queue) => {
                    if let Some(waiter) = self.wait_queues[wait_queue as usize].pop(&self.sched.tasks) {
                        pending += self.wake_by(waiter, cpu, false);
                    }
                }
                Op::Broadcast(wait_queue) => {
                    while let Some(waiter) = self.wait_queues[wait_queue as usize].pop(&self.sched.tasks) {
                        pending += self.wake_by(waiter, cpu, false);
                    }
                }
                Op::Unlock(wait_queue) => match self.unlock(cpu, id, wait_queue) {
                    Some(cost) => pending += cost,
                    None => return self.fail(id),
                },
                Op::Charge(account, units) => {
                    if !self.accounts.charge(account, CpuId(cpu), units) {
                        let refused = self.codes[code].refused.entry((id, account.0)).or_default();
                        *refused = refused.saturating_add(units);
                    }
                    pending += self.settings.charge.0;
                }
                Op::Uncharge(account, units) => {
                    let units = units - self.take_refused(id, account.0, units);
                    if units > 0 {
                        if !self.accounts.uncharge(account, CpuId(cpu), units) {
                            let fact = format!("gives back {units} units, and so many are not charged");
                            self.stop(id, &fact, "charge before");
                            return self.fail(id);
                        }
                        pending += self.settings.charge.0;
                    }
                }
                _ => match self.run_blocking_op(cpu, id, op) {
                    OpOutcome::Continue(cost) => pending += cost,
                    OpOutcome::Switch(reason) => {
                        self.sched.task(id).step += 1;
                        return StepOutcome::Switch(reason);
                    }
                    OpOutcome::Failed => return self.fail(id),
                },
            }
            self.sched.task(id).step += 1;
        }
        let fact = format!("{} steps, and no time has passed", self.settings.steps_max);
        self.stop(id, &fact, "let it run, sleep or wait in its loop");
        self.fail(id)
    }

    /// Runs a step that may block the task.
    fn run_blocking_op(&mut self, cpu: u32, id: u32, op: Op) -> OpOutcome {
        let now = self.sched.now;
        let state = match op {
            Op::Wait => {
                let task = self.sched.task(id);
                if task.permits > 0 {
                    task.permits -= 1;
                    return OpOutcome::Continue(0);
                }
                TaskState::Blocked(BlockedOn::Wake)
            }
            Op::Sleep(length) => match self.draw(id, length) {
                0 => return OpOutcome::Continue(0),
                ns => self.sleep_until(id, now.saturating_add(ns)),
            },
            Op::Timer { period, is_absolute, slot } => {
                let last = &mut self.sched.task(id).timers[usize::from(slot)];
                let due = if *last == u64::MAX { now } else { *last }.saturating_add(period.0);
                *last = if due > now || is_absolute { due } else { now };
                if due <= now {
                    return OpOutcome::Continue(0);
                }
                self.sleep_until(id, due)
            }
            Op::Yield => {
                // The task goes behind all queued tasks.
                let behind = self.sched.cpus[cpu as usize].queue.least_vruntime(&self.sched.tasks);
                let task = self.sched.task(id);
                task.vruntime = behind.map_or(task.vruntime, |v| task.vruntime.max(v + 1));
                task.remaining_ns = self.times.voluntary;
                return OpOutcome::Switch(SwitchReason::Runnable);
            }
            Op::Join => match self.sched.tasks[id as usize].children {
                0 => return OpOutcome::Continue(0),
                _ => TaskState::Blocked(BlockedOn::Children),
            },
            Op::Lock(wait_queue) => {
                let at = &mut self.wait_queues[wait_queue as usize];
                if at.owner == NONE {
                    at.owner = id;
                    return OpOutcome::Continue(0);
                }
                at.push(&mut self.sched.tasks, id);
                TaskState::Blocked(BlockedOn::WaitQueue(wait_queue))
            }
            Op::WaitOn { condition, lock } => {
                if self.unlock(cpu, id, lock).is_none() {
                    return OpOutcome::Failed;
                }
                self.wait_queues[condition as usize].push(&mut self.sched.tasks, id);
                TaskState::Blocked(BlockedOn::WaitQueue(condition))
            }
            Op::Suspend(condition) => {
                self.wait_queues[condition as usize].push(&mut self.sched.tasks, id);
                TaskState::Blocked(BlockedOn::WaitQueue(condition))
            }
            Op::Barrier { name, parties } => {
                if self.wait_queues[name as usize].waiting + 1 >= parties {
                    let mut cost = 0;
                    while let Some(waiter) = self.wait_queues[name as usize].pop(&self.sched.tasks) {
                        cost += self.wake_by(waiter, cpu, false);
                    }
                    return OpOutcome::Continue(cost);
                }
                self.wait_queues[name as usize].push(&mut self.sched.tasks, id);
                TaskState::Blocked(BlockedOn::WaitQueue(name))
            }
            other => unreachable!("{other:?} is linked"),
        };
        self.sched.task(id).state = state;
        OpOutcome::Switch(SwitchReason::Blocked)
    }

    fn sleep_until(&mut self, id: u32, at: u64) -> TaskState {
        self.events.push(Nanos(at), event_class::TIMER, Target { index: id, generation: 0 });
        TaskState::Sleeping
    }

    /// Hands a lock to the first waiter. Returns the cost, or `None` if the task does not hold the lock.
    fn unlock(&mut self, cpu: u32, id: u32, wait_queue: u32) -> Option<u64> {
        let at = &mut self.wait_queues[wait_queue as usize];
        if at.owner != id {
            let fact = format!("gives back the lock `{}`, which it has not", at.name);
            self.stop(id, &fact, "lock it before");
            return None;
        }
        let next = at.pop(&self.sched.tasks);
        at.owner = next.unwrap_or(NONE);
        Some(next.map_or(0, |next| self.wake_by(next, cpu, false)))
    }

    fn touch(&mut self, cpu: u32, kernel: CpuId, id: u32, op: Op, now: Nanos) -> u64 {
        let memory = &mut self.memory;
        let took = match op {
            Op::Touch(extent, how) => memory.touch(kernel, extent, how, now),
            Op::TouchOwn { kib, pages, how } => {
                // One extent per size: the part that this size has beyond the next smaller one.
                let task = &mut self.sched.tasks[id as usize];
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
                Nanos(parts.map(|(_, part)| memory.touch(kernel, ExtentId(part), how, now).0).sum())
            }
            Op::TouchCid(how) => {
                let task = &self.sched.tasks[id as usize];
                debug_assert_eq!(task.prev_cpu, cpu);
                self.processes[task.process as usize].touch(task.user, memory, kernel, how, now)
            }
            Op::ReadLine(line) => memory.read_line(kernel, line, now),
            Op::WriteLine(line) => memory.write_line(kernel, line, now),
            other => unreachable!("{other:?} touches nothing"),
        };
        took.0
    }

    fn fork(&mut self, cpu: u32, id: u32, child: u32) -> u64 {
        let task = self.sched.task(id);
        task.forks += 1;
        task.children += 1;
        let entity = self.random.child(task.entity, task.forks);
        let delay = self.codes[child as usize].delay;
        let child = self.make(child, entity, id);
        match delay.map_or(0, |delay| self.draw(child, delay)) {
            0 => self.wake_by(child, cpu, false),
            delay => {
                let at = Nanos(self.sched.now.saturating_add(delay));
                self.events.push(at, event_class::BEGIN, Target { index: child, generation: 0 });
                0
            }
        }
    }

    /// How many of the units that a task uncharges were never charged, because the charge was refused.
    fn take_refused(&mut self, id: u32, account: u32, units: u64) -> u64 {
        let refused = &mut self.codes[self.sched.tasks[id as usize].code as usize].refused;
        let Some(left) = refused.get_mut(&(id, account)) else { return 0 };
        let taken = units.min(*left);
        *left -= taken;
        if *left == 0 {
            refused.remove(&(id, account));
        }
        taken
    }

    /// Ends a task that has run all its steps. Returns `false` if it holds a lock, which would stay locked for ever.
    fn end(&mut self, cpu: u32, id: u32) -> bool {
        let code = &mut self.codes[self.sched.tasks[id as usize].code as usize];
        if let Some((wait_queue, step)) =
            code.locks.iter().find(|(wait_queue, _)| self.wait_queues[*wait_queue as usize].owner == id)
        {
            let fact = format!(
                "takes the lock `{}`, and its task ends with it",
                self.wait_queues[*wait_queue as usize].name
            );
            self.error = Some(ProgramError::new(code.at(*step), fact, "unlock it before"));
            return false;
        }
        while let Some((key, _)) = code.refused.range((id, 0)..=(id, u32::MAX)).next() {
            let key = *key;
            code.refused.remove(&key);
        }
        let task = self.sched.task(id);
        task.state = TaskState::Dead;
        let (parent, is_daemon) = (task.parent, task.is_daemon);
        self.num_alive_tasks -= u64::from(!is_daemon);
        if parent == NONE {
            return true;
        }
        let task = self.sched.task(parent);
        task.children -= 1;
        match task.state {
            TaskState::Blocked(BlockedOn::Children) if task.children == 0 => {
                _ = self.wake_by(parent, cpu, false)
            }
            // Its index was kept until its children ended.
            TaskState::Dead if task.children == 0 && task.is_forked => self.free.push(parent),
            _ => {}
        }
        true
    }

    fn stop(&mut self, id: u32, fact: &str, next: &str) {
        let task = &self.sched.tasks[id as usize];
        let place = self.codes[task.code as usize].at(task.step);
        self.error = Some(ProgramError::new(place, fact, next));
    }

    /// Ends the simulation with an error. The task just leaves the CPU.
    fn fail(&mut self, id: u32) -> StepOutcome {
        self.sched.task(id).state = TaskState::Blocked(BlockedOn::Wake);
        StepOutcome::Switch(SwitchReason::Blocked)
    }
}

/// The result of a step that may block the task.
enum OpOutcome {
    /// The task continues, after this many ns.
    Continue(u64),
    Switch(SwitchReason),
    Failed,
}
