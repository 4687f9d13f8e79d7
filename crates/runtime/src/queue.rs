//! Queue: what waits at one worker, in the order in which it will run.
//!
//! Model.   A class per tenant, served by weighted virtual time, which counts on all workers together (`claims.rs`):
//!          the tenant that has had least comes next. In a class,
//!          rounds: what is pushed during a round runs in the next one. The policy says in which direction a
//!          round goes; back again, the tasks that ran last find their data in the cache. The slot `next` holds
//!          the task that the running one woke: it runs at once, so that what two tasks say to each other stays
//!          warm, but only `chain_max` times in a row, and never before the tasks of another tenant.
//! Number.  With one tenant a push is a comparison and a store, a pop a load and two comparisons.
//! Writers. Under the worker's lock: the worker, and who pulls.

use crate::claims::{BATCH, Claim, Claims, virtual_time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use warmcore_budget::process::unaccounted;
use warmcore_sched::{Turn, Whom};
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
const LOTS_MAX: usize = 64;

#[derive(Debug)]
struct Class<T> {
    share: Share,
    claim: Arc<Claim>,
    /// Virtual time that was measured here, and is not added to the claim yet.
    not_added: u64,
    /// What was too little to count, in ns × 100.
    rest: u64,
    turn: Turn,
    /// This round's.
    now: VecDeque<T>,
    /// The next round's.
    later: VecDeque<T>,
}

impl<T: Entry> Class<T> {
    #[inline]
    fn len(&self) -> usize {
        self.now.len() + self.later.len()
    }

    /// The tenant's virtual time, without what other workers have not added yet. It never falls.
    fn had(&self) -> u64 {
        self.claim.had() + self.not_added
    }

    #[cold]
    fn grow(&mut self) {
        // A task of a tenant's may be at work here, and the queue is the worker's.
        unaccounted(|| self.later.reserve(1));
    }

    #[inline]
    fn pop(&mut self, turn: impl Fn() -> Turn) -> Option<T> {
        if self.now.is_empty() {
            std::mem::swap(&mut self.now, &mut self.later);
            self.turn = turn();
        }
        match self.turn {
            Turn::Forth => self.now.pop_front(),
            Turn::Back => self.now.pop_back(),
        }
    }

    /// Takes one that `may` go: the one that would run last, or the one that came first.
    fn take(&mut self, whom: Whom, may: &impl Fn(&T) -> bool) -> Option<T> {
        let lists = match whom {
            Whom::Last => [&mut self.later, &mut self.now],
            Whom::Oldest => [&mut self.now, &mut self.later],
        };
        let from_front = whom == Whom::Oldest || self.turn == Turn::Back;
        lists.into_iter().find_map(|list| {
            let at = if from_front { list.iter().position(may) } else { list.iter().rposition(may) };
            at.and_then(|at| list.remove(at))
        })
    }

    /// The one that came first, of those that could run elsewhere.
    fn oldest(&self) -> Option<&T> {
        self.now.iter().chain(&self.later).find(|item| !item.is_pinned())
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// The only one that waits, where nobody is `next`: it needs no class.
    only: Option<T>,
    next: Option<T>,
    /// How often in a row `next` was served.
    chain: u32,
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
    claims: Arc<Claims>,
}

type ClassId = usize;

impl<T: Entry> Queue<T> {
    pub(crate) fn new(claims: Arc<Claims>) -> Self {
        Self {
            only: None,
            next: None,
            chain: 0,
            classes: Vec::new(),
            by_tenant: HashMap::new(),
            waiting: BinaryHeap::new(),
            len: 0,
            pinned: 0,
            busy: 0,
            picks: 0,
            claims,
        }
    }

    /// What the tenants have had on all workers together.
    pub(crate) fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    /// How many wait, the next one too.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// How many of them could run elsewhere.
    pub(crate) fn movable(&self) -> u32 {
        self.len - self.pinned
    }

    /// How many may run on this worker alone.
    pub(crate) fn pinned(&self) -> u32 {
        self.pinned
    }

    /// The least virtual time of a tenant that has tasks waiting here; `u64::MAX` if no task waits.
    pub(crate) fn least_had(&mut self) -> u64 {
        let alone =
            self.only.as_ref().or(self.next.as_ref()).map(Entry::share).map(|share| self.class(share));
        let waiting =
            self.classes.iter().enumerate().filter(|(id, class)| class.len() > 0 || alone == Some(*id));
        waiting.map(|(_, class)| class.had()).min().unwrap_or(u64::MAX)
    }

    /// The tenants with tasks waiting here that had less virtual time than `below`.
    pub(crate) fn owed(&self, below: u64) -> Vec<u64> {
        let waiting = self.classes.iter().filter(|class| class.len() > 0 && class.had() < below);
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
        if class.later.len() == class.later.capacity() {
            class.grow();
        }
        class.later.push_back(item);
        self.len += 1;
        if class.len() == 1 {
            let id = self.class(share);
            self.begin_to_wait(id);
        }
    }

    /// Before all others, if its turn allows; who was there goes behind all others of its tenant.
    #[inline]
    pub(crate) fn push_next(&mut self, item: T) {
        self.pinned += u32::from(item.is_pinned());
        if self.only.is_some() {
            self.push_only_in_class();
        }
        if let Some(before) = self.next.replace(item) {
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
        let empty = || self.classes.iter().position(|class| class.len() == 0);
        let reused = if self.classes.len() < CLASSES_KEPT { None } else { empty() };
        let (now, later) = (VecDeque::new(), VecDeque::new());
        let claim = self.claims.of(share.tenant);
        let class = Class { share, claim, not_added: 0, rest: 0, turn: Turn::Forth, now, later };
        match reused {
            Some(id) => {
                let before = std::mem::replace(&mut self.classes[id], class);
                before.claim.add(before.not_added);
                self.by_tenant.remove(&before.share.tenant);
                self.by_tenant.insert(share.tenant, id);
                id
            }
            None => {
                self.classes.push(class);
                self.by_tenant.insert(share.tenant, self.classes.len() - 1);
                self.classes.len() - 1
            }
        }
    }

    /// A tenant that had no task waiting here keeps a slice of what it is behind, and no more.
    #[inline(never)]
    fn begin_to_wait(&mut self, id: ClassId) {
        self.busy += 1;
        if self.waiting.capacity() - self.waiting.len() <= self.classes.len() {
            unaccounted(|| self.waiting.reserve(self.classes.len() + 1));
        }
        let others = self.classes.iter().enumerate().filter(|(other, class)| *other != id && class.len() > 0);
        let least = others.map(|(_, class)| class.had()).min();
        let class = &self.classes[id];
        self.claims.come_back(&class.claim, class.not_added, least);
        if self.busy == 2 {
            // The one that was alone until now: who comes new is before it where both had as much.
            self.waiting.clear();
            let alone = self.classes.iter().enumerate().position(|(i, class)| i != id && class.len() > 0);
            if let Some(alone) = alone {
                self.classes[alone].not_added += 1;
            }
            let busy = self.classes.iter().enumerate().filter(|(_, class)| class.len() > 0);
            self.waiting.extend(busy.map(|(id, class)| Reverse((class.had(), id))));
        } else if self.busy > 2 {
            self.waiting.push(Reverse((class.had(), id)));
            if self.waiting.len() > 4 * self.classes.len() {
                self.forget_stale();
            }
        }
    }

    /// A class that others emptied stays among those that wait, once for each time, until its turn comes.
    #[cold]
    fn forget_stale(&mut self) {
        let busy = self.classes.iter().enumerate().filter(|(_, class)| class.len() > 0);
        self.waiting = busy.map(|(id, class)| Reverse((class.had(), id))).collect();
    }

    /// The next one to run.
    #[inline]
    pub(crate) fn pop(&mut self, chain_max: u32, turn: impl Fn() -> Turn) -> Option<T> {
        let item = self.pop_any(chain_max, turn)?;
        self.pinned -= u32::from(item.is_pinned());
        Some(item)
    }

    #[inline]
    fn pop_any(&mut self, chain_max: u32, turn: impl Fn() -> Turn) -> Option<T> {
        if let Some(only) = self.only.take() {
            self.len = 0;
            return Some(only);
        }
        let mut behind = None;
        if let Some(next) = self.next.take() {
            self.len -= 1;
            let own = self.class(next.share());
            let waits = self.classes[own].len() > 0;
            let is_alone = self.busy == u32::from(waits);
            if is_alone && (self.chain < chain_max || !waits) {
                self.chain = self.chain.saturating_add(1);
                return Some(next);
            }
            if is_alone {
                // Also on the way back, where the last one to come would be the first to go.
                behind = Some(next);
            } else {
                self.push_back_in_class(next);
            }
        }
        self.chain = 0;
        if self.len == 0 {
            return None;
        }
        let id = self.pick();
        let class = &mut self.classes[id];
        let item = class.pop(turn)?;
        self.left(id);
        if self.busy > 1 && self.classes[id].len() > 0 {
            self.waiting.push(Reverse((self.classes[id].had(), id)));
        }
        if let Some(behind) = behind {
            self.push_back_in_class(behind);
        }
        Some(item)
    }

    /// The class that had least, of those in which somebody waits. It is taken out of those that wait.
    #[inline]
    fn pick(&mut self) -> ClassId {
        if self.busy > 1 {
            self.picks = self.picks.wrapping_add(1);
            if self.picks.is_multiple_of(IN_TURN) {
                return self.pick_in_turn();
            }
        }
        let id = self.first_class();
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
        // Where no task is a tenant's there is one class.
        if self.busy == 1 && self.classes[0].len() > 0 { 0 } else { self.first_class_of_several() }
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
            let now = class.had();
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
    fn left(&mut self, id: ClassId) {
        self.len -= 1;
        if self.classes[id].len() == 0 {
            self.busy -= 1;
        }
    }

    /// A task of this class ran for so long.
    pub(crate) fn charge(&mut self, share: Share, ns: u64) {
        let id = self.class(share);
        let class = &mut self.classes[id];
        self.claims.ran(class.had());
        class.not_added += virtual_time(ns, class.share.weight, &mut class.rest);
        if class.not_added >= BATCH {
            class.claim.add(std::mem::take(&mut class.not_added));
        }
    }

    /// Since when the task waits that [`take`](Queue::take) would take for [`Whom::Oldest`]. `None`: no task could
    /// run elsewhere.
    pub(crate) fn oldest_since(&mut self) -> Option<Nanos> {
        if self.movable() == 0 {
            return None;
        }
        let mut oldest = self.only.as_ref();
        if oldest.is_none() && self.busy > 0 {
            let first = self.first_class();
            let all = std::iter::once(first).chain(0..self.classes.len());
            oldest = all.into_iter().find_map(|id| self.classes[id].oldest());
        }
        oldest.or(self.next.as_ref()).map(Entry::waits_since)
    }

    /// Takes a task for another worker: the one that would run last or the one that has waited longest, of the tenant
    /// whose turn is next. The one that the running task woke only if no other may go: most of the time it runs in a
    /// moment, beside who woke it.
    #[inline(never)]
    pub(crate) fn take(&mut self, whom: Whom, may: impl Fn(&T) -> bool) -> Option<T> {
        let item = self.take_any(whom, may)?;
        self.pinned -= u32::from(item.is_pinned());
        Some(item)
    }

    /// Takes a task for another worker, any one that `may` go: which one is as `lot` says. The task that the running
    /// one woke only if no other waits.
    #[inline(never)]
    pub(crate) fn take_by_lot(&mut self, lot: u32, may: impl Fn(&T) -> bool) -> Option<T> {
        let item = self.take_any_by_lot(lot as usize, may)?;
        self.pinned -= u32::from(item.is_pinned());
        Some(item)
    }

    fn take_any_by_lot(&mut self, lot: usize, may: impl Fn(&T) -> bool) -> Option<T> {
        if self.only.as_ref().is_some_and(&may) {
            self.len = 0;
            return self.only.take();
        }
        let waiting: usize = self.classes.iter().map(Class::len).sum();
        for at in (0..waiting.min(LOTS_MAX)).map(|i| (lot % waiting + i) % waiting) {
            if let Some((id, item)) = self.take_at(at, &may) {
                self.left(id);
                return Some(item);
            }
        }
        let next = self.next.take_if(|next| may(next))?;
        self.len -= 1;
        Some(next)
    }

    /// The task at a place among all that wait in classes, if it `may` go.
    fn take_at(&mut self, mut at: usize, may: &impl Fn(&T) -> bool) -> Option<(ClassId, T)> {
        for (id, class) in self.classes.iter_mut().enumerate() {
            for queue in [&mut class.now, &mut class.later] {
                match queue.get(at) {
                    Some(item) if may(item) => return queue.remove(at).map(|item| (id, item)),
                    Some(_) => return None,
                    None => at -= queue.len(),
                }
            }
        }
        None
    }

    fn take_any(&mut self, whom: Whom, may: impl Fn(&T) -> bool) -> Option<T> {
        if self.only.as_ref().is_some_and(&may) {
            self.len = 0;
            return self.only.take();
        }
        let mut order: Vec<ClassId> = Vec::new();
        if self.busy > 1 {
            order.extend((0..self.classes.len()).filter(|id| self.classes[*id].len() > 0));
            // Cached: other workers add to it meanwhile.
            order.sort_by_cached_key(|id| self.classes[*id].had());
        } else {
            order.extend(self.classes.iter().position(|class| class.len() > 0));
        }
        for id in order {
            if let Some(item) = self.classes[id].take(whom, &may) {
                self.left(id);
                return Some(item);
            }
        }
        let next = self.next.take_if(|next| may(next))?;
        self.len -= 1;
        Some(next)
    }
}
