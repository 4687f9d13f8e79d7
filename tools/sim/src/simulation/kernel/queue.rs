//! Queue: who waits on a CPU, in the order in which they will run.
//!
//! Model.   Lists threaded through the tasks, so that a queue is some words however many wait. Fair: one list, sorted
//!          by what each has run; most come at its end. Rounds: who comes during a round runs in the next one; the
//!          policy says in which direction a round goes; and a slot for the one that the running task woke.
//! Number.  56 bytes.
//! Writers. The simulation.
//! Source.  Rounds: the runtime's queue, for one tenant. Which task is taken away: `sched::Policy::steal_order`.

use super::state::KernelTask;
use crate::simulation::settings::Order;
use crate::simulation::task::NONE;
use warmcore_sched::{QueueOrder, StealOrder};

/// A task, as the queues link it.
type Task = crate::simulation::task::Task<KernelTask>;

/// A list through `Task::links[LINK]`.
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
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    fn last(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    /// Behind `after`; `NONE`: at the beginning.
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

    /// In front of all who have run more.
    #[inline]
    fn push_sorted(&mut self, tasks: &mut [Task], id: u32) {
        let (v, mut after) = (tasks[id as usize].sched.vruntime, self.last);
        while after != NONE && tasks[after as usize].sched.vruntime > v {
            after = tasks[after as usize].sched.links[LINK].0;
        }
        self.insert(tasks, id, after);
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

    /// From one end to the other.
    pub(crate) fn walk<'a>(&self, tasks: &'a [Task], is_back: bool) -> impl Iterator<Item = u32> + 'a {
        let mut at = if is_back { self.last } else { self.first };
        std::iter::from_fn(move || {
            let id = (at != NONE).then_some(at)?;
            let (prev, next) = tasks[id as usize].sched.links[LINK];
            at = if is_back { prev } else { next };
            Some(id)
        })
    }
}

/// `Task::list` in a queue: none, this round's, the next round's, the slot.
const NOWHERE: u8 = 0;
const BATCH: u8 = 1;
const NEXT_BATCH: u8 = 2;
const LIFO_SLOT: u8 = 3;

/// Who waits on a CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunQueue {
    /// This round's, or all.
    batch: List<0>,
    /// The next round's.
    next_batch: List<0>,
    /// The one that the running task woke.
    lifo_slot: u32,
    /// How often in a row that was served.
    lifo_polls: u32,
    batch_order: QueueOrder,
    /// Those that may run elsewhere, too.
    pub(crate) stealable: u32,
    /// Those of them that may not run everywhere.
    pub(crate) restricted: u32,
    /// Since when one of those has always been there.
    pub(crate) backlog_since: u64,
}

impl Default for RunQueue {
    fn default() -> Self {
        let (batch, next_batch) = (List::default(), List::default());
        Self {
            batch,
            next_batch,
            lifo_slot: NONE,
            lifo_polls: 0,
            batch_order: QueueOrder::Fifo,
            stealable: 0,
            restricted: 0,
            backlog_since: 0,
        }
    }
}

