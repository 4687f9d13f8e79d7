//! Reader: the events of a recording, in the order of time.
//!
//! The threads' records are in rounds ([`format`](crate::format)). The reader reads one round, merges it with what is left
//! of the one before, and returns the events that ended before the round began. Whatever a task did is therefore in order:
//! a poll begins after the task's poll before it was written.
//!
//! # Cost
//! Memory for the records of two rounds, of 80 bytes each and at most [`PENDING_MAX`] of them, and for the names of locations, tasks and threads. 20 to 40 ns per event.

use crate::format::*;
use crate::text::*;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use warmcore_types::CpuId;

/// The most records of a round: full rings of a thousand threads. A file with more is damaged.
const PENDING_MAX: usize = 1 << 24;

/// An event of a recording. Times are stamps; [`Header::ns`] converts distances between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A task was polled.
    Poll(Poll),
    /// A task was spawned.
    Spawn(Spawn),
    /// A task has a name.
    Name {
        /// The task.
        task: u32,
        /// Its name: an index for [`Recording::name`].
        name: u32,
    },
    /// A thread runs another worker from now on.
    Worker {
        /// The thread.
        thread: u16,
        /// When.
        at: u64,
        /// The worker's index. `None`: the thread runs no worker now.
        worker: Option<u32>,
        /// Whether it is of Warmcore's runtime. No recording of an older version says so.
        is_warmcore: bool,
    },
    /// Records of a thread are missing. Between `from` and `to` any task may have been polled there, so it is not known
    /// which of its polls was the last one before.
    Gap {
        /// The thread.
        thread: u16,
        /// When its ring became full.
        from: u64,
        /// When it had room again.
        to: u64,
        /// Number of records that were dropped.
        records: u64,
    },
    /// A task was dropped between two polls: it ended without a last poll.
    Drop {
        /// The task.
        task: u32,
        /// The thread that dropped it.
        thread: u16,
        /// When.
        at: u64,
    },
    /// Totals of a thread, about once a second.
    Stats {
        /// The thread.
        thread: u16,
        /// Its totals.
        stats: ThreadStats,
    },
    /// From now on, one task of 2^`shift` is recorded.
    Sampled {
        /// The logarithm of how many tasks there are for one that is recorded.
        shift: u32,
        /// When.
        at: u64,
    },
    /// About once a second: for how long all CPUs of the machine together were busy until then, with the work of all processes.
    Machine {
        /// When.
        at: u64,
        /// For how long, in nanoseconds; from when on is not said.
        busy_ns: u64,
    },
    /// The last event. A file that ends with another one is of a process that was killed or still runs.
    End {
        /// Why the recording ended.
        why: String,
    },
}

/// One poll of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poll {
    /// The task: a number that no other task of the recording has.
    pub task: u32,
    /// The thread that polled it.
    pub thread: u16,
    /// The CPU on which the poll began. `None`: not known.
    pub cpu: Option<CpuId>,
    /// When the poll began.
    pub start: u64,
    /// How long it took, in units of stamps. `u32::MAX - 1` or more: at least that long.
    pub duration: u32,
    /// When the task was woken for this poll. `None`: not known.
    pub woken_at: Option<u64>,
    /// The CPU on which the thread ran that woke it. `None`: not known.
    pub waker_cpu: Option<CpuId>,
    /// Whether the task ended in this poll.
    pub is_last: bool,
    /// Whether the task was woken while its poll before this one ran.
    pub woken_in_poll: bool,
    /// Whether the thread was on another CPU when the poll ended.
    pub changed_cpu: bool,
}

impl Poll {
    /// When the poll ended.
    #[inline]
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.duration)
    }
}

/// The spawn of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spawn {
    /// The task.
    pub task: u32,
    /// The thread that spawned it.
    pub thread: u16,
    /// When.
    pub at: u64,
    /// Where the call of `spawn` is in the source: an index for [`Recording::location`].
    pub location: u32,
    /// The CPU of the thread that spawned it.
    pub cpu: Option<CpuId>,
}

/// A thread of the recorded process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thread {
    /// Its number in the system.
    pub tid: u32,
    /// Its name.
    pub name: String,
}

