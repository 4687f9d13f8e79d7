//! Arrivals: wakes from outside at given times, of tasks that a recording has.
//!
//! A task that waits for a wake becomes ready in its driver, and the worker that serves the driver wakes it, as for a socket or a
//! timer. A recorded wake is what a worker did after it had left its idle state, so a worker that is parked in its driver leaves
//! that at once. If the task does not wait, one later wait of it ends at once: no arrival is lost.

use super::scheduler::Scheduler;
use super::task::{BlockedOn, NONE, TaskState};
use super::{Simulation, event_class};
use crate::program::{Program, ProgramError, TaskId};
use crate::trace::Observer;
use warmcore_sched::Distance;
use warmcore_types::Nanos;

/// Arrivals, ascending, and how many of them have come.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    all: Vec<(Nanos, TaskId)>,
    next: usize,
    /// Arrivals are being handled.
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

    /// Sets the arrivals, which ascend. The simulation has an event at `end` too, so that it does not end before.
    pub(crate) fn let_arrive(&mut self, arrivals: Vec<(Nanos, TaskId)>, end: Nanos) {
        debug_assert!(arrivals.is_sorted_by_key(|(at, _)| *at));
        self.push_event(end.0, event_class::ARRIVAL, 0, 0);
        if let Some((first, _)) = arrivals.first() {
            self.push_event(first.0, event_class::ARRIVAL, 0, 0);
        }
        self.arrivals = Arrivals { all: arrivals, ..Arrivals::default() };
    }

    /// Lets all arrive that are due.
    pub(super) fn next_arrivals(&mut self) {
        while let Some((at, TaskId(id))) = self.arrivals.all.get(self.arrivals.next).copied() {
            if at.0 > self.state.now {
                return self.push_event(at.0, event_class::ARRIVAL, 0, 0);
            }
            self.arrivals.next += 1;
            let task = self.state.task(id);
            match task.state {
                TaskState::Blocked(BlockedOn::Wake) => {
                    task.state = TaskState::Blocked(BlockedOn::Driver);
                    self.arrivals.are_coming = true;
                    S::expire(self, id);
                    self.arrivals.are_coming = false;
                }
                TaskState::Dead => {}
                _ => task.permits = task.permits.saturating_add(1),
            }
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
