//! RunQueue: the tasks that wait at one worker, in the order in which they will run.
//!
//! The tasks of each tenant form a class. The class whose tenant has the least virtual time, over all workers together,
//! runs next (`virtual_time.rs`). In a class tasks run in rounds: a task that is pushed during a round runs in the next
//! one. The policy chooses the direction of each round ([`QueueOrder`]). Tasks that pass, because others have yielded, run first
//! in their round, in order of arrival (`worker/schedule.rs`). The LIFO slot holds the task that the running
//! task woke last. It runs before the class's round, so that data which two tasks pass to each other stays in the
//! cache, but at most `max_lifo_polls` times in a row, and never before the tasks of another tenant.
//!
//! # Cost
//! With one tenant a push is a comparison and a store, a pop a load and two comparisons; with several, a look into a heap of those
//! whose tasks wait. A queue allocates memory only when more tasks wait than ever before, or when a tenant's first task comes: 250
//! to 500 bytes a tenant, and what its tasks take that wait at a time. From [`TENANTS_KEPT`] tenants on those that sleep may be forgotten
//! when a new one comes.
//!
//! The worker and the threads that steal from it access the queue under the worker's lock.

use crate::policy::LIFO_POLLS;
use crate::virtual_time::{TENANTS_KEPT, VirtualTime, VirtualTimes, virtual_time};
use crate::{Allowed, QueueOrder, Queued, StealOrder, Task};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use warmcore_types::Nanos;

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests;

/// Whose run time a task uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The tenant's number. 0: the task has no tenant.
    pub tenant: u64,
    /// The tenant's weight: tenants get run time in proportion to it.
    pub weight: u32,
}

impl Share {
    /// The share of tasks without a tenant.
    pub const NO_TENANT: Self = Self { tenant: 0, weight: 100 };
}

/// What a queue must know of a task.
pub(crate) trait Entry {
    fn share(&self) -> Share;
    /// Whether the task may run on one worker only.
    fn is_pinned(&self) -> bool;
    /// When the task was queued.
    fn waits_since(&self) -> Nanos;
    /// Calls a function that allocates memory for the queue.
    fn unaccounted<R>(grow: impl FnOnce() -> R) -> R {
        grow()
    }
}

impl<T: Task> Entry for Queued<T> {
    #[inline]
    fn share(&self) -> Share {
        self.task.share()
    }

    #[inline]
    fn is_pinned(&self) -> bool {
        matches!(self.task.state().allowed(), Allowed::Cpu(_))
    }

    #[inline]
    fn waits_since(&self) -> Nanos {
        self.since
    }

    fn unaccounted<R>(grow: impl FnOnce() -> R) -> R {
        T::unaccounted(grow)
    }
}

/// One of this many picks among several tenants goes in turn, whatever their virtual times. If tasks can't move, a tenant
/// that is served by another worker may stay ahead of all others at this one, and its tasks here must run at some time.
/// The number exceeds the ratio of the largest weight to the least, which the picks in turn must not distort.
const IN_TURN: u32 = 1 << 16;

/// The largest number of tasks that [`RunQueue::steal_random`] examines.
const RANDOM_STEAL_SCAN_MAX: usize = 64;

#[derive(Debug)]
struct Class<T> {
    share: Share,
    vtime: Arc<VirtualTime>,
    /// The remainder of the division in `virtual_time`.
    rest: u64,
    order: QueueOrder,
    /// The rest of this round.
    batch: VecDeque<T>,
    /// How many tasks of it pass and run first, unless some were stolen.
    passing: usize,
    /// How many more may pass.
    may_pass: usize,
    /// The next round.
    next_batch: VecDeque<T>,
    /// Its index in `busy` while tasks of it wait.
    at: usize,
}

impl<T: Entry> Class<T> {
    #[inline]
    fn len(&self) -> usize {
        self.batch.len() + self.next_batch.len()
    }

    #[cold]
    fn grow(&mut self) {
        T::unaccounted(|| self.next_batch.reserve(1));
    }

    #[inline]
    fn pop(&mut self, order: impl Fn() -> QueueOrder) -> Option<T> {
        if self.batch.is_empty() {
            self.begin_round(order());
        }
        self.passing = self.passing.saturating_sub(1);
        match self.order {
            QueueOrder::Fifo => self.batch.pop_front(),
            QueueOrder::Lifo => self.batch.pop_back(),
        }
    }

    fn begin_round(&mut self, order: QueueOrder) {
        std::mem::swap(&mut self.batch, &mut self.next_batch);
        self.order = order;
        (self.passing, self.may_pass) = (0, LIFO_POLLS as usize * self.batch.len());
    }