/// A recording that is read.
pub struct Recording<R = BufReader<File>> {
    source: R,
    header: Header,
    /// Bytes read so far.
    position: u64,
    /// Events that may be returned, in order.
    ready: VecDeque<Event>,
    /// Events of the round that is read, with the time by which they are ordered.
    pending: Vec<(u64, Event)>,
    /// Of `pending`, those that are in order since the last round.
    sorted: usize,
    locations: Vec<Location>,
    location_keys: HashMap<u64, u32>,
    names: Vec<String>,
    name_keys: HashMap<u32, u32>,
    threads: Vec<Thread>,
    payload: Vec<u8>,
    is_at_end: bool,
    cut: Option<u64>,
}

impl Recording {
    /// Opens the file of a recording and reads its header.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let wrong = |error: io::Error| ReadError::new(0, Problem::Io(error));
        let file = File::open(path).map_err(wrong)?;
        if file.metadata().map_err(wrong)?.is_dir() {
            return Err(ReadError::new(0, Problem::Foreign("it is a folder".to_owned())));
        }
        Self::new(BufReader::with_capacity(1 << 20, file))
    }
}

impl<R: Read> Recording<R> {
    /// Reads the header of a recording.
    pub fn new(mut source: R) -> Result<Self, ReadError> {
        let mut bytes = [0; HEADER_BYTES];
        let read =
            read_full(&mut source, &mut bytes).map_err(|error| ReadError::new(0, Problem::Io(error)))?;
        if read < 8 || bytes[..8] != MAGIC {
            let begins = match read {
                0 => "the file is empty".to_owned(),
                _ => format!("it begins with {:?}", String::from_utf8_lossy(&bytes[..read.min(8)])),
            };
            return Err(ReadError::new(0, Problem::Foreign(begins)));
        }
        if read < HEADER_BYTES {
            return Err(ReadError::new(read as u64, Problem::NoHeader));
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(8) != VERSION {
            return Err(ReadError::new(8, Problem::Version(word(8))));
        }
        let length = word(12) as usize;
        if length > HEADER_TEXT_MAX {
            return Err(ReadError::new(12, Problem::Damaged(format!("a header of {length} bytes"))));
        }
        let mut text = Vec::new();
        source
            .by_ref()
            .take(length as u64)
            .read_to_end(&mut text)
            .map_err(|error| ReadError::new(HEADER_BYTES as u64, Problem::Io(error)))?;
        let position = (HEADER_BYTES + text.len()) as u64;
        if text.len() < length {
            return Err(ReadError::new(position, Problem::NoHeader));
        }
        let damaged = |what: String| ReadError::new(HEADER_BYTES as u64, Problem::Damaged(what));
        if checksum(CHECKSUM_START, &text) != (u64::from(word(16)) | u64::from(word(20)) << 32) {
            return Err(damaged("the header's checksum is wrong".to_owned()));
        }
        let text = String::from_utf8(text).map_err(|_| damaged("the header is not UTF-8".to_owned()))?;
        Ok(Self {
            source,
            header: Header::from_text(&text).map_err(damaged)?,
            position,
            ready: VecDeque::new(),
            pending: Vec::new(),
            sorted: 0,
            locations: Vec::new(),
            location_keys: HashMap::new(),
            names: Vec::new(),
            name_keys: HashMap::new(),
            threads: Vec::new(),
            payload: Vec::new(),
            is_at_end: false,
            cut: None,
        })
    }

    /// What the process and the machine were.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The place in the source with this index: of [`Spawn::location`].
    pub fn location(&self, index: u32) -> &Location {
        &self.locations[index as usize]
    }

    /// All places in the source that were read so far.
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// The name with this index: of [`Event::Name`].
    pub fn name(&self, index: u32) -> &str {
        &self.names[index as usize]
    }

    /// The threads that were read so far; a thread's index is in [`Poll::thread`].
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many bytes of a block were left at the end of a file that ends within one: of a process that was killed, or
    /// that still runs. Known once [`next_event`](Self::next_event) has returned `None`.
    pub fn cut(&self) -> Option<u64> {
        self.cut
    }

    /// Returns the next event, or `None` at the end. After an error, which says where the file is damaged, the events that
    /// were read before it are still returned, and then `None`.
    pub fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.is_at_end {
                return Ok(None);
            }
            if let Err(error) = self.read_block() {
                self.finish();
                return Err(error);
            }
        }
    }

    /// Reads one block.
    fn read_block(&mut self) -> Result<(), ReadError> {
        let at = self.position;
        let error = |problem| ReadError::new(at, problem);
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        let read = read_full(&mut self.source, &mut bytes).map_err(|e| error(Problem::Io(e)))?;
        if read < BLOCK_HEADER_BYTES {
            self.cut = (read > 0).then_some(read as u64);
            self.finish();
            return Ok(());
        }
        let header = BlockHeader::from_bytes(&bytes).map_err(|what| error(Problem::Damaged(what)))?;
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(header.payload_bytes as usize, 0);
        let read = read_full(&mut self.source, &mut payload).map_err(|e| error(Problem::Io(e)))?;
        if read < payload.len() {
            self.cut = Some((BLOCK_HEADER_BYTES + read) as u64);
            self.finish();
            return Ok(());
        }
        if !header.is_of(&payload) {
            return Err(error(Problem::Damaged("the checksum of a block is wrong".to_owned())));
        }
        self.position += (BLOCK_HEADER_BYTES + payload.len()) as u64;
        let done = match header.kind {
            BlockKind::Records => self.records(&header, &payload),
            BlockKind::Text => self.text(&payload),
            BlockKind::Round => {
                self.end_round(header.stamp);
                Ok(())
            }
            BlockKind::End => {
                self.finish();
                self.ready.push_back(Event::End { why: String::from_utf8_lossy(&payload).into_owned() });
                Ok(())
            }
        };
        self.payload = payload;
        done.map_err(|what| error(Problem::Damaged(what)))
    }

    /// All that was read may be returned.
    fn finish(&mut self) {
        self.end_round(u64::MAX);
        self.is_at_end = true;
    }

    /// Moves the events up to `began` to `ready`.
    fn end_round(&mut self, began: u64) {
        // Each thread's are in order already, and few are late: this sort merges runs.
        if self.sorted < self.pending.len() {
            self.pending.sort_by_key(|(at, _)| *at);
        }
        let ends = self.pending.partition_point(|(at, _)| *at <= began);
        self.ready.extend(self.pending.drain(..ends).map(|(_, event)| event));
        self.sorted = self.pending.len();
    }

    fn records(&mut self, block: &BlockHeader, payload: &[u8]) -> Result<(), String> {
        let thread = block.thread;
        if self.pending.len() > PENDING_MAX {
            return Err(format!("more than {PENDING_MAX} records in a round"));
        }
        if usize::from(thread) >= self.threads.len() {
            return Err(format!("records of thread {thread}, which has no line before them"));
        }
        let mut base = block.stamp;
        for bytes in payload.chunks_exact(RECORD_BYTES) {
            let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
            let [a, b, c, d] = [word(0), word(4), word(8), word(12)];
            let tag = Tag::from_word(word(16)).ok_or_else(|| "a record of an unknown kind".to_owned())?;
            let both = u64::from(c) | u64::from(d) << 32;
            let too_late = || format!("a time of {base} and more does not fit");
            let at = base.checked_add(u64::from(b)).filter(|at| *at < u64::MAX / 2).ok_or_else(too_late)?;
            let cpu = tag.cpu.map(CpuId);
            let (order, event) = match tag.kind {
                RecordKind::Base => {
                    base = both;
                    continue;
                }
                RecordKind::Poll => {
                    let poll = Poll {
                        task: a,
                        thread,
                        cpu,
                        start: at,
                        duration: c,
                        woken_at: (d != NOT_KNOWN).then(|| at.saturating_sub(u64::from(d))),
                        waker_cpu: tag.waker_cpu.map(CpuId),
                        is_last: tag.flags & IS_LAST != 0,
                        woken_in_poll: tag.flags & WOKEN_IN_POLL != 0,
                        changed_cpu: tag.flags & CHANGED_CPU != 0,
                    };
                    (poll.end(), Event::Poll(poll))
                }
                RecordKind::Spawn => {
                    let location = self.location_keys.get(&both).copied();
                    let location = location.ok_or_else(|| format!("no line has the location {both}"))?;
                    (at, Event::Spawn(Spawn { task: a, thread, at, location, cpu }))
                }
                RecordKind::Name => {
                    let name = self.name_keys.get(&c).copied();
                    let name = name.ok_or_else(|| format!("no line has the name {c}"))?;
                    (at, Event::Name { task: a, name })
                }
                RecordKind::Worker => {
                    let (worker, is_warmcore) = (Some(c).filter(|c| *c != NOT_KNOWN), d == OF_WARMCORE);
                    (at, Event::Worker { thread, at, worker, is_warmcore })
                }
                RecordKind::Drop => (at, Event::Drop { task: a, thread, at }),
                RecordKind::Gap => {
                    let to = at + u64::from(c);
                    (to, Event::Gap { thread, from: at, to, records: u64::from(d) })
                }
            };
            self.pending.push((order, event));
        }
        Ok(())
    }

    fn text(&mut self, payload: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(payload).map_err(|_| "a block of text is not UTF-8".to_owned())?;
        for line in text.lines() {
            match TextLine::from_line(line)? {
                Some(TextLine::Location(key, location)) => {
                    self.location_keys.insert(key, self.locations.len() as u32);
                    self.locations.push(location);
                }
                Some(TextLine::Name(key, name)) => {
                    self.name_keys.insert(key, self.names.len() as u32);
                    self.names.push(name);
                }
                Some(TextLine::Thread(index, tid, name)) => {
                    if usize::from(index) != self.threads.len() {
                        return Err(format!("a line for thread {index} after {}", self.threads.len()));
                    }
                    self.threads.push(Thread { tid, name });
                }
                Some(TextLine::Stats(thread, stats)) => {
                    if usize::from(thread) >= self.threads.len() {
                        return Err(format!("totals of thread {thread}, which has no line before them"));
                    }
                    self.pending.push((stats.at, Event::Stats { thread, stats }));
                }
                Some(TextLine::Sampled(shift, at)) => {
                    self.pending.push((at, Event::Sampled { shift, at }));
                }
                Some(TextLine::Machine(at, busy_ns)) => {
                    self.pending.push((at, Event::Machine { at, busy_ns }));
                }
                None => {}
            }
        }
        Ok(())
    }
}

