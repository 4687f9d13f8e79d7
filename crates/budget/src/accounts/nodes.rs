//! The nodes of all accounts, by key. Nodes do not move.

use super::node::Node;
use crate::stock::{KEYS_END, Key, StockAddr};
use crate::sync::{AtomicU32, Mutex, Ordering::*};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use warmcore_types::{GrowingTable, ignore_poison};

/// A list that only grows and whose members do not move.
#[derive(Debug)]
pub(super) struct Nodes {
    /// By key. The entries of keys from 1 to below `end` are initialised.
    table: GrowingTable<UnsafeCell<MaybeUninit<Node>>>,
    end: AtomicU32,
    growing: Mutex<()>,
}

// SAFETY: `push` writes an entry, under the lock, before another thread gets its key; after that threads share `&Node`
// only. Nodes are Sync.
unsafe impl Sync for Nodes {}

impl Nodes {
    pub(super) fn new() -> Self {
        Self { table: GrowingTable::new(), end: AtomicU32::new(1), growing: Mutex::new(()) }
    }

    /// The node of a key, if there is one. No account has key 0.
    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Node> {
        // ORDERING: Acquire; pairs with the Release in `push`: the node is written.
        if key == 0 || key >= self.end.load(Acquire) {
            return None;
        }
        // SAFETY: the node was written before `end` rose above its key, and stays until `self` is dropped.
        self.table.get(key as usize).map(|node| unsafe { (*node.get()).assume_init_ref() })
    }

    /// Adds a node with the next key. Panics if the next key is 2^24.
    pub(super) fn push(&self, stocks_of: impl FnOnce(Key) -> StockAddr) -> &Node {
        let _growing = ignore_poison(self.growing.lock());
        let key = self.end.load(Relaxed);
        assert!(key < KEYS_END, "{key} accounts at once; no more are possible");
        // Nodes are written one by one, so a large block costs memory as it is used.
        // SAFETY: an entry may be uninitialised.
        let block = |entries| unsafe { Box::new_uninit_slice(entries).assume_init() };
        let node: *mut MaybeUninit<Node> = self.table.get_or_alloc(key as usize, block).get();
        // SAFETY: no other thread knows the key yet.
        let node = unsafe { (*node).write(Node::new(stocks_of(key))) };
        // ORDERING: Release; pairs with the Acquire in `get`.
        self.end.store(key + 1, Release);
        node
    }

    /// The number of nodes: the largest number of accounts, orphans included, that existed at once.
    pub(super) fn len(&self) -> usize {
        self.end.load(Relaxed) as usize - 1
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Node> {
        (1..self.end.load(Acquire)).filter_map(|key| self.get(key))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let end = self.end.load(Relaxed);
        for node in self.table.iter().take(end as usize).skip(1) {
            // SAFETY: written in `push`, dropped once.
            unsafe { (*node.get()).assume_init_drop() };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stock::Stocks;

    #[test]
    fn a_node_takes_384_bytes() {
        assert_eq!((size_of::<Node>(), align_of::<Node>()), (384, 128));
    }

    #[test]
    fn nodes_do_not_move() {
        let (nodes, table) = (Nodes::new(), crate::stock::AtomicStocks::new(1));
        assert!(nodes.get(0).is_none() && nodes.get(1).is_none());
        let addresses: Vec<*const Node> =
            (0..1000).map(|_| std::ptr::from_ref(nodes.push(|key| table.stock_addr(key)))).collect();
        for (key, address) in (1..).zip(addresses) {
            let node = nodes.get(key).unwrap();
            assert!(node.key() == key && std::ptr::eq(node, address));
        }
        assert_eq!(nodes.all().count(), 1000);
    }
}
