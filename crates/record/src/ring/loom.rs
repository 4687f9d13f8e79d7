//! The model of a ring of four records: one thread pushes more than fit, another drains.

use super::*;
use ::loom::{model, sync::Arc, thread};

/// Fails if one of the orderings of `head` and `tail` is Relaxed: a record would be read before it is written, or
/// overwritten before it is read.
#[test]
fn what_is_pushed_is_drained() {
    model(|| {
        let ring = Arc::new(Ring::new());
        let pushes = thread::spawn({
            let ring = ring.clone();
            move || {
                let producer = Producer::new();
                let mut pushed = 0;
                for word in 1..=5 {
                    let has_room = producer.has_room() || {
                        let (Room::For(free) | Room::Half(free)) = producer.make_room(&ring);
                        free > 0
                    };
                    if has_room {
                        producer.push(&ring, [word, 0, 0, 0, word]);
                        pushed += 1;
                    }
                }
                ring.close();
                pushed
            }
        });
        let mut drained = Vec::new();
        let mut take = |record: Record| {
            assert_eq!(record[0], record[4], "a record of two pushes");
            drained.push(record[0]);
        };
        ring.drain(&mut take);
        let is_closed = ring.is_closed();
        ring.drain(&mut take);
        let pushed = pushes.join().unwrap();
        let left = ring.drain(&mut take);
        assert!(!is_closed || left == 0, "closed, and yet {left} records came");
        assert!(drained.is_sorted() && !drained.contains(&0), "{drained:?}");
        assert_eq!(drained.len(), pushed);
    });
}
