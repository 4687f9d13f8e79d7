//! The nodes of all accounts, by key. Nodes do not move.

use super::node::Node;
use crate::stock::{KEYS_END, Key, StockAddr};
use crate::sync::{AtomicPtr, AtomicU32, Mutex, Ordering::*};
use warmcore_types::ignore_poison;

/// Chunk `c` has `FIRST << c` nodes: a key leads to its chunk by its highest bit.
const FIRST: u32 = 64;
const CHUNKS: usize = (KEYS_END / FIRST).ilog2() as usize + 1;

/// A list that only grows and whose members do not move.
#[derive(Debug)]
pub(super) struct Nodes {
    /// The chunks' memory. The nodes of keys below `end` are initialised.
    chunks: [AtomicPtr<Node>; CHUNKS],
    /// Keys from 1 to below this have a node.
    end: AtomicU32,
    growing: Mutex<()>,
}

/// The chunk of a key, and the index in it.
fn position(key: Key) -> (usize, usize) {
    let chunk = (key / FIRST + 1).ilog2();
    (chunk as usize, (key - FIRST * ((1 << chunk) - 1)) as usize)
}

fn layout(chunk: usize) -> std::alloc::Layout {
    std::alloc::Layout::array::<Node>((FIRST as usize) << chunk).expect("a chunk is some gigabytes at most")
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self {
            chunks: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
            end: AtomicU32::new(1),
            growing: Mutex::new(()),
        }
    }

    /// The node of a key, if there is one. No account has key 0.
    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Node> {
        // ORDERING: Acquire; pairs with the Release in `push`: the node is there.
        if key == 0 || key >= self.end.load(Acquire) {
            return None;
        }
        let (chunk, at) = position(key);
        // SAFETY: the chunk was stored, and the node written, before `end` came above its key; neither
        // goes away before `self` does.
        Some(unsafe { &*self.chunks[chunk].load(Relaxed).add(at) })
    }

    /// Adds a node with the next key. Panics at 2^24.
    pub(super) fn push(&self, stocks_of: impl FnOnce(Key) -> StockAddr) -> &Node {
        let _growing = ignore_poison(self.growing.lock());
        let key = self.end.load(Relaxed);
        assert!(key < KEYS_END, "{key} accounts at once; no more are possible");
        let (chunk, at) = position(key);
        if self.chunks[chunk].load(Relaxed).is_null() {
            // SAFETY: the layout is not empty. Nodes are written one by one, so a large chunk costs
            // memory as it is used.
            let memory = unsafe { std::alloc::alloc(layout(chunk)) };
            if memory.is_null() {
                std::alloc::handle_alloc_error(layout(chunk));
            }
            self.chunks[chunk].store(memory.cast(), Relaxed);
        }
        // SAFETY: inside the chunk, and no other thread knows the key yet.
        unsafe { self.chunks[chunk].load(Relaxed).add(at).write(Node::new(stocks_of(key))) };
        // ORDERING: Release; pairs with the Acquire in `get`.
        self.end.store(key + 1, Release);
        self.get(key).expect("it was just made")
    }

    /// The largest number of accounts that existed at once.
    pub(super) fn len(&self) -> usize {
        self.end.load(Relaxed) as usize - 1
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Node> {
        (1..self.end.load(Acquire)).filter_map(|key| self.get(key))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for key in 1..self.end.load(Relaxed) {
            let (chunk, at) = position(key);
            // SAFETY: written in `push`, dropped once.
            unsafe { self.chunks[chunk].load(Relaxed).add(at).drop_in_place() };
        }
        for (chunk, memory) in self.chunks.iter().enumerate() {
            let memory = memory.load(Relaxed);
            if !memory.is_null() {
                // SAFETY: allocated in `push` with the same layout.
                unsafe { std::alloc::dealloc(memory.cast(), layout(chunk)) };
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stock::Stocks;

    #[test]
    fn every_key_has_a_position_of_its_own() {
        let mut expected = (0, 0);
        for key in 0..100_000 {
            assert_eq!(position(key), expected, "{key}");
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(position(KEYS_END - 1).0 < CHUNKS);
    }

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
