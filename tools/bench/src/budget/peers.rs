//! Hand-written ways to keep within a limit, with which Warmcore's accounts are compared.
//!
//! Each is written as carefully as servers write it: a compare-and-swap loop that checks the limit and never blocks; a
//! mutex around plain numbers; and units that a thread caches above a shared atomic. A charge of cached units takes no
//! atomic instruction, but other threads can't reach them.
//!
//! Any thread writes the shared fields; the units that a thread caches are written by that thread alone.

use super::setup::Gate;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::*, compiler_fence};
use std::sync::{Mutex, PoisonError};
use warmcore_line::Padded;

/// A limit, and how much of it is in use.
#[derive(Debug)]
pub struct Level {
    used: Padded<AtomicU64>,
    limit: u64,
}

impl Level {
    pub fn new(limit: u64) -> Self {
        Self { used: Padded::new(AtomicU64::new(0)), limit }
    }

    #[inline(always)]
    pub fn charge(&self, n: u64) -> bool {
        let mut used = self.used.load(Relaxed);
        loop {
            let more = used + n;
            if more > self.limit {
                return false;
            }
            // ORDERING: AcqRel; pairs with the Release in `uncharge`: what that thread freed may be used here.
            match self.used.compare_exchange_weak(used, more, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) => used = now,
            }
        }
    }

    #[inline(always)]
    pub fn uncharge(&self, n: u64) {
        // ORDERING: Release; pairs with the AcqRel in `charge`.
        self.used.fetch_sub(n, Release);
    }

    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }
}

impl Gate for Level {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        Level::charge(self, n)
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        Level::uncharge(self, n);
    }
}

/// Three levels, leaf to root, charged one after the other. If a level refuses, the charges below it are undone.
impl Gate for [&Level; 3] {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        for (i, level) in self.iter().enumerate() {
            if !Level::charge(level, n) {
                self[..i].iter().for_each(|level| Level::uncharge(level, n));
                return false;
            }
        }
        true
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        self.iter().for_each(|level| Level::uncharge(level, n));
    }
}

/// Three levels as plain numbers, for a mutex.
#[derive(Debug)]
pub struct Numbers {
    used: [u64; 3],
    limits: [u64; 3],
}

impl Numbers {
    pub fn new(limit: u64) -> Self {
        Self { used: [0; 3], limits: [limit; 3] }
    }

    #[inline(always)]
    fn charge(&mut self, n: u64) -> bool {
        let fits = self.used.iter().zip(&self.limits).all(|(used, limit)| used + n <= *limit);
        if fits {
            self.used.iter_mut().for_each(|used| *used += n);
        }
        fits
    }

    #[inline(always)]
    fn uncharge(&mut self, n: u64) {
        self.used.iter_mut().for_each(|used| *used -= n);
    }
}

/// The three levels behind std's mutex.
pub type StdMutex = Padded<Mutex<Numbers>>;
/// The three levels behind parking_lot's mutex.
pub type ParkingLot = Padded<parking_lot::Mutex<Numbers>>;

impl Gate for StdMutex {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).charge(n)
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        self.lock().unwrap_or_else(PoisonError::into_inner).uncharge(n);
    }
}

impl Gate for ParkingLot {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        self.lock().charge(n)
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        self.lock().uncharge(n);
    }
}

thread_local! {
    static FREE: Cell<u64> = const { Cell::new(0) };
}

/// A shared atomic, and units of it that each thread caches. A thread uses one `ThreadCached` at a time, since its
/// cache does not say which one its units belong to. `new` forgets the units that the calling thread cached of an
/// earlier one; `leave` returns the calling thread's cached units.
#[derive(Debug)]
pub struct ThreadCached {
    shared: Level,
    /// The most units that a thread may cache.
    batch: u64,
}

impl ThreadCached {
    pub fn new(limit: u64, batch: u64) -> Self {
        FREE.set(0);
        Self { shared: Level::new(limit), batch }
    }

    #[cold]
    fn charge_slow(&self, free: u64, n: u64) -> bool {
        let half = self.batch / 2;
        if self.shared.charge(n - free + half) {
            FREE.set(half);
            return true;
        }
        // Half a batch more did not fit, so charge only what is needed.
        let fits = self.shared.charge(n - free);
        if fits {
            FREE.set(0);
        }
        fits
    }

    #[cold]
    fn give_back(&self, n: u64) {
        FREE.set(FREE.get() - n);
        self.shared.uncharge(n);
    }
}

impl Gate for ThreadCached {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        let free = FREE.get();
        if free < n {
            return self.charge_slow(free, n);
        }
        FREE.set(free - n);
        // Keeps the compiler from folding a charge and its uncharge into nothing.
        compiler_fence(SeqCst);
        true
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        let free = FREE.get() + n;
        FREE.set(free);
        compiler_fence(SeqCst);
        if free > self.batch {
            self.give_back(free - self.batch / 2);
        }
    }

    /// Returns this thread's cached units to the shared atomic. Only the thread itself can do that.
    fn leave(&self) {
        self.give_back(FREE.get());
    }

    fn stranded(&self, held: u64) -> Option<u64> {
        Some(self.usage().saturating_sub(held))
    }

    /// The charged units, cached ones included.
    fn usage(&self) -> u64 {
        self.shared.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_charged_and_nothing_beyond() {
        let level = Level::new(10);
        assert!(level.charge(10) && !level.charge(1));
        level.uncharge(4);
        assert!(level.charge(4) && level.used() == 10);
        let mut numbers = Numbers::new(10);
        assert!(numbers.charge(7) && !numbers.charge(4) && numbers.charge(3));
        numbers.uncharge(10);
        assert_eq!(numbers.used, [0; 3]);
    }

    #[test]
    fn a_path_that_refuses_above_is_given_back_below() {
        let [leaf, group, root] = [Level::new(100), Level::new(100), Level::new(5)];
        let path = [&leaf, &group, &root];
        assert!(!path.charge(6));
        assert_eq!([leaf.used(), group.used(), root.used()], [0; 3]);
        assert!(path.charge(5));
        path.uncharge(5);
        assert_eq!([leaf.used(), group.used(), root.used()], [0; 3]);
    }

    #[test]
    fn a_thread_keeps_no_more_than_its_batch_and_nothing_is_lost() {
        let cached = &ThreadCached::new(1000, 64);
        assert!((0..500).all(|_| cached.charge(1)));
        assert!(cached.usage() - 500 <= 64);
        (0..500).for_each(|_| cached.uncharge(1));
        assert!(cached.usage() <= 64);
        cached.leave();
        assert_eq!(cached.usage(), 0);
        assert!(cached.charge(1000) && !cached.charge(1));
    }

    #[test]
    fn what_another_thread_keeps_is_out_of_reach() {
        let cached = &ThreadCached::new(100, 64);
        assert!(cached.charge(1));
        let is_refused = std::thread::scope(|scope| scope.spawn(|| !cached.charge(99)).join().unwrap());
        assert!(is_refused, "99 of 99 units were charged, and the other thread keeps some of them");
    }
}
