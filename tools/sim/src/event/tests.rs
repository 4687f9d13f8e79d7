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
