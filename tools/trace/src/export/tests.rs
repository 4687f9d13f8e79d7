//! Tests of the exports: a recording of known polls is written, read back with the definitions of the other program, and
//! compared.
//!
//! `perfetto.desc` has Perfetto's own definitions of the messages in a trace: a `FileDescriptorSet` from its Python package
//! 0.59.1 (Apache-2.0), without the messages that no export has and the fields of their types.

use super::*;
use dial9_trace_format::decoder::Decoder;
use dial9_trace_format::types::FieldValueRef;
use prost_reflect::{DescriptorPool, DynamicMessage, Value};
use std::collections::BTreeMap;
use warmcore_record::format::*;
use warmcore_record::{Header, Location, TextLine};

/// A poll of the test: thread, task, CPU, start, end, CPU of the waker and time of the wake.
struct Known {
    thread: u16,
    task: u32,
    cpu: u32,
    start: u32,
    end: u32,
    wake: Option<(u32, u32)>,
    previous: Option<u32>,
}

const fn known(
    thread: u16,
    task: u32,
    cpu: u32,
    start: u32,
    end: u32,
    wake: Option<(u32, u32)>,
    previous: Option<u32>,
) -> Known {
    Known { thread, task, cpu, start, end, wake, previous }
}

/// In the order of their ends. The third is within the fourth, the fifth overlaps the sixth on CPU 2.
const POLLS: [Known; 7] = [
    known(0, 1, 0, 10, 20, Some((3, 5)), None),
    known(0, 1, 0, 20, 30, None, Some(0)),
    known(1, 2, 2, 50, 60, Some((0, 40)), None),
    known(1, 1, 2, 45, 70, Some((1, 44)), Some(0)),
    known(0, 2, 2, 80, 95, Some((1, 75)), Some(2)),
    known(1, 1, 2, 90, 99, None, Some(2)),
    known(1, 2, 1, 120, 130, Some((1, 119)), None), // after a gap
];
const NS_PER_STAMP: u64 = 5;
const START: u64 = 1000;

fn recording() -> Vec<u8> {
    let header = Header {
        pid: 77,
        command: "a <server>".to_owned(),
        start: START,
        started_unix_ns: 1_700_000_000_000_000_000,
        ns_per_stamp_q32: NS_PER_STAMP << 32,
        cpus: Vec::new(),
    };
    let text = header.to_string();
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(checksum(CHECKSUM_START, text.as_bytes()).to_le_bytes());
    bytes.extend(text.as_bytes());
    let mut block = |kind, thread, payload: &[u8]| {
        bytes.extend(BlockHeader::new(kind, thread, START, payload).to_bytes());
        bytes.extend(payload);
    };
    let lines = [
        TextLine::Thread(0, 100, "worker-0".to_owned()),
        TextLine::Thread(1, 101, "worker-1".to_owned()),
        TextLine::Location(9, Location { file: "src/main.rs".to_owned(), line: 4, column: 2 }),
        TextLine::Name(6, "accept \"loop\"".to_owned()),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    block(BlockKind::Text, 0, lines.as_bytes());
    for thread in [0, 1] {
        let mut records: Vec<Record> = Vec::new();
        if thread == 0 {
            records.push([1, 1, 9, 0, tag(RecordKind::Spawn, 3, NO_CPU, 0)]);
            records.push([2, 2, 9, 0, tag(RecordKind::Spawn, 3, NO_CPU, 0)]);
            records.push([2, 3, 6, 0, tag(RecordKind::Name, 3, NO_CPU, 0)]);
        }
        let mut has_gap = false;
        for poll in POLLS.iter().filter(|poll| poll.thread == thread) {
            if poll.start > 100 && !has_gap {
                records.push([0, 100, 10, 4, tag(RecordKind::Gap, NO_CPU, NO_CPU, 0)]);
                has_gap = true;
            }
            let (waker, delay) = poll.wake.map_or((NO_CPU, NOT_KNOWN), |(cpu, at)| (cpu, poll.start - at));
            let flags = if poll.end == 130 { IS_LAST } else { 0 };
            let word = tag(RecordKind::Poll, poll.cpu, waker, flags);
            records.push([poll.task, poll.start, poll.end - poll.start, delay, word]);
        }
        if thread == 1 {
            records.push([1, 140, 0, 0, tag(RecordKind::Drop, NO_CPU, NO_CPU, 0)]);
        }
        let payload: Vec<u8> = records.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        block(BlockKind::Records, thread, &payload);
    }
    block(BlockKind::Round, 0, &[]);
    block(BlockKind::End, 0, b"the runtime was shut down");
    bytes
}

fn ns(stamps: u32) -> u64 {
    u64::from(stamps) * NS_PER_STAMP
}

fn name_of(task: u32) -> &'static str {
    if task == 2 { "accept \"loop\"" } else { "src/main.rs:4:2" }
}

