//! Inbox: a stack of tasks that other threads give to a worker, and the worker's parked state, in one word.
//!
//! The word is the top of the stack, whose tasks are linked through their headers, or one of *awake* (empty), *parked*
//! (empty) and *closed*. A worker parks by changing awake to parked, which fails if a task was pushed. A push replaces
//! parked; the thread whose push replaced it, and no other, must unpark the worker. Since tasks and state are one word,
//! no wake is lost between the worker's last check of the inbox and its park.
//!
//! # Cost
//! A push is one compare-and-swap, or more if other threads write at the same time, on a cache line that the worker
//! reads before every poll.
//!
//! # Protocol
//! `push` is a Release, `take` an Acquire: the thread that takes a task sees all writes that came before the push.
//! `take` swaps out the whole stack, so no thread follows a link that another thread may free. See README.md, "Notes on
//! parking". The models are in `inbox/loom.rs`.
//!
//! Any thread calls `push`, `try_unpark` and `take`; only the worker calls `try_park` and `close`. The scheduler core
//! calls them through [`warmcore_sched::Inbox`].

use crate::sync::{AtomicPtr, Ordering::*};
use std::marker::PhantomData;
use std::ptr::null_mut;

#[cfg(all(test, warmcore_loom))]
mod loom;
#[cfg(all(test, warmcore_loom))]
pub(crate) use loom::Item;

/// An owned item that an inbox can hold. It converts to a thin pointer, and contains a link to another item.
///
/// # Safety
/// `from_raw(into_raw(x))` is `x`, and `link` is the same atomic for as long as `x` is raw.
pub(crate) unsafe trait Linked: Sized {
    /// Gives up ownership. The pointer is never null, 1 or 2.
    fn into_raw(self) -> *mut ();
    /// Takes ownership back.
    ///
    /// # Safety
    /// `raw` came from `into_raw`, and was not converted back yet.
    unsafe fn from_raw(raw: *mut ()) -> Self;
    /// The link to the next item of the stack.
    fn link(&self) -> &AtomicPtr<()>;
}

const AWAKE: *mut () = null_mut();
const ASLEEP: *mut () = std::ptr::without_provenance_mut(1);
const CLOSED: *mut () = std::ptr::without_provenance_mut(2);

fn is_task(top: *mut ()) -> bool {
    top.addr() > 2
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Inbox<T: Linked> {
    top: AtomicPtr<()>,
    of: PhantomData<fn(T) -> T>,
}

impl<T: Linked> Default for Inbox<T> {
    fn default() -> Self {
        Self { top: AtomicPtr::new(AWAKE), of: PhantomData }
    }
}

impl<T: Linked> warmcore_sched::Inbox<T> for Inbox<T> {
    fn push(&self, mut item: T) -> Result<bool, T> {
        let mut top = self.top.load(Relaxed);
        while top != CLOSED {
            item.link().store(if is_task(top) { top } else { AWAKE }, Relaxed);
            let raw = item.into_raw();
            // ORDERING: Release; pairs with the Acquire of `take`: the thread that takes the task sees it and its link.
            match self.top.compare_exchange_weak(top, raw, Release, Relaxed) {
                Ok(top) => return Ok(top == ASLEEP),
                Err(now) => top = now,
            }
            // SAFETY: the exchange failed, so this thread still owns the task.
            item = unsafe { T::from_raw(raw) };
        }
        Err(item)
    }

    fn take(&self, each: impl FnMut(T)) {
        let mut top = self.top.load(Relaxed);
        while is_task(top) {
            // ORDERING: Acquire; pairs with the Release of `push`.
            match self.top.compare_exchange_weak(top, AWAKE, Acquire, Relaxed) {
                Ok(_) => return Drain::reversed(top).for_each(each),
                Err(now) => top = now,
            }
        }
    }

    #[inline]
    fn has_tasks(&self) -> bool {
        is_task(self.top.load(Relaxed))
    }

    /// ORDERING: Relaxed. A worker marks itself parked and then searches the other queues for tasks. A thread that adds
    /// a task to such a queue adds it first and then looks for parked workers. Both have a SeqCst fence between the two
    /// steps (`Core::mark_parked`, `Workers::notify_parked`). Model: `a_parked_worker_sees_the_work_or_is_unparked_for_it`.
    fn try_park(&self) -> bool {
        self.top.compare_exchange(AWAKE, ASLEEP, Relaxed, Relaxed).is_ok()
    }

    fn try_unpark(&self) -> bool {
        // ORDERING: AcqRel; what the caller wrote before is visible to the worker when it sees itself awake.
        self.top.load(Relaxed) == ASLEEP && self.top.compare_exchange(ASLEEP, AWAKE, AcqRel, Relaxed).is_ok()
    }

    fn is_parked(&self) -> bool {
        // ORDERING: Acquire; pairs with the AcqRel of `try_unpark`: the worker sees why it was unparked.
        self.top.load(Acquire) == ASLEEP
    }

    fn close(&self, each: impl FnMut(T)) {
        // ORDERING: Acquire; pairs with the Release of `push`.
        Drain::reversed(self.top.swap(CLOSED, Acquire)).for_each(each);
    }
}

impl<T: Linked> Drop for Inbox<T> {
    fn drop(&mut self) {
        warmcore_sched::Inbox::close(self, drop);
    }
}

/// Tasks that were taken from an inbox. Dropping it drops the rest of them.
struct Drain<T: Linked> {
    first: *mut (),
    of: PhantomData<T>,
}

impl<T: Linked> Drain<T> {
    /// Reverses the stack `top`, which only the caller can reach.
    fn reversed(mut top: *mut ()) -> Self {
        let mut first = AWAKE;
        while is_task(top) {
            // SAFETY: `top` came from `into_raw`, and only this thread can reach it.
            let item = unsafe { T::from_raw(top) };
            let below = item.link().load(Relaxed);
            item.link().store(first, Relaxed);
            first = item.into_raw();
            top = below;
        }
        Self { first, of: PhantomData }
    }
}

impl<T: Linked> Iterator for Drain<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if !is_task(self.first) {
            return None;
        }
        // SAFETY: as in `reversed`.
        let item = unsafe { T::from_raw(self.first) };
        self.first = item.link().load(Relaxed);
        Some(item)
    }
}

impl<T: Linked> Drop for Drain<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}