impl<R> fmt::Debug for Recording<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { header, position, .. } = self;
        f.debug_struct("Recording")
            .field("header", header)
            .field("position", position)
            .finish_non_exhaustive()
    }
}

/// Fills `bytes`, or as much of them as the source has.
fn read_full(source: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match source.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A recording can't be read.
#[derive(Debug)]
pub struct ReadError {
    /// Bytes from the file's beginning.
    at: u64,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    Io(io::Error),
    Foreign(String),
    Version(u32),
    NoHeader,
    Damaged(String),
}

impl ReadError {
    fn new(at: u64, problem: Problem) -> Self {
        Self { at, problem }
    }

    /// Whether the file is a recording whose bytes are wrong at one place: what is before that place was read.
    pub fn is_damaged(&self) -> bool {
        matches!(self.problem, Problem::Damaged(_))
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Problem::Io(error) => write!(f, "can't read the recording: {error}"),
            Problem::Foreign(what) => write!(
                f,
                "not a recording: {what}; a recording is a file that a program wrote with WARMCORE_RECORD=FILE"
            ),
            Problem::Version(version) => write!(
                f,
                "the recording has version {version} of the format, and this program reads version {VERSION}; \
                 read it with the version of warmcore that recorded it"
            ),
            Problem::NoHeader => write!(
                f,
                "the recording ends after {} bytes, within its header: the process ended before it had begun",
                self.at
            ),
            Problem::Damaged(what) => write!(f, "the recording is damaged at byte {}: {what}", self.at),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