fn packets(limits: &Limits) -> (Vec<DynamicMessage>, Exported) {
    let mut bytes = Vec::new();
    let recorded = recording();
    let mut recording = Recording::new(&recorded[..]).unwrap();
    let done = perfetto(&mut recording, &mut bytes, limits).unwrap();
    let pool = DescriptorPool::decode(&include_bytes!("perfetto.desc")[..]).unwrap();
    let trace = pool.get_message_by_name("perfetto.protos.Trace").unwrap();
    let trace = DynamicMessage::decode(trace, &bytes[..]).unwrap();
    assert_eq!(trace.unknown_fields().count(), 0);
    let packets = trace.get_field_by_name("packet").unwrap().as_list().unwrap().to_vec();
    (packets.iter().map(|packet| packet.as_message().unwrap().clone()).collect(), done)
}

fn get(message: &DynamicMessage, name: &str) -> Option<Value> {
    message.has_field_by_name(name).then(|| message.get_field_by_name(name).unwrap().into_owned())
}

fn number(message: &DynamicMessage, name: &str) -> Option<u64> {
    get(message, name).map(|value| match value {
        Value::U64(value) => value,
        Value::U32(value) => u64::from(value),
        Value::I32(value) => value as u64,
        Value::EnumNumber(value) => value as u64,
        other => panic!("{name} is {other:?}"),
    })
}

fn list(message: &DynamicMessage, name: &str) -> Vec<DynamicMessage> {
    let values = get(message, name).map(|value| value.as_list().unwrap().to_vec()).unwrap_or_default();
    values.iter().map(|value| value.as_message().unwrap().clone()).collect()
}

fn text(message: &DynamicMessage, name: &str) -> String {
    get(message, name).unwrap().as_str().unwrap().to_owned()
}

/// A slice as a viewer would make it of its track's events.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Slice {
    row: String,
    start: u64,
    end: u64,
    name: String,
    arguments: BTreeMap<String, u64>,
    flows: Vec<u64>,
}

