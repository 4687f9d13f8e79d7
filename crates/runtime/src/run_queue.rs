//! RunQueue: what waits at one worker, in the order in which it will run.
//!
//! Model.   A class per tenant, served by weighted virtual time, which counts on all workers together (`virtual_time.rs`):
//!          the tenant that has had least comes next. In a class,
//!          rounds: what is pushed during a round runs in the next one. The policy says in which direction a
//!          round goes; back again, the tasks that ran last find their data in the cache. The slot `lifo_slot` holds
//!          the task that the running one woke: it runs at once, so that what two tasks say to each other stays
//!          warm, but only `max_lifo_polls` times in a row, and never before the tasks of another tenant.
//! Number.  With one tenant a push is a comparison and a store, a pop a load and two comparisons.
//! Writers. Under the worker's lock: the worker, and who pulls.

use crate::virtual_time::{BATCH, VirtualTime, VirtualTimes, virtual_time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use warmcore_budget::process::unaccounted;
use warmcore_sched::{QueueOrder, StealOrder};
use warmcore_types::Nanos;

#[cfg(test)]
mod tests;

/// Whose a task is: the tenant's serial number (0: nobody's) and weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) tenant: u64,
    pub(crate) weight: u32,
}

/// What a queue must know of a task.
pub(crate) trait Entry {
    fn share(&self) -> Share;
    /// Whether it may run on this worker alone.
    fn is_pinned(&self) -> bool;
    /// Since when it waits.
    fn waits_since(&self) -> Nanos;
}

/// Classes that nobody waits in are forgotten above so many.
const CLASSES_KEPT: usize = 64;

/// Of so many picks among several tenants one goes in turn, whatever they had: where tasks can't move, a tenant that is
/// served elsewhere may be ahead of all others here for as long as it is, and its tasks here are to run at some time. More
/// than the largest weight over the least, which is not to be bent by it.
const IN_TURN: u32 = 1 << 16;

/// Tasks that a worker looks at until it finds one that may go elsewhere.
const RANDOM_STEAL_SCAN_MAX: usize = 64;

#[derive(Debug)]
struct Class<T> {
    share: Share,
    vtime: Arc<VirtualTime>,
    /// Virtual time that was measured here, and is not added to the vtime yet.
    pending: u64,
    /// What was too little to count, in ns × 100.
    rest: u64,
    order: QueueOrder,
    /// This round's.
    batch: VecDeque<T>,
    /// The next round's.
    next_batch: VecDeque<T>,
}

impl<T: Entry> Class<T> {
    #[inline]
    fn len(&self) -> usize {
        self.batch.len() + self.next_batch.len()
    }

    /// The tenant's virtual time, without what other workers have not added yet. It never falls.
    fn vtime(&self) -> u64 {
        self.vtime.get() + self.pending
    }

    #[cold]
    fn grow(&mut self) {
        // A task of a tenant's may be at work here, and the queue is the worker's.
        unaccounted(|| self.next_batch.reserve(1));
    }

    #[inline]
    fn pop(&mut self, order: impl Fn() -> QueueOrder) -> Option<T> {
        if self.batch.is_empty() {
            std::mem::swap(&mut self.batch, &mut self.next_batch);
            self.order = order();
        }
        match self.order {
            QueueOrder::Fifo => self.batch.pop_front(),
            QueueOrder::Lifo => self.batch.pop_back(),
        }
    }

    /// Takes one that `may` go: the one that would run last, or the one that came first.
    fn steal(&mut self, steal_order: StealOrder, may: &impl Fn(&T) -> bool) -> Option<T> {
        let lists = match steal_order {
            StealOrder::Last => [&mut self.next_batch, &mut self.batch],
            StealOrder::Oldest => [&mut self.batch, &mut self.next_batch],
        };
        let from_front = steal_order == StealOrder::Oldest || self.order == QueueOrder::Lifo;
        lists.into_iter().find_map(|list| {
            let at = if from_front { list.iter().position(may) } else { list.iter().rposition(may) };
            at.and_then(|at| list.remove(at))
        })
    }

