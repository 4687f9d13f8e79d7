//! Perfetto: a recording as a trace of `TrackEvent`s, which ui.perfetto.dev opens.
//!
//! A row per CPU and a row per thread. A poll is a slice in both, named by the task's name or else by where the task was
//! spawned. The slice of the CPU has as arguments the task, the CPU of its poll before, the CPU of its waker and the delay
//! since its wake. A wake is an instant in the waker's row, and a flow leads from there to the poll. Dropped records are an
//! instant in their thread's row.
//!
//! # Source
//! The fields are those of `protos/perfetto/trace` of Perfetto. A test reads traces back with these definitions.

use super::lanes::Lanes;
use super::proto::Message;
use super::{Export, Exported, Limits, NOT_SEEN, Names, Task, Times, run};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use warmcore_record::{Event, Header, Poll, Recording};

/// Writes the polls within `limits` as a Perfetto trace. A damaged recording is written up to the damage, which the result
/// names.
pub fn perfetto<R: Read>(
    recording: &mut Recording<R>,
    out: impl Write,
    limits: &Limits,
) -> io::Result<Exported> {
    let mut trace = Trace {
        out,
        pid: u64::from(recording.header().pid),
        rows: HashMap::new(),
        interned: HashSet::new(),
        last_flow: 0,
        new_strings: Message::default(),
    };
    trace.begin(recording.header())?;
    let done = run(recording, limits, &mut trace)?;
    trace.out.flush()?;
    Ok(done)
}

/// What a row shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Row {
    /// A CPU; `None`: the CPU was not known.
    Cpu(Option<u32>),
    Thread(u16),
}

/// The id of the process's track, and of the track above those of the CPUs.
const PROCESS_TRACK: u64 = 1;
const CPUS_TRACK: u64 = 2;

impl Row {
    fn track(self, lane: usize) -> u64 {
        let (kind, index) = match self {
            Self::Cpu(cpu) => (1, cpu.map_or(u64::from(u32::MAX), u64::from)),
            Self::Thread(thread) => (2, u64::from(thread)),
        };
        kind << 56 | index << 16 | lane as u64
    }
}

/// The arguments of slices, by the id of their name.
const ARGUMENTS: [&str; 10] = [
    "task",
    "cpu",
    "previous_cpu",
    "waker_cpu",
    "wake_to_poll_ns",
    "spawned_at",
    "woken_in_poll",
    "changed_cpu",
    "is_last",
    "dropped_records",
];
const TASK: u64 = 1;
const CPU: u64 = 2;
const PREVIOUS_CPU: u64 = 3;
const WAKER_CPU: u64 = 4;
const DELAY: u64 = 5;
const SPAWNED_AT: u64 = 6;
const WOKEN_IN_POLL: u64 = 7;
const CHANGED_CPU: u64 = 8;
const IS_LAST: u64 = 9;
const DROPPED: u64 = 10;

/// The ids of event names: the wake, the gap, the task whose spawn is not known; then those of locations and names.
const WAKE: u64 = 1;
const GAP: u64 = 2;
const UNKNOWN: u64 = 3;

fn location_id(location: u32) -> u64 {
    4 + 2 * u64::from(location)
}

fn name_id(name: u32) -> u64 {
    5 + 2 * u64::from(name)
}

/// The fields of messages, as `protos/perfetto/trace` numbers them.
mod field {
    pub const TRACE_PACKET: u32 = 1;
    pub mod packet {
        pub const TIMESTAMP: u32 = 8;
        pub const SEQUENCE: u32 = 10;
        pub const TRACK_EVENT: u32 = 11;
        pub const INTERNED: u32 = 12;
        pub const SEQUENCE_FLAGS: u32 = 13;
        pub const TRACK: u32 = 60;
    }
    pub mod event {
        pub const ARGUMENT: u32 = 4;
        pub const KIND: u32 = 9;
        pub const NAME_ID: u32 = 10;
        pub const TRACK: u32 = 11;
        pub const FLOW: u32 = 47;
        pub const LAST_FLOW: u32 = 48;
    }
    pub mod argument {
        pub const NAME_ID: u32 = 1;
        pub const BOOL: u32 = 2;
        pub const UINT: u32 = 3;
        pub const TEXT_ID: u32 = 17;
    }
    pub mod interned {
        pub const EVENT_NAME: u32 = 2;
        pub const ARGUMENT_NAME: u32 = 3;
        pub const ARGUMENT_TEXT: u32 = 29;
        pub const ID: u32 = 1;
        pub const TEXT: u32 = 2;
    }
    pub mod track {
        pub const ID: u32 = 1;
        pub const NAME: u32 = 2;
        pub const PROCESS: u32 = 3;
        pub const THREAD: u32 = 4;
        pub const PARENT: u32 = 5;
        pub const CHILD_ORDER: u32 = 11;
        pub const RANK: u32 = 12;
        pub const PROCESS_PID: u32 = 1;
        pub const PROCESS_COMMAND: u32 = 2;
        pub const PROCESS_NAME: u32 = 6;
        pub const THREAD_PID: u32 = 1;
        pub const THREAD_TID: u32 = 2;
        pub const THREAD_NAME: u32 = 5;
        /// The order in which children have their rank.
        pub const EXPLICIT: u64 = 3;
    }
}

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;

