use super::*;
use crate::file::BlockFile;
use crate::format::{BlockKind, OF_WARMCORE};
use crate::ring::CAPACITY;
use crate::{Event, Header, Recording, TextLine};
use proptest::prelude::*;

impl Local {
    fn at(base: u64) -> Self {
        Self {
            ring: Arc::new(Ring::new()),
            producer: Producer::new(),
            base: Cell::new(base),
            gap: Cell::new((0, 0)),
            worker: Cell::new(NOT_KNOWN),
        }
    }

    fn push_worker(&self, at: u64, worker: u32) {
        self.push(0, at, [worker, 0], tag(RecordKind::Worker, NO_CPU, NO_CPU, 0));
    }

    fn drain(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        self.ring.drain(|record| record.iter().for_each(|word| payload.extend(word.to_le_bytes())));
        payload
    }
}

/// Reads blocks of records, with the base of the first.
fn read(base: u64, payloads: &[Vec<u8>]) -> Vec<Event> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let header = Header { ns_per_stamp_q32: 1 << 32, ..Header::default() }.to_string();
    let mut file = BlockFile::create(&path, 1, 1 << 30, &header).unwrap();
    let line = TextLine::Thread(0, 1, String::new()).to_string();
    file.append(BlockKind::Text, 0, 0, line.as_bytes()).unwrap();
    payloads.iter().for_each(|payload| file.append(BlockKind::Records, 0, base, payload).unwrap());
    file.flush().unwrap();
    let mut recording = Recording::open(&path).unwrap();
    std::iter::from_fn(|| recording.next_event().unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Times go back where a poll encloses other records, and far ahead where a thread sleeps.
    #[test]
    fn what_is_pushed_is_read_back(
        base in 0..1_u64 << 60,
        steps in prop::collection::vec(prop_oneof![-100_000..100_000_i64, -1_i64 << 40..1 << 40], 0..300),
    ) {
        let local = Local::at(base);
        let mut at = base;
        let mut pushed = Vec::new();
        for (worker, step) in (0..).zip(steps) {
            at = at.saturating_add_signed(step);
            local.push_worker(at, worker);
            pushed.push((worker, at));
        }
        let events = read(base, &[local.drain()]);
        let mut found: Vec<(u32, u64)> = events
            .into_iter()
            .map(|event| match event {
                Event::Worker { at, worker: Some(worker), .. } => (worker, at),
                other => panic!("{other:?}"),
            })
            .collect();
        found.sort_unstable();
        prop_assert_eq!(found, pushed);
    }
}

#[test]
fn records_that_find_no_room_are_counted_in_a_gap() {
    let local = Local::at(0);
    let pushed = u64::from(CAPACITY) + 1000;
    (0..pushed).for_each(|at| local.push_worker(at, 1));
    let dropped = local.ring.dropped.load(Relaxed);
    assert!((1000..1000 + u64::from(ROOM_AFTER_GAP)).contains(&dropped), "{dropped}");
    let first = local.drain();
    local.push_worker(1_000_000, 2);
    let events = read(0, &[first, local.drain()]);
    let gaps: Vec<&Event> = events.iter().filter(|event| matches!(event, Event::Gap { .. })).collect();
    // It ends when there is room again, and not at the time of the next record.
    let [&Event::Gap { thread: 0, from, to, records }] = gaps[..] else { panic!("{gaps:?}") };
    assert_eq!((from, records), (pushed - dropped, dropped));
    assert!(to > from);
    assert_eq!(events.len() as u64, pushed - dropped + 2);
}

#[test]
fn a_worker_is_recorded_when_it_changes() {
    let local = Local::at(clock::stamp());
    [3, 3, 4, NOT_KNOWN, NOT_KNOWN, 3].into_iter().for_each(|worker| local.set_worker(worker, OF_WARMCORE));
    let events = read(local.base.get(), &[local.drain()]);
    let workers: Vec<Option<u32>> = events
        .into_iter()
        .map(|event| match event {
            Event::Worker { worker, .. } => worker,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(workers, [Some(3), Some(4), None, Some(3)]);
}
