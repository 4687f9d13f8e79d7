//! Wait queue: tasks that are blocked on a lock, a condition or a barrier.
//!
//! The queue is first in, first out, and linked through the tasks. An unlocked lock goes to its first waiter. A queue
//! takes 56 bytes.

use super::task::{NONE, Task};

#[derive(Debug, Clone)]
pub(crate) struct WaitQueue {
    pub(crate) name: String,
    first: u32,
    last: u32,
    pub(crate) waiting: u32,
    /// The task that holds the lock.
    pub(crate) owner: u32,
}

impl WaitQueue {
    pub(crate) fn new(name: String) -> Self {
        Self { name, first: NONE, last: NONE, waiting: 0, owner: NONE }
    }

    pub(crate) fn push(&mut self, tasks: &mut [Task], id: u32) {
        tasks[id as usize].wait_next = NONE;
        if self.last == NONE {
            self.first = id
        } else {
            tasks[self.last as usize].wait_next = id
        }
        self.last = id;
        self.waiting += 1;
    }

    pub(crate) fn pop(&mut self, tasks: &[Task]) -> Option<u32> {
        let id = (self.first != NONE).then_some(self.first)?;
        self.first = tasks[id as usize].wait_next;
        if self.first == NONE {
            self.last = NONE;
        }
        self.waiting -= 1;
        Some(id)
    }
}
