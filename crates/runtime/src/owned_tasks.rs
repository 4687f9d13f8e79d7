//! OwnedTasks: every task that is not gone yet, so that shutting down can end them all.
//!
//! Model.   A list per worker, of the tasks that were spawned there. A task enters it when it is made, and
//!          leaves when its future is dropped, whoever drops it. Once closed nobody enters.
//! Number.  24 bytes a task.
//! Writers. Under its lock: who spawns, who ends a task, who shuts down.

use crate::header::Header;
use crate::sync::{AtomicU32, Mutex, Ordering::*};
use std::ptr::NonNull;
use std::task::Waker;
use warmcore_budget::process::unaccounted;
use warmcore_line::Line;
use warmcore_types::ignore_poison;

const END: u32 = u32::MAX;

enum Slot {
    Task(Waker, NonNull<Header>),
    /// The next free one.
    Free(u32),
}

struct List {
    slots: Vec<Slot>,
    free: u32,
    is_closed: bool,
}

/// See the head of this file.
#[derive(Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub(crate) struct OwnedTasks {
    list: Mutex<List>,
    /// How many; written under the lock, read by anybody.
    count: AtomicU32,
}

// SAFETY: the pointers are to headers, which are `Sync`, of tasks that leave the list before they are gone.
unsafe impl Send for OwnedTasks {}
// SAFETY: as above.
unsafe impl Sync for OwnedTasks {}

impl OwnedTasks {
    pub(crate) fn new() -> Self {
        let list = List { slots: Vec::new(), free: END, is_closed: false };
        Self { list: Mutex::new(list), count: AtomicU32::new(0) }
    }

    /// `None`: closed.
    pub(crate) fn insert(&self, waker: Waker, header: NonNull<Header>) -> Option<u32> {
        let mut list = ignore_poison(self.list.lock());
        if list.is_closed {
            return None;
        }
        let slot = Slot::Task(waker, header);
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
        if list.free == END {
            // The list is the runtime's, whichever account pays for the task.
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

    pub(crate) fn remove(&self, at: u32) {
        if at == END {
            return;
        }
        let mut list = ignore_poison(self.list.lock());
        let free = Slot::Free(list.free);
        let slot = std::mem::replace(&mut list.slots[at as usize], free);
        list.free = at;
        // ORDERING: Release; pairs with the Acquire of `count`: who sees 0 sees that all futures are gone.
        self.count.store(self.count.load(Relaxed) - 1, Release);
        drop(list);
        drop(slot);
    }

    /// The waker of a task that is still there.
    pub(crate) fn waker(&self, at: u32, header: *const Header) -> Option<Waker> {
        let list = ignore_poison(self.list.lock());
        match list.slots.get(at as usize) {
            Some(Slot::Task(waker, of)) if of.as_ptr().cast_const() == header => Some(waker.clone()),
            _ => None,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        // ORDERING: Acquire; see `remove`.
        self.count.load(Acquire)
    }

    /// Nobody enters any more; all that are there are to end. Says how many.
    pub(crate) fn close(&self) -> u32 {
        let mut list = ignore_poison(self.list.lock());
        list.is_closed = true;
        let mut wakers = Vec::new();
        for slot in &list.slots {
            if let Slot::Task(waker, header) = slot {
                // SAFETY: it is on the list, so it is not gone, and can't go while the lock is held.
                unsafe { header.as_ref() }.cancel();
                wakers.push(waker.clone());
            }
        }
        drop(list);
        let count = wakers.len() as u32;
        // A wake may end in dropping a task, which takes the lock.
        wakers.into_iter().for_each(Waker::wake);
        count
    }
}
