//! Host: what runs a scheduler core, and what the core asks of it.
//!
//! The core decides; a *host* acts. The runtime is a host whose workers are threads; the simulator is a host in virtual
//! time. The core owns a runnable task while it is queued, and stores nothing else of its host.

use crate::run_queue::Share;
use crate::sync::{AtomicU32, Mutex, Ordering::Relaxed};
use crate::{Policy, TaskState, Workers};
use std::collections::VecDeque;
use warmcore_types::{CpuId, Nanos, ThreadUsage, ignore_poison};

/// What runs a scheduler core. A worker is named by its [`CpuId`] in the host's
/// [`SchedDomains`](crate::SchedDomains).
pub trait Host: Sized {
    /// A runnable task.
    type Task: Task;
    /// What other threads hand to a worker.
    type Inbox: Inbox<Self::Task>;
    /// The light tasks that wait at a worker.
    type Ring: Ring<Self::Task>;
    /// The rules.
    type Policy: Policy;

    /// The workers of this host.
    fn workers(&self) -> &Workers<Self>;

    /// The clock. Workers may read clocks that differ by little.
    fn now(&self, worker: CpuId) -> Nanos;

    /// Ends the sleep of a worker, whose inbox was marked as parked until the caller changed that. Called at most once for
    /// each time that a worker was marked as parked.
    fn unpark(&self, worker: CpuId);

    /// Ends the sleep of the calling worker itself, whose driver has woken a task of its own.
    fn interrupt_park(&self, worker: CpuId) {
        self.unpark(worker);
    }

    /// The calling worker's thread waits for this time, without sleeping, or until `is_over`. It may return earlier: a host without
    /// such a wait returns at once.
    fn wait_awake(&self, _time: Nanos, _is_over: &dyn Fn() -> bool) {}

    /// Drops a task that no worker will run, because all have ended.
    fn cancel(&self, task: Self::Task);

    /// Whether the workers end when they find no task.
    fn is_shutdown(&self) -> bool {
        false
    }

    /// Called before the worker sleeps. A task that comes to it from here on ends the sleep.
    fn parks(&self, _worker: CpuId) {}

    /// Called when the worker runs a task for the first time after it was idle.
    fn resumed(&self, _worker: CpuId, _now: Nanos) {}

    /// What the kernel has counted of this thread, which runs the worker. `None`: not known.
    fn thread_usage(&self, _worker: CpuId) -> Option<ThreadUsage> {
        None
    }

    /// Called when the worker has found that one of its polls since the last check was long. Which one is not known. The host
    /// calls [`Core::count_long_poll`](crate::Core::count_long_poll), or long polls are neither counted nor measured.
    fn found_long_poll(&self, _core: &crate::Core<Self>) {}

    /// Called when the worker gets a task that it did not poll last. `is_other_llc`: it was polled last by a worker of
    /// another last-level cache.
    fn moved(&self, _worker: CpuId, _task: &Self::Task, _is_other_llc: bool) {}
}

/// A runnable task. At most one of these exists for a task, and only its owner writes the task's [`TaskState`].
pub trait Task {
    /// What the scheduler knows of the task.
    fn state(&self) -> &TaskState;

    /// A number that tasks of the same type of future have. What new tasks cost is learned by it. 0: nothing is learned.
    fn kind(&self) -> usize {
        0
    }

    /// The tenant that is charged for the task's polls, and its weight.
    fn share(&self) -> Share {
        Share::NO_TENANT
    }

    /// Calls a function that allocates memory for a queue, which belongs to the scheduler and not to the tenant of the
    /// task that runs at the moment.
    fn unaccounted<R>(grow: impl FnOnce() -> R) -> R {
        grow()
    }
}

