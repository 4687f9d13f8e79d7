//! dial9: a recording in the format of dial9's traces, which its viewer and its analysis open.
//!
//! The events have dial9's names and fields: the spawn of a task, its wake, the start and the end of each poll, its end.
//! Events of dial9 have no CPU, so the CPUs are fields of their own, which readers of dial9 leave out. A worker of the trace
//! is a thread of the recording. Events are in the order in which polls end; dial9's readers sort by time.
//!
//! Queue lengths, parking and the task that woke are not in a recording: the length of a queue is written as 0, the waking
//! task as unknown.
//!
//! # Source
//! The events of dial9-tokio-telemetry 0.5.7, `telemetry/format.rs`; the bytes are written by dial9-trace-format.

use super::{Export, Exported, Limits, NOT_SEEN, Names, Task, Times, run};
use dial9_trace_format::TraceEvent;
use dial9_trace_format::encoder::Encoder;
use dial9_trace_format::types::InternedString;
use std::io::{self, Read, Write};
use warmcore_record::{Event, Poll, Recording};

/// dial9's name for a worker that is not known, and for a task.
const UNKNOWN_WORKER: u8 = 255;
const UNKNOWN_TASK: u64 = 0;

#[derive(TraceEvent)]
struct SegmentMetadataEvent {
    #[traceevent(timestamp)]
    timestamp_ns: u64,
    entries: Vec<(String, String)>,
}

#[derive(TraceEvent)]
struct ClockSyncEvent {
    #[traceevent(timestamp)]
    timestamp_ns: u64,
    realtime_ns: u64,
}

#[derive(TraceEvent)]
struct TaskSpawnEvent {
    #[traceevent(timestamp)]
    timestamp_ns: u64,
    task_id: u64,
    spawn_loc: InternedString,
    instrumented: bool,
    worker_id: Option<u64>,
}

#[derive(TraceEvent)]
struct WakeEventEvent {
    #[traceevent(timestamp)]
    timestamp_ns: u64,
    waker_task_id: u64,
    woken_task_id: u64,
    target_worker: u8,
    waker_cpu: Option<u32>,
}

#[derive(TraceEvent)]
struct PollStartEvent {
    #[traceevent(timestamp)]
    timestamp_ns: u64,
    worker_id: u64,
    local_queue: u8,
    task_id: u64,
    spawn_loc: InternedString,
    scheduling_delay_ns: Option<u64>,
    task_name: Option<InternedString>,
    cpu: Option<u32>,
    previous_cpu: Option<u32>,
    waker_cpu: Option<u32>,
}

#[derive(TraceEvent)]
struct PollEndEvent {
    #[traceevent(timestamp)]
    timestamp_ns: u64,
    worker_id: u64,
}

#[derive(TraceEvent)]
struct TaskTerminateEvent {
    #[traceevent(timestamp)]
    timestamp_ns: u64,
    task_id: u64,
}

/// Records are missing: an event of Warmcore, which dial9's viewer shows under this name.
#[derive(TraceEvent)]
struct DroppedRecordsEvent {
    #[traceevent(timestamp)]
    timestamp_ns: u64,
    worker_id: u64,
    records: u64,
    until_ns: u64,
}

/// Writes the polls within `limits` as a dial9 trace. A damaged recording is written up to the damage, which the result
/// names.
pub fn dial9<R: Read>(
    recording: &mut Recording<R>,
    out: impl Write,
    limits: &Limits,
) -> io::Result<Exported> {
    let header = recording.header();
    let mut encoder = Encoder::new_to(out)?;
    encoder.write(&ClockSyncEvent { timestamp_ns: 0, realtime_ns: header.started_unix_ns })?;
    let entry = |name: &str, value: String| (name.to_owned(), value);
    encoder.write(&SegmentMetadataEvent {
        timestamp_ns: 0,
        entries: vec![
            entry("recorded_by", "warmcore".to_owned()),
            entry("pid", header.pid.to_string()),
            entry("command", header.command.clone()),
        ],
    })?;
    let mut trace = Trace { encoder };
    let done = run(recording, limits, &mut trace)?;
    trace.encoder.flush()?;
    Ok(done)
}

struct Trace<W: Write> {
    encoder: Encoder<W>,
}

impl<W: Write> Trace<W> {
    fn location(&mut self, names: &Names<'_>, location: Option<u32>) -> io::Result<InternedString> {
        match location {
            Some(at) => self.encoder.intern_string(&names.locations[at as usize].to_string()),
            None => self.encoder.intern_string(NOT_SEEN),
        }
    }
}

/// The worker of a thread: its index, without the two numbers that mean no worker to dial9.
fn worker(thread: u16) -> u64 {
    let index = u64::from(thread);
    if index < 254 { index } else { index + 2 }
}

impl<W: Write> Export for Trace<W> {
    fn poll(&mut self, names: &Names<'_>, poll: &Poll, task: &Task, times: Times) -> io::Result<()> {
        let Times { start_ns, end_ns, woken_ns } = times;
        let (task_id, worker_id) = (u64::from(poll.task), worker(poll.thread));
        let waker_cpu = poll.waker_cpu.map(|cpu| cpu.0);
        if let Some(timestamp_ns) = woken_ns {
            self.encoder.write(&WakeEventEvent {
                timestamp_ns,
                waker_task_id: UNKNOWN_TASK,
                woken_task_id: task_id,
                target_worker: UNKNOWN_WORKER,
                waker_cpu,
            })?;
        }
        let spawn_loc = self.location(names, task.location)?;
        let task_name = task.name.map(|name| self.encoder.intern_string(&(names.names)(name))).transpose()?;
        self.encoder.write(&PollStartEvent {
            timestamp_ns: start_ns,
            worker_id,
            local_queue: 0,
            task_id,
            spawn_loc,
            scheduling_delay_ns: woken_ns.map(|woken| start_ns.saturating_sub(woken)),
            task_name,
            cpu: poll.cpu.map(|cpu| cpu.0),
            previous_cpu: task.previous_cpu.map(|cpu| cpu.0),
            waker_cpu,
        })?;
        self.encoder.write(&PollEndEvent { timestamp_ns: end_ns, worker_id })?;
        if poll.is_last {
            self.encoder.write(&TaskTerminateEvent { timestamp_ns: end_ns, task_id })?;
        }
        Ok(())
    }

    fn other(&mut self, names: &Names<'_>, event: &Event, at: &dyn Fn(u64) -> u64) -> io::Result<()> {
        match event {
            Event::Spawn(spawn) => {
                let spawn_loc = self.location(names, Some(spawn.location))?;
                self.encoder.write(&TaskSpawnEvent {
                    timestamp_ns: at(spawn.at),
                    task_id: u64::from(spawn.task),
                    spawn_loc,
                    instrumented: true,
                    worker_id: Some(worker(spawn.thread)),
                })
            }
            Event::Drop { task, at: dropped, .. } => self
                .encoder
                .write(&TaskTerminateEvent { timestamp_ns: at(*dropped), task_id: u64::from(*task) }),
            Event::Gap { thread, from, to, records } => self.encoder.write(&DroppedRecordsEvent {
                timestamp_ns: at(*from),
                worker_id: worker(*thread),
                records: *records,
                until_ns: at(*to),
            }),
            _ => Ok(()),
        }
    }
}