    /// The one that came first, of those that could run elsewhere.
    fn oldest(&self) -> Option<&T> {
        self.batch.iter().chain(&self.next_batch).find(|item| !item.is_pinned())
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct RunQueue<T> {
    /// The only one that waits, where the LIFO slot is empty: it needs no class.
    only: Option<T>,
    lifo_slot: Option<T>,
    /// How often in a row the LIFO slot was served.
    lifo_polls: u32,
    classes: Vec<Class<T>>,
    by_tenant: HashMap<u64, ClassId>,
    /// Classes in which somebody waits, by virtual time; what it says may be too little, never too much. The
    /// first class is in it only if there are others.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    len: u32,
    /// How many of them are pinned.
    pinned: u32,
    /// Classes in which somebody waits.
    busy: u32,
    /// Picks among several classes so far.
    picks: u32,
    virtual_times: Arc<VirtualTimes>,
}

type ClassId = usize;

impl<T: Entry> RunQueue<T> {
    pub(crate) fn new(virtual_times: Arc<VirtualTimes>) -> Self {
        Self {
            only: None,
            lifo_slot: None,
            lifo_polls: 0,
            classes: Vec::new(),
            by_tenant: HashMap::new(),
            waiting: BinaryHeap::new(),
            len: 0,
            pinned: 0,
            busy: 0,
            picks: 0,
            virtual_times,
        }
    }

    /// What the tenants have had on all workers together.
    pub(crate) fn virtual_times(&self) -> &Arc<VirtualTimes> {
        &self.virtual_times
    }

    /// How many wait, the next one too.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// How many of them could run elsewhere.
    pub(crate) fn stealable(&self) -> u32 {
        self.len - self.pinned
    }

    /// How many may run on this worker alone.
    pub(crate) fn pinned(&self) -> u32 {
        self.pinned
    }

    /// The least virtual time of a tenant that has tasks waiting here; `u64::MAX` if no task waits.
    pub(crate) fn min_vtime(&mut self) -> u64 {
        let alone =
            self.only.as_ref().or(self.lifo_slot.as_ref()).map(Entry::share).map(|share| self.class(share));
        let waiting =
            self.classes.iter().enumerate().filter(|(id, class)| class.len() > 0 || alone == Some(*id));
        waiting.map(|(_, class)| class.vtime()).min().unwrap_or(u64::MAX)
    }

    /// The tenants with tasks waiting here that had less virtual time than `below`.
    pub(crate) fn lagging(&self, below: u64) -> Vec<u64> {
        let waiting = self.classes.iter().filter(|class| class.len() > 0 && class.vtime() < below);
        waiting.map(|class| class.share.tenant).collect()
    }

    /// Behind all others of its tenant.
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        self.pinned += u32::from(item.is_pinned());
        if self.len == 0 {
            self.only = Some(item);
            self.len = 1;
            return;
        }
        if self.only.is_some() {
            self.push_only_in_class();
        }
        self.push_in_class(item);
    }

    /// A second task waits.
    #[inline(never)]
    fn push_only_in_class(&mut self) {
        if let Some(only) = self.only.take() {
            self.len -= 1;
            self.push_in_class(only);
        }
    }

    #[inline(always)]
    fn push_in_class(&mut self, item: T) {
        let share = item.share();
        let class = match self.classes.first_mut() {
            Some(first) if first.share.tenant == share.tenant => first,
            _ => {
                let id = self.class_by_tenant(share);
                &mut self.classes[id]
            }
        };
        if class.next_batch.len() == class.next_batch.capacity() {
            class.grow();
        }
        class.next_batch.push_back(item);
        self.len += 1;
        if class.len() == 1 {
            let id = self.class(share);
            self.begin_to_wait(id);
        }
    }

    /// Before all others, if its turn allows; who was there goes behind all others of its tenant.
    #[inline]
    pub(crate) fn push_lifo(&mut self, item: T) {
        self.pinned += u32::from(item.is_pinned());
        if self.only.is_some() {
            self.push_only_in_class();
        }
        if let Some(before) = self.lifo_slot.replace(item) {
            self.len -= 1;
            self.push_back_in_class(before);
        }
        self.len += 1;
    }

    #[inline(never)]
    fn push_back_in_class(&mut self, item: T) {
        self.push_in_class(item);
    }

    #[inline]
    fn class(&mut self, share: Share) -> ClassId {
        if let Some(first) = self.classes.first()
            && first.share.tenant == share.tenant
        {
            return 0;
        }
        self.class_by_tenant(share)
    }

    #[inline(never)]
    fn class_by_tenant(&mut self, share: Share) -> ClassId {
        match self.by_tenant.get(&share.tenant) {
            Some(id) => *id,
            None => unaccounted(|| self.new_class(share)),
        }
    }

    #[cold]
    fn new_class(&mut self, share: Share) -> ClassId {
        let is_full = self.classes.len() >= CLASSES_KEPT;
        let reused = self.classes.iter().position(|class| is_full && class.len() == 0);
        let (batch, next_batch) = (VecDeque::new(), VecDeque::new());
        let vtime = self.virtual_times.of(share.tenant);
        let class = Class { share, vtime, pending: 0, rest: 0, order: QueueOrder::Fifo, batch, next_batch };
        let id = reused.unwrap_or(self.classes.len());
        if reused.is_some() {
            let before = std::mem::replace(&mut self.classes[id], class);
            before.vtime.add(before.pending);
            self.by_tenant.remove(&before.share.tenant);
        } else {
            self.classes.push(class);
        }
        self.by_tenant.insert(share.tenant, id);
        id
    }

    /// A tenant that had no task waiting here keeps a slice of what it is behind, and no more.
    #[inline(never)]
    fn begin_to_wait(&mut self, id: ClassId) {
        self.busy += 1;
        if self.waiting.capacity() - self.waiting.len() <= self.classes.len() {
            unaccounted(|| self.waiting.reserve(self.classes.len() + 1));
        }
        let others = self.classes.iter().enumerate().filter(|(other, class)| *other != id && class.len() > 0);
        let least = others.map(|(_, class)| class.vtime()).min();
        let class = &self.classes[id];
        self.virtual_times.reactivate(&class.vtime, class.pending, least);
        if self.busy == 2 {
            // The one that was alone until now: who comes new is before it where both had as much.
            let alone = self.classes.iter().enumerate().position(|(i, class)| i != id && class.len() > 0);
            if let Some(alone) = alone {
                self.classes[alone].pending += 1;
            }
            self.collect_waiting();
        } else if self.busy > 2 {
            self.waiting.push(Reverse((class.vtime(), id)));
            if self.waiting.len() > 4 * self.classes.len() {
                self.collect_waiting();
            }
        }
    }

    /// Collects the classes in which tasks wait anew: a class that others emptied stays in the heap, once for each time,
    /// until its turn comes.
    fn collect_waiting(&mut self) {
        self.waiting.clear();
        let busy = self.classes.iter().enumerate().filter(|(_, class)| class.len() > 0);
        self.waiting.extend(busy.map(|(id, class)| Reverse((class.vtime(), id))));
    }

    /// The next one to run.
    #[inline]
    pub(crate) fn pop(&mut self, max_lifo_polls: u32, order: impl Fn() -> QueueOrder) -> Option<T> {
        let item = self.pop_any(max_lifo_polls, order)?;
        self.pinned -= u32::from(item.is_pinned());
        Some(item)
    }

    #[inline]
    fn pop_any(&mut self, max_lifo_polls: u32, order: impl Fn() -> QueueOrder) -> Option<T> {
        if let Some(only) = self.only.take() {
            self.len = 0;
            return Some(only);
        }
        let mut behind = None;
        if let Some(task) = self.lifo_slot.take() {
            self.len -= 1;
            let own = self.class(task.share());
            let waits = self.classes[own].len() > 0;
            let is_alone = self.busy == u32::from(waits);
            if is_alone && (self.lifo_polls < max_lifo_polls || !waits) {
                self.lifo_polls = self.lifo_polls.saturating_add(1);
                return Some(task);
            }
            if is_alone {
                // Also on the way back, where the last one to come would be the first to go.
                behind = Some(task);
            } else {
                self.push_back_in_class(task);
            }
        }
        self.lifo_polls = 0;
        if self.len == 0 {
            return None;
        }
        let id = self.pick();
        let class = &mut self.classes[id];
        let item = class.pop(order)?;
        self.record_dequeue(id);
        if self.busy > 1 && self.classes[id].len() > 0 {
            self.waiting.push(Reverse((self.classes[id].vtime(), id)));
        }
        if let Some(behind) = behind {
            self.push_back_in_class(behind);
        }
        Some(item)
    }

    /// The class that had least, of those in which somebody waits. It is taken out of those that wait.
    #[inline]
    fn pick(&mut self) -> ClassId {
        if self.is_first_alone() { 0 } else { self.pick_of_several() }
    }

    #[inline(never)]
    fn pick_of_several(&mut self) -> ClassId {
        if self.busy > 1 {
            self.picks = self.picks.wrapping_add(1);
            if self.picks.is_multiple_of(IN_TURN) {
                return self.pick_in_turn();
            }
        }
        let id = self.first_class_of_several();
        if self.busy > 1 {
            self.waiting.pop();
        }
        id
    }

    /// The next class behind the one that was picked so before.
    #[cold]
    fn pick_in_turn(&mut self) -> ClassId {
        let (all, at) = (self.classes.len(), (self.picks / IN_TURN) as usize);
        let id =
            (at..at + all).map(|i| i % all).find(|id| self.classes[*id].len() > 0).expect("somebody waits");
        self.waiting.retain(|Reverse((_, other))| *other != id);
        id
    }

    /// The class that had least, of those in which somebody waits.
    #[inline]
    fn first_class(&mut self) -> ClassId {
        if self.is_first_alone() { 0 } else { self.first_class_of_several() }
    }

    /// Whether tasks wait in the first class only. It is the only class if no task has a tenant.
    #[inline]
    fn is_first_alone(&self) -> bool {
        self.busy == 1 && self.classes[0].len() > 0
    }

    #[inline(never)]
    fn first_class_of_several(&mut self) -> ClassId {
        if self.busy == 1 {
            let alone = self.classes.iter().position(|class| class.len() > 0);
            return alone.expect("somebody waits");
        }
        loop {
            let Reverse((had, id)) = *self.waiting.peek().expect("several classes wait");
            let class = &self.classes[id];
            // Other workers may have added to it, and may be adding.
            let now = class.vtime();
            if class.len() > 0 && now <= had {
                return id;
            }
            self.waiting.pop();
            if class.len() > 0 {
                self.waiting.push(Reverse((now, id)));
            }
        }
    }

    /// One of this class was taken out.
    #[inline]
    fn record_dequeue(&mut self, id: ClassId) {
        self.len -= 1;
        if self.classes[id].len() == 0 {
            self.busy -= 1;
        }
    }

    /// A task of this class ran for so long.
    pub(crate) fn charge(&mut self, share: Share, ns: u64) {
        let id = self.class(share);
        let class = &mut self.classes[id];
        self.virtual_times.advance(class.vtime());
        class.pending += virtual_time(ns, class.share.weight, &mut class.rest);
        if class.pending >= BATCH {
            class.vtime.add(std::mem::take(&mut class.pending));
        }
    }

    /// Since when the task waits that [`steal`](RunQueue::steal) would take for [`StealOrder::Oldest`]. `None`: no task could
    /// run elsewhere.
    pub(crate) fn oldest_since(&mut self) -> Option<Nanos> {
        if self.stealable() == 0 {
            return None;
        }
        let mut oldest = self.only.as_ref();
        if oldest.is_none() && self.busy > 0 {
            let first = self.first_class();
            let all = std::iter::once(first).chain(0..self.classes.len());
            oldest = all.into_iter().find_map(|id| self.classes[id].oldest());
        }
        oldest.or(self.lifo_slot.as_ref()).map(Entry::waits_since)
    }

    /// Takes a task for another worker: the one that would run last or the one that has waited longest, of the tenant
    /// whose turn is next. The one that the running task woke only if no other may go: most of the time it runs in a
    /// moment, beside who woke it.
    #[inline(never)]
    pub(crate) fn steal(&mut self, steal_order: StealOrder, may: impl Fn(&T) -> bool) -> Option<T> {
        self.steal_any(may, |queue, may| {
            let mut order: Vec<ClassId> = Vec::new();
            if queue.busy > 1 {
                order.extend((0..queue.classes.len()).filter(|id| queue.classes[*id].len() > 0));
                // Cached: other workers add to it meanwhile.
                order.sort_by_cached_key(|id| queue.classes[*id].vtime());
            } else {
                order.extend(queue.classes.iter().position(|class| class.len() > 0));
            }
            order.into_iter().find_map(|id| Some((id, queue.classes[id].steal(steal_order, may)?)))
        })
    }

    /// Takes a task for another worker, any one that `may` go: which one is as `random` says. The task that the running
    /// one woke only if no other waits.
    #[inline(never)]
    pub(crate) fn steal_random(&mut self, random: u32, may: impl Fn(&T) -> bool) -> Option<T> {
        self.steal_any(may, |queue, may| {
            let waiting: usize = queue.classes.iter().map(Class::len).sum();
            let scanned = 0..waiting.min(RANDOM_STEAL_SCAN_MAX);
            scanned.map(|i| (random as usize % waiting + i) % waiting).find_map(|at| queue.steal_at(at, may))
        })
    }

    /// The task at a place among all that wait in classes, if it `may` go.
    fn steal_at(&mut self, mut at: usize, may: &impl Fn(&T) -> bool) -> Option<(ClassId, T)> {
        for (id, class) in self.classes.iter_mut().enumerate() {
            for queue in [&mut class.batch, &mut class.next_batch] {
                match queue.get(at) {
                    Some(item) if may(item) => return queue.remove(at).map(|item| (id, item)),
                    Some(_) => return None,
                    None => at -= queue.len(),
                }
            }
        }
        None
    }

    /// Takes a task that `may` go: the only one, else the one that `take` removes from a class, else the one in the LIFO
    /// slot.
    fn steal_any<M: Fn(&T) -> bool>(
        &mut self,
        may: M,
        take: impl FnOnce(&mut Self, &M) -> Option<(ClassId, T)>,
    ) -> Option<T> {
        let item = if let Some(only) = self.only.take_if(|task| may(task)) {
            self.len = 0;
            only
        } else if let Some((id, item)) = take(self, &may) {
            self.record_dequeue(id);
            item
        } else {
            let task = self.lifo_slot.take_if(|task| may(task))?;
            self.len -= 1;
            task
        };
        self.pinned -= u32::from(item.is_pinned());
        Some(item)
    }
}