/// The tasks that other threads hand to a worker, and whether the worker is parked. Both change together: a task that
/// is pushed is seen by the worker before it parks, or the thread that pushes it sees that the worker is parked.
///
/// Any thread calls `push`, `take`, `try_unpark` and `is_parked`; only the worker calls `try_park` and `close`. `push` is a
/// Release and `take` an Acquire, so the thread that takes a task sees what was written before the push.
pub trait Inbox<T>: Default {
    /// Pushes a task. `Ok(true)`: the worker was parked, is not marked as parked any more, and the caller must unpark
    /// it. `Err`: the inbox is closed.
    ///
    /// # Errors
    /// The task, if the inbox is closed.
    fn push(&self, task: T) -> Result<bool, T>;
    /// Takes all tasks, in the order in which they were pushed.
    fn take(&self, each: impl FnMut(T));
    /// Whether a task is there.
    fn has_tasks(&self) -> bool;
    /// Marks the worker as parked. False: a task is there, or the inbox is closed.
    fn try_park(&self) -> bool;
    /// Marks the worker as awake if it was parked. True: it was, and the caller must unpark it unless it is the worker and
    /// does not sleep.
    fn try_unpark(&self) -> bool;
    /// Whether the worker is marked as parked.
    fn is_parked(&self) -> bool;
    /// Takes all tasks, and refuses all others from now on.
    fn close(&self, each: impl FnMut(T));
}

/// How many tasks a [`Ring`] holds. More wait in the worker's run queue.
pub const RING_TASKS: u32 = 256;

/// The largest number of tasks that a worker takes at once: half of a full ring.
pub const STEAL_MAX: u32 = RING_TASKS / 2;

/// Light tasks that wait at a worker, first in, first out. Other workers take the tasks that have waited longest. Tasks that
/// do not fit, or for which more than their order counts, are in the worker's run queue.
///
/// Only the worker calls `push` and `pop`; any thread calls the other methods. `push` is a Release and `steal` an Acquire, so the
/// thread that takes a task sees what was written before the push.
pub trait Ring<T>: Default {
    /// Appends a task. Returns how many wait now.
    ///
    /// # Errors
    /// The task, if the ring is full.
    fn push(&self, task: T) -> Result<u32, T>;
    /// Removes the task that has waited longest.
    fn pop(&self) -> Option<T>;
    /// Removes the tasks that have waited longest, `at_most` of them, in one step. It may take fewer, but at least one if
    /// tasks are left.
    fn steal(&self, at_most: u32, each: impl FnMut(T));
    /// The number of tasks.
    fn len(&self) -> u32;
    /// Whether there is no task.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A ring with a lock, for hosts that run on one thread, and for models.
#[derive(Debug)]
pub struct LockedRing<T> {
    tasks: Mutex<VecDeque<T>>,
    /// Written under the lock.
    len: AtomicU32,
}

impl<T> Default for LockedRing<T> {
    fn default() -> Self {
        Self { tasks: Mutex::new(VecDeque::with_capacity(RING_TASKS as usize)), len: AtomicU32::new(0) }
    }
}

impl<T> Ring<T> for LockedRing<T> {
    fn push(&self, task: T) -> Result<u32, T> {
        let mut tasks = ignore_poison(self.tasks.lock());
        if tasks.len() == RING_TASKS as usize {
            return Err(task);
        }
        tasks.push_back(task);
        self.len.store(tasks.len() as u32, Relaxed);
        Ok(tasks.len() as u32)
    }

    fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut tasks = ignore_poison(self.tasks.lock());
        let task = tasks.pop_front();
        self.len.store(tasks.len() as u32, Relaxed);
        task
    }

    fn steal(&self, at_most: u32, each: impl FnMut(T)) {
        let mut tasks = ignore_poison(self.tasks.lock());
        let some = tasks.len().min(at_most as usize);
        tasks.drain(..some).for_each(each);
        self.len.store(tasks.len() as u32, Relaxed);
    }

    fn len(&self) -> u32 {
        self.len.load(Relaxed)
    }
}

/// A task in a run queue.
#[derive(Debug)]
pub struct Queued<T> {
    /// The task.
    pub task: T,
    /// When the task entered a run queue, as the worker that queued it had last read the clock. A steal keeps it. Of a task that
    /// comes from a ring: when it was taken there.
    pub since: Nanos,
}
