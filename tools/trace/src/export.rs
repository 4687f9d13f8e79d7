//! Exports of a recording to the formats of other programs: [`perfetto()`] and [`dial9()`].
//!
//! An export reads the events once, in the order of time, and writes as it reads. It has the polls of [`Limits`]; what it
//! leaves out is counted in [`Exported`], so that a short export is not taken for a quiet program.
//!
//! # Cost
//! Memory for the tasks that are alive and, for Perfetto, 16 bytes per exported poll. A poll takes about 210 bytes in
//! Perfetto's format and 60 in dial9's.

mod dial9;
mod lanes;
mod perfetto;
mod proto;

pub use dial9::dial9;
pub use perfetto::perfetto;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read};
use warmcore_record::{Event, Header, Poll, ReadError, Recording};
use warmcore_types::CpuId;

/// Which polls an export has. Times are nanoseconds since the recording began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The first moment.
    pub from_ns: u64,
    /// The first moment after the export. `None`: the end of the recording.
    pub to_ns: Option<u64>,
    /// The largest number of polls.
    pub polls_max: u64,
}

impl Limits {
    /// The number of polls that the viewers of both formats open without trouble: 210 MB for Perfetto.
    pub const POLLS_MAX: u64 = 1_000_000;

    /// Whether a moment is within the time of the export.
    fn has(&self, ns: u64) -> bool {
        ns >= self.from_ns && self.to_ns.is_none_or(|to| ns < to)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { from_ns: 0, to_ns: None, polls_max: Self::POLLS_MAX }
    }
}

/// What an export has, and what it leaves out.
#[derive(Debug, Default)]
pub struct Exported {
    /// Polls that were written.
    pub polls: u64,
    /// Polls that began outside of the limits' time.
    pub outside: u64,
    /// Polls within that time that were too many.
    pub too_many: u64,
    /// Where the recording is damaged. What is before that place was written.
    pub damage: Option<ReadError>,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} polls", self.polls)?;
        if self.too_many > 0 {
            write!(f, "; {} later ones are left out", self.too_many)?;
        }
        if self.outside > 0 {
            write!(f, "; {} outside of the chosen time are left out", self.outside)?;
        }
        Ok(())
    }
}

/// What an export writes for the events of a recording.
trait Export {
    /// Writes a poll, which began `start_ns` after the recording did.
    fn poll(&mut self, names: &Names<'_>, poll: &Poll, task: &Task, times: Times) -> io::Result<()>;

    /// Writes another event than a poll.
    fn other(&mut self, names: &Names<'_>, event: &Event, at: &dyn Fn(u64) -> u64) -> io::Result<()>;
}

/// When a poll was and when its task was woken, in nanoseconds since the recording began.
#[derive(Debug, Clone, Copy)]
struct Times {
    start_ns: u64,
    end_ns: u64,
    woken_ns: Option<u64>,
}

/// What the indices in events mean, as far as the recording was read.
struct Names<'r> {
    locations: &'r [warmcore_record::Location],
    names: &'r dyn Fn(u32) -> String,
    threads: &'r [warmcore_record::Thread],
}

/// What is known of a task before one of its polls.
#[derive(Debug, Clone, Copy, Default)]
struct Task {
    /// Where it was spawned. `None`: before the recording.
    location: Option<u32>,
    name: Option<u32>,
    /// The CPU of its poll before this one. `None`: not known, or its first.
    previous_cpu: Option<CpuId>,
    /// When that poll ended, as a stamp.
    previous_end: u64,
}

/// The label of a task whose spawn was before the recording.
const NOT_SEEN: &str = "(spawned before the recording)";

/// Reads the recording to its end and exports what `limits` allow. An error is of the export's output, or of the reader,
/// unless the recording is merely damaged.
fn run<R: Read>(
    recording: &mut Recording<R>,
    limits: &Limits,
    export: &mut impl Export,
) -> io::Result<Exported> {
    let header: Header = recording.header().clone();
    let since = |stamp: u64| header.ns(stamp.saturating_sub(header.start));
    let mut done = Exported::default();
    let mut tasks: HashMap<u32, Task> = HashMap::new();
    let mut gap_until = 0;
    loop {
        let event = match recording.next_event() {
            Ok(Some(event)) => event,
            Ok(None) => break,
            Err(error) if error.is_damaged() => {
                done.damage = Some(error);
                continue;
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        let name = |index: u32| recording.name(index).to_owned();
        let names = Names { locations: recording.locations(), names: &name, threads: recording.threads() };
        match event {
            Event::Poll(poll) => {
                let mut task = tasks.get(&poll.task).copied().unwrap_or_default();
                if task.previous_end < gap_until {
                    task.previous_cpu = None;
                }
                let times = Times {
                    start_ns: since(poll.start),
                    end_ns: since(poll.end()),
                    woken_ns: poll.woken_at.map(since),
                };
                if !limits.has(times.start_ns) {
                    done.outside += 1;
                } else if done.polls == limits.polls_max {
                    done.too_many += 1;
                } else {
                    done.polls += 1;
                    export.poll(&names, &poll, &task, times)?;
                }
                if poll.is_last {
                    tasks.remove(&poll.task);
                } else {
                    let after = Task { previous_cpu: poll.cpu, previous_end: poll.end(), ..task };
                    tasks.insert(poll.task, after);
                }
                continue;
            }
            Event::Spawn(spawn) => {
                tasks.entry(spawn.task).or_default().location = Some(spawn.location);
            }
            Event::Name { task, name } => tasks.entry(task).or_default().name = Some(name),
            Event::Drop { task, .. } => _ = tasks.remove(&task),
            Event::Gap { to, .. } => gap_until = gap_until.max(to),
            _ => {}
        }
        let at = match &event {
            Event::Spawn(spawn) => Some(spawn.at),
            Event::Gap { from: at, .. } | Event::Drop { at, .. } => Some(*at),
            _ => None,
        };
        if done.polls < limits.polls_max && at.is_none_or(|at| limits.has(since(at))) {
            export.other(&names, &event, &since)?;
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
