//! Task: what a recorded task carries, and the records of its polls.
//!
//! A wake leaves its time and its CPU in the task, the first one since the last poll began. The next poll takes them.
//!
//! # Cost
//! Three reads of the CPU's counter and of the rseq area, and about 180 instructions in all for a poll with its wake and the
//! push, by `cargo xtask instructions "8 pairs"` without what that says of getcpu and of the writer. None of them is locked.

use crate::format::*;
use crate::recorder;
use crate::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::text::SAMPLE_FACTOR;
use crate::thread::with_local;
use std::cell::Cell;
use std::mem;
use std::panic::Location;
use std::task::Poll;
use warmcore_sys::{clock, rseq};

#[cfg(test)]
mod tests;

/// Numbers of tasks that a thread takes at once.
const BLOCK: u32 = 1024;

/// The CPU on which the current thread runs, as records have it. Linux has no number above 8191.
#[inline(always)]
fn this_cpu() -> u32 {
    rseq::current_cpu().0 & NO_CPU
}

/// `prev_end` of a task that has ended.
const ENDED: u64 = u64::MAX;

/// A task that is recorded.
///
/// ```
/// use std::panic::Location;
/// use std::task::Poll;
/// use warmcore_record::TaskRecord;
///
/// // `None` unless WARMCORE_RECORD names a file.
/// let task = TaskRecord::spawned(Location::caller(), Some("a task"));
/// if let Some(task) = &task {
///     task.woken();
///     let _ = task.poll(|| Poll::Ready(42));
/// }
/// ```
#[derive(Debug)]
pub struct TaskRecord {
    number: u32,
    /// The number times `SAMPLE_FACTOR`.
    scattered: u32,
    /// The first wake since the last poll began. 0: none.
    wake: Wake,
    /// When the task's last poll ended. Written and read by the thread that polls the task.
    prev_end: AtomicU64,
}

/// A wake: when, and on which CPU. Written by threads that wake the task, taken by the thread that polls it. Two wakes at
/// the same time may both write: either is the first one, and the CPU may be the other one's. A wake at the moment at which
/// it is taken may be lost: of the poll that follows it is not known who woke the task.
#[derive(Debug)]
pub(crate) struct Wake {
    /// 0: there was none.
    at: AtomicU64,
    cpu: AtomicU32,
}

impl Wake {
    pub(crate) fn new((at, cpu): (u64, u32)) -> Self {
        Self { at: AtomicU64::new(at), cpu: AtomicU32::new(cpu) }
    }

    /// The task is woken now on this thread.
    #[inline]
    pub(crate) fn set(&self) {
        self.set_first(clock::stamp, this_cpu);
    }

    #[inline(always)]
    fn set_first(&self, at: impl FnOnce() -> u64, cpu: impl FnOnce() -> u32) {
        if self.at.load(Relaxed) == 0 {
            self.cpu.store(cpu(), Relaxed);
            self.at.store(at(), Relaxed);
        }
    }

    /// Takes the time, which is 0 if there was no wake, and the CPU.
    #[inline(always)]
    pub(crate) fn take(&self) -> (u64, u32) {
        let at = self.at.load(Relaxed);
        self.at.store(0, Relaxed);
        (at, self.cpu.load(Relaxed))
    }
}

impl TaskRecord {
    /// Records that the current thread spawns a task: the call of `spawn` is at `location`. `None`: the recorder is off. The
    /// spawn counts as the first wake.
    #[inline]
    pub fn spawned(location: &'static Location<'static>, name: Option<&str>) -> Option<Self> {
        if !recorder::is_on() {
            return None;
        }
        Self::spawned_recorded(location, name)
    }

    #[cold]
    fn spawned_recorded(location: &'static Location<'static>, name: Option<&str>) -> Option<Self> {
        let number = next_number()?;
        let scattered = number.wrapping_mul(SAMPLE_FACTOR);
        let (at, cpu) = (clock::stamp(), this_cpu());
        if recorder::is_in_sample(scattered) {
            let key = std::ptr::from_ref(location).addr() as u64;
            let name = name.and_then(recorder::name_key);
            with_local(|local| {
                let halves = [key as u32, (key >> 32) as u32];
                local.push(number, at, halves, tag(RecordKind::Spawn, cpu, NO_CPU, 0));
                if let Some(key) = name {
                    local.push(number, at, [key, 0], tag(RecordKind::Name, NO_CPU, NO_CPU, 0));
                }
            });
        }
        let wake = Wake::new((at, cpu));
        // Before the wake, so that this wake is not one within a poll.
        Some(Self { number, scattered, wake, prev_end: AtomicU64::new(at - 1) })
    }

    /// The current thread wakes the task. Of several wakes before the next poll the first one counts.
    #[inline]
    pub fn woken(&self) {
        if recorder::is_in_sample(self.scattered) {
            self.wake.set();
        }
    }

    /// The task was woken during its last poll, by a thread that is not known.
    #[inline]
    pub fn woken_in_poll(&self) {
        if recorder::is_in_sample(self.scattered) {
            self.wake.set_first(|| self.prev_end.load(Relaxed), || NO_CPU);
        }
    }

    /// Calls `poll`, which polls the task, and records that. The task's last poll is the one that returns `Ready` or panics.
    #[inline]
    pub fn poll<T>(&self, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
        if self.is_recorded() { self.poll_woken(&self.wake, poll) } else { poll() }
    }

