//! InjectQueue: tasks that have no worker yet, for the workers of one shard.
//!
//! A new task that no worker serves (`worker/serve.rs`), or one that is woken while its worker takes no tasks, waits here
//! until a worker of the shard (a part of a last-level cache) takes it. A worker takes its share of the tasks at once, so
//! that a burst of new tasks spreads over the workers. Tasks that may not run anywhere are in no such queue.
//!
//! # Cost
//! A worker reads `len` before each poll. The line of `len` is written only by pushes and by workers that take tasks.

use crate::sync::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Locked, Mutex, Ordering::*};
use crate::{SHARD_CPUS_MAX, ShardMask, Task};
use std::collections::VecDeque;
use warmcore_line::{Line, Padded};
use warmcore_types::{Nanos, ignore_poison};

/// The largest number of tasks that a worker takes at once, and the number for which there is memory from the start.
pub const SHARE_MAX: usize = 32;

/// The tasks of one shard: see the module's documentation.
#[derive(Debug, Line)]
#[line(pair)]
#[repr(align(128))]
pub struct InjectQueue<T> {
    /// Written under the lock. No other field that is written often may share its line.
    #[line(read_mostly)]
    len: Padded<AtomicU32>,
    /// `None`: closed.
    #[line(contended = "tasks")]
    tasks: Padded<Mutex<Option<VecDeque<T>>>>,
    /// The shard's workers that are marked as parked. Written by workers that park or wake.
    #[line(contended = "sleepers")]
    pub(crate) idle: Padded<AtomicU16>,
    /// The shard's workers that are in a long poll, or in a long run inside their driver, where they may be marked as parked.
    /// Written by the thread that finds them there, and by them.
    #[line(contended = "watchdog")]
    pub(crate) stuck: Padded<AtomicU16>,
    /// A worker of the shard was unparked for a task of this queue and has not looked yet. At most one worker is on its
    /// way. Written by the thread that unparks the worker, and by workers that wake.
    #[line(contended = "sleepers")]
    pub(crate) wakeup_pending: Padded<AtomicBool>,
    /// Until when threads outside give new light tasks to the worker that serves this shard, and, in the low bits, the worker's index
    /// in the shard. Written by workers that serve, and by those that park. 0: none serves.
    #[line(contended = "sleepers")]
    served: Padded<AtomicU64>,
}

/// The bits of [`InjectQueue::served`] that are the worker's index.
const SERVER: u64 = SHARD_CPUS_MAX as u64 - 1;

impl<T: Task> InjectQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            len: Padded::new(AtomicU32::new(0)),
            tasks: Padded::new(Mutex::new(Some(VecDeque::with_capacity(SHARE_MAX)))),
            idle: Padded::new(AtomicU16::new(0)),
            stuck: Padded::new(AtomicU16::new(0)),
            wakeup_pending: Padded::new(AtomicBool::new(false)),
            served: Padded::new(AtomicU64::new(0)),
        }
    }

    /// Appends a task. `Err`: the queue is closed.
    pub(crate) fn push(&self, task: T) -> Result<(), T> {
        let mut tasks = Locked::lock(&self.tasks);
        let Some(tasks) = tasks.as_mut() else { return Err(task) };
        if tasks.len() == tasks.capacity() {
            T::unaccounted(|| tasks.reserve(1));
        }
        tasks.push_back(task);
        self.len.store(tasks.len() as u32, Relaxed);
        Ok(())
    }

    /// Calls `each` with the tasks that have waited longest: the share of one of `workers`, `at_most` of them.
    pub(crate) fn pop(&self, workers: usize, at_most: usize, each: impl FnMut(T)) {
        if self.is_empty() {
            return;
        }
        let mut tasks = Locked::lock(&self.tasks);
        let Some(tasks) = tasks.as_mut() else { return };
        let share = tasks.len().div_ceil(workers.max(1)).min(SHARE_MAX).min(at_most);
        tasks.drain(..share).for_each(each);
        self.len.store(tasks.len() as u32, Relaxed);
    }

    /// Refuses all tasks from now on. Returns those that wait.
    pub fn close(&self) -> VecDeque<T> {
        let tasks = ignore_poison(self.tasks.lock()).take();
        self.len.store(0, Relaxed);
        tasks.unwrap_or_default()
    }

    /// The number of tasks that wait.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len.load(Relaxed)
    }

    /// Whether no task waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The worker with this index in the shard serves it until then.
    pub(crate) fn serve(&self, server: u32, until: Nanos) {
        self.served.store(until.0 & !SERVER | u64::from(server), Relaxed);
    }

    /// No worker serves the shard any more, unless another one began to.
    pub(crate) fn end_service(&self, server: u32) {
        let served = self.served.load(Relaxed);
        if served != 0 && served & SERVER == u64::from(server) {
            _ = self.served.compare_exchange(served, 0, Relaxed, Relaxed);
        }
    }

    /// The index of the worker that serves the shard.
    pub(crate) fn server(&self, now: Nanos) -> Option<usize> {
        let served = self.served.load(Relaxed);
        (now.0 < served & !SERVER).then_some((served & SERVER) as usize)
    }

    /// The shard's workers that are marked as parked.
    #[inline]
    pub fn idle(&self) -> ShardMask {
        self.idle.load(Relaxed)
    }
}
