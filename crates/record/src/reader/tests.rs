//! Tests of the reader: bytes made by the functions of `format`, then cut and damaged.

use super::*;

/// The bytes of a file, block by block.
struct Bytes(Vec<u8>);

impl Bytes {
    fn new() -> Self {
        Self::with_text(&Header { ns_per_stamp_q32: 5 << 32, pid: 1, ..Header::default() }.to_string())
    }

    fn with_text(text: &str) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(checksum(CHECKSUM_START, text.as_bytes()).to_le_bytes());
        bytes.extend(text.as_bytes());
        Self(bytes)
    }

    fn block(&mut self, kind: BlockKind, thread: u16, stamp: u64, payload: &[u8]) -> &mut Self {
        self.0.extend(BlockHeader::new(kind, thread, stamp, payload).to_bytes());
        self.0.extend(payload);
        self
    }

    fn text(&mut self, lines: &[TextLine]) -> &mut Self {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.block(BlockKind::Text, 0, 0, text.as_bytes())
    }

    fn threads(&mut self, threads: u16) -> &mut Self {
        let line = |index| TextLine::Thread(index, 100 + u32::from(index), format!("worker-{index}"));
        self.text(&(0..threads).map(line).collect::<Vec<_>>())
    }

    fn records(&mut self, thread: u16, base: u64, records: &[Record]) -> &mut Self {
        let payload: Vec<u8> = records.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        self.block(BlockKind::Records, thread, base, &payload)
    }

    fn round(&mut self, stamp: u64) -> &mut Self {
        self.block(BlockKind::Round, 0, stamp, &[])
    }
}

fn poll(task: u32, start: u32, duration: u32) -> Record {
    [task, start, duration, NOT_KNOWN, tag(RecordKind::Poll, 3, NO_CPU, 0)]
}

/// The events, and how the reading ended.
fn read(bytes: &[u8]) -> (Vec<Event>, Option<ReadError>, Option<u64>) {
    let mut recording = match Recording::new(bytes) {
        Ok(recording) => recording,
        Err(error) => return (Vec::new(), Some(error), None),
    };
    let (mut events, mut failed) = (Vec::new(), None);
    loop {
        match recording.next_event() {
            Ok(Some(event)) => events.push(event),
            Ok(None) => return (events, failed, recording.cut()),
            Err(error) => assert!(failed.replace(error).is_none(), "a second error"),
        }
    }
}

/// The tasks of the polls, in the order in which they are returned.
fn polled(events: &[Event]) -> Vec<u32> {
    let task = |event: &Event| match event {
        Event::Poll(poll) => Some(poll.task),
        _ => None,
    };
    events.iter().filter_map(task).collect()
}

#[test]
fn polls_of_several_threads_are_in_the_order_of_their_ends() {
    let mut bytes = Bytes::new();
    bytes.threads(2);
    bytes.records(0, 1000, &[poll(1, 0, 10), poll(3, 40, 10)]);
    bytes.records(1, 900, &[poll(0, 0, 105), poll(2, 100, 20)]);
    bytes.round(2000);
    assert_eq!(polled(&read(&bytes.0).0), [0, 1, 2, 3]);
}

#[test]
fn a_poll_that_ended_after_its_round_began_waits_for_the_next_round() {
    let mut bytes = Bytes::new();
    bytes.threads(2);
    // Thread 1 wrote its poll of 1010 after the writer had passed over thread 0, whose poll of 1005 comes a round later.
    bytes.records(1, 1000, &[poll(2, 0, 10)]).round(1002);
    bytes.records(0, 1000, &[poll(1, 0, 5)]).round(1020);
    assert_eq!(polled(&read(&bytes.0).0), [1, 2]);
    // Without the second round the first poll is still returned at the end.
    let mut bytes = Bytes::new();
    bytes.threads(2).records(1, 1000, &[poll(2, 0, 10)]).round(1002);
    assert_eq!(polled(&read(&bytes.0).0), [2]);
}

