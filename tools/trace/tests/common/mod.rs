//! Recordings that a test makes: bytes as a recorder writes them, with events that the test chooses.
//!
//! A stamp is a nanosecond, so that times in tests and in analyses are the same numbers.

#![allow(dead_code, reason = "each test uses a part")]

use std::io::Write;
use warmcore_record::format::*;
use warmcore_record::{CpuPlace, Header, Location, TextLine, ThreadStats};
use warmcore_types::CpuId;

/// When the recordings begin.
pub const START: u64 = 1_000_000;

/// A poll. Times are nanoseconds after [`START`].
#[derive(Clone, Copy)]
pub struct PollAt {
    pub thread: u16,
    pub task: u32,
    pub cpu: u32,
    pub at: u64,
    pub ns: u32,
    /// The wake's time before the start, and the waker's CPU.
    pub wake: Option<(u32, u32)>,
    pub flags: u32,
}

impl PollAt {
    pub fn new(thread: u16, task: u32, cpu: u32, at: u64, ns: u32) -> Self {
        Self { thread, task, cpu, at, ns, wake: None, flags: 0 }
    }

    pub fn woken(self, before: u32, cpu: u32) -> Self {
        Self { wake: Some((before, cpu)), ..self }
    }

    pub fn last(self) -> Self {
        Self { flags: IS_LAST, ..self }
    }
}

/// Writes a recording.
pub struct Writer<W> {
    out: W,
    /// For each thread, the first record's time, and the records of its block.
    threads: Vec<(u64, Vec<u8>)>,
}

/// A machine of sockets with two nodes each, nodes with two caches, caches with two cores, cores with two CPUs.
pub fn places(cpus: u32) -> Vec<CpuPlace> {
    let part = |cpu: u32, size: u32| Some(cpu / size);
    let place = |cpu| CpuPlace {
        cpu: CpuId(cpu),
        core: cpu / 2,
        llc: part(cpu, 4),
        node: part(cpu, 8),
        socket: part(cpu, 16),
    };
    (0..cpus).map(place).collect()
}

impl Writer<Vec<u8>> {
    /// A recording in memory, with threads and one location, whose key is 1.
    pub fn in_memory(cpus: Vec<CpuPlace>, threads: u16) -> Self {
        let mut writer = Self::new(Vec::new(), cpus);
        (0..threads).for_each(|_| writer.thread());
        writer.location(1, 1);
        writer
    }

    /// The bytes, without a last block.
    pub fn bytes(mut self) -> Vec<u8> {
        self.flush();
        self.out
    }
}

impl<W: Write> Writer<W> {
    pub fn new(mut out: W, cpus: Vec<CpuPlace>) -> Self {
        let (pid, command) = (7, "a program".to_owned());
        let header =
            Header { pid, command, start: START, started_unix_ns: 1, ns_per_stamp_q32: 1 << 32, cpus };
        let text = header.to_string();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(checksum(CHECKSUM_START, text.as_bytes()).to_le_bytes());
        bytes.extend(text.as_bytes());
        out.write_all(&bytes).unwrap();
        Self { out, threads: Vec::new() }
    }

    pub fn block(&mut self, kind: BlockKind, thread: u16, stamp: u64, payload: &[u8]) {
        self.out.write_all(&BlockHeader::new(kind, thread, stamp, payload).to_bytes()).unwrap();
        self.out.write_all(payload).unwrap();
    }

    pub fn line(&mut self, line: TextLine) {
        self.block(BlockKind::Text, 0, 0, format!("{line}\n").as_bytes());
    }

    pub fn thread(&mut self) {
        let index = self.threads.len() as u16;
        self.line(TextLine::Thread(index, 100 + u32::from(index), format!("worker-{index}")));
        self.threads.push((0, Vec::new()));
    }

    pub fn location(&mut self, key: u64, line: u32) {
        self.line(TextLine::Location(key, Location { file: "src/main.rs".to_owned(), line, column: 5 }));
    }

    pub fn stats(&mut self, thread: u16, at: u64, stats: ThreadStats) {
        self.line(TextLine::Stats(thread, ThreadStats { at: START + at, ..stats }));
    }

    /// A record whose first time is `at`.
    fn record(&mut self, thread: u16, at: u64, words: impl FnOnce(u32) -> Record) {
        let (base, records) = &mut self.threads[usize::from(thread)];
        if records.is_empty() {
            *base = START + at;
        }
        let after = START + at - *base;
        records.extend(words(u32::try_from(after).unwrap()).iter().flat_map(|word| word.to_le_bytes()));
        if records.len() + RECORD_BYTES > 64 << 10 {
            self.flush_thread(thread);
        }
    }

    pub fn spawn(&mut self, thread: u16, task: u32, at: u64, key: u64, cpu: u32) {
        let tag = tag(RecordKind::Spawn, cpu, NO_CPU, 0);
        self.record(thread, at, |after| [task, after, key as u32, (key >> 32) as u32, tag]);
    }

    pub fn name(&mut self, thread: u16, task: u32, at: u64, key: u32) {
        let tag = tag(RecordKind::Name, NO_CPU, NO_CPU, 0);
        self.record(thread, at, |after| [task, after, key, 0, tag]);
    }

    pub fn worker(&mut self, thread: u16, at: u64, worker: u32) {
        let tag = tag(RecordKind::Worker, NO_CPU, NO_CPU, 0);
        self.record(thread, at, |after| [0, after, worker, 0, tag]);
    }

    pub fn drop_task(&mut self, thread: u16, task: u32, at: u64) {
        let tag = tag(RecordKind::Drop, NO_CPU, NO_CPU, 0);
        self.record(thread, at, |after| [task, after, 0, 0, tag]);
    }

    pub fn gap(&mut self, thread: u16, from: u64, to: u64, records: u32) {
        let tag = tag(RecordKind::Gap, NO_CPU, NO_CPU, 0);
        self.record(thread, from, |after| [0, after, (to - from) as u32, records, tag]);
    }

    pub fn poll(&mut self, poll: PollAt) {
        let (woken, waker) = poll.wake.unwrap_or((NOT_KNOWN, NO_CPU));
        let tag = tag(RecordKind::Poll, poll.cpu, waker, poll.flags);
        self.record(poll.thread, poll.at, |after| [poll.task, after, poll.ns, woken, tag]);
    }

    fn flush_thread(&mut self, thread: u16) {
        let (base, records) = std::mem::take(&mut self.threads[usize::from(thread)]);
        self.block(BlockKind::Records, thread, base, &records);
    }

    /// Writes all records so far.
    pub fn flush(&mut self) {
        for thread in 0..self.threads.len() {
            if !self.threads[thread].1.is_empty() {
                self.flush_thread(thread as u16);
            }
        }
    }

    /// Ends a round, which began at this time.
    pub fn round(&mut self, at: u64) {
        self.flush();
        self.block(BlockKind::Round, 0, START + at, &[]);
    }

    /// Ends the recording.
    pub fn end(&mut self) {
        self.flush();
        self.block(BlockKind::End, 0, 0, b"it ended");
        self.out.flush().unwrap();
    }
}
