//! Writer: the thread that writes what the other threads recorded.
//!
//! Ten times a second, and when a ring is half full, it drains all rings: a *round* ([`format`](crate::format)). It reads
//! the clock before it reads the rings, so a record of a later round was pushed after that time. What a record refers to
//! (a thread, a location, a name) is in a line of text before the record's block.
//!
//! Where programs poll more than the file may hold in ten minutes, or more than this thread gets done, it halves the part
//! of the tasks that are recorded: `TextLine::Sampled`.
//!
//! # Cost
//! 5 ns per record, and once a second two small files of /proc for each thread and one for the machine.

use crate::file::{BlockFile, NoMore};
use crate::format::*;
use crate::recorder::{self, NewThread};
use crate::ring::{CAPACITY, Ring};
use crate::text::{KernelStats, Location, TextLine, ThreadStats};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use warmcore_sys::{affinity, clock};

/// The longest time between two rounds: what a process that is killed loses.
const ROUND: Duration = Duration::from_millis(100);

/// The threads' totals are written this often, and the rate of the file is looked at.
const TOTALS: Duration = Duration::from_secs(1);

/// The file may grow in this time to its bound; if it grows faster, fewer tasks are recorded. With 4 GiB, 7 MB/s.
const FILLS_IN: Duration = Duration::from_secs(600);

/// A ring with more records than this was drained late. Drained late twice in a row: fewer tasks are recorded.
const LATE: u32 = CAPACITY / 4 * 3;

/// At least one task of 2^10 is recorded.
const SHIFT_MAX: u32 = 10;

/// What the writer's thread keeps.
pub(crate) struct Writer {
    file: BlockFile,
    /// The threads that live, or whose last records are not written yet.
    threads: Vec<Traced>,
    /// Number of threads that were ever known.
    known: usize,
    /// Keys of the locations that have a line.
    locations: HashSet<u64>,
    /// Lines that are not in a block yet.
    text: String,
    payload: Vec<u8>,
    shift: u32,
    /// Rounds in a row in which a ring was drained late.
    late: u32,
    totals_at: Instant,
    bytes_then: u64,
}

/// A thread whose ring is drained.
struct Traced {
    index: u16,
    tid: u32,
    ring: Arc<Ring>,
    /// From which the thread's next record counts its time.
    base: u64,
    polls: u64,
    /// Polls that were left out, at the last totals.
    skipped: u64,
    /// Whether something was drained or counted since the last totals.
    has_news: bool,
}

impl Writer {
    pub(crate) fn new(file: BlockFile) -> Self {
        let bytes_then = file.bytes();
        Self {
            file,
            threads: Vec::new(),
            known: 0,
            locations: HashSet::new(),
            text: String::new(),
            payload: Vec::new(),
            shift: 0,
            late: 0,
            totals_at: Instant::now(),
            bytes_then,
        }
    }

    /// The main function of the writer's thread.
    pub(crate) fn run(mut self) {
        if let Ok(cpus) = affinity::allowed_to_main() {
            let _ = affinity::set_allowed(&cpus);
        }
        let why = catch_unwind(AssertUnwindSafe(|| self.rounds()));
        recorder::stop();
        let path = self.file.path().display();
        match why {
            Ok(None) => {}
            Ok(Some(NoMore::Full)) => recorder::say(&format!(
                "the recording {path} has reached {} bytes ({}) and ends; the program goes on",
                self.file.bytes_max(),
                recorder::MAX_VARIABLE
            )),
            Ok(Some(NoMore::Error(error))) => {
                recorder::say(&format!("the recording {path} ends: {error}; the program goes on"));
            }
            Err(_) => recorder::say(&format!("the recording {path} ends by a panic of its writer")),
        }
        recorder::answer(u64::MAX, false);
    }