#[test]
fn a_record_says_all_that_it_can() {
    let far = 1 << 40;
    let location = Location { file: "src/main.rs".to_owned(), line: 3, column: 5 };
    let key = 0x7F12_3456_789A;
    let mut bytes = Bytes::new();
    bytes.threads(1).text(&[TextLine::Location(key, location.clone()), TextLine::Name(4, "name".to_owned())]);
    let flags = IS_LAST | WOKEN_IN_POLL | CHANGED_CPU;
    bytes.records(
        0,
        0,
        &[
            [0, 0, far as u32, (far >> 32) as u32, tag(RecordKind::Base, NO_CPU, NO_CPU, 0)],
            [7, 1, key as u32, (key >> 32) as u32, tag(RecordKind::Spawn, 8190, NO_CPU, 0)],
            [7, 1, 4, 0, tag(RecordKind::Name, NO_CPU, NO_CPU, 0)],
            [0, 2, 1, OF_WARMCORE, tag(RecordKind::Worker, NO_CPU, NO_CPU, 0)],
            [7, 9, 20, 5, tag(RecordKind::Poll, 2, 0, flags)],
            [8, 29, 0, 0, tag(RecordKind::Drop, NO_CPU, NO_CPU, 0)],
            [0, 30, 6, 77, tag(RecordKind::Gap, NO_CPU, NO_CPU, 0)],
            [0, 40, NOT_KNOWN, 0, tag(RecordKind::Worker, NO_CPU, NO_CPU, 0)],
        ],
    );
    bytes.round(2 * far).block(BlockKind::End, 0, 0, b"it ended");
    let (events, failed, cut) = read(&bytes.0);
    let expected = Poll {
        task: 7,
        thread: 0,
        cpu: Some(CpuId(2)),
        start: far + 9,
        duration: 20,
        woken_at: Some(far + 4),
        waker_cpu: Some(CpuId(0)),
        is_last: true,
        woken_in_poll: true,
        changed_cpu: true,
    };
    let spawn = Spawn { task: 7, thread: 0, at: far + 1, location: 0, cpu: Some(CpuId(8190)) };
    assert_eq!(
        events,
        [
            Event::Spawn(spawn),
            Event::Name { task: 7, name: 0 },
            Event::Worker { thread: 0, at: far + 2, worker: Some(1), is_warmcore: true },
            Event::Poll(expected),
            Event::Drop { task: 8, thread: 0, at: far + 29 },
            Event::Gap { thread: 0, from: far + 30, to: far + 36, records: 77 },
            Event::Worker { thread: 0, at: far + 40, worker: None, is_warmcore: false },
            Event::End { why: "it ended".to_owned() },
        ]
    );
    assert!(failed.is_none() && cut.is_none());
    let mut recording = Recording::new(&*bytes.0).unwrap();
    while recording.next_event().unwrap().is_some() {}
    assert_eq!((recording.location(0), recording.name(0)), (&location, "name"));
    assert_eq!(recording.threads(), [Thread { tid: 100, name: "worker-0".to_owned() }]);
    assert_eq!(recording.header().ns(3), 15);
}

#[test]
fn a_file_that_is_cut_anywhere_is_read_up_to_its_last_whole_block() {
    let mut bytes = Bytes::new();
    let begins = bytes.0.len();
    bytes.threads(1);
    let mut whole = vec![(begins, 0), (bytes.0.len(), 0)];
    for round in 0..4 {
        bytes.records(0, u64::from(round) * 100, &[poll(round, 0, 10)]);
        whole.push((bytes.0.len(), round as usize + 1));
        bytes.round(u64::from(round) * 100 + 50);
        whole.push((bytes.0.len(), round as usize + 1));
    }
    for length in begins..=bytes.0.len() {
        let (events, failed, cut) = read(&bytes.0[..length]);
        let (last, polls) = whole.iter().rev().find(|(end, _)| *end <= length).unwrap();
        assert!(failed.is_none(), "{failed:?}");
        assert_eq!(
            (polled(&events).len(), cut),
            (*polls, Some((length - last) as u64).filter(|cut| *cut > 0))
        );
    }
    for length in 0..begins {
        let error =
            read(&bytes.0[..length]).1.expect("a file without a whole header is an error").to_string();
        let expected = if length < 8 { "not a recording" } else { "ends after" };
        assert!(error.contains(expected), "{length}: {error}");
    }
}

