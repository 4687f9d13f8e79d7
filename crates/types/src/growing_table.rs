//! `GrowingTable`: a table that grows while other threads read it, and whose entries do not move.
//!
//! Entries are in blocks. The first block has 64 entries and each later one has twice as many as the block before
//! it, so the highest bit of `index + 64` says which block an index is in. A block is
//! allocated by the first [`get_or_alloc`](GrowingTable::get_or_alloc) of one of its entries, and stays until the table
//! is dropped.
//!
//! # Cost
//! A lookup in an allocated block loads the block's state, its address and then the entry, without a lock. The block of
//! the largest index that was asked for has 64 entries more than all blocks before it. So if these are allocated too,
//! at most half of the entries and 31 more are beyond that index.
//!
//! # Ordering
//! A block is published by its [`OnceLock`]: a thread that finds the block sees all entries as the argument `block` of
//! `get_or_alloc` made them. What is stored in an entry later is ordered by the entry's own type.

use std::sync::OnceLock;

/// Entries of the first block.
const FIRST: usize = 64;

/// The number of blocks: enough for all indices below 2^24.
const BLOCKS: usize = 19;

/// A table that grows while other threads read it, and whose entries do not move.
///
/// ```
/// use std::sync::OnceLock;
/// use warmcore_types::GrowingTable;
///
/// let names: GrowingTable<OnceLock<String>> = GrowingTable::new();
/// let entry = names.get_or_alloc(1000, |entries| (0..entries).map(|_| OnceLock::new()).collect());
/// entry.set("gold".to_owned()).unwrap();
/// assert_eq!(names.get(1000).and_then(OnceLock::get).unwrap(), "gold");
/// assert!(names.get(5).is_none(), "its block was not needed yet");
/// ```
#[derive(Debug)]
pub struct GrowingTable<T> {
    blocks: [OnceLock<Box<[T]>>; BLOCKS],
}

impl<T> GrowingTable<T> {
    /// Creates a table without blocks.
    pub const fn new() -> Self {
        Self { blocks: [const { OnceLock::new() }; BLOCKS] }
    }

    /// Returns the entry at `index`, or `None` if its block was not allocated yet.
    pub fn get(&self, index: usize) -> Option<&T> {
        let (block, at) = position(index);
        self.blocks.get(block)?.get()?.get(at)
    }

    /// Returns the entry at `index`. If its block was not allocated yet, `block` makes the block, with as many entries
    /// as its argument says. An index must be below 2^24; one of 2^25 − 64 or more panics.
    pub fn get_or_alloc(&self, index: usize, block: impl FnOnce(usize) -> Box<[T]>) -> &T {
        let (number, at) = position(index);
        &self.blocks[number].get_or_init(|| block(FIRST << number))[at]
    }

    /// Iterates over the entries of all allocated blocks, in ascending order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().filter_map(OnceLock::get).flatten()
    }
}

impl<T> Default for GrowingTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The block of an index, and the entry in that block.
fn position(index: usize) -> (usize, usize) {
    let n = index + FIRST;
    let block = (n.ilog2() - FIRST.ilog2()) as usize;
    (block, n - (FIRST << block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn every_index_has_an_entry_of_its_own() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(position(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == FIRST << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        let (block, at) = position((1 << 24) - 1);
        assert!(block == BLOCKS - 1 && at < FIRST << block);
    }

    #[test]
    fn threads_that_need_the_same_block_find_the_same_entries() {
        let table = GrowingTable::new();
        let counters = |entries| (0..entries).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in 0..1000 {
                        let entry: &AtomicU32 = table.get_or_alloc(index, counters);
                        entry.fetch_add(1, Relaxed);
                        assert!(std::ptr::eq(entry, table.get(index).unwrap()));
                    }
                });
            }
        });
        assert!(table.iter().take(1000).all(|count| count.load(Relaxed) == 4));
        assert!(table.iter().skip(1000).all(|count| count.load(Relaxed) == 0));
    }
}
