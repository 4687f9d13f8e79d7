//! Queue: the tasks that are queued on a CPU of the simulated kernel, in the order in which they will run.
//!
//! A queue is one list, sorted by `vruntime`: the task that has run least comes first. Lists are linked through the tasks,
//! so a queue takes 24 bytes for any number of tasks. A task that is queued is usually inserted near the end of the list.
//! Shared queues are lists too: first in, first out.
//!
//! # Source
//!
//! Linux `__enqueue_entity`, `pick_next_entity`, `detach_task`.

use super::task::KernelTask;
use crate::simulation::task::NONE;

/// A task, as the queues link it.
type Task = crate::simulation::task::Task<KernelTask>;

/// A list through `KernelTask::links[LINK]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List<const LINK: usize> {
    first: u32,
    last: u32,
    pub(crate) len: u32,
}

impl<const LINK: usize> Default for List<LINK> {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl<const LINK: usize> List<LINK> {
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Inserts a task behind `after`; at the beginning if that is `NONE`.
    #[inline]
    fn insert(&mut self, tasks: &mut [Task], id: u32, after: u32) {
        let next = if after == NONE { self.first } else { tasks[after as usize].sched.links[LINK].1 };
        tasks[id as usize].sched.links[LINK] = (after, next);
        match after {
            NONE => self.first = id,
            _ => tasks[after as usize].sched.links[LINK].1 = id,
        }
        match next {
            NONE => self.last = id,
            _ => tasks[next as usize].sched.links[LINK].0 = id,
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn push(&mut self, tasks: &mut [Task], id: u32) {
        self.insert(tasks, id, self.last);
    }

    #[inline]
    pub(crate) fn remove(&mut self, tasks: &mut [Task], id: u32) {
        let (prev, next) = tasks[id as usize].sched.links[LINK];
        match prev {
            NONE => self.first = next,
            _ => tasks[prev as usize].sched.links[LINK].1 = next,
        }
        match next {
            NONE => self.last = prev,
            _ => tasks[next as usize].sched.links[LINK].0 = prev,
        }
        self.len -= 1;
    }

    /// The tasks, the first one first.
    pub(crate) fn iter<'a>(&self, tasks: &'a [Task]) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let id = (at != NONE).then_some(at)?;
            at = tasks[id as usize].sched.links[LINK].1;
            Some(id)
        })
    }
}

/// The tasks that are queued on a CPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RunQueue {
    sorted: List<0>,
    /// The tasks that may also run on another CPU.
    pub(crate) stealable: u32,
    /// Of those, the tasks that may not run on every CPU.
    pub(crate) restricted: u32,
}

impl RunQueue {
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.sorted.len
    }

    /// The task that runs next, if no other task is queued before.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        self.sorted.first()
    }

    /// The `vruntime` of the task that runs next.
    #[inline]
    pub(crate) fn least_vruntime(&self, tasks: &[Task]) -> Option<u64> {
        self.first().map(|id| tasks[id as usize].sched.vruntime)
    }

    /// Inserts a task in front of all tasks with a greater `vruntime`.
    #[inline]
    pub(crate) fn push(&mut self, tasks: &mut [Task], id: u32) {
        let (v, mut after) = (tasks[id as usize].sched.vruntime, self.sorted.last);
        while after != NONE && tasks[after as usize].sched.vruntime > v {
            after = tasks[after as usize].sched.links[0].0;
        }
        self.sorted.insert(tasks, id, after);
    }

    #[inline]
    pub(crate) fn remove(&mut self, tasks: &mut [Task], id: u32) {
        self.sorted.remove(tasks, id);
    }

    /// The task that another CPU steals: of the tasks that `may` accepts, the one that has not run for the longest time.
    pub(crate) fn coldest(&self, tasks: &[Task], may: impl Fn(&Task) -> bool) -> Option<u32> {
        let allowed = self.iter(tasks).filter(|id| may(&tasks[*id as usize]));
        allowed.min_by_key(|id| tasks[*id as usize].sched.last_ran)
    }

    /// All tasks, in the order in which they will run.
    pub(crate) fn iter<'a>(&self, tasks: &'a [Task]) -> impl Iterator<Item = u32> + 'a {
        self.sorted.iter(tasks)
    }
}