#[test]
fn a_damaged_block_is_an_error_that_names_its_place_after_the_events_before_it() {
    let mut bytes = Bytes::new();
    bytes.threads(1).records(0, 100, &[poll(1, 0, 10)]).round(200);
    let block = bytes.0.len();
    bytes.records(0, 300, &[poll(2, 0, 10)]).round(400);
    for damaged in [block, block + 4, block + 9, block + 17, block + BLOCK_HEADER_BYTES + 3] {
        let mut bytes = bytes.0.clone();
        bytes[damaged] ^= 0x55;
        let (events, failed, _) = read(&bytes);
        assert_eq!(polled(&events), [1], "byte {damaged}");
        // A damaged length may look like a file that is cut.
        if let Some(error) = failed {
            assert!(
                error.is_damaged() && error.to_string().contains(&format!("at byte {block}:")),
                "{error}"
            );
        }
    }
}

#[test]
fn what_is_no_recording_or_of_another_version_is_refused_in_words() {
    let message = |bytes: &[u8]| read(bytes).1.expect("it is refused").to_string();
    assert!(message(b"").contains("not a recording"));
    assert!(message(b"\x7fELF\x02\x01\x01 and more than that").contains("WARMCORE_RECORD=FILE"));
    let mut later = Bytes::new().0;
    later[8] = 9;
    assert!(message(&later).contains("version 9") && message(&later).contains("reads version 1"));
    let mut header = Bytes::new().0;
    header[HEADER_BYTES + 1] ^= 1;
    assert!(message(&header).contains("checksum"), "{}", message(&header));
    assert!(message(&Bytes::with_text("pid 1\n").0).contains("unit of time"));
}

#[test]
fn records_that_refer_to_nothing_are_damage() {
    let damage = |act: &dyn Fn(&mut Bytes)| {
        let mut bytes = Bytes::new();
        bytes.threads(1);
        act(&mut bytes);
        let error = read(&bytes.0).1.expect("it is damaged");
        assert!(error.is_damaged());
        error.to_string()
    };
    let records = |bytes: &mut Bytes, thread, record| {
        bytes.records(thread, 0, &[record]);
    };
    let spawn = [1, 0, 5, 0, tag(RecordKind::Spawn, 0, 0, 0)];
    assert!(damage(&|bytes| records(bytes, 0, spawn)).contains("location 5"));
    let name = [1, 0, 6, 0, tag(RecordKind::Name, 0, 0, 0)];
    assert!(damage(&|bytes| records(bytes, 0, name)).contains("name 6"));
    assert!(damage(&|bytes| records(bytes, 1, poll(0, 0, 0))).contains("thread 1"));
    assert!(damage(&|bytes| records(bytes, 0, [0, 0, 0, 0, u32::MAX])).contains("unknown kind"));
    let base = [0, 0, u32::MAX, u32::MAX, tag(RecordKind::Base, 0, 0, 0)];
    assert!(
        damage(&|bytes| {
            bytes.records(0, 0, &[base, poll(0, 1, 0)]);
        })
        .contains("does not fit")
    );
    let line = "thread 5 1 name\n";
    assert!(
        damage(&|bytes| {
            bytes.block(BlockKind::Text, 0, 0, line.as_bytes());
        })
        .contains("thread 5")
    );
}
