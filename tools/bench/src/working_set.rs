//! A working set: cache lines that are linked in one random cycle.
//!
//! Only the owner of a set, a task or a connection, writes its lines. The fields are atomic so that a set can be shared
//! between threads.

use fastrand::Rng;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const LINE_BYTES: usize = 64;

/// A line: the index of the next line, and how often the line was touched.
#[repr(C, align(64))]
struct Line {
    next: AtomicU32,
    touched: AtomicU32,
}

const _: () = assert!(size_of::<Line>() == LINE_BYTES);

impl Line {
    /// Counts a touch. Returns the number of touches so far.
    #[inline]
    fn touch(&self) -> u32 {
        let touched = self.touched.load(Relaxed).wrapping_add(1);
        self.touched.store(touched, Relaxed);
        touched
    }
}

/// The lines of a set.
pub struct WorkingSet(Vec<Line>);

impl WorkingSet {
    /// The number of lines of a set of this size.
    pub const fn lines(kib: usize) -> usize {
        kib * 1024 / LINE_BYTES
    }

    /// Makes lines whose `next` links form one random cycle through all lines (Sattolo's shuffle).
    pub fn new(kib: usize, seed: u64) -> Self {
        let lines = Self::lines(kib);
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut rng = Rng::with_seed(seed);
        (1..lines).rev().for_each(|i| order.swap(i, rng.usize(..i)));
        let line = |next| Line { next: AtomicU32::new(next), touched: AtomicU32::new(0) };
        Self(order.into_iter().map(line).collect())
    }

    /// Touches every line in the order of the cycle, and passes how often it was touched to `each`.
    #[inline]
    pub fn chase(&self, mut each: impl FnMut(u32)) {
        let mut at = 0;
        for _ in 0..self.0.len() {
            let line = &self.0[at as usize];
            each(line.touch());
            at = line.next.load(Relaxed);
        }
        std::hint::black_box(at);
    }

    /// Touches every line in the order of addresses, where prefetching helps.
    #[inline]
    pub fn walk(&self) {
        self.0.iter().for_each(|line| _ = line.touch());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_reaches_every_line_once_whichever_way() {
        for touch in [|set: &WorkingSet| set.chase(|_| ()), WorkingSet::walk] {
            let set = WorkingSet::new(16, 7);
            assert_eq!(set.0.len(), 256);
            (0..3).for_each(|_| touch(&set));
            assert!(set.0.iter().all(|line| line.touched.load(Relaxed) == 3));
        }
    }
}
