//! OwnedTasks: lists of the tasks that are alive, so that a shutdown can cancel them all.
//!
//! Each worker has a list. A task enters the list of the worker in its `SchedulerRef` (mostly the one that spawns it)
//! when it is created, and leaves it when its future is dropped, on any thread. The list has a reference to each task in it.
//! A closed list takes no more tasks. A slot is 16 bytes. All methods that use the list lock it, except `count`.

use crate::header::Header;
use crate::sync::{AtomicU32, Mutex, Ordering::*};
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
    is_closed: bool,
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

// SAFETY: the pointers are to headers, which are `Sync`, of tasks that leave the list before they are freed.
unsafe impl Send for OwnedTasks {}
// SAFETY: as above.
unsafe impl Sync for OwnedTasks {}

impl OwnedTasks {
    pub(crate) fn new() -> Self {
        let list = List { slots: Vec::new(), free: END, is_closed: false };
        Self { list: Mutex::new(list), count: AtomicU32::new(0) }
    }

    /// Adds a task, and returns its index: the caller's reference is the list's then. `None`: the list is closed.
    pub(crate) fn insert(&self, task: NonNull<Header>) -> Option<u32> {
        let mut list = ignore_poison(self.list.lock());
        if list.is_closed {
            return None;
        }
        let slot = Slot::Task(task);
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
        if list.free == END {
            // The memory is not charged to the account of the task that spawns, because the list belongs to the
            // runtime.
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
        // ORDERING: Release; pairs with the Acquire of `count`: a thread that sees 0 sees that all futures are dropped.
        self.count.store(self.count.load(Relaxed) - 1, Release);
    }

    pub(crate) fn count(&self) -> u32 {
        // ORDERING: Acquire; pairs with the Release in `remove`.
        self.count.load(Acquire)
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

    /// Closes the list, and cancels and wakes all tasks in it.
    pub(crate) fn close(&self) {
        let mut list = ignore_poison(self.list.lock());
        list.is_closed = true;
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
