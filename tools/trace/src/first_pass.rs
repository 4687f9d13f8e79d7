//! First pass: what has to be known of a recording before its polls are read.
//!
//! A gap is written when the ring has room again, which is after polls of other threads that ran meanwhile. So the gaps
//! are collected first; with them come the recording's length, the changes of sampling, and how it ended.

use crate::analysis::{Coverage, Ending, Sampling, permille};
use std::io::Read;
use warmcore_record::{Event, Header, KernelStats, Recording, SAMPLE_FACTOR, ThreadStats};

/// What the first pass found. Times are stamps.
pub struct FirstPass {
    /// When the recording began.
    pub start: u64,
    /// When its last event ended.
    pub last: u64,
    pub ending: Ending,
    pub threads: Vec<ThreadSpan>,
    gaps: Vec<Gap>,
    /// The gaps of all threads, merged, ascending.
    merged: Vec<(u64, u64)>,
    /// From when on which shift applied, ascending.
    sampling: Vec<(u64, u32)>,
    /// The first and the last time for which the machine's busy time is known, and that.
    machine: Option<((u64, u64), (u64, u64))>,
    /// Whether a shift is lower than one before, so that tasks came back.
    has_returns: bool,
}

/// Records that a thread lost.
struct Gap {
    thread: u16,
    from: u64,
    to: u64,
}

/// When a thread was seen, and its last totals.
#[derive(Default, Clone)]
pub struct ThreadSpan {
    pub seen: Option<(u64, u64)>,
    /// Records in its gaps.
    pub gap_records: u64,
    /// Its last totals.
    stats: Option<ThreadStats>,
    /// What the kernel counted last. The totals of a thread that has ended are without it.
    kernel: Option<KernelStats>,
}

impl ThreadSpan {
    fn see(&mut self, from: u64, to: u64) {
        let (first, last) = self.seen.unwrap_or((from, to));
        self.seen = Some((first.min(from), last.max(to)));
    }

    /// Records that were dropped: a recording that is cut may have gaps after its last totals.
    pub fn dropped(&self) -> u64 {
        self.gap_records.max(self.stats.map_or(0, |stats| stats.dropped))
    }

    pub fn skipped(&self) -> u64 {
        self.stats.map_or(0, |stats| stats.skipped)
    }
}

/// Totals whose sums over threads fit, whatever the file says: 2⁵² ns are 52 days of CPU time.
pub fn bounded(stats: ThreadStats) -> ThreadStats {
    let bound = |number: u64| number.min(1 << 52);
    let ThreadStats { at, polls, dropped, skipped, kernel } = stats;
    let kernel = kernel.map(|kernel| KernelStats {
        cpu_ns: bound(kernel.cpu_ns),
        run_delay_ns: bound(kernel.run_delay_ns),
        involuntary_switches: bound(kernel.involuntary_switches),
    });
    let (polls, dropped, skipped) = (bound(polls), bound(dropped), bound(skipped));
    ThreadStats { at: at.min(1 << 63), polls, dropped, skipped, kernel }
}

impl FirstPass {
    pub fn read<R: Read>(mut recording: Recording<R>) -> Self {
        let start = recording.header().start;
        let mut pass = Self {
            start,
            last: start,
            ending: Ending::Open,
            threads: Vec::new(),
            gaps: Vec::new(),
            merged: Vec::new(),
            sampling: Vec::new(),
            machine: None,
            has_returns: false,
        };
        loop {
            match recording.next_event() {
                Ok(Some(event)) => pass.event(event),
                Ok(None) => break,
                Err(error) => pass.ending = Ending::Damaged(error.to_string()),
            }
        }
        if let Some(bytes) = recording.cut() {
            pass.ending = Ending::Cut(bytes);
        }
        pass.threads.resize(recording.threads().len(), ThreadSpan::default());
        pass.merge();
        pass
    }

