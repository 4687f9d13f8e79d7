//! OwnedTasks: lists of the tasks that are alive, so that a shutdown can cancel them all.
//!
//! Each worker has a list. A task enters the list of the worker whose poll of it is the first that returns pending, or on which it is to
//! begin, and leaves it when its future is dropped, on any thread. So a task that ends in its first poll takes no lock. The list has a
//! reference to each task in it. While the runtime closes, no list takes a task. A slot is 16 bytes. All methods that use the list lock
//! it, except `count`.
//!
//! [`TaskCounts`] counts all tasks, those that have not been polled included.

use crate::header::Header;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering::*};
use crate::task_cell::{RunnableTask, runnable};
use std::ptr::NonNull;
use warmcore_budget::process::unaccounted;
use warmcore_line::Line;
use warmcore_types::ignore_poison;

const END: u32 = u32::MAX;

enum Slot {
    Task(NonNull<Header>),
    /// Index of the next free slot.
    Free(u32),
}

struct List {
    slots: Vec<Slot>,
    free: u32,
}

/// The list of one worker.
#[derive(Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub(crate) struct OwnedTasks {
    list: Mutex<List>,
    /// Number of tasks in the list. Written under the lock, read by any thread.
    count: AtomicU32,
}

/// How many tasks a worker's thread has spawned, and how many have ended there; or the same of all other threads.
#[derive(Debug, Default)]
pub(crate) struct TaskCounts {
    pub(crate) spawned: AtomicU64,
    pub(crate) ended: AtomicU64,
}

impl TaskCounts {
    /// The number of tasks that are alive, of all counts of a runtime.
    pub(crate) fn alive<'a>(counts: impl Iterator<Item = &'a Self> + Clone) -> usize {
        // ORDERING: Acquire; pairs with the Release in `context::count_tasks`: a thread that sees that all have ended sees that all
        // futures are dropped. Those that ended are read first, so no more seem to have ended than were spawned.
        let ended: u64 = counts.clone().map(|counts| counts.ended.load(Acquire)).sum();
        let spawned: u64 = counts.map(|counts| counts.spawned.load(Relaxed)).sum();
        spawned.saturating_sub(ended) as usize
    }
}

// SAFETY: the pointers are to headers, which are `Sync`, of tasks that leave the list before they are freed.
unsafe impl Send for OwnedTasks {}
// SAFETY: as above.
unsafe impl Sync for OwnedTasks {}

impl OwnedTasks {
    pub(crate) fn new() -> Self {
        let list = List { slots: Vec::new(), free: END };
        Self { list: Mutex::new(list), count: AtomicU32::new(0) }
    }

    /// Adds a task, and returns its index. `None`: the runtime is closing, so that [`close`](Self::close) may not see the task.
    pub(crate) fn insert(&self, task: NonNull<Header>, is_closing: &AtomicBool) -> Option<u32> {
        let mut list = ignore_poison(self.list.lock());
        if is_closing.load(Relaxed) {
            return None;
        }
        let slot = Slot::Task(task);
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
        if list.free == END {
            // The memory is not charged to the account of the task, because the list belongs to the runtime.
            unaccounted(|| list.slots.push(slot));
            return Some(list.slots.len() as u32 - 1);
        }
        let at = list.free;
        let Slot::Free(next) = std::mem::replace(&mut list.slots[at as usize], slot) else {
            unreachable!("slot {at} is on the list of free ones, and is not free")
        };
        list.free = next;
        Some(at)
    }

    /// Removes the task with this index. The list's reference is the caller's then.
    pub(crate) fn remove(&self, at: u32) {
        let mut list = ignore_poison(self.list.lock());
        let free = Slot::Free(list.free);
        list.slots[at as usize] = free;
        list.free = at;
        self.count.store(self.count.load(Relaxed) - 1, Relaxed);
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Calls `visit` for the task in one of `step` slots, if there is one. The lock is held for 256 of these slots at a
    /// time, and while `visit` is called. A task that begins or ends meanwhile may be left out.
    pub(crate) fn visit(&self, step: usize, mut visit: impl FnMut(&Header)) {
        const SLOTS: usize = 256;
        let mut from = 0;
        loop {
            let list = ignore_poison(self.list.lock());
            for slot in list.slots.iter().skip(from).step_by(step).take(SLOTS) {
                if let Slot::Task(header) = slot {
                    // SAFETY: as in `close`.
                    visit(unsafe { header.as_ref() });
                }
            }
            from += SLOTS * step;
            if from >= list.slots.len() {
                return;
            }
        }
    }

    /// Cancels and wakes all tasks in the list. The caller has set the flag for [`insert`](Self::insert) before.
    pub(crate) fn close(&self) {
        let list = ignore_poison(self.list.lock());
        let mut woken = Vec::new();
        for slot in &list.slots {
            if let Slot::Task(task) = slot {
                // SAFETY: the task is in the list, which has a reference, and can't leave it while the lock is held.
                if unsafe { task.as_ref() }.state.cancel() {
                    // SAFETY: the state says so.
                    woken.push(unsafe { runnable(*task) });
                }
            }
        }
        drop(list);
        // The lock is released first, because a wake may drop a task, and that takes the lock.
        woken.into_iter().for_each(RunnableTask::schedule);
    }
}