    /// Adds a task that passes to this round. The caller has seen that one may.
    fn insert_passing(&mut self, item: T) {
        if self.batch.len() == self.batch.capacity() {
            T::unaccounted(|| self.batch.reserve(1));
        }
        let passing = self.passing.min(self.batch.len());
        let at = if self.order == QueueOrder::Fifo { passing } else { self.batch.len() - passing };
        self.batch.insert(at, item);
        (self.passing, self.may_pass) = (passing + 1, self.may_pass - 1);
    }

    /// Removes a task that `may` run elsewhere: the one that would run last, or the one that was queued first.
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

    /// The task that was queued first, of those that are not pinned.
    fn oldest(&self) -> Option<&T> {
        self.batch.iter().chain(&self.next_batch).find(|item| !item.is_pinned())
    }
}

/// The tasks that wait at one worker: see the module's documentation.
#[derive(Debug)]
pub(crate) struct RunQueue<T> {
    lifo_slot: Option<T>,
    /// Whether another worker may steal the task in the LIFO slot.
    steals_lifo_slot: bool,
    /// How often in a row the LIFO slot was served.
    lifo_polls: u32,
    classes: Vec<Class<T>>,
    by_tenant: HashMap<u64, ClassId>,
    /// The order in which a steal tries the classes. Used within a call only, and kept for its memory.
    by_vtime: Vec<(u64, ClassId)>,
    /// Classes with waiting tasks, by virtual time, if there are several. The virtual times may be too small, because
    /// other workers add to them, but never too large.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// All waiting tasks.
    len: u32,
    /// Waiting tasks that may run on this worker only.
    pinned: u32,
    /// The classes with waiting tasks, in any order.
    busy: Vec<ClassId>,
    /// The class after the one that was last used for another tenant.
    reused: ClassId,
    /// The class of the task that was removed last to run here, or runs here. `rests`: no slice is under way. `came`: meanwhile
    /// another class began to wait.
    served: ClassId,
    rests: bool,
    came: bool,
    /// Picks among several classes so far.
    picks: u32,
    virtual_times: Arc<VirtualTimes>,
}

type ClassId = usize;

impl<T: Entry> RunQueue<T> {
    pub(crate) fn new(virtual_times: Arc<VirtualTimes>, steals_lifo_slot: bool) -> Self {
        Self {
            lifo_slot: None,
            steals_lifo_slot,
            lifo_polls: 0,
            classes: Vec::new(),
            by_tenant: HashMap::new(),
            by_vtime: Vec::new(),
            waiting: BinaryHeap::new(),
            len: 0,
            pinned: 0,
            busy: Vec::new(),
            reused: 0,
            served: 0,
            rests: true,
            came: false,
            picks: 0,
            virtual_times,
        }
    }

    /// How many tasks wait, including the one in the LIFO slot.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// How many waiting tasks could run on another worker.
    #[inline]
    pub(crate) fn stealable(&self) -> u32 {
        let keeps_slot = || self.lifo_slot.as_ref().is_some_and(|task| !task.is_pinned());
        self.len - self.pinned - u32::from(!self.steals_lifo_slot && keeps_slot())
    }

    /// How many waiting tasks may run on this worker only.
    pub(crate) fn pinned(&self) -> u32 {
        self.pinned
    }

    /// The least virtual time of a tenant that has tasks waiting here; `u64::MAX` if no task waits.
    pub(crate) fn min_vtime(&mut self) -> u64 {
        let in_slot = self.lifo_slot.as_ref().map(Entry::share).map(|share| self.class(share));
        let waiting = self.busy.iter().copied().chain(in_slot);
        waiting.map(|id| self.classes[id].vtime.get()).min().unwrap_or(u64::MAX)
    }

