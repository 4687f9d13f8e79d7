use super::*;

fn push(ring: &Ring, producer: &Producer, word: u32) -> Option<Room> {
    let room = (!producer.has_room()).then(|| producer.make_room(ring));
    if room != Some(Room::Half(0)) {
        producer.push(ring, [word; 5]);
    }
    room
}

#[test]
fn a_ring_holds_its_capacity_and_is_used_again_after_a_drain() {
    let (ring, producer) = (Ring::new(), Producer::new());
    for round in 0..3 {
        let rooms: Vec<_> = (0..=CAPACITY).filter_map(|word| push(&ring, &producer, word)).collect();
        assert_eq!(rooms.last(), Some(&Room::Half(0)), "round {round}");
        assert!(rooms.contains(&Room::Half(CAPACITY / 2)), "{rooms:?}");
        let mut next = 0;
        let drained = ring.drain(|record| {
            assert_eq!(record, [next; 5]);
            next += 1;
        });
        assert_eq!((drained, next), (CAPACITY, CAPACITY));
        assert_eq!(ring.drain(|record| panic!("{record:?} is left")), 0);
    }
}

#[test]
fn two_threads_move_a_million_records_in_order() {
    let ring = std::sync::Arc::new(Ring::new());
    let pushes = std::thread::spawn({
        let ring = ring.clone();
        move || {
            let producer = Producer::new();
            for word in 0..1_000_000 {
                while !producer.has_room() && producer.make_room(&ring) == Room::Half(0) {
                    std::thread::yield_now();
                }
                producer.push(&ring, [word; 5]);
            }
            ring.close();
        }
    });
    let mut next = 0;
    loop {
        let is_last = ring.is_closed();
        ring.drain(|record| {
            assert_eq!(record, [next; 5]);
            next += 1;
        });
        if is_last {
            break;
        }
        std::thread::yield_now();
    }
    pushes.join().unwrap();
    assert_eq!(next, 1_000_000);
}
