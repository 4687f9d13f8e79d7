//! Inbox: what other threads hand to a worker, and whether the worker sleeps; both in one word.
//!
//! Model.   A stack of tasks, linked through the tasks themselves. The word is its top, or says that it is
//!          empty: awake, asleep, or closed. A worker falls asleep by empty → asleep, which fails if something
//!          came. Who pushes on asleep has woken the worker, and is the one who must kick it. There is no
//!          second word to be out of step with: no wake can be lost between looking and sleeping.
//! Number.  A push is one compare-and-swap, on a line that the worker reads before every poll.
//! Protocol. Release by who pushes, Acquire by who takes: who takes a task sees it as it was pushed. Taking swaps
//!          the whole stack, so nobody ever follows a link that another may free.
//!          README.md, "Notes on sleeping"; models: `inbox/loom.rs`.
//! Writers. Any thread: `push`, `try_unpark`, `take`; the worker: `try_park`, `close`.

use crate::sync::{AtomicPtr, Ordering::*};
use std::marker::PhantomData;
use std::ptr::null_mut;

#[cfg(all(test, warmcore_loom))]
mod loom;

/// Something that can be in an inbox: owned, reachable by a thin pointer, with room for a link.
///
/// # Safety
/// `from_raw(into_raw(x))` is `x`, and `link` is the same atomic for as long as `x` is raw.
pub(crate) unsafe trait Linked: Sized {
    /// Gives up ownership. Never null, 1 or 2.
    fn into_raw(self) -> *mut ();
    /// Takes it back.
    ///
    /// # Safety
    /// `raw` came from `into_raw`, and nobody took it back yet.
    unsafe fn from_raw(raw: *mut ()) -> Self;
    /// Where the link is kept.
    fn link(&self) -> &AtomicPtr<()>;
}

const AWAKE: *mut () = null_mut();
const ASLEEP: *mut () = std::ptr::without_provenance_mut(1);
const CLOSED: *mut () = std::ptr::without_provenance_mut(2);

fn is_task(top: *mut ()) -> bool {
    top.addr() > 2
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Inbox<T: Linked> {
    top: AtomicPtr<()>,
    of: PhantomData<fn(T) -> T>,
}

impl<T: Linked> Inbox<T> {
    pub(crate) fn new() -> Self {
        Self { top: AtomicPtr::new(AWAKE), of: PhantomData }
    }

    /// Hands over a task. `Ok(true)`: the worker slept, and the caller must kick it. `Err`: it is closed.
    pub(crate) fn push(&self, item: T) -> Result<bool, T> {
        let mut top = self.top.load(Relaxed);
        if top == CLOSED {
            return Err(item);
        }
        item.link().store(if is_task(top) { top } else { AWAKE }, Relaxed);
        let raw = item.into_raw();
        loop {
            // ORDERING: Release; pairs with the Acquire of `take`: who takes the task sees it and its link.
            match self.top.compare_exchange_weak(top, raw, Release, Relaxed) {
                Ok(top) => return Ok(top == ASLEEP),
                Err(now) => top = now,
            }
            // SAFETY: the exchange failed, so it is still ours.
            let item = unsafe { T::from_raw(raw) };
            if top == CLOSED {
                return Err(item);
            }
            item.link().store(if is_task(top) { top } else { AWAKE }, Relaxed);
            item.into_raw();
        }
    }

    /// The worker falls asleep. False: something came; it must not.
    ///
    /// ORDERING: Relaxed; who sleeps then looks for work elsewhere, who makes work there then looks who sleeps, and
    /// both have a SeqCst fence between the two (`Worker::idle`, `Shared::notify_parked`). Loom:
    /// `who_falls_asleep_sees_the_work_or_is_roused_for_it`.
    pub(crate) fn try_park(&self) -> bool {
        self.top.compare_exchange(AWAKE, ASLEEP, Relaxed, Relaxed).is_ok()
    }

    /// Wakes the worker, if it sleeps. True: it did, and the caller must kick it, unless it is the worker.
    pub(crate) fn try_unpark(&self) -> bool {
        // ORDERING: AcqRel; hands over what the caller wrote to the worker that finds itself awake.
        self.top.load(Relaxed) == ASLEEP && self.top.compare_exchange(ASLEEP, AWAKE, AcqRel, Relaxed).is_ok()
    }

    pub(crate) fn is_parked(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release of who roused it: the worker sees why.
        self.top.load(Acquire) == ASLEEP
    }

    #[inline]
    pub(crate) fn has_tasks(&self) -> bool {
        is_task(self.top.load(Relaxed))
    }

    /// Takes all tasks, in the order in which they came.
    pub(crate) fn take(&self) -> Drain<T> {
        let mut top = self.top.load(Relaxed);
        while is_task(top) {
            // ORDERING: Acquire; pairs with the Release of `push`.
            match self.top.compare_exchange_weak(top, AWAKE, Acquire, Relaxed) {
                Ok(_) => return Drain::reversed(top),
                Err(now) => top = now,
            }
        }
        Drain { first: AWAKE, of: PhantomData }
    }

    /// Nothing comes in any more; what was in it is handed out.
    pub(crate) fn close(&self) -> Drain<T> {
        // ORDERING: Acquire; pairs with the Release of `push`.
        Drain::reversed(self.top.swap(CLOSED, Acquire))
    }
}

impl<T: Linked> Drop for Inbox<T> {
    fn drop(&mut self) {
        drop(self.close());
    }
}

/// Tasks that were taken from an inbox. What is left is dropped with it.
pub(crate) struct Drain<T: Linked> {
    first: *mut (),
    of: PhantomData<T>,
}

impl<T: Linked> Drain<T> {
    /// `top` and what it is linked to are the caller's alone.
    fn reversed(mut top: *mut ()) -> Self {
        let mut first = AWAKE;
        while is_task(top) {
            // SAFETY: pushed as raw, and ours since the swap.
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
