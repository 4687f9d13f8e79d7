//! Ring: the records of one thread on their way to the writer.
//!
//! One thread pushes, one thread drains, and neither waits for the other. `head` counts the records that were pushed,
//! `tail` those that were drained; both wrap. A push is seven plain stores and no locked instruction.
//!
//! The producer reads `tail` once in half a ring ([`Producer::push`]), so the line of `tail` is not shared on each push.
//!
//! # Cost
//! 320 KiB per thread, of which the pages are touched that were used.

use crate::format::Record;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering::*, Slot};
use std::cell::Cell;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

/// Records in a ring, a power of two. Two million polls a second fill half of it in 4 ms.
pub(crate) const CAPACITY: u32 = if cfg!(loom) { 4 } else { 16_384 };

/// The part that both threads use.
pub(crate) struct Ring {
    slots: Box<[Slot; CAPACITY as usize]>,
    /// Written by the producer.
    head: AtomicU32,
    /// Records that were dropped. Written by the producer, read by the writer.
    pub(crate) dropped: AtomicU64,
    /// Polls of tasks that are not in the sample. Written by the producer, read by the writer.
    pub(crate) skipped: AtomicU64,
    /// Whether the producer has ended. Written by the producer, read by the writer.
    is_closed: AtomicBool,
    tail: Tail,
}

/// Written by the writer.
#[repr(align(128))]
struct Tail(AtomicU32);

impl Ring {
    pub(crate) fn new() -> Self {
        Self {
            slots: slots(),
            head: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            tail: Tail(AtomicU32::new(0)),
        }
    }

    /// Calls `take` with each record in the order of the pushes, and returns how many there were. Called by one thread at
    /// a time.
    pub(crate) fn drain(&self, mut take: impl FnMut(Record)) -> u32 {
        let tail = self.tail.0.load(Relaxed);
        // ORDERING: Acquire; pairs with the Release of `Producer::push`. The words of the records are visible.
        // Model: `ring/loom.rs::what_is_pushed_is_drained`.
        let head = self.head.load(Acquire);
        let records = head.wrapping_sub(tail);
        for i in 0..records {
            let slot = &self.slots[(tail.wrapping_add(i) % CAPACITY) as usize];
            take(slot.read());
        }
        // ORDERING: Release; pairs with the Acquire of `Producer::make_room`. The producer writes a slot only after it
        // was read here. Model: as above.
        self.tail.0.store(head, Release);
        records
    }

    /// Whether the producer has ended: the next [`drain`](Self::drain) returns the last records.
    pub(crate) fn is_closed(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release of `close`. The last records are visible.
        self.is_closed.load(Acquire)
    }

    /// Called by the producer, which pushes nothing after that.
    pub(crate) fn close(&self) {
        // ORDERING: Release; pairs with the Acquire of `is_closed`.
        self.is_closed.store(true, Release);
    }
}

#[cfg(not(loom))]
fn slots() -> Box<[Slot; CAPACITY as usize]> {
    // SAFETY: zeros are valid slots. An array of them would touch all pages at once, and first the stack.
    unsafe { Box::new_zeroed().assume_init() }
}

#[cfg(loom)]
fn slots() -> Box<[Slot; CAPACITY as usize]> {
    Box::new(std::array::from_fn(|_| Slot::new()))
}

/// What the thread that pushes keeps for itself.
pub(crate) struct Producer {
    /// `Ring::head`.
    head: Cell<u32>,
    /// The value of `head` at which the producer looks at `tail`: at half a ring and when the ring may be full.
    look_at: Cell<u32>,
}

/// What became of the room in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// At least this many records fit.
    For(u32),
    /// Half a ring or more is used: it is time to drain it. At least this many records fit.
    Half(u32),
}

impl Producer {
    pub(crate) const fn new() -> Self {
        Self { head: Cell::new(0), look_at: Cell::new(CAPACITY / 2) }
    }

    /// Whether a record fits without a look at `tail`. If it does not, [`make_room`](Self::make_room) looks.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        // A difference, because several records after one look may pass `look_at`.
        self.look_at.get().wrapping_sub(self.head.get()) as i32 > 0
    }

    /// Looks how many records fit.
    #[cold]
    pub(crate) fn make_room(&self, ring: &Ring) -> Room {
        // ORDERING: Acquire; pairs with the Release of `Ring::drain`.
        let used = self.head.get().wrapping_sub(ring.tail.0.load(Acquire));
        let free = CAPACITY - used;
        if used >= CAPACITY / 2 {
            self.look_at.set(self.head.get().wrapping_add(free));
            Room::Half(free)
        } else {
            self.look_at.set(self.head.get().wrapping_add(CAPACITY / 2 - used));
            Room::For(free)
        }
    }

    /// Lets [`has_room`](Self::has_room) return false until the next look.
    pub(crate) fn refuse(&self) {
        self.look_at.set(self.head.get());
    }

    /// Pushes a record, for which there is room.
    #[inline(always)]
    pub(crate) fn push(&self, ring: &Ring, record: Record) {
        let head = self.head.get();
        ring.slots[(head % CAPACITY) as usize].write(record);
        self.head.set(head.wrapping_add(1));
        // ORDERING: Release; pairs with the Acquire of `Ring::drain`.
        ring.head.store(head.wrapping_add(1), Release);
    }
}
