//! State: the word that says whether a task is queued, polled or complete, and how many references to it exist.
//!
//! | flag | set | cleared | meaning |
//! |---|---|---|---|
//! | `SCHEDULED` | by a wake, an abort or the spawn | when the poll begins | a [`RunnableTask`](super::RunnableTask) exists, or will when the present poll has ended |
//! | `RUNNING` | when the poll begins | when it ends | one thread polls the future |
//! | `COMPLETE` | when the last poll ends | never | the future is dropped and the output is stored |
//! | `JOIN_INTEREST` | by the spawn | when the handle is dropped before the end | the output belongs to the handle, not to the last poll |
//! | `JOIN_WAKER` | by the handle | by the handle, before `COMPLETE` | `Header::join_waker` has a waker, which the handle and the last poll may read |
//! | `CANCELLED` | by an abort or a shutdown | never | the next poll drops the future |
//! | `NEW` | by the spawn | when a poll returns pending for the first time, or before | the task is in no list of owned tasks yet |
//!
//! The bits above count references: one of the runnable task, which the wake that sets `SCHEDULED` adds or gives away, and one each of
//! the handle, the list of owned tasks (until the last poll), and every waker. So the end of a poll always gives up the reference of
//! that poll, whether the task was woken meanwhile or not, and both ends of a poll are one addition.
//!
//! # Cost
//! Three locked instructions for a wake and a poll: the wake, the poll's begin, the poll's end.
//!
//! # Protocol
//! The thread that sets `SCHEDULED` in a word in which it and `RUNNING` are clear owns the task until it gives it to a queue. A
//! wake that finds `SCHEDULED` writes the word all the same, unchanged: so the poll that follows sees what the waker wrote
//! before. Models: `state/loom.rs`.

use crate::sync::{AtomicUsize, Ordering::*, fence};

#[cfg(all(test, warmcore_loom))]
mod loom;

const SCHEDULED: usize = 1;
/// Twice [`SCHEDULED`], so that adding that to a word with `SCHEDULED` moves the flag.
const RUNNING: usize = 2;
/// Twice [`RUNNING`], for the same reason.
const COMPLETE: usize = 4;
const JOIN_INTEREST: usize = 8;
const JOIN_WAKER: usize = 16;
const CANCELLED: usize = 32;
const NEW: usize = 64;
const REFERENCE: usize = 128;

/// A program with so many references to one task leaks wakers.
const WORD_MAX: usize = isize::MAX as usize;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct State(AtomicUsize);

/// The word at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot(usize);

impl Snapshot {
    #[inline]
    pub(crate) fn is_scheduled(self) -> bool {
        self.0 & SCHEDULED != 0
    }

    #[inline]
    pub(crate) fn is_complete(self) -> bool {
        self.0 & COMPLETE != 0
    }

    #[inline]
    pub(crate) fn is_cancelled(self) -> bool {
        self.0 & CANCELLED != 0
    }

    #[inline]
    pub(crate) fn is_new(self) -> bool {
        self.0 & NEW != 0
    }

    /// The same of a cancelled task.
    pub(crate) fn cancelled(self) -> Self {
        Self(self.0 | CANCELLED)
    }

    #[inline]
    pub(crate) fn is_new_or_cancelled(self) -> bool {
        self.0 & (NEW | CANCELLED) != 0
    }

    #[inline]
    pub(crate) fn has_join_interest(self) -> bool {
        self.0 & JOIN_INTEREST != 0
    }

    #[inline]
    pub(crate) fn has_join_waker(self) -> bool {
        self.0 & JOIN_WAKER != 0
    }

    /// Whether neither a poll nor a queue has the task, so that the thread that sets `SCHEDULED` gets it.
    #[inline]
    fn is_idle(self) -> bool {
        self.0 & (SCHEDULED | RUNNING) == 0
    }
}

/// What a wake that uses up a waker must do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeByVal {
    /// Queue the task. The waker's reference belongs to the runnable task now.
    Schedule,
    /// Nothing. The waker's reference is given up or belongs to the runnable task.
    Nothing,
    /// Free the task, whose last reference was the waker's.
    Free,
}