    /// Queues a task behind all others of its tenant.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) {
        self.pinned += u32::from(item.is_pinned());
        self.push_in_class(item);
    }

    /// Queues a task before others of its tenant: in a round at most twelve for each of these, or, in a round that begins here, as many
    /// `more` as the caller has. `order`: that of a round that begins here.
    #[inline(never)]
    pub(crate) fn push_passing(&mut self, item: T, order: QueueOrder, more: u32) {
        let id = self.class(item.share());
        let class = &mut self.classes[id];
        let is_first = class.len() == 0;
        if class.batch.is_empty() {
            class.begin_round(order);
            class.may_pass = class.may_pass.max(more as usize + 1);
        }
        if class.may_pass == 0 {
            return self.push(item);
        }
        let is_pinned = item.is_pinned();
        class.insert_passing(item);
        (self.len, self.pinned) = (self.len + 1, self.pinned + u32::from(is_pinned));
        if is_first {
            self.begin_to_wait(id);
        }
    }

    #[inline(always)]
    fn push_in_class(&mut self, item: T) {
        let id = self.class(item.share());
        let class = &mut self.classes[id];
        if class.next_batch.len() == class.next_batch.capacity() {
            class.grow();
        }
        class.next_batch.push_back(item);
        self.len += 1;
        if class.len() == 1 {
            self.begin_to_wait(id);
        }
    }

    /// Queues a task in the LIFO slot. The task that was there goes behind all others of its tenant. Returns whether the
    /// slot was empty.
    #[inline]
    pub(crate) fn push_lifo(&mut self, item: T) -> bool {
        self.pinned += u32::from(item.is_pinned());
        self.came |= self.class(item.share()) != self.served;
        let before = self.lifo_slot.replace(item);
        let was_empty = before.is_none();
        if let Some(before) = before {
            self.len -= 1;
            self.push_in_class(before);
        }
        self.len += 1;
        was_empty
    }

    /// Whether the LIFO slot was served so many times in a row. If so, the count begins anew.
    pub(crate) fn ends_lifo_polls(&mut self, max_lifo_polls: u32) -> bool {
        let ends = self.lifo_polls >= max_lifo_polls;
        if ends {
            self.lifo_polls = 0;
        }
        ends
    }

    #[inline]
    fn class(&mut self, share: Share) -> ClassId {
        if let Some(served) = self.classes.get(self.served)
            && served.share.tenant == share.tenant
        {
            return self.served;
        }
        self.class_by_tenant(share)
    }

    #[inline(never)]
    fn class_by_tenant(&mut self, share: Share) -> ClassId {
        match self.by_tenant.get(&share.tenant) {
            Some(id) => *id,
            None => T::unaccounted(|| self.new_class(share)),
        }
    }

    #[cold]
    fn new_class(&mut self, share: Share) -> ClassId {
        let all = self.classes.len();
        let is_idle =
            |id: &ClassId| all >= TENANTS_KEPT && *id != self.served && self.classes[*id].len() == 0;
        // From one to the next, so that one is found soon where many tenants sleep.
        let reused = (0..all).map(|i| (self.reused + i) % all).find(is_idle);
        let (batch, next_batch) = (VecDeque::new(), VecDeque::new());
        let vtime = self.virtual_times.of(share.tenant);
        let order = QueueOrder::Fifo;
        let (passing, may_pass) = (0, 0);
        let class = Class { share, vtime, rest: 0, order, batch, passing, may_pass, next_batch, at: 0 };
        let id = reused.unwrap_or(all);
        if reused.is_some() {
            self.reused = id + 1;
            let before = std::mem::replace(&mut self.classes[id], class);
            self.by_tenant.remove(&before.share.tenant);
        } else {
            self.classes.push(class);
            self.by_vtime.reserve(self.classes.len());
            self.busy.reserve(self.classes.len());
            // `begin_to_wait` keeps it to four of each class.
            self.waiting.reserve(5 * self.classes.len());
        }
        self.by_tenant.insert(share.tenant, id);
        id
    }

    /// Called when the first task of a class waits.
    #[inline(never)]
    fn begin_to_wait(&mut self, id: ClassId) {
        self.came |= id != self.served;
        self.end_absence(id);
        self.classes[id].at = self.busy.len();
        self.busy.push(id);
        match self.busy[..] {
            [_] => {}
            [alone, _] => {
                // The class that comes new runs before the one that was alone.
                if self.classes[alone].vtime.get() == self.classes[id].vtime.get() {
                    self.classes[alone].vtime.add(1);
                }
                self.collect_waiting();
            }
            _ => {
                self.waiting.push(Reverse((self.classes[id].vtime.get(), id)));
                if self.waiting.len() > 4 * self.classes.len() {
                    self.collect_waiting();
                }
            }
        }
    }

    /// Limits how far a tenant is behind the others, unless a task of it waited or ran here until now.
    fn end_absence(&mut self, id: ClassId) {
        if id == self.served && !self.rests {
            return;
        }
        let least = match self.busy[..] {
            [] => None,
            [alone] => Some(self.classes[alone].vtime.get()),
            _ => {
                // Where the class is in the heap still, it counts as it will be pushed.
                let first = self.first_of_several(Some(id));
                Some(self.classes[first].vtime.get())
            }
        };
        self.virtual_times.reactivate(&self.classes[id].vtime, least);
    }

    /// Builds the heap anew. A class that was emptied by steals stays in the heap, once for each time, until its turn
    /// comes.
    fn collect_waiting(&mut self) {
        self.waiting.clear();
        self.waiting.extend(self.busy.iter().map(|id| Reverse((self.classes[*id].vtime.get(), *id))));
    }

    /// A slice of this tenant begins, whose task may have come from elsewhere.
    pub(crate) fn set_served(&mut self, share: Share) {
        let id = self.class(share);
        if self.classes[id].len() == 0 {
            self.end_absence(id);
        }
        (self.served, self.rests) = (id, false);
    }

    /// No slice is under way any more.
    pub(crate) fn rest(&mut self) {
        self.rests = true;
    }

    /// Whether tasks of a tenant began to wait, since the last call, other than the one whose task runs. So the virtual times must be
    /// up to date.
    #[inline]
    pub(crate) fn take_came(&mut self) -> bool {
        std::mem::take(&mut self.came)
    }

    /// Removes the task that runs next.
    #[inline]
    pub(crate) fn pop(&mut self, max_lifo_polls: u32, order: impl Fn() -> QueueOrder) -> Option<T> {
        let item = self.pop_any(max_lifo_polls, order)?;
        // Who came meanwhile, from the LIFO slot, took part in the choice.
        self.came = false;
        self.pinned -= u32::from(item.is_pinned());
        Some(item)
    }

    #[inline]
    fn pop_any(&mut self, max_lifo_polls: u32, order: impl Fn() -> QueueOrder) -> Option<T> {
        let mut behind = None;
        if let Some(task) = self.lifo_slot.take() {
            self.len -= 1;
            let own = self.class(task.share());
            let waits = self.classes[own].len() > 0;
            let is_alone = self.busy.len() == usize::from(waits);
            if is_alone && (self.lifo_polls < max_lifo_polls || !waits) {
                self.lifo_polls = self.lifo_polls.saturating_add(1);
                if !waits {
                    self.end_absence(own);
                }
                self.served = own;
                return Some(task);
            }
            if is_alone {
                // Pushed after the next task is taken: in a LIFO round it would be that task.
                behind = Some(task);
            } else {
                self.push_in_class(task);
            }
        }
        self.lifo_polls = 0;
        if self.len == 0 {
            return None;
        }
        let id = if let [alone] = self.busy[..] { alone } else { self.pick_of_several() };
        self.served = id;
        let class = &mut self.classes[id];
        let item = class.pop(order)?;
        self.record_dequeue(id);
        if self.busy.len() > 1 && self.classes[id].len() > 0 {
            self.waiting.push(Reverse((self.classes[id].vtime.get(), id)));
        }
        if let Some(behind) = behind {
            self.push_in_class(behind);
        }
        Some(item)
    }

    /// The class that runs next, which loses its place in the heap.
    #[inline(never)]
    fn pick_of_several(&mut self) -> ClassId {
        self.picks = self.picks.wrapping_add(1);
        if self.picks.is_multiple_of(IN_TURN) {
            return self.pick_in_turn();
        }
        let id = self.first_of_several(None);
        self.waiting.pop();
        id
    }

    /// The next class with waiting tasks after the one that was picked in turn before.
    #[cold]
    fn pick_in_turn(&mut self) -> ClassId {
        let (all, at) = (self.classes.len(), (self.picks / IN_TURN) as usize);
        let id =
            (at..at + all).map(|i| i % all).find(|id| self.classes[*id].len() > 0).expect("a task waits");
        self.waiting.retain(|Reverse((_, other))| *other != id);
        id
    }

    /// The class with waiting tasks whose tenant has the least virtual time, if several wait that are not `left_out`, which loses its
    /// place in the heap.
    fn first_of_several(&mut self, left_out: Option<ClassId>) -> ClassId {
        loop {
            let Reverse((had, id)) = *self.waiting.peek().expect("several classes wait");
            let class = &self.classes[id];
            // Other workers may have added to it, and may be adding.
            let now = class.vtime.get();
            let waits = class.len() > 0 && Some(id) != left_out;
            if waits && now <= had {
                return id;
            }
            self.waiting.pop();
            if waits {
                self.waiting.push(Reverse((now, id)));
            }
        }
    }

    /// Updates the counts after a task of this class was removed.
    #[inline]
    fn record_dequeue(&mut self, id: ClassId) {
        self.len -= 1;
        if self.classes[id].len() == 0 {
            let at = self.classes[id].at;
            self.busy.swap_remove(at);
            if let Some(moved) = self.busy.get(at) {
                self.classes[*moved].at = at;
            }
        }
    }

    /// Adds run time, in ns, to the tenant's virtual time.
    pub(crate) fn charge(&mut self, share: Share, ns: u64) {
        let id = self.class(share);
        let class = &mut self.classes[id];
        self.virtual_times.advance(class.vtime.get());
        class.vtime.add(virtual_time(ns, class.share.weight, &mut class.rest));
    }

    /// When the task was queued that [`steal`](RunQueue::steal) would take for [`StealOrder::Oldest`]. `None`: no task
    /// could run elsewhere.
    pub(crate) fn oldest_since(&self) -> Option<Nanos> {
        let oldest = |id: &ClassId| Some((self.classes[*id].vtime.get(), *id, self.classes[*id].oldest()?));
        let of_first = self.busy.iter().filter_map(oldest).min_by_key(|(vtime, id, _)| (*vtime, *id));
        let in_slot = self.lifo_slot.as_ref().filter(|task| self.steals_lifo_slot && !task.is_pinned());
        of_first.map(|(.., task)| task).or(in_slot).map(Entry::waits_since)
    }

    /// Removes a task for another worker: the one that would run last or the one that has waited longest, of the tenant
    /// whose turn is next. Takes the task in the LIFO slot only if no other may go, because that task usually runs soon,
    /// and uses what its waker has just written.
    #[inline(never)]
    pub(crate) fn steal(&mut self, steal_order: StealOrder, may: impl Fn(&T) -> bool) -> Option<T> {
        self.steal_any(may, |queue, may| queue.steal_of_classes(u64::MAX, steal_order, may))
    }

    /// As [`steal`](Self::steal), but only a task in a class whose tenant has less virtual time than `below`.
    pub(crate) fn steal_lagging(
        &mut self,
        below: u64,
        steal_order: StealOrder,
        may: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let (id, item) = self.steal_of_classes(below, steal_order, &may)?;
        self.record_dequeue(id);
        self.pinned -= u32::from(item.is_pinned());
        Some(item)
    }

    /// Tries the classes by virtual time, the least first, up to `below`.
    fn steal_of_classes(
        &mut self,
        below: u64,
        steal_order: StealOrder,
        may: &impl Fn(&T) -> bool,
    ) -> Option<(ClassId, T)> {
        // Sorted by virtual times as they are now, because other workers add to them meanwhile.
        self.by_vtime.clear();
        let keys = self.busy.iter().map(|id| (self.classes[*id].vtime.get(), *id));
        self.by_vtime.extend(keys.filter(|key| key.0 < below));
        self.by_vtime.sort_unstable();
        let classes = &mut self.classes;
        self.by_vtime.iter().find_map(|(_, id)| Some((*id, classes[*id].steal(steal_order, may)?)))
    }

    /// Removes a random task that `may` run on another worker, chosen by the bits of `random`. Takes the task in the LIFO
    /// slot only if no other may go.
    #[inline(never)]
    pub(crate) fn steal_random(&mut self, random: u32, may: impl Fn(&T) -> bool) -> Option<T> {
        self.steal_any(may, |queue, may| {
            let waiting: usize = queue.busy.iter().map(|id| queue.classes[*id].len()).sum();
            let scanned = 0..waiting.min(RANDOM_STEAL_SCAN_MAX);
            scanned.map(|i| (random as usize % waiting + i) % waiting).find_map(|at| queue.steal_at(at, may))
        })
    }

    /// Removes the task at this index among all tasks in classes, if it `may` go.
    fn steal_at(&mut self, mut at: usize, may: &impl Fn(&T) -> bool) -> Option<(ClassId, T)> {
        for id in self.busy.iter().copied() {
            let class = &mut self.classes[id];
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

    /// Removes a task that `may` go: the one that `take` removes from a class, else the one in the LIFO slot.
    fn steal_any<M: Fn(&T) -> bool>(
        &mut self,
        may: M,
        take: impl FnOnce(&mut Self, &M) -> Option<(ClassId, T)>,
    ) -> Option<T> {
        let item = if let Some((id, item)) = take(self, &may) {
            self.record_dequeue(id);
            item
        } else {
            let steals_slot = self.steals_lifo_slot;
            let task = self.lifo_slot.take_if(|task| steals_slot && may(task))?;
            self.len -= 1;
            task
        };
        self.pinned -= u32::from(item.is_pinned());
        Some(item)
    }
}
