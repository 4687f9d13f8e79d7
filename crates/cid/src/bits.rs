//! Sets of small numbers below a fixed width, which find their lowest gap.
//!
//! A set is 64-bit words; [`Bits`] also counts its members. Nothing is allocated after `new`. For 384 ids there are 6
//! words, so the lowest free id is found in 6 loads at most.
//!
//! A [`Bits`] is written under the tenant's lock, a [`SharedBits`] by any thread.

use crate::sync::{AtomicU64, Ordering::*};

/// A set of numbers below a fixed width, for one thread at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bits {
    words: Box<[u64]>,
    width: u32,
    len: u32,
}

impl Bits {
    /// The empty set of numbers below `width`.
    pub(crate) fn new(width: u32) -> Self {
        Self { words: vec![0; width.div_ceil(64) as usize].into(), width, len: 0 }
    }

    /// The number of members.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The width that `new` got.
    pub(crate) fn width(&self) -> u32 {
        self.width
    }

    pub(crate) fn contains(&self, n: u32) -> bool {
        self.words.get(n as usize / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Adds a number. Returns whether it was new. Panics if it is beyond the last word; up to there the caller checks
    /// the width.
    pub(crate) fn insert(&mut self, n: u32) -> bool {
        let (word, bit) = (&mut self.words[n as usize / 64], 1 << (n % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        // Not `+= u32::from(is_new)`: rustc 1.95 loses the bool where this is inlined into an `if`. In a release build,
        // `ids/tests/bounds.rs::cpus_may_be_allowed_while_ids_are_held` fails then.
        if is_new {
            self.len += 1;
        }
        is_new
    }

    /// Removes a number. Returns whether it was there.
    pub(crate) fn remove(&mut self, n: u32) -> bool {
        let was = self.contains(n);
        if was {
            self.words[n as usize / 64] &= !(1 << (n % 64));
            self.len -= 1;
        }
        was
    }

    /// The lowest number that is not in it, if that is below `end`.
    pub(crate) fn lowest_gap(&self, end: u32) -> Option<u32> {
        let (at, word) = self.words.iter().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let gap = at as u32 * 64 + word.trailing_ones();
        (gap < end).then_some(gap)
    }
}

/// A set of numbers below a fixed width, for all threads at once. The thread whose `insert` finds a number new owns it.
#[derive(Debug)]
pub(crate) struct SharedBits {
    words: Box<[AtomicU64]>,
}

impl SharedBits {
    /// The empty set of numbers below `width`.
    pub(crate) fn new(width: u32) -> Self {
        Self { words: (0..width.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The number of members.
    pub(crate) fn len(&self) -> u32 {
        // ORDERING: SeqCst; pairs with `insert`: see `Ids::in_use`.
        self.words.iter().map(|word| word.load(SeqCst).count_ones()).sum()
    }

    pub(crate) fn contains(&self, n: u32) -> bool {
        self.words.get(n as usize / 64).is_some_and(|word| word.load(Relaxed) >> (n % 64) & 1 == 1)
    }

    /// Adds a number. Returns whether it was new. Panics if it is beyond the last word; up to there the caller checks
    /// the width.
    pub(crate) fn insert(&self, n: u32) -> bool {
        let bit = 1 << (n % 64);
        // ORDERING: SeqCst. Its Acquire pairs with the Release in `remove`: what was written before the number was
        // removed is visible. Loom: `ids/loom.rs::a_retaken_id_comes_with_its_data`. Its order among SeqCst operations
        // pairs with `len`.
        self.words[n as usize / 64].fetch_or(bit, SeqCst) & bit == 0
    }

    /// Removes a number. Returns whether it was there.
    pub(crate) fn remove(&self, n: u32) -> bool {
        let bit = 1 << (n % 64);
        // ORDERING: Release; pairs with `insert`.
        self.words[n as usize / 64].fetch_and(!bit, Release) & bit != 0
    }

    /// The lowest number that is not in it, if that is below `end`.
    pub(crate) fn lowest_gap(&self, end: u32) -> Option<u32> {
        let words = self.words.iter().map(|word| word.load(Relaxed));
        let (at, word) = words.enumerate().find(|(_, word)| *word != u64::MAX)?;
        let gap = at as u32 * 64 + word.trailing_ones();
        (gap < end).then_some(gap)
    }

    /// The lowest member that is at least `from`.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        let mask = |at: usize| if at == first { u64::MAX << (from % 64) } else { u64::MAX };
        let mut words = self.words.iter().enumerate().skip(first);
        words.find_map(|(at, word)| {
            let word = word.load(Relaxed) & mask(at);
            (word != 0).then(|| at as u32 * 64 + word.trailing_zeros())
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_behaves_as_a_btree_set(width in 1u32..300, ops in proptest::collection::vec((any::<bool>(), 0u32..300), 0..200)) {
            let (mut bits, shared, mut set) = (Bits::new(width), SharedBits::new(width), BTreeSet::new());
            for (insert, n) in ops.into_iter().map(|(insert, n)| (insert, n % width)) {
                if insert {
                    let is_new = set.insert(n);
                    prop_assert_eq!((bits.insert(n), shared.insert(n)), (is_new, is_new));
                } else {
                    let was = set.remove(&n);
                    prop_assert_eq!((bits.remove(n), shared.remove(n)), (was, was));
                }
                let (len, gap) = (set.len() as u32, (0..width).find(|n| !set.contains(n)));
                prop_assert_eq!((bits.len(), shared.len()), (len, len));
                prop_assert_eq!((bits.lowest_gap(width), shared.lowest_gap(width)), (gap, gap));
                prop_assert_eq!((bits.contains(n), shared.contains(n)), (set.contains(&n), set.contains(&n)));
                prop_assert_eq!(shared.next(n), set.range(n..).next().copied());
            }
        }
    }
}