    /// As [`poll`](Self::poll), of a task whose wakes are in another place, for a poll that [`is
    /// recorded`](Self::is_recorded).
    #[inline]
    pub(crate) fn poll_woken<T>(&self, wake: &Wake, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
        let polling = Polling::begin(self, wake);
        let polled = poll();
        polling.push(polled.is_ready());
        mem::forget(polling);
        polled
    }

    /// Whether the next poll is recorded. Counts it if it is not because only some tasks are.
    #[inline]
    pub(crate) fn is_recorded(&self) -> bool {
        let is_recorded = recorder::is_in_sample(self.scattered);
        if !is_recorded {
            self.skip();
        }
        is_recorded
    }

    #[cold]
    fn skip(&self) {
        if recorder::is_on() {
            with_local(|local| local.skip());
        }
    }

    /// Takes the wake, for a task whose wakes are in another place from now on.
    pub(crate) fn take_wake(&self) -> (u64, u32) {
        self.wake.take()
    }
}

impl Drop for TaskRecord {
    /// A task that is dropped between two polls has ended: a record says so.
    fn drop(&mut self) {
        if self.prev_end.load(Relaxed) != ENDED && recorder::is_in_sample(self.scattered) {
            let at = clock::stamp();
            let tag = tag(RecordKind::Drop, NO_CPU, NO_CPU, 0);
            with_local(|local| local.push(self.number, at, [0, 0], tag));
        }
    }
}

/// A poll that runs: its record, as far as it is known.
struct Polling<'a> {
    task: &'a TaskRecord,
    start: u64,
    delay: u32,
    /// The record's tag without the flags that the end of the poll sets.
    tag: u32,
}

impl<'a> Polling<'a> {
    #[inline(always)]
    fn begin(task: &'a TaskRecord, wake: &Wake) -> Self {
        let (cpu, (woken, waker_cpu), start) = (this_cpu(), wake.take(), clock::stamp());
        let delay = start.wrapping_sub(woken);
        // Stamps of a machine that has just started are small, so the difference does not say that there was no wake.
        if woken == 0 || delay >= u64::from(NOT_KNOWN) {
            return Self::begin_rare(task, cpu, (woken, waker_cpu), start);
        }
        let flags = u32::from(woken <= task.prev_end.load(Relaxed)) * WOKEN_IN_POLL;
        Self { task, start, delay: delay as u32, tag: poll_tag(cpu, waker_cpu, flags) }
    }

    /// Begins a poll without a wake, or with one that is too long ago or, by the counter of its CPU, still to come.
    #[cold]
    fn begin_rare(task: &'a TaskRecord, cpu: u32, (woken, waker_cpu): (u64, u32), start: u64) -> Self {
        if woken == 0 {
            return Self { task, start, delay: NOT_KNOWN, tag: poll_tag(cpu, NO_CPU, 0) };
        }
        let flags = u32::from(woken <= task.prev_end.load(Relaxed)) * WOKEN_IN_POLL;
        Self { task, start, delay: too_long(start.wrapping_sub(woken)), tag: poll_tag(cpu, waker_cpu, flags) }
    }

    /// Pushes the record of the poll, which ends now.
    #[inline(always)]
    fn push(&self, is_last: bool) {
        let Self { task, start, delay, tag } = *self;
        let end = clock::stamp();
        let duration = match end.wrapping_sub(start) {
            short if short < u64::from(NOT_KNOWN) => short as u32,
            long => too_long(long),
        };
        let has_changed = this_cpu() != tag & NO_CPU;
        let flags = (u32::from(is_last) * IS_LAST) | (u32::from(has_changed) * CHANGED_CPU);
        let tag = tag | poll_tag(0, 0, flags);
        task.prev_end.store(if is_last { ENDED } else { end }, Relaxed);
        with_local(|local| local.push(task.number, start, [duration, delay], tag));
    }
}

/// A duration or a delay that does not fit. The counter of a CPU may be late, so that an end is before its begin.
#[cold]
fn too_long(stamps: u64) -> u32 {
    if (stamps as i64) < 0 { 0 } else { NOT_KNOWN - 1 }
}

impl Drop for Polling<'_> {
    /// The poll panicked.
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        self.push(true);
    }
}

/// The number of a task. Threads take blocks of numbers, so that a spawn needs no locked instruction. `None`: all were
/// given out.
fn next_number() -> Option<u32> {
    // Not the atomics of models.
    use std::sync::atomic::AtomicU64;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        /// The next number of this thread's block. A multiple of `BLOCK`: the block is used up.
        static HERE: Cell<u32> = const { Cell::new(0) };
    }
    let mut number = HERE.with(Cell::get);
    if number.is_multiple_of(BLOCK) {
        number = u32::try_from(NEXT.fetch_add(u64::from(BLOCK), Relaxed)).ok()?;
    }
    HERE.with(|here| here.set(number.wrapping_add(1)));
    Some(number)
}

/// The current thread runs this worker of Warmcore's runtime from now on, or none. Costs a load while the recorder is off.
#[inline]
pub fn set_worker(worker: Option<usize>) {
    set_worker_of(worker, OF_WARMCORE);
}

#[inline]
pub(crate) fn set_worker_of(worker: Option<usize>, of: u32) {
    if recorder::is_on() {
        let worker = worker.and_then(|worker| u32::try_from(worker).ok()).unwrap_or(NOT_KNOWN);
        with_local(|local| local.set_worker(worker, of));
    }
}
