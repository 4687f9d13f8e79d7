//! Queue: who waits on a CPU, in the order in which they will run.
//!
//! Model.   Lists threaded through the tasks, so that a queue is some words however many wait. Fair: one list, sorted
//!          by what each has run; most come at its end. Rounds: who comes during a round runs in the next one; the
//!          policy says in which direction a round goes; and a slot for the one that the running task woke.
//! Number.  56 bytes.
//! Writers. The world.
//! Source.  Rounds: the runtime's queue, for one tenant. Which task is taken away: `place::Policy::whom`.

use super::settings::Order;
use super::task::{NONE, Task};
use warmcore_sched::{Turn, Whom};

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
        let next = if after == NONE { self.first } else { tasks[after as usize].links[LINK].1 };
        tasks[id as usize].links[LINK] = (after, next);
        match after {
            NONE => self.first = id,
            _ => tasks[after as usize].links[LINK].1 = id,
        }
        match next {
            NONE => self.last = id,
            _ => tasks[next as usize].links[LINK].0 = id,
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
        let (v, mut after) = (tasks[id as usize].v, self.last);
        while after != NONE && tasks[after as usize].v > v {
            after = tasks[after as usize].links[LINK].0;
        }
        self.insert(tasks, id, after);
    }

    #[inline]
    pub(crate) fn remove(&mut self, tasks: &mut [Task], id: u32) {
        let (prev, next) = tasks[id as usize].links[LINK];
        match prev {
            NONE => self.first = next,
            _ => tasks[prev as usize].links[LINK].1 = next,
        }
        match next {
            NONE => self.last = prev,
            _ => tasks[next as usize].links[LINK].0 = prev,
        }
        self.len -= 1;
    }

    /// From one end to the other.
    pub(crate) fn walk<'a>(&self, tasks: &'a [Task], is_back: bool) -> impl Iterator<Item = u32> + 'a {
        let mut at = if is_back { self.last } else { self.first };
        std::iter::from_fn(move || {
            let id = (at != NONE).then_some(at)?;
            let (prev, next) = tasks[id as usize].links[LINK];
            at = if is_back { prev } else { next };
            Some(id)
        })
    }
}

/// `Task::list` in a queue: none, this round's, the next round's, the slot.
const NOWHERE: u8 = 0;
const NOW: u8 = 1;
const LATER: u8 = 2;
const NEXT: u8 = 3;

/// Who waits on a CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunQueue {
    /// This round's, or all.
    now: List<0>,
    /// The next round's.
    later: List<0>,
    /// The one that the running task woke.
    next: u32,
    /// How often in a row that was served.
    chain: u32,
    turn: Turn,
    /// Those that may run elsewhere, too.
    pub(crate) movable: u32,
    /// Those of them that may not run everywhere.
    pub(crate) restricted: u32,
    /// Since when one of those has always been there.
    pub(crate) since: u64,
}

impl Default for RunQueue {
    fn default() -> Self {
        let (now, later) = (List::default(), List::default());
        Self { now, later, next: NONE, chain: 0, turn: Turn::Forth, movable: 0, restricted: 0, since: 0 }
    }
}

impl RunQueue {
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.now.len + self.later.len + u32::from(self.next != NONE)
    }

    /// Who is next, if nobody else comes.
    pub(crate) fn peek(&self) -> Option<u32> {
        if self.next != NONE { Some(self.next) } else { self.now.first().or(self.later.first()) }
    }

    /// What he has run who is next in the fair order.
    pub(crate) fn least_v(&self, tasks: &[Task]) -> Option<u64> {
        self.now.first().map(|id| tasks[id as usize].v)
    }

    #[inline]
    pub(crate) fn push(&mut self, tasks: &mut [Task], id: u32, order: Order) {
        match order {
            Order::Fair => self.now.push_sorted(tasks, id),
            Order::Rounds => self.later.push(tasks, id),
        }
        tasks[id as usize].list = if order == Order::Fair { NOW } else { LATER };
    }

    /// To run next.
    pub(crate) fn push_next(&mut self, tasks: &mut [Task], id: u32) {
        let before = std::mem::replace(&mut self.next, id);
        tasks[id as usize].list = NEXT;
        if before != NONE {
            self.push(tasks, before, Order::Rounds);
        }
    }

    /// Who is to run now. He stays in the queue until he is removed.
    pub(crate) fn choose(
        &mut self,
        tasks: &mut [Task],
        chain_max: impl Fn() -> u32,
        turn: impl Fn() -> Turn,
    ) -> Option<u32> {
        let mut behind = NONE;
        if self.next != NONE {
            let next = self.next;
            if self.len() == 1 || self.chain < chain_max() {
                self.chain = self.chain.saturating_add(1);
                return Some(next);
            }
            behind = std::mem::replace(&mut self.next, NONE);
        }
        self.chain = 0;
        if self.now.len == 0 && self.later.len > 0 {
            self.now = std::mem::take(&mut self.later);
            self.now
                .walk(tasks, false)
                .collect::<Vec<_>>()
                .iter()
                .for_each(|id| tasks[*id as usize].list = NOW);
            self.turn = turn();
        }
        let chosen = match self.turn {
            Turn::Forth => self.now.first(),
            Turn::Back => self.now.last(),
        };
        if behind != NONE {
            self.push(tasks, behind, Order::Rounds);
        }
        chosen
    }

    #[inline]
    pub(crate) fn remove(&mut self, tasks: &mut [Task], id: u32) {
        match std::mem::replace(&mut tasks[id as usize].list, NOWHERE) {
            NOW => self.now.remove(tasks, id),
            LATER => self.later.remove(tasks, id),
            NEXT => self.next = NONE,
            _ => panic!("task {id} is taken out of a queue in which it is not"),
        }
    }

    /// The task that another CPU takes: what [`Whom`] says, which in a fair order is the task that has not run for the
    /// longest time where it says the last.
    pub(crate) fn spare(
        &self,
        tasks: &[Task],
        order: Order,
        whom: Whom,
        may: impl Fn(&Task) -> bool,
    ) -> Option<u32> {
        let may = |id: &u32| may(&tasks[*id as usize]);
        let next = || (self.next != NONE).then_some(self.next).filter(may);
        match (whom, order) {
            (Whom::Oldest, _) => {
                let waits = self.now.walk(tasks, false).chain(self.later.walk(tasks, false)).filter(may);
                waits.min_by_key(|id| tasks[*id as usize].queued_at).or_else(next)
            }
            (Whom::Last, Order::Fair) => {
                self.now.walk(tasks, false).filter(may).min_by_key(|id| tasks[*id as usize].last_ran)
            }
            (Whom::Last, Order::Rounds) => {
                let is_back = self.turn == Turn::Forth;
                let mut lists = self.later.walk(tasks, is_back).chain(self.now.walk(tasks, is_back));
                lists.find(may).or_else(next)
            }
        }
    }

    /// All who wait.
    pub(crate) fn all<'a>(&self, tasks: &'a [Task]) -> impl Iterator<Item = u32> + 'a {
        let next = (self.next != NONE).then_some(self.next);
        next.into_iter().chain(self.now.walk(tasks, false)).chain(self.later.walk(tasks, false))
    }
}