impl State {
    /// A task that will be queued, with a handle.
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(SCHEDULED | JOIN_INTEREST | NEW | (2 * REFERENCE)))
    }

    #[inline]
    pub(crate) fn load(&self) -> Snapshot {
        // ORDERING: Acquire; pairs with the AcqRel of `complete`: a thread that sees `COMPLETE` sees the output.
        Snapshot(self.0.load(Acquire))
    }

    /// Changes the word, unless the task is complete. Returns the word before, or `Err` with a complete one.
    #[inline(always)]
    fn update(&self, next: impl Fn(usize) -> usize) -> Result<Snapshot, Snapshot> {
        let mut now = self.0.load(Relaxed);
        while now & COMPLETE == 0 {
            // ORDERING: AcqRel; Release pairs with the Acquire of `start`: the poll that follows sees what the caller wrote
            // before. Acquire pairs with the Release of `pend`: a caller that gets the task sees what its last poll wrote.
            match self.0.compare_exchange_weak(now, next(now), AcqRel, Relaxed) {
                Ok(before) => return Ok(Snapshot(before)),
                Err(changed) => now = changed,
            }
        }
        // ORDERING: Acquire; pairs with the AcqRel of `complete`, as in `load`.
        fence(Acquire);
        Err(Snapshot(now))
    }

    /// Wakes the task, for a caller that keeps its reference. True: the caller must queue the task.
    #[inline]
    pub(crate) fn wake_by_ref(&self) -> bool {
        self.update(|now| if now & SCHEDULED != 0 { now } else { (now | SCHEDULED) + REFERENCE })
            .is_ok_and(Snapshot::is_idle)
    }

    /// Wakes the task and gives up the caller's reference.
    #[inline]
    pub(crate) fn wake_by_val(&self) -> WakeByVal {
        match self.update(|now| if now & SCHEDULED != 0 { now - REFERENCE } else { now | SCHEDULED }) {
            Ok(before) if before.is_idle() => WakeByVal::Schedule,
            // A scheduled task has the reference of its runnable task besides.
            Ok(_) => WakeByVal::Nothing,
            Err(_) if self.release(1) => WakeByVal::Free,
            Err(_) => WakeByVal::Nothing,
        }
    }

    /// Wakes the task so that its next poll drops the future. True: the caller must queue the task.
    pub(crate) fn cancel(&self) -> bool {
        self.update(|now| CANCELLED | if now & SCHEDULED != 0 { now } else { (now | SCHEDULED) + REFERENCE })
            .is_ok_and(Snapshot::is_idle)
    }

    /// Makes the next poll drop the future. The caller owns the runnable task.
    pub(crate) fn set_cancelled(&self) {
        self.0.fetch_or(CANCELLED, Relaxed);
    }

    /// The task has entered a list of owned tasks, which has a reference now. The caller owns the runnable task, or polls.
    pub(crate) fn set_owned(&self) {
        // ORDERING: Relaxed; the list's reference is used under the list's lock, and comes from the caller's.
        self.0.fetch_add(REFERENCE - NEW, Relaxed);
    }

    /// Begins a poll. The caller owned the runnable task, whose reference is the poll's now.
    #[inline]
    pub(crate) fn start(&self) -> Snapshot {
        // ORDERING: Acquire; pairs with the Release of `update` and `pend`: the poll sees what each waker wrote before its wake,
        // and what the last poll wrote. The addition clears `SCHEDULED` and sets `RUNNING`.
        let before = Snapshot(self.0.fetch_add(RUNNING - SCHEDULED, Acquire));
        debug_assert!(before.0 & (SCHEDULED | RUNNING | COMPLETE) == SCHEDULED, "{before:?}");
        before
    }

    /// Ends a poll that returned pending, and gives up its reference. True: the task was woken meanwhile, and the caller
    /// owns the runnable task. False: any other thread may own it by now.
    #[inline]
    pub(crate) fn pend(&self) -> bool {
        // ORDERING: Release; pairs with the Acquire of `update` and `start`: the thread that queues the task next, and its next
        // poll, see what this poll wrote. What a waker wrote meanwhile the next poll sees by its own Acquire.
        let before = Snapshot(self.0.fetch_sub(RUNNING + REFERENCE, Release));
        // The list of owned tasks has a reference, or the runnable task of a wake.
        debug_assert!(before.0 & RUNNING != 0 && before.0 >= 2 * REFERENCE, "{before:?}");
        before.is_scheduled()
    }

    /// Ends the last poll; the output is stored. Returns the word before.
    pub(crate) fn complete(&self) -> Snapshot {
        // ORDERING: AcqRel; Release pairs with the Acquire of `load` and `update`: the handle sees the output. Acquire pairs with
        // the Release of `set_join_waker`: this thread sees the handle's waker.
        let before = Snapshot(self.0.fetch_add(COMPLETE - RUNNING, AcqRel));
        debug_assert!(before.0 & (RUNNING | COMPLETE) == RUNNING, "{before:?}");
        before
    }

    /// Adds a reference. The caller has one.
    #[inline]
    pub(crate) fn add_reference(&self) {
        // ORDERING: Relaxed; a reference comes from another one.
        if self.0.fetch_add(REFERENCE, Relaxed) > WORD_MAX {
            std::process::abort();
        }
    }

    /// Gives up this many references. True: they were the last ones, and the caller must free the task.
    #[inline]
    pub(crate) fn release(&self, references: usize) -> bool {
        // ORDERING: AcqRel; Release and Acquire pair with one another: the thread that frees the task does so after all others
        // have used it.
        let before = self.0.fetch_sub(references * REFERENCE, AcqRel);
        debug_assert!(before / REFERENCE >= references, "{before:#x}");
        before / REFERENCE == references
    }

    /// Publishes the handle's waker. False: the task is complete, and the handle still owns the waker.
    pub(crate) fn set_join_waker(&self) -> bool {
        self.update(|now| now | JOIN_WAKER).is_ok()
    }

    /// Takes the handle's waker back. False: the task is complete, and its last poll may read it.
    pub(crate) fn clear_join_waker(&self) -> bool {
        self.update(|now| now & !JOIN_WAKER).is_ok()
    }

    /// The handle is dropped: gives the output to the last poll, and the handle's waker back. Returns the word before, or
    /// `Err` if the task is complete, and the output is the handle's. In neither case is the handle's reference given up.
    pub(crate) fn drop_join_interest(&self) -> Result<Snapshot, Snapshot> {
        self.update(|now| now & !(JOIN_INTEREST | JOIN_WAKER))
    }
}
