//! Bits: a set of small numbers of a fixed width, which knows its lowest gap.
//!
//! Model.   64-bit words and how many bits are set. Nothing is allocated after `new`.
//! Number.  384 ids: 6 words, so the lowest free one is found in 6 loads at worst.
//! Writers. Whoever has it `&mut`: the lock's holder.

/// A set of numbers below a width that is fixed at its making.
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

    /// How many are in it.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Its members are below this.
    pub(crate) fn width(&self) -> u32 {
        self.width
    }

    pub(crate) fn contains(&self, n: u32) -> bool {
        self.words.get(n as usize / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Adds a number; says whether it was new. Panics beyond the width.
    pub(crate) fn insert(&mut self, n: u32) -> bool {
        let (word, bit) = (&mut self.words[n as usize / 64], 1 << (n % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        // Not `+= u32::from(is_new)`: rustc 1.95 loses the bool where this is inlined into an `if`.
        // In a release, `ids/tests/few.rs::cpus_may_be_allowed_while_ids_are_held` sees that.
        if is_new {
            self.len += 1;
        }
        is_new
    }

    /// Takes a number out; says whether it was there.
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

    /// The first member at or after `from`. So that one can walk a set that one changes.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        let masked = self.words.get(first)? & (u64::MAX << (from % 64));
        let rest = self.words.iter().skip(first + 1).copied();
        std::iter::once(masked)
            .chain(rest)
            .zip(first as u32..)
            .find(|(word, _)| *word != 0)
            .map(|(word, at)| at * 64 + word.trailing_zeros())
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
            let (mut bits, mut set) = (Bits::new(width), BTreeSet::new());
            for (insert, n) in ops.into_iter().map(|(insert, n)| (insert, n % width)) {
                if insert {
                    prop_assert_eq!(bits.insert(n), set.insert(n));
                } else {
                    prop_assert_eq!(bits.remove(n), set.remove(&n));
                }
                prop_assert_eq!(bits.len() as usize, set.len());
                prop_assert_eq!(bits.lowest_gap(width), (0..width).find(|n| !set.contains(n)));
                prop_assert_eq!(bits.next(n), set.range(n..).next().copied());
            }
        }
    }
}
