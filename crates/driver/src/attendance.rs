//! Attendance: which thread is inside a reactor, and which worker parks there.
//!
//! A reactor serves the sockets and timers of one or several workers, and one thread at a time can be inside. One of the
//! workers is the *attendant*: it parks inside, and the others park beside. A worker that is awake, or a thread that looks after
//! the driver of a stuck worker, may *visit*: it serves what is due and leaves, without a wait.
//!
//! **Attended.** While no thread is inside, the attendant is awake, or on its way inside: it serves the reactor now and then, and
//! parks inside. If a visitor is inside then, the visitor unparks it. If the attendant is in a long poll, a worker that slept
//! beside until its time, while no thread entered, becomes the attendant: at the latest the worker that watches long polls. While
//! two workers or more have nothing to do, the next one that parks becomes it at once: sockets need not wait for a poll of the
//! attendant then. The last one does not if other threads may need its CPU.
//!
//! **Unpark.** A worker is unparked where it is parked. One that enters looks whether it was unparked after it has entered; a
//! thread that unparks it looks where it is after it has written that. One of the two sees the other.
//!
//! # Cost
//! To enter and to leave: two writes on a line that the workers share, and a fence each.

#[cfg(warmcore_loom)]
use ::loom::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering::*, fence},
};
#[cfg(not(warmcore_loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering::*, fence},
};
use warmcore_types::ignore_poison;

/// No driver: no thread is inside; there is no attendant.
const NONE: u32 = 0;

/// Added to the number of the driver through which a visitor is inside.
const VISIT: u32 = 1 << 31;

/// Which thread is inside a reactor. `T` unparks a thread. Drivers have numbers from 1.
#[derive(Debug)]
pub struct Attendance<T> {
    /// The number of the driver through which a thread is inside, with [`VISIT`] if it does not wait; or [`NONE`].
    inside: AtomicU32,
    /// The number of the driver whose thread parks inside.
    attendant: AtomicU32,
    /// The threads that found a visitor inside when they were going to park there, with their drivers' numbers.
    waits: Mutex<Vec<(u32, T)>>,
}

impl<T> Default for Attendance<T> {
    /// No thread is inside, and there is no attendant.
    fn default() -> Self {
        Self { inside: AtomicU32::new(NONE), attendant: AtomicU32::new(NONE), waits: Mutex::new(Vec::new()) }
    }
}

impl<T> Attendance<T> {
    /// The thread of driver `me`, which is going to park, enters if it is the attendant, or if there is none, or if it
    /// `must_attend` from now on. `here` returns what unparks the thread. False: it parks beside.
    pub fn enter(&self, me: u32, must_attend: bool, here: impl FnOnce() -> T) -> bool {
        let attendant = self.attendant.load(Relaxed);
        if !(must_attend || attendant == me || attendant == NONE) || !self.try_enter(me, here) {
            return false;
        }
        // Not before it has entered: another attendant that is inside stays the attendant.
        self.attendant.store(me, Relaxed);
        true
    }

    fn try_enter(&self, me: u32, here: impl FnOnce() -> T) -> bool {
        // ORDERING: Acquire; pairs with the Release of `leave` and `leave_visit`: what the thread before did inside is seen.
        let enter = || self.inside.compare_exchange(NONE, me, Acquire, Relaxed);
        let entered = match enter() {
            Err(inside) if inside >= VISIT => {
                let mut waits = ignore_poison(self.waits.lock());
                let entered = enter();
                if entered.is_err_and(|inside| inside >= VISIT) {
                    // The visitor locks `waits` after it has left, so it finds this thread there.
                    waits.retain(|(driver, _)| *driver != me);
                    waits.push((me, here()));
                }
                entered
            }
            entered => entered,
        };
        // ORDERING: SeqCst; that the thread is inside was written before, whether it was unparked is read after, by the caller.
        // A thread that unparks it does both the other way round: `is_inside`.
        fence(SeqCst);
        entered.is_ok()
    }

    /// The thread that entered leaves.
    pub fn leave(&self) {
        // ORDERING: Release; pairs with the Acquire of `enter` and `visit`.
        self.inside.store(NONE, Release);
        // ORDERING: SeqCst; that the thread is not inside was written before, that it is parked again is written after, by the
        // caller. A thread that reads the second before the fence of `is_inside` sees the first after it.
        fence(SeqCst);
    }

    /// A thread enters through driver `me`, and will not wait. False: another thread is inside.
    pub fn visit(&self, me: u32) -> bool {
        // ORDERING: Acquire; as in `try_enter`.
        self.inside.compare_exchange(NONE, me | VISIT, Acquire, Relaxed).is_ok()
    }

    /// The visitor leaves, and unparks the threads that have found it inside: the attendant is among them, and so may be a
    /// worker that must attend.
    pub fn leave_visit(&self, mut unpark: impl FnMut(T)) {
        // ORDERING: Release; as in `leave`.
        self.inside.store(NONE, Release);
        let waits = std::mem::take(&mut *ignore_poison(self.waits.lock()));
        waits.into_iter().for_each(|(_, thread)| unpark(thread));
    }

    /// Whether the thread of driver `me` is inside, to wait. If not, it will see what the caller wrote before, when it enters.
    pub fn is_inside(&self, me: u32) -> bool {
        // ORDERING: SeqCst; see `try_enter` and `leave`.
        fence(SeqCst);
        self.inside.load(Relaxed) == me
    }

    /// Whether a thread is inside through driver `me`, to wait or not.
    pub fn is_entered(&self, me: u32) -> bool {
        self.inside.load(Relaxed) & !VISIT == me
    }

    /// Whether the thread of driver `me` parks inside; before any has, the first driver's.
    pub fn is_attendant(&self, me: u32) -> bool {
        let attendant = self.attendant.load(Relaxed);
        attendant == me || (attendant == NONE && me == 1)
    }

    /// Driver `me` parks no more.
    pub fn close(&self, me: u32) {
        let _ = self.attendant.compare_exchange(me, NONE, Relaxed, Relaxed);
    }
}

#[cfg(all(test, warmcore_loom))]
mod loom;
