//! Event: a queue of events in a deterministic order.
//!
//! A heap with four children per node. Its order is (time, class, sequence), which is stored in two words and compared
//! as one number. Of two events at the same time the one with the lower class comes first, and of two in one class the
//! one that was pushed first. Removing the top leaves a hole for the next push, since most events push another one. An
//! event of 8 bytes takes 24; the four children of a node are on two or three cache lines.
//!
//! # Source
//!
//! `benches/event.rs` compares with `BinaryHeap`, which was slower above some hundreds of events. Calendar queues,
//! which that bench no longer has, were slower above some thousands.

use warmcore_types::Nanos;

/// Children of a node.
const ARITY: usize = 4;

/// Bits of [`Entry::order`] for the sequence; the rest is the class.
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
    /// The time.
    pub at: Nanos,
    /// Its class.
    pub class: u8,
    /// What was pushed.
    pub what: T,
}

/// Events, by the time at which they are due.
#[derive(Debug, Clone)]
pub struct Events<T> {
    heap: Vec<Entry<T>>,
    pushes: u64,
    /// Whether `heap[0]` was removed.
    has_hole: bool,
}

impl<T: Copy> Default for Events<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> Events<T> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { heap: Vec::new(), pushes: 0, has_hole: false }
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.heap.len() - usize::from(self.has_hole)
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.heap.capacity() * size_of::<Entry<T>>()
    }

    /// Adds an event.
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

    /// When the next event is due.
    #[inline]
    pub fn next_at(&mut self) -> Option<Nanos> {
        self.fill();
        self.heap.first().map(|entry| Nanos(entry.at))
    }

    /// Removes the next event if it is due by `until`.
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

    /// Removes the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<Due<T>> {
        self.pop_until(Nanos(u64::MAX))
    }

    /// Fills the hole, if there is one, with the last event.
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

    /// Moves an event down from the root.
    #[inline]
    fn sink(&mut self, entry: Entry<T>) {
        let (heap, key) = (self.heap.as_mut_slice(), entry.key());
        let mut at = 0;
        loop {
            let first = at * ARITY + 1;
            let (least, least_key) = if let Some(children) = heap.get(first..first + ARITY) {
                // The smallest of four in two rounds: the comparisons of the first round are independent.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn of_two_events_at_the_same_time_the_lower_class_comes_first_then_the_earlier_push() {
        let mut events = Events::new();
        for (class, what) in [(1, 'c'), (0, 'a'), (1, 'd'), (0, 'b')] {
            events.push(Nanos(5), class, what);
        }
        events.push(Nanos(4), 9, 'z');
        let all: String = std::iter::from_fn(|| events.pop()).map(|due| due.what).collect();
        assert_eq!(all, "zabcd");
    }

    #[test]
    fn an_event_that_is_due_later_stays() {
        let mut events = Events::new();
        events.push(Nanos(10), 0, ());
        assert_eq!(events.pop_until(Nanos(9)), None);
        assert_eq!((events.len(), events.next_at()), (1, Some(Nanos(10))));
        assert!(events.pop_until(Nanos(10)).is_some() && events.is_empty() && events.next_at().is_none());
    }

    proptest! {
        #[test]
        fn it_pops_as_a_sorted_map_does(ops in proptest::collection::vec(proptest::option::of((0u64..50, 0u8..3)), 0..400)) {
            let (mut events, mut map) = (Events::new(), BTreeMap::new());
            for (n, op) in ops.into_iter().enumerate() {
                match op {
                    Some((at, class)) => {
                        events.push(Nanos(at), class, n);
                        map.insert((at, class, n), n);
                    }
                    None => {
                        let due = events.pop().map(|due| (due.at.0, due.class, due.what));
                        prop_assert_eq!(due, map.pop_first().map(|(key, _)| key));
                    }
                }
                prop_assert_eq!(events.len(), map.len());
            }
        }
    }
}