    /// Runs rounds until the recording ends. Returns why, unless it was asked for.
    fn rounds(&mut self) -> Option<NoMore> {
        loop {
            let (rounds, end) = recorder::asked();
            let written = self.round(end.is_some());
            let why = match (&written, end) {
                (Ok(()), None) => {
                    recorder::answer(rounds, true);
                    std::thread::park_timeout(ROUND);
                    continue;
                }
                (Ok(()), Some(why)) => why.to_owned(),
                (Err(NoMore::Full), _) => format!("the file has reached {} bytes", self.file.bytes_max()),
                (Err(NoMore::Error(error)), _) => format!("the file can't be written: {error}"),
            };
            recorder::stop();
            let ended = self.file.end(clock::stamp(), &why);
            return written.and(ended).err();
        }
    }

    /// Drains all rings once.
    fn round(&mut self, is_last: bool) -> Result<(), NoMore> {
        let began = clock::stamp();
        let bytes = self.file.bytes();
        self.add_threads();
        let mut is_late = false;
        let mut threads = std::mem::take(&mut self.threads);
        let mut drained = Ok(());
        threads.retain_mut(|thread| {
            if drained.is_err() {
                return true;
            }
            // Before the drain: nothing is pushed after it is closed.
            let is_closed = thread.ring.is_closed();
            drained = self.drain(thread, &mut is_late);
            if is_closed && drained.is_ok() {
                self.totals(thread);
            }
            !is_closed
        });
        self.threads = threads;
        drained?;
        self.late = if is_late { self.late + 1 } else { 0 };
        let elapsed = self.totals_at.elapsed();
        if elapsed >= TOTALS || is_last {
            self.all_totals();
            if let Some(busy_ns) = machine_busy_ns() {
                self.line(&TextLine::Machine(clock::stamp(), busy_ns));
            }
            let grown = self.file.bytes() - self.bytes_then;
            let allowed = self.file.bytes_max() as f64 * elapsed.as_secs_f64() / FILLS_IN.as_secs_f64();
            if grown as f64 > allowed {
                self.record_fewer();
            }
            self.totals_at = Instant::now();
            self.bytes_then = self.file.bytes();
        } else if self.late >= 2 {
            self.record_fewer();
        }
        self.append_text()?;
        if self.file.bytes() > bytes {
            self.file.append(BlockKind::Round, 0, began, &[])?;
        }
        self.file.flush()
    }

    fn add_threads(&mut self) {
        for NewThread { ring, base, tid, name } in recorder::take_threads() {
            let index = self.known as u16;
            self.known += 1;
            self.line(&TextLine::Thread(index, tid, name));
            self.threads.push(Traced { index, tid, ring, base, polls: 0, skipped: 0, has_news: true });
        }
    }

    /// Writes the records that are in a thread's ring.
    fn drain(&mut self, thread: &mut Traced, is_late: &mut bool) -> Result<(), NoMore> {
        let base = thread.base;
        let Self { payload, locations, text, .. } = self;
        payload.clear();
        let drained = thread.ring.drain(|record| {
            payload.extend_from_slice(&to_bytes(record));
            let [_, _, c, d, tag] = record;
            let both = u64::from(c) | u64::from(d) << 32;
            match Tag::from_word(tag).map(|tag| tag.kind) {
                Some(RecordKind::Poll) => thread.polls += 1,
                Some(RecordKind::Base) => thread.base = both,
                Some(RecordKind::Spawn) if locations.insert(both) => {
                    add_line(text, &TextLine::Location(both, location(both)));
                }
                _ => {}
            }
        });
        if drained == 0 {
            return Ok(());
        }
        thread.has_news = true;
        *is_late |= drained > LATE;
        // After the drain: the name of a record that was drained is there.
        for (key, name) in recorder::take_names() {
            self.line(&TextLine::Name(key, name));
        }
        self.append_text()?;
        self.file.append(BlockKind::Records, thread.index, base, &self.payload)
    }

    fn line(&mut self, line: &TextLine) {
        add_line(&mut self.text, line);
    }

