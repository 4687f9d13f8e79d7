//! Ring: the light tasks that wait at one worker, in a bounded queue without a lock.
//!
//! `tail` counts the tasks that were pushed, `head` those that were taken. With 64 bits neither comes back to an old value. A
//! slot holds a task from the push until `head` has passed it. A thread that takes tasks first reads their slots, then moves
//! `head` past them by one compare-and-swap: if that succeeds, no other thread has taken them, and the slots still held them
//! when they were read, because the worker reuses a slot only after `head` has passed it. So a steal of many tasks is one step.
//!
//! # Cost
//! A push is two stores and a load, a pop one compare-and-swap. They write the line of `head` and `tail`, which searching workers
//! read, and a line of slots. The least for a queue from which others take: one locked instruction per task.
//!
//! # Protocol
//! Only the worker pushes and pops. Any thread steals. Models: `ring/loom.rs`. Loom runs a load before the stores that come
//! later in its schedule, so no model can show what the order of a slot's read before the exchange of `head` prevents: that the
//! slot's next task is read.

use crate::inbox::Linked;
use crate::sync::{AtomicPtr, AtomicU64, Ordering::*};
use std::marker::PhantomData;
use std::ptr::null_mut;
use warmcore_sched::RING_TASKS;

#[cfg(all(test, warmcore_loom))]
mod loom;

/// Fewer in models, so that they see a full ring.
const SLOTS: usize = if cfg!(any(warmcore_loom, shuttle)) { 4 } else { RING_TASKS as usize };

/// The largest number of tasks that a steal takes: half of a full ring.
const STEAL_MAX: usize = SLOTS / 2;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Ring<T: Linked> {
    /// Written by the worker and by threads that steal.
    head: AtomicU64,
    /// Written by the worker.
    tail: AtomicU64,
    /// Written by the worker.
    slots: [AtomicPtr<()>; SLOTS],
    of: PhantomData<fn(T) -> T>,
}

impl<T: Linked> Default for Ring<T> {
    fn default() -> Self {
        Self {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            slots: std::array::from_fn(|_| AtomicPtr::new(null_mut())),
            of: PhantomData,
        }
    }
}

impl<T: Linked> Ring<T> {
    #[inline]
    fn slot(&self, at: u64) -> &AtomicPtr<()> {
        &self.slots[at as usize % SLOTS]
    }
}

impl<T: Linked> warmcore_sched::Ring<T> for Ring<T> {
    #[inline]
    fn push(&self, task: T) -> Result<u32, T> {
        let tail = self.tail.load(Relaxed);
        // ORDERING: Acquire; pairs with the Release of the exchange in `steal`: the thread that took the task in the slot has
        // read it before this thread writes the slot again.
        let waiting = tail - self.head.load(Acquire);
        if waiting == SLOTS as u64 {
            return Err(task);
        }
        self.slot(tail).store(task.into_raw(), Relaxed);
        // ORDERING: Release; pairs with the Acquire of `tail` in `steal`: a thread that steals sees the slot and the task.
        self.tail.store(tail + 1, Release);
        Ok(waiting as u32 + 1)
    }

    #[inline]
    fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Relaxed);
        loop {
            if head == self.tail.load(Relaxed) {
                return None;
            }
            let raw = self.slot(head).load(Relaxed);
            // ORDERING: Relaxed; the thread that writes the slot next is this one.
            match self.head.compare_exchange_weak(head, head + 1, Relaxed, Relaxed) {
                // SAFETY: `raw` came from `into_raw` in `push`. The exchange says that no other thread has taken it.
                Ok(_) => return Some(unsafe { T::from_raw(raw) }),
                Err(now) => head = now,
            }
        }
    }

    fn steal(&self, at_most: u32, each: impl FnMut(T)) {
        let mut raws = [null_mut(); STEAL_MAX];
        let mut head = self.head.load(Relaxed);
        loop {
            // ORDERING: Acquire; pairs with the Release of `push`. If `head` is old by now, the number may be too large; the
            // exchange fails then.
            let waiting = self.tail.load(Acquire).saturating_sub(head);
            let some = waiting.min(at_most.into()).min(STEAL_MAX as u64);
            if some == 0 {
                return;
            }
            for (raw, at) in raws.iter_mut().zip(head..head + some) {
                *raw = self.slot(at).load(Relaxed);
            }
            // ORDERING: Release; pairs with the Acquire of `push`.
            match self.head.compare_exchange(head, head + some, Release, Relaxed) {
                Ok(_) => {
                    let taken = raws[..some as usize].iter();
                    // SAFETY: as in `pop`, for each of them.
                    return taken.map(|raw| unsafe { T::from_raw(*raw) }).for_each(each);
                }
                Err(now) => head = now,
            }
        }
    }

    #[inline]
    fn len(&self) -> u32 {
        let head = self.head.load(Relaxed);
        // `head` may be newer than `tail`, or older, if others take and push tasks between the two loads.
        self.tail.load(Relaxed).saturating_sub(head).min(SLOTS as u64) as u32
    }
}

impl<T: Linked> Drop for Ring<T> {
    fn drop(&mut self) {
        while warmcore_sched::Ring::pop(self).is_some() {}
    }
}