/// Reads a trace as a viewer does: by tracks, in the order of time, with a stack of slices per track.
fn slices(packets: &[DynamicMessage]) -> (Vec<Slice>, Vec<Slice>) {
    let (mut rows, mut parents, mut strings) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut events = Vec::new();
    for packet in packets {
        assert_eq!(packet.unknown_fields().count(), 0);
        assert_eq!(number(packet, "trusted_packet_sequence_id"), Some(1));
        if let Some(interned) = get(packet, "interned_data") {
            let interned = interned.as_message().unwrap().clone();
            for kind in ["event_names", "debug_annotation_names"] {
                for entry in list(&interned, kind) {
                    let old = strings.insert((kind, number(&entry, "iid").unwrap()), text(&entry, "name"));
                    assert_eq!(old, None, "interned twice");
                }
            }
        }
        if let Some(track) = get(packet, "track_descriptor") {
            let track = track.as_message().unwrap().clone();
            let id = number(&track, "uuid").unwrap();
            let name = match (get(&track, "name"), get(&track, "thread")) {
                (Some(name), _) => name.as_str().unwrap().to_owned(),
                (None, Some(thread)) => text(thread.as_message().unwrap(), "thread_name"),
                (None, None) => "the process".to_owned(),
            };
            assert_eq!(rows.insert(id, name), None, "a track is described twice");
            parents.insert(id, number(&track, "parent_uuid"));
        }
        if let Some(event) = get(packet, "track_event") {
            events.push((number(packet, "timestamp").unwrap(), event.as_message().unwrap().clone()));
        }
    }
    assert!(parents.values().flatten().all(|parent| rows.contains_key(parent)));
    events.sort_by_key(|(at, _)| *at);
    let (mut done, mut instants) = (Vec::new(), Vec::new());
    let mut open: BTreeMap<u64, Vec<Slice>> = BTreeMap::new();
    for (at, event) in &events {
        let track = number(event, "track_uuid").unwrap();
        let kind = number(event, "type").unwrap();
        if kind == 2 {
            let mut slice = open.get_mut(&track).unwrap().pop().expect("a slice ends that has begun");
            slice.end = *at;
            done.push(slice);
            continue;
        }
        let argument = |argument: &DynamicMessage| {
            let name = strings[&("debug_annotation_names", number(argument, "name_iid").unwrap())].clone();
            let value = number(argument, "uint_value").or(number(argument, "string_value_iid"));
            (name, value.unwrap_or(1))
        };
        let flows =
            |name| get(event, name).map(|flows| flows.as_list().unwrap().to_vec()).unwrap_or_default();
        let flows: Vec<u64> = [flows("flow_ids"), flows("terminating_flow_ids")]
            .concat()
            .iter()
            .map(|flow| flow.as_u64().unwrap())
            .collect();
        let slice = Slice {
            row: rows[&track].clone(),
            start: *at,
            end: *at,
            name: strings[&("event_names", number(event, "name_iid").unwrap())].clone(),
            arguments: list(event, "debug_annotations").iter().map(argument).collect(),
            flows,
        };
        match kind {
            1 => open.entry(track).or_default().push(slice),
            3 => instants.push(slice),
            other => panic!("an event of type {other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "a slice does not end");
    (done, instants)
}

#[test]
fn a_perfetto_trace_has_every_poll_wake_and_gap() {
    let (packets, done) = packets(&Limits::default());
    assert_eq!(done.polls, POLLS.len() as u64);
    let (slices, instants) = slices(&packets);
    for poll in &POLLS {
        let matches = |slice: &&Slice, row: &str| {
            slice.row == row
                && (slice.start, slice.end) == (ns(poll.start), ns(poll.end))
                && slice.arguments["task"] == u64::from(poll.task)
        };
        let on_cpu = slices.iter().find(|slice| matches(slice, &format!("CPU {}", poll.cpu))).unwrap();
        assert_eq!(on_cpu.name, name_of(poll.task));
        let argument = |name: &str| on_cpu.arguments.get(name).copied();
        assert_eq!(argument("previous_cpu"), poll.previous.map(u64::from));
        assert_eq!(argument("waker_cpu"), poll.wake.map(|(cpu, _)| u64::from(cpu)));
        assert_eq!(argument("wake_to_poll_ns"), poll.wake.map(|(_, at)| ns(poll.start - at)));
        assert_eq!(argument("is_last").is_some(), poll.end == 130);
        if let Some((cpu, at)) = poll.wake {
            let wake = instants.iter().find(|wake| wake.flows == on_cpu.flows).unwrap();
            assert_eq!((&*wake.name, wake.start), ("wake", ns(at)));
            assert_eq!(wake.row, format!("CPU {cpu}"));
        }
        // A poll within another is in a lane of its own where they do not nest.
        let thread = format!("worker-{}", poll.thread);
        assert!(
            slices.iter().any(|slice| matches(&slice, &thread)),
            "{thread} has no poll at {}",
            poll.start
        );
    }
    assert_eq!(slices.len(), 2 * POLLS.len());
    let wakes = POLLS.iter().filter(|poll| poll.wake.is_some()).count();
    assert_eq!(instants.len(), wakes + 1);
    let gap = instants.iter().find(|instant| instant.name == "records dropped").unwrap();
    assert_eq!((gap.start, gap.arguments["dropped_records"]), (ns(100), 4));
}

#[test]
fn what_the_limits_leave_out_is_counted() {
    let limits = Limits { from_ns: ns(20), to_ns: Some(ns(120)), polls_max: 3 };
    let (packets, done) = packets(&limits);
    assert_eq!((done.polls, done.outside, done.too_many), (3, 2, 2));
    assert_eq!(slices(&packets).0.len(), 6);
    assert_eq!(
        done.to_string(),
        "3 polls; 2 later ones are left out; 2 outside of the chosen time are left out"
    );
}

#[test]
fn a_damaged_recording_is_exported_up_to_the_damage() {
    let mut bytes = recording();
    let damaged = bytes.len() - 8;
    bytes[damaged] ^= 1;
    let mut out = Vec::new();
    let done = perfetto(&mut Recording::new(&bytes[..]).unwrap(), &mut out, &Limits::default());
    let done = done.unwrap();
    assert_eq!(done.polls, POLLS.len() as u64);
    assert!(done.damage.unwrap().is_damaged());
}

#[test]
fn a_full_disk_is_an_error() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for is_perfetto in [true, false] {
        let bytes = recording();
        let mut recording = Recording::new(&bytes[..]).unwrap();
        let limits = Limits::default();
        let done = match is_perfetto {
            true => perfetto(&mut recording, Full, &limits),
            false => dial9(&mut recording, Full, &limits),
        };
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

#[test]
fn a_dial9_trace_is_read_back_by_its_own_reader() {
    let bytes = recording();
    let mut out = Vec::new();
    let mut recording = Recording::new(&bytes[..]).unwrap();
    let done = dial9(&mut recording, &mut out, &Limits::default()).unwrap();
    assert_eq!(done.polls, POLLS.len() as u64);
    let mut events: Vec<(String, u64, BTreeMap<String, String>)> = Vec::new();
    let mut decoder = Decoder::new(&out).unwrap();
    decoder
        .for_each_event(|event| {
            let value = |value: &FieldValueRef<'_>| match value {
                FieldValueRef::PooledString(id) => event.string_pool.get(*id).unwrap().to_owned(),
                FieldValueRef::Varint(number) => number.to_string(),
                FieldValueRef::None => "none".to_owned(),
                other => format!("{other:?}"),
            };
            let fields = event.field_names().map(str::to_owned).zip(event.fields.iter().map(value));
            events.push((event.name.to_owned(), event.timestamp_ns, fields.collect()));
        })
        .unwrap();
    let of = |name: &str| -> Vec<_> { events.iter().filter(|event| event.0 == name).collect() };
    assert_eq!(of("TaskSpawnEvent").len(), 2);
    let ends: Vec<(u64, &str)> =
        of("TaskTerminateEvent").iter().map(|event| (event.1, &*event.2["task_id"])).collect();
    assert_eq!(ends, [(ns(130), "2"), (ns(140), "1")]);
    assert_eq!(of("DroppedRecordsEvent")[0].2["records"], "4");
    assert_eq!(of("ClockSyncEvent")[0].2["realtime_ns"], "1700000000000000000");
    let mut wakes = of("WakeEventEvent").into_iter();
    let or_none = |value: Option<u64>| value.map_or("none".to_owned(), |value| value.to_string());
    for (poll, (start, end)) in POLLS.iter().zip(of("PollStartEvent").into_iter().zip(of("PollEndEvent"))) {
        assert_eq!((start.1, end.1), (ns(poll.start), ns(poll.end)));
        for event in [start, end] {
            assert_eq!(event.2["worker_id"], poll.thread.to_string());
        }
        assert_eq!(start.2["task_id"], poll.task.to_string());
        assert_eq!(start.2["spawn_loc"], "src/main.rs:4:2");
        assert_eq!(start.2["task_name"] == "none", poll.task == 1);
        assert_eq!(start.2["cpu"], poll.cpu.to_string());
        assert_eq!(start.2["previous_cpu"], or_none(poll.previous.map(u64::from)));
        assert_eq!(start.2["scheduling_delay_ns"], or_none(poll.wake.map(|(_, at)| ns(poll.start - at))));
        if let Some((cpu, at)) = poll.wake {
            let wake = wakes.next().unwrap();
            assert_eq!((wake.1, &wake.2["waker_cpu"]), (ns(at), &cpu.to_string()));
            assert_eq!(wake.2["woken_task_id"], poll.task.to_string());
        }
    }
    assert_eq!((of("PollStartEvent").len(), of("PollEndEvent").len()), (POLLS.len(), POLLS.len()));
}