    #[inline]
    fn event(&mut self, event: Event) {
        match event {
            Event::Poll(poll) => self.thread(poll.thread, poll.start, poll.end()),
            Event::Spawn(spawn) => self.thread(spawn.thread, spawn.at, spawn.at),
            Event::Worker { thread, at, .. } | Event::Drop { thread, at, .. } => self.thread(thread, at, at),
            Event::Gap { thread, from, to, records } => {
                self.thread(thread, from, to);
                self.threads[usize::from(thread)].gap_records += records;
                self.gaps.push(Gap { thread, from, to });
            }
            Event::Stats { thread, stats } => {
                let stats = bounded(stats);
                self.thread(thread, stats.at, stats.at);
                let thread = &mut self.threads[usize::from(thread)];
                thread.stats = Some(stats);
                thread.kernel = stats.kernel.or(thread.kernel);
            }
            Event::Sampled { shift, at } => {
                self.has_returns |= self.sampling.last().is_some_and(|(_, before)| *before > shift);
                self.sampling.push((at, shift));
            }
            Event::Machine { at, busy_ns } => {
                let now = (at, busy_ns.min(1 << 62));
                self.machine = Some((self.machine.map_or(now, |(first, _)| first), now));
            }
            Event::Name { .. } => {}
            Event::End { why } => self.ending = Ending::Ended(why),
        }
    }

    fn thread(&mut self, thread: u16, from: u64, to: u64) {
        let thread = usize::from(thread);
        if self.threads.len() <= thread {
            self.threads.resize(thread + 1, ThreadSpan::default());
        }
        self.threads[thread].see(from.max(self.start), to.max(self.start));
        self.last = self.last.max(to);
    }

    fn merge(&mut self) {
        let mut gaps: Vec<(u64, u64)> = self.gaps.iter().map(|gap| (gap.from, gap.to)).collect();
        gaps.sort_unstable();
        for (from, to) in gaps {
            match self.merged.last_mut() {
                Some((_, end)) if from <= *end => *end = to.max(*end),
                _ => self.merged.push((from, to)),
            }
        }
    }

    /// Whether each poll of the task between the two times is in the recording.
    #[inline]
    pub fn is_whole(&self, task: u32, from: u64, to: u64) -> bool {
        (self.merged.is_empty() || !self.has_gap(from, to))
            && (!self.has_returns || !self.is_left_out(task, from, to))
    }

    fn has_gap(&self, from: u64, to: u64) -> bool {
        let next = self.merged.partition_point(|(_, end)| *end <= from);
        self.merged.get(next).is_some_and(|(begin, _)| *begin < to)
    }

    /// Whether a part of the time belongs to a sample without the task.
    fn is_left_out(&self, task: u32, from: u64, to: u64) -> bool {
        let ends = self.sampling.iter().skip(1).map(|(at, _)| *at).chain([u64::MAX]);
        self.sampling.iter().zip(ends).any(|((begin, shift), end)| {
            *begin < to && from < end && task.wrapping_mul(SAMPLE_FACTOR).leading_zeros() < *shift
        })
    }

    /// Calls `each` with the times of each gap.
    pub fn gaps(&self, mut each: impl FnMut(u64, u64)) {
        self.gaps.iter().for_each(|gap| each(gap.from, gap.to));
    }

    /// Fills in what the threads and the sampling say of the coverage.
    pub fn cover(&self, header: &Header, coverage: &mut Coverage) {
        for (index, thread) in self.threads.iter().enumerate() {
            let (from, to) = thread.seen.unwrap_or_default();
            let gaps = self.gaps.iter().filter(|gap| usize::from(gap.thread) == index);
            let missing = gaps.fold(0, |sum: u64, gap| sum.saturating_add(gap.to - gap.from));
            coverage.threads_ns = coverage.threads_ns.saturating_add(header.ns(to - from));
            let covered = header.ns((to - from).saturating_sub(missing));
            coverage.covered_ns = coverage.covered_ns.saturating_add(covered);
            coverage.dropped += thread.dropped();
            coverage.skipped += thread.skipped();
            if let Some(kernel) = thread.kernel {
                coverage.cpu_ns = Some(coverage.cpu_ns.unwrap_or(0) + kernel.cpu_ns);
            }
        }
        coverage.machine_busy_permille = self.machine.and_then(|(first, last)| {
            let span = header.ns(last.0.saturating_sub(first.0));
            (span > 0).then(|| permille(last.1.saturating_sub(first.1), span))
        });
        let change = |(at, shift): &(u64, u32)| Sampling {
            at_ns: header.ns(at.saturating_sub(self.start)),
            shift: *shift,
        };
        coverage.sampling = self.sampling.iter().map(change).collect();
    }
}