impl RunQueue {
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.batch.len + self.next_batch.len + u32::from(self.lifo_slot != NONE)
    }

    /// Who is next, if nobody else comes.
    pub(crate) fn peek(&self) -> Option<u32> {
        if self.lifo_slot != NONE {
            Some(self.lifo_slot)
        } else {
            self.batch.first().or(self.next_batch.first())
        }
    }

    /// What he has run who is next in the fair order.
    pub(crate) fn least_vruntime(&self, tasks: &[Task]) -> Option<u64> {
        self.batch.first().map(|id| tasks[id as usize].sched.vruntime)
    }

    #[inline]
    pub(crate) fn push(&mut self, tasks: &mut [Task], id: u32, order: Order) {
        match order {
            Order::Fair => self.batch.push_sorted(tasks, id),
            Order::Rounds => self.next_batch.push(tasks, id),
        }
        tasks[id as usize].sched.list = if order == Order::Fair { BATCH } else { NEXT_BATCH };
    }

    /// To run next.
    pub(crate) fn push_lifo(&mut self, tasks: &mut [Task], id: u32) {
        let before = std::mem::replace(&mut self.lifo_slot, id);
        tasks[id as usize].sched.list = LIFO_SLOT;
        if before != NONE {
            self.push(tasks, before, Order::Rounds);
        }
    }

    /// Who is to run now. He stays in the queue until he is removed.
    pub(crate) fn choose(
        &mut self,
        tasks: &mut [Task],
        max_lifo_polls: impl Fn() -> u32,
        queue_order: impl Fn() -> QueueOrder,
    ) -> Option<u32> {
        let mut behind = NONE;
        if self.lifo_slot != NONE {
            let next = self.lifo_slot;
            if self.len() == 1 || self.lifo_polls < max_lifo_polls() {
                self.lifo_polls = self.lifo_polls.saturating_add(1);
                return Some(next);
            }
            behind = std::mem::replace(&mut self.lifo_slot, NONE);
        }
        self.lifo_polls = 0;
        if self.batch.len == 0 && self.next_batch.len > 0 {
            self.batch = std::mem::take(&mut self.next_batch);
            self.batch
                .walk(tasks, false)
                .collect::<Vec<_>>()
                .iter()
                .for_each(|id| tasks[*id as usize].sched.list = BATCH);
            self.batch_order = queue_order();
        }
        let chosen = match self.batch_order {
            QueueOrder::Fifo => self.batch.first(),
            QueueOrder::Lifo => self.batch.last(),
        };
        if behind != NONE {
            self.push(tasks, behind, Order::Rounds);
        }
        chosen
    }

    #[inline]
    pub(crate) fn remove(&mut self, tasks: &mut [Task], id: u32) {
        match std::mem::replace(&mut tasks[id as usize].sched.list, NOWHERE) {
            BATCH => self.batch.remove(tasks, id),
            NEXT_BATCH => self.next_batch.remove(tasks, id),
            LIFO_SLOT => self.lifo_slot = NONE,
            _ => panic!("task {id} is taken out of a queue in which it is not"),
        }
    }

    /// The task that another CPU takes: what [`StealOrder`] says, which in a fair order is the task that has not run for the
    /// longest time where it says the last.
    pub(crate) fn spare(
        &self,
        tasks: &[Task],
        order: Order,
        steal_order: StealOrder,
        may: impl Fn(&Task) -> bool,
    ) -> Option<u32> {
        let may = |id: &u32| may(&tasks[*id as usize]);
        let next = || (self.lifo_slot != NONE).then_some(self.lifo_slot).filter(may);
        match (steal_order, order) {
            (StealOrder::Oldest, _) => {
                let waits =
                    self.batch.walk(tasks, false).chain(self.next_batch.walk(tasks, false)).filter(may);
                waits.min_by_key(|id| tasks[*id as usize].queued_at).or_else(next)
            }
            (StealOrder::Last, Order::Fair) => {
                self.batch.walk(tasks, false).filter(may).min_by_key(|id| tasks[*id as usize].sched.last_ran)
            }
            (StealOrder::Last, Order::Rounds) => {
                let is_back = self.batch_order == QueueOrder::Fifo;
                let mut lists = self.next_batch.walk(tasks, is_back).chain(self.batch.walk(tasks, is_back));
                lists.find(may).or_else(next)
            }
        }
    }

    /// All who wait.
    pub(crate) fn all<'a>(&self, tasks: &'a [Task]) -> impl Iterator<Item = u32> + 'a {
        let next = (self.lifo_slot != NONE).then_some(self.lifo_slot);
        next.into_iter().chain(self.batch.walk(tasks, false)).chain(self.next_batch.walk(tasks, false))
    }
}
