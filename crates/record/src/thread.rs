//! Thread: what each thread keeps for its records, in a thread-local variable.
//!
//! A thread gets its ring with its first record. When the thread ends, the ring is closed, and the writer frees it after
//! the last record.
//!
//! The rules of the format are kept here: a record that is further from the base than 32 bits comes after a new base, and
//! records that found no room are counted in a gap before the next record.
//!
//! # Cost
//! A push is about 25 instructions without a locked one. The first one of a thread locks the list of threads.

use crate::format::{NO_CPU, NOT_KNOWN, RecordKind, tag};
use crate::recorder;
use crate::ring::{Producer, Ring, Room};
use crate::sync::Ordering::*;
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use warmcore_sys::clock;

#[cfg(test)]
mod tests;

/// Records that must fit where the ring was full: a base and a gap, and a base and the record.
const ROOM_AFTER_GAP: u32 = 4;

thread_local! {
    static LOCAL: Cell<*const Local> = const { Cell::new(ptr::null()) };
    /// Frees what `LOCAL` points to when the thread ends. A variable of its own, because one with a destructor costs a
    /// check of its state on each access.
    static OWNER: Owner = const { Owner(Cell::new(State::New)) };
}

/// What a thread keeps.
pub(crate) struct Local {
    ring: Arc<Ring>,
    producer: Producer,
    /// The stamp from which records count their time.
    base: Cell<u64>,
    /// When the ring became full, and the number of records that were dropped since. 0: there is no gap.
    gap: Cell<(u64, u32)>,
    /// The worker that the thread runs: the last `RecordKind::Worker`.
    worker: Cell<u32>,
}

/// Whether the thread has a `Local`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Registered,
    /// The thread ends, or the recorder takes no more threads.
    Refused,
}

struct Owner(Cell<State>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.set(State::Refused);
        let local = LOCAL.with(|local| local.replace(ptr::null()));
        if !local.is_null() {
            // SAFETY: `register` made it of a box, and nothing else frees it. No reference to it is left: `with_local`
            // gives out none that outlives its call, and this thread is not inside that call.
            let local = unsafe { Box::from_raw(local.cast_mut()) };
            local.end_gap_if_any();
            local.ring.close();
        }
    }
}

/// Calls `act` with what the thread keeps. Does nothing if the recorder takes no records of this thread.
#[inline(always)]
pub(crate) fn with_local<R>(act: impl FnOnce(&Local) -> R) {
    // A variable without a destructor is always there.
    let mut local = LOCAL.with(Cell::get);
    if local.is_null() {
        local = register();
        if local.is_null() {
            return;
        }
    }
    // SAFETY: made by `register` on this thread, freed when the thread ends, see `Owner`. `act` is code of this crate,
    // which does not end the thread.
    let _ = act(unsafe { &*local });
}

#[cold]
fn register() -> *const Local {
    let register = |owner: &Owner| {
        // In a child of fork(2) the recorder is off, and its locks may be held for ever.
        if !recorder::is_on() || owner.0.replace(State::Refused) != State::New {
            return ptr::null();
        }
        let ring = Arc::new(Ring::new());
        let base = clock::stamp();
        if !recorder::add_thread(ring.clone(), base) {
            return ptr::null();
        }
        owner.0.set(State::Registered);
        let local = Local {
            ring,
            producer: Producer::new(),
            base: Cell::new(base),
            gap: Cell::new((0, 0)),
            worker: Cell::new(NOT_KNOWN),
        };
        let local: *const Local = Box::into_raw(Box::new(local));
        LOCAL.with(|here| here.set(local));
        local
    };
    OWNER.try_with(register).unwrap_or(ptr::null())
}

impl Local {
    /// Pushes the record `[a, at - base, c, d, tag]`. False: there is no room, and it is counted as dropped.
    #[inline(always)]
    pub(crate) fn push(&self, a: u32, at: u64, [c, d]: [u32; 2], tag: u32) -> bool {
        // A time before the base wraps, and is as far away as one that is too late.
        let b = at.wrapping_sub(self.base.get());
        if b > u64::from(u32::MAX) || !self.producer.has_room() {
            return self.push_slow(a, at, [c, d], tag);
        }
        self.producer.push(&self.ring, [a, b as u32, c, d, tag]);
        true
    }

    #[cold]
    #[inline(never)]
    fn push_slow(&self, a: u32, at: u64, [c, d]: [u32; 2], tag: u32) -> bool {
        let free = match self.producer.make_room(&self.ring) {
            Room::For(free) => free,
            Room::Half(free) => {
                recorder::wake_writer();
                free
            }
        };
        if free < ROOM_AFTER_GAP {
            self.producer.refuse();
            let (from, records) = self.gap.get();
            self.gap.set((if records == 0 { at } else { from }, records.saturating_add(1)));
            let dropped = &self.ring.dropped;
            dropped.store(dropped.load(Relaxed) + 1, Relaxed);
            return false;
        }
        // The record's own time may be before the gap: polls of futures within a poll are written first.
        self.end_gap(clock::stamp());
        self.push_at(a, at, [c, d], tag);
        true
    }

    /// Pushes a record, with a base before it if it needs one. There must be room for both.
    fn push_at(&self, a: u32, at: u64, [c, d]: [u32; 2], tag_word: u32) {
        if at.wrapping_sub(self.base.get()) > u64::from(u32::MAX) {
            self.base.set(at);
            let halves = [at as u32, (at >> 32) as u32];
            self.producer
                .push(&self.ring, [0, 0, halves[0], halves[1], tag(RecordKind::Base, NO_CPU, NO_CPU, 0)]);
        }
        self.producer.push(&self.ring, [a, at.wrapping_sub(self.base.get()) as u32, c, d, tag_word]);
    }

    /// Pushes the record of the gap that ends now, if there is one. There must be room for it and a base.
    fn end_gap(&self, to: u64) {
        let (from, records) = self.gap.replace((0, 0));
        if records > 0 {
            let length = to.saturating_sub(from).min(u64::from(u32::MAX)) as u32;
            self.push_at(0, from, [length, records], tag(RecordKind::Gap, NO_CPU, NO_CPU, 0));
        }
    }

    /// The thread ends. A gap for which there is no room even now is in the thread's totals only.
    fn end_gap_if_any(&self) {
        if self.gap.get().1 > 0 {
            let (Room::For(free) | Room::Half(free)) = self.producer.make_room(&self.ring);
            if free >= ROOM_AFTER_GAP {
                self.end_gap(clock::stamp());
            }
        }
    }

    /// Counts a poll of a task that is not in the sample.
    pub(crate) fn skip(&self) {
        let skipped = &self.ring.skipped;
        skipped.store(skipped.load(Relaxed) + 1, Relaxed);
    }

    /// The thread runs this worker from now on, of a runtime that is Warmcore's if `of` is [`OF_WARMCORE`](crate::format::OF_WARMCORE).
    #[inline]
    pub(crate) fn set_worker(&self, worker: u32, of: u32) {
        let tag = tag(RecordKind::Worker, NO_CPU, NO_CPU, 0);
        if self.worker.get() != worker && self.push(0, clock::stamp(), [worker, of], tag) {
            self.worker.set(worker);
        }
    }
}
