//! What a queue keeps, and what it forgets.

use super::*;

struct Item(u64);

impl Entry for Item {
    fn share(&self) -> Share {
        Share { tenant: self.0, weight: 100 }
    }

    fn is_pinned(&self) -> bool {
        false
    }
}

/// Four tenants wait; one of them comes and is pulled away again, for ever.
#[test]
fn a_class_that_others_empty_leaves_nothing_behind() {
    let mut queue = Queue::new();
    (0..4).for_each(|tenant| (0..2).for_each(|_| queue.push(Item(tenant))));
    for _ in 0..10_000 {
        queue.push(Item(9));
        assert!(queue.take(false, |item| item.0 == 9).is_some());
    }
    assert!(queue.waiting.len() <= 4 * queue.classes.len() + 1, "{} wait", queue.waiting.len());
    let mut left = Vec::new();
    while let Some(item) = queue.pop(0, || Turn::Forth) {
        left.push(item.0);
    }
    left.sort();
    assert_eq!(left, [0, 0, 1, 1, 2, 2, 3, 3]);
}
