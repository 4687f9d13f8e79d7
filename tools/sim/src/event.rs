//! Event: what happens next, in an order that never depends on chance.
//!
//! Model.   A heap of four children per node, ordered by (time, class, sequence): two words, compared as one number.
//!          Of two that are due at the same time the lower class comes first, and within a class who was put in
//!          first. A taken top leaves a hole that the next push fills: mostly an event brings about another.
//! Number.  24 bytes an event of 8; the four children of a node lie on two lines.
//! Writers. Its owner: there are no threads in a simulation.
//! Source.  Calendar queues were slower above some thousands pending, `BinaryHeap` from some hundreds on
//!          (`benches/event.rs` has both sides).

use warmcore_types::Nanos;

#[cfg(test)]
mod tests;

/// Children of a node.
const ARITY: usize = 4;

/// Bits of a key's second word that count pushes; the rest is the class.
const SEQUENCE_BITS: u32 = 56;

#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    at: u64,
    /// Class and sequence.
    order: u64,
    what: T,
}

impl<T> Entry<T> {
    #[inline(always)]
    fn key(&self) -> u128 {
        u128::from(self.at) << 64 | u128::from(self.order)
    }
}

/// An event that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due<T> {
    /// When.
    pub at: Nanos,
    /// Its class.
    pub class: u8,
    /// What was put in.
    pub what: T,
}

/// Events, by the time at which they are due.
#[derive(Debug, Clone)]
pub struct Events<T> {
    heap: Vec<Entry<T>>,
    pushes: u64,
    /// `heap[0]` was taken.
    has_hole: bool,
}

impl<T: Copy> Default for Events<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> Events<T> {
    /// Without any.
    pub fn new() -> Self {
        Self { heap: Vec::new(), pushes: 0, has_hole: false }
    }

    /// How many are pending.
    pub fn len(&self) -> usize {
        self.heap.len() - usize::from(self.has_hole)
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it has allocated.
    pub fn bytes(&self) -> usize {
        self.heap.capacity() * size_of::<Entry<T>>()
    }

    /// Puts one in.
    #[inline]
    pub fn push(&mut self, at: Nanos, class: u8, what: T) {
        let order = u64::from(class) << SEQUENCE_BITS | self.pushes;
        self.pushes += 1;
        let entry = Entry { at: at.0, order, what };
        if std::mem::take(&mut self.has_hole) {
            self.sink(entry);
        } else {
            self.heap.push(entry);
            self.rise(self.heap.len() - 1, entry);
        }
    }

    /// When the next one is due.
    #[inline]
    pub fn next_at(&mut self) -> Option<Nanos> {
        self.fill();
        self.heap.first().map(|entry| Nanos(entry.at))
    }

    /// The next one, if it is due by `until`.
    #[inline]
    pub fn pop_until(&mut self, until: Nanos) -> Option<Due<T>> {
        self.fill();
        let Entry { at, order, what } = *self.heap.first()?;
        if at > until.0 {
            return None;
        }
        self.has_hole = true;
        Some(Due { at: Nanos(at), class: (order >> SEQUENCE_BITS) as u8, what })
    }

    /// The next one.
    #[inline]
    pub fn pop(&mut self) -> Option<Due<T>> {
        self.pop_until(Nanos(u64::MAX))
    }

    /// Nobody filled the hole: the last one does.
    #[inline]
    fn fill(&mut self) {
        if std::mem::take(&mut self.has_hole)
            && let Some(last) = self.heap.pop()
            && !self.heap.is_empty()
        {
            self.sink(last);
        }
    }

    #[inline]
    fn rise(&mut self, mut at: usize, entry: Entry<T>) {
        let key = entry.key();
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.heap[parent].key() <= key {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = entry;
    }

    /// From the root down.
    #[inline]
    fn sink(&mut self, entry: Entry<T>) {
        let (heap, key) = (self.heap.as_mut_slice(), entry.key());
        let mut at = 0;
        loop {
            let first = at * ARITY + 1;
            let (least, least_key) = if let Some(children) = heap.get(first..first + ARITY) {
                // Of four, in two rounds: the comparisons of the first don't wait for each other.
                let keys = [children[0].key(), children[1].key(), children[2].key(), children[3].key()];
                let (left, right) = (usize::from(keys[1] < keys[0]), 2 + usize::from(keys[3] < keys[2]));
                let least = if keys[right] < keys[left] { right } else { left };
                (first + least, keys[least])
            } else {
                let rest = heap.iter().enumerate().skip(first).map(|(i, entry)| (i, entry.key()));
                match rest.min_by_key(|(_, key)| *key) {
                    Some(least) => least,
                    None => break,
                }
            };
            if key <= least_key {
                break;
            }
            heap[at] = heap[least];
            at = least;
        }
        heap[at] = entry;
    }
}