/// The flags of the first packet, which says that nothing is interned yet, and of those after it.
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

struct Trace<W> {
    out: W,
    pid: u64,
    rows: HashMap<Row, Lanes>,
    /// Which strings were written: the field of their list and their id.
    interned: HashSet<(u32, u64)>,
    last_flow: u64,
    /// The strings that the next packet brings, as fields of `InternedData`.
    new_strings: Message,
}

impl<W: Write> Trace<W> {
    fn begin(&mut self, header: &Header) -> io::Result<()> {
        for (id, name) in (1..).zip(ARGUMENTS) {
            self.intern(field::interned::ARGUMENT_NAME, id, || name.to_owned());
        }
        for (id, name) in [(WAKE, "wake"), (GAP, "records dropped"), (UNKNOWN, NOT_SEEN)] {
            self.intern(field::interned::EVENT_NAME, id, || name.to_owned());
        }
        self.packet(STATE_CLEARED, |_| {})?;
        let (pid, command) = (self.pid, &header.command);
        self.packet(0, |packet| {
            packet.message(field::packet::TRACK, |track| {
                track.number(field::track::ID, PROCESS_TRACK);
                track.message(field::track::PROCESS, |process| {
                    process.number(field::track::PROCESS_PID, pid);
                    process.text(field::track::PROCESS_COMMAND, command);
                    process.text(field::track::PROCESS_NAME, command);
                });
            });
        })?;
        self.packet(0, |packet| {
            packet.message(field::packet::TRACK, |track| {
                track.number(field::track::ID, CPUS_TRACK);
                track.number(field::track::PARENT, PROCESS_TRACK);
                track.text(field::track::NAME, "CPUs");
                track.number(field::track::CHILD_ORDER, field::track::EXPLICIT);
            });
        })
    }

    /// Writes a packet, with the strings that came since the last one.
    fn packet(&mut self, flags: u64, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        let strings = std::mem::take(&mut self.new_strings);
        let mut trace = Message::default();
        trace.message(field::TRACE_PACKET, |packet| {
            packet.number(field::packet::SEQUENCE, 1);
            if flags != 0 {
                packet.number(field::packet::SEQUENCE_FLAGS, flags);
            }
            if !strings.0.is_empty() {
                packet.message(field::packet::INTERNED, |interned| interned.0.extend_from_slice(&strings.0));
            }
            fill(packet);
        });
        self.out.write_all(&trace.0)
    }

    /// Writes a `TrackEvent`.
    fn event(&mut self, ns: u64, kind: u64, track: u64, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.packet(NEEDS_STATE, |packet| {
            packet.number(field::packet::TIMESTAMP, ns);
            packet.message(field::packet::TRACK_EVENT, |event| {
                event.number(field::event::KIND, kind);
                event.number(field::event::TRACK, track);
                fill(event);
            });
        })
    }

    fn intern(&mut self, list: u32, id: u64, text: impl FnOnce() -> String) {
        if self.interned.insert((list, id)) {
            self.new_strings.message(list, |entry| {
                entry.number(field::interned::ID, id);
                entry.text(field::interned::TEXT, &text());
            });
        }
    }

    /// The track for a slice in a row. The track is described before its first event.
    fn track(&mut self, names: &Names<'_>, row: Row, start: u64, end: u64) -> io::Result<u64> {
        let (lane, is_new) = self.rows.entry(row).or_default().place(start, end);
        let id = row.track(lane);
        if is_new {
            self.describe(names, row, lane, id)?;
        }
        Ok(id)
    }

    /// The first track of a row, for an instant, which is in no slice's way.
    fn first_track(&mut self, names: &Names<'_>, row: Row) -> io::Result<u64> {
        if let Entry::Vacant(vacant) = self.rows.entry(row) {
            vacant.insert(Lanes::with_one());
            self.describe(names, row, 0, row.track(0))?;
        }
        Ok(row.track(0))
    }

