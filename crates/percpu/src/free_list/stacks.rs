//! Stacks: the free list of the `atomic` and `plain` backends, with a lock per slot.
//!
//! Pops and pushes only try a slot's lock. If it is taken they use the depot, since the lock's holder may be preempted.
//! Only a drain waits for a slot's lock. Locking and unlocking costs one locked instruction and one store.
//!
//! Writers. A stack's words: the holder of its lock, which is its second word.

use super::{CAP_OR_LOCK, ITEMS, LEN};
use crate::sync::{AtomicU64, MutexGuard, Ordering::*};
use crate::words::Words;

/// The stacks of all slots.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub(super) words: Words,
    pub(super) capacity: usize,
}

/// One stack, locked.
pub(super) struct Locked<'a> {
    stacks: &'a Stacks,
    slot: usize,
}

impl Stacks {
    /// Locks the slot's stack. Returns `None` if it is locked.
    pub(super) fn try_lock(&self, slot: usize) -> Option<Locked<'_>> {
        // ORDERING: Acquire; pairs with the Release in `Locked::drop`: this thread sees the items that the last
        // holder left. Model: `stacks/loom.rs::an_item_is_seen_with_its_contents`.
        let got = self.words.word(slot, CAP_OR_LOCK).compare_exchange(0, 1, Acquire, Relaxed);
        // Lazily: dropping a `Locked` unlocks the stack, also one that another thread has locked.
        got.is_ok().then(|| Locked { stacks: self, slot })
    }

    /// Moves the items of all stacks to `out`. Waits for the lock of each stack that has items or is locked.
    pub(super) fn drain_into(&self, out: &mut Vec<u64>) {
        for slot in 0..self.words.slots() {
            // Skip unused stacks: a lock would write to them and allocate their pages.
            if self.words.word(slot, LEN).load(Relaxed) == 0
                && self.words.word(slot, CAP_OR_LOCK).load(Relaxed) == 0
            {
                continue;
            }
            let stack = loop {
                match self.try_lock(slot) {
                    Some(stack) => break stack,
                    // A short wait unless the holder is preempted: it moves at most `capacity` items under the lock.
                    None => yield_now(),
                }
            };
            while let Some(item) = stack.pop() {
                out.push(item);
            }
        }
    }

    /// Pushes items on the slot's stack as far as they fit, unless it is locked. Returns how many it pushed.
    pub(super) fn keep(&self, slot: usize, items: &[u64]) -> usize {
        let Some(stack) = self.try_lock(slot) else { return 0 };
        items.iter().take_while(|item| stack.push(**item)).count()
    }

    /// Pops up to `max` items off the slot's stack, unless it is locked. Returns how many it popped.
    pub(super) fn take(&self, slot: usize, max: usize, mut each: impl FnMut(u64)) -> usize {
        let Some(stack) = self.try_lock(slot) else { return 0 };
        (0..max).map_while(|_| stack.pop()).map(&mut each).count()
    }

    /// Pushes an item on the slot's stack. If the stack is full it also moves half of it to the depot; if the stack is
    /// locked it pushes the item to the depot.
    pub(super) fn push_or<'a>(
        &self,
        slot: usize,
        item: u64,
        depot: impl FnOnce() -> MutexGuard<'a, Vec<u64>>,
    ) {
        let Some(stack) = self.try_lock(slot) else { return depot().push(item) };
        if stack.push(item) {
            return;
        }
        // Unlock the stack before locking the depot: a drain holds the depot's lock while it waits for stacks.
        let mut moved: Vec<u64> = (0..self.capacity / 2).map_while(|_| stack.pop()).collect();
        stack.push(item);
        drop(stack);
        depot().append(&mut moved);
    }
}

impl Locked<'_> {
    fn word(&self, k: usize) -> &AtomicU64 {
        self.stacks.words.word(self.slot, k)
    }

    pub(super) fn pop(&self) -> Option<u64> {
        let len = self.word(LEN).load(Relaxed).checked_sub(1)?;
        self.word(LEN).store(len, Relaxed);
        Some(self.word(ITEMS + len as usize).load(Relaxed))
    }

    /// Pushes an item. Returns false if the stack is full.
    fn push(&self, item: u64) -> bool {
        let len = self.word(LEN).load(Relaxed) as usize;
        let fits = len < self.stacks.capacity;
        if fits {
            self.word(ITEMS + len).store(item, Relaxed);
            self.word(LEN).store(len as u64 + 1, Relaxed);
        }
        fits
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the Acquire in `try_lock`.
        self.word(CAP_OR_LOCK).store(0, Release);
    }
}

fn yield_now() {
    #[cfg(loom)]
    ::loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

#[cfg(all(test, loom))]
mod loom;
