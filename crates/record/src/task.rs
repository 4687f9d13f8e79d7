//! Task: what a recorded task carries, and the records of its polls.
//!
//! A wake leaves its time and its CPU in one word, the first one since the last poll began. The next poll takes the word.
//!
//! # Cost
//! Three reads of the CPU's counter and of the rseq area, and about 200 instructions in all for a poll with its wake and the
//! push, by `cargo xtask instructions "8 pairs"` without what that says of getcpu and of the writer. None of them is locked.

use crate::format::*;
use crate::recorder;
use crate::sync::{AtomicU64, Ordering::Relaxed};
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

/// Bits of a wake's word that hold the CPU. The others hold the low bits of the stamp: those of four months.
const WAKE_CPU_BITS: u32 = 13;

const WAKE_CPU_MASK: u64 = (1 << WAKE_CPU_BITS) - 1;

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

/// A wake: the stamp's low bits and the CPU. Written by threads that wake the task, taken by the thread that polls it.
/// Two wakes at the same time may both write; either is the first one.
#[derive(Debug)]
pub(crate) struct Wake(AtomicU64);

impl Wake {
    pub(crate) fn new(word: u64) -> Self {
        Self(AtomicU64::new(word))
    }

    /// The task is woken now on this thread.
    #[inline]
    pub(crate) fn set(&self) {
        if self.0.load(Relaxed) == 0 {
            self.0.store(wake_word(clock::stamp(), this_cpu()), Relaxed);
        }
    }

    #[inline]
    pub(crate) fn take(&self) -> u64 {
        let word = self.0.load(Relaxed);
        if word != 0 {
            self.0.store(0, Relaxed);
        }
        word
    }
}

#[inline]
fn wake_word(stamp: u64, cpu: u32) -> u64 {
    stamp << WAKE_CPU_BITS | u64::from(cpu)
}

/// How long before `at` a wake was. Negative: after it.
#[inline]
fn since_wake(word: u64, at: u64) -> i64 {
    // The differences are right although the high bits of the stamps are cut off.
    (at << WAKE_CPU_BITS).wrapping_sub(word & !WAKE_CPU_MASK) as i64 >> WAKE_CPU_BITS
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
        let wake = Wake::new(wake_word(at, cpu));
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
        if recorder::is_in_sample(self.scattered) && self.wake.0.load(Relaxed) == 0 {
            let prev_end = self.prev_end.load(Relaxed);
            self.wake.0.store(wake_word(prev_end, NO_CPU), Relaxed);
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
    pub(crate) fn take_wake(&self) -> u64 {
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
        let (cpu, wake, start) = (this_cpu(), wake.take(), clock::stamp());
        if wake == 0 {
            return Self { task, start, delay: NOT_KNOWN, tag: poll_tag(cpu, NO_CPU, 0) };
        }
        let since_wake = since_wake(wake, start);
        let delay = match since_wake as u64 {
            short if short < u64::from(NOT_KNOWN) => short as u32,
            long => too_long(long),
        };
        let since_poll = start.wrapping_sub(task.prev_end.load(Relaxed)) as i64;
        let flags = u32::from(since_wake >= since_poll) * WOKEN_IN_POLL;
        Self { task, start, delay, tag: poll_tag(cpu, (wake & WAKE_CPU_MASK) as u32, flags) }
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

/// The current thread runs this worker from now on, or none. Costs a load while the recorder is off.
#[inline]
pub fn set_worker(worker: Option<usize>) {
    if recorder::is_on() {
        let worker = worker.and_then(|worker| u32::try_from(worker).ok()).unwrap_or(NOT_KNOWN);
        with_local(|local| local.set_worker(worker));
    }
}