    fn describe(&mut self, names: &Names<'_>, row: Row, lane: usize, id: u64) -> io::Result<()> {
        let pid = self.pid;
        self.packet(0, |packet| {
            packet.message(field::packet::TRACK, |track| {
                track.number(field::track::ID, id);
                match row {
                    Row::Cpu(cpu) => {
                        let name = cpu.map_or("CPU not known".to_owned(), |cpu| format!("CPU {cpu}"));
                        track.number(field::track::PARENT, CPUS_TRACK);
                        track.text(field::track::NAME, &name);
                        track.number(field::track::RANK, cpu.map_or(i32::MAX as u64, u64::from));
                    }
                    Row::Thread(thread) if lane == 0 => {
                        let thread = &names.threads[usize::from(thread)];
                        track.message(field::track::THREAD, |of| {
                            of.number(field::track::THREAD_PID, pid);
                            of.number(field::track::THREAD_TID, u64::from(thread.tid));
                            of.text(field::track::THREAD_NAME, &thread.name);
                        });
                    }
                    Row::Thread(_) => {
                        track.number(field::track::PARENT, row.track(0));
                        track.text(field::track::NAME, "polls within polls");
                    }
                }
            });
        })
    }
}

fn number(event: &mut Message, name: u64, value: u64) {
    event.message(field::event::ARGUMENT, |argument| {
        argument.number(field::argument::NAME_ID, name);
        argument.number(field::argument::UINT, value);
    });
}

impl<W: Write> Export for Trace<W> {
    fn poll(&mut self, names: &Names<'_>, poll: &Poll, task: &Task, times: Times) -> io::Result<()> {
        let name = match (task.name, task.location) {
            (Some(name), _) => {
                self.intern(field::interned::EVENT_NAME, name_id(name), || (names.names)(name));
                name_id(name)
            }
            (None, Some(at)) => {
                let text = || names.locations[at as usize].to_string();
                self.intern(field::interned::EVENT_NAME, location_id(at), text);
                location_id(at)
            }
            (None, None) => UNKNOWN,
        };
        if let Some(at) = task.location {
            let text = || names.locations[at as usize].to_string();
            self.intern(field::interned::ARGUMENT_TEXT, location_id(at), text);
        }
        let flow = match (poll.waker_cpu, times.woken_ns) {
            (Some(cpu), Some(woken)) => {
                self.last_flow += 1;
                let flow = self.last_flow;
                let row = Row::Cpu(Some(cpu.0));
                let track = self.first_track(names, row)?;
                self.event(woken, INSTANT, track, |event| {
                    event.number(field::event::NAME_ID, WAKE);
                    number(event, TASK, u64::from(poll.task));
                    event.fixed(field::event::FLOW, flow);
                })?;
                Some(flow)
            }
            _ => None,
        };

        let Times { start_ns, end_ns, woken_ns } = times;
        let on_cpu = self.track(names, Row::Cpu(poll.cpu.map(|cpu| cpu.0)), start_ns, end_ns)?;
        self.event(start_ns, SLICE_BEGIN, on_cpu, |event| {
            event.number(field::event::NAME_ID, name);
            number(event, TASK, u64::from(poll.task));
            let numbers = [
                (PREVIOUS_CPU, task.previous_cpu.map(|cpu| u64::from(cpu.0))),
                (WAKER_CPU, poll.waker_cpu.map(|cpu| u64::from(cpu.0))),
                (DELAY, woken_ns.map(|woken| start_ns.saturating_sub(woken))),
            ];
            numbers.into_iter().for_each(|(name, value)| {
                if let Some(value) = value {
                    number(event, name, value);
                }
            });
            if let Some(at) = task.location {
                event.message(field::event::ARGUMENT, |argument| {
                    argument.number(field::argument::NAME_ID, SPAWNED_AT);
                    argument.number(field::argument::TEXT_ID, location_id(at));
                });
            }
            let flags = [
                (WOKEN_IN_POLL, poll.woken_in_poll),
                (CHANGED_CPU, poll.changed_cpu),
                (IS_LAST, poll.is_last),
            ];
            for (name, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
                event.message(field::event::ARGUMENT, |argument| {
                    argument.number(field::argument::NAME_ID, name);
                    argument.number(field::argument::BOOL, 1);
                });
            }
            if let Some(flow) = flow {
                event.fixed(field::event::LAST_FLOW, flow);
            }
        })?;
        self.event(end_ns, SLICE_END, on_cpu, |_| {})?;

        let in_thread = self.track(names, Row::Thread(poll.thread), start_ns, end_ns)?;
        self.event(start_ns, SLICE_BEGIN, in_thread, |event| {
            event.number(field::event::NAME_ID, name);
            number(event, TASK, u64::from(poll.task));
            if let Some(cpu) = poll.cpu {
                number(event, CPU, u64::from(cpu.0));
            }
        })?;
        self.event(end_ns, SLICE_END, in_thread, |_| {})
    }

    fn other(&mut self, names: &Names<'_>, event: &Event, at: &dyn Fn(u64) -> u64) -> io::Result<()> {
        let Event::Gap { thread, from, records, .. } = *event else { return Ok(()) };
        let row = Row::Thread(thread);
        let track = self.first_track(names, row)?;
        self.event(at(from), INSTANT, track, |event| {
            event.number(field::event::NAME_ID, GAP);
            number(event, DROPPED, records);
        })
    }
}