    /// Appends the lines that are not in a block yet.
    fn append_text(&mut self) -> Result<(), NoMore> {
        let text = std::mem::take(&mut self.text);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            // A block ends with a line. No line is longer than a block: names and paths are far shorter.
            let end = match rest.len() <= PAYLOAD_MAX {
                true => rest.len(),
                false => rest.as_bytes()[..PAYLOAD_MAX]
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .map_or(rest.len(), |at| at + 1),
            };
            self.file.append(BlockKind::Text, 0, 0, &rest.as_bytes()[..end])?;
            rest = &rest[end..];
        }
        Ok(())
    }

    fn all_totals(&mut self) {
        let mut threads = std::mem::take(&mut self.threads);
        threads.iter_mut().for_each(|thread| self.totals(thread));
        self.threads = threads;
    }

    /// Adds the line with a thread's totals, unless nothing happened since the last one.
    fn totals(&mut self, thread: &mut Traced) {
        let (dropped, skipped) = (thread.ring.dropped.load(Relaxed), thread.ring.skipped.load(Relaxed));
        let has_skipped = std::mem::replace(&mut thread.skipped, skipped) != skipped;
        if std::mem::take(&mut thread.has_news) || has_skipped {
            let at = clock::stamp();
            let kernel = kernel_stats(thread.tid);
            let stats = ThreadStats { at, polls: thread.polls, dropped, skipped, kernel };
            self.line(&TextLine::Stats(thread.index, stats));
        }
    }

    fn record_fewer(&mut self) {
        if self.shift < SHIFT_MAX && recorder::is_on() {
            self.shift += 1;
            self.late = 0;
            recorder::set_sample(self.shift);
            self.line(&TextLine::Sampled(self.shift, clock::stamp()));
        }
    }
}

/// The record as it is in the file.
fn to_bytes(record: Record) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes.chunks_exact_mut(4).zip(record).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    bytes
}

fn add_line(text: &mut String, line: &TextLine) {
    let _ = writeln!(text, "{line}");
}

/// The location that is the key of a record.
fn location(key: u64) -> Location {
    // SAFETY: the key of a `RecordKind::Spawn` is the address of a `&'static Location`: `TaskRecord::spawned` writes it, and
    // no other code pushes such a record.
    let at = unsafe { &*(key as usize as *const std::panic::Location<'static>) };
    Location { file: at.file().to_owned(), line: at.line(), column: at.column() }
}

/// Reads what the kernel counts for a thread of this process. `None`: there is no /proc, or no such thread.
fn kernel_stats(tid: u32) -> Option<KernelStats> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).ok();
    let times = read("schedstat")?;
    let mut times = times.split_whitespace().map(|word| word.parse().ok());
    let (cpu_ns, run_delay_ns) = (times.next()??, times.next()??);
    let status = read("status")?;
    let switches = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    Some(KernelStats { cpu_ns, run_delay_ns, involuntary_switches: switches.trim().parse().ok()? })
}

/// Reads for how long all CPUs of the machine together were busy since it started, with the work of all processes. `None`: there is no
/// /proc/stat.
fn machine_busy_ns() -> Option<u64> {
    /// The kernel shows these times in hundredths of a second, whatever its own tick is.
    const TICK_NS: u64 = 10_000_000;
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let mut ticks = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map(str::parse::<u64>);
    let mut ticks = || ticks.next().and_then(Result::ok);
    let (user, nice, system, _idle, _waits_for_io) = (ticks()?, ticks()?, ticks()?, ticks()?, ticks()?);
    let interrupts_and_steal = [ticks()?, ticks()?, ticks()?];
    Some((user + nice + system + interrupts_and_steal.iter().sum::<u64>()) * TICK_NS)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_this_thread() {
        let tid = affinity::this_thread();
        let Some(before) = kernel_stats(tid) else {
            assert!(!std::path::Path::new("/proc/self/task").exists(), "/proc is here and can't be read");
            return;
        };
        let mut sum = 0_u64;
        while kernel_stats(tid).unwrap().cpu_ns < before.cpu_ns + 1_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert_eq!(kernel_stats(u32::MAX), None);
    }

    #[test]
    fn the_machine_is_busy_while_a_thread_works() {
        let Some(before) = machine_busy_ns() else {
            assert!(!std::path::Path::new("/proc/stat").exists(), "/proc/stat is here and can't be read");
            return;
        };
        let mut sum = 0_u64;
        while machine_busy_ns().unwrap() < before + 30_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
