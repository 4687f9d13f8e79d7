//! Threads: their rows, and the queue in front of a poll.

use crate::analysis::{KernelInterval, ThreadRow};
use crate::delays::Buckets;
use crate::origin::ByOrigin;
use crate::tasks::NO_CPU;
use warmcore_record::{KernelStats, Poll, ThreadStats};

/// The most intervals that a thread keeps; after that, neighbours merge.
const INTERVALS_MAX: usize = 600;

/// Starts of polls that a thread keeps.
const STARTS: usize = 64;

/// A thread, as far as its events were read.
pub struct ThreadState {
    pub row: ThreadRow,
    /// Delays since the last totals.
    pub delays: Buckets,
    kernel: Option<KernelStats>,
    /// The interval that is not complete yet, and of how many totals an interval is made.
    open: KernelInterval,
    open_stats: usize,
    stats_per_interval: usize,
    /// The starts of the last polls; the next one overwrites `starts[polls % STARTS]`.
    starts: [u64; STARTS],
    polls: usize,
    cpu: u16,
}

impl ThreadState {
    pub fn new(name: String, tid: u32) -> Self {
        Self {
            row: ThreadRow {
                name,
                tid,
                worker: None,
                polls: 0,
                dropped: 0,
                skipped: 0,
                polled_ns: 0,
                from_previous: ByOrigin::default(),
                cpu_changes: 0,
                kernel: Vec::new(),
            },
            delays: Buckets::default(),
            kernel: None,
            open: KernelInterval { until_ns: 0, cpu_ns: 0, run_delay_ns: 0, involuntary_switches: 0 },
            open_stats: 0,
            stats_per_interval: 1,
            starts: [0; STARTS],
            polls: 0,
            cpu: NO_CPU,
        }
    }

    /// The length of the queue in front of this poll, which is the thread's next one: 0 for none, n for 2ⁿ⁻¹ and more polls
    /// that the thread began between the poll's wake and its start; 8 if the wake's time is not known.
    ///
    /// Polls before this one say it, so a stream needs no look ahead. A task that was stolen has the queue of its new
    /// thread.
    #[inline]
    pub fn queue_before(&mut self, poll: &Poll, cpu: u16) -> u8 {
        self.row.cpu_changes += u64::from(cpu != self.cpu && cpu != NO_CPU && self.cpu != NO_CPU);
        self.cpu = cpu;
        let queue = match poll.woken_at {
            None => 8,
            Some(woken_at) => {
                let mut length = 0;
                while length < 7 && self.nth_last_start(1 << length).is_some_and(|start| start >= woken_at) {
                    length += 1;
                }
                length
            }
        };
        self.starts[self.polls % STARTS] = poll.start;
        self.polls += 1;
        queue
    }

    fn nth_last_start(&self, nth: usize) -> Option<u64> {
        Some(self.starts[self.polls.checked_sub(nth)? % STARTS])
    }

    /// Takes new totals; returns the delays since the last ones with the time in which the kernel kept the thread waiting
    /// meanwhile. `None`: it is not known.
    pub fn stats(&mut self, at_ns: u64, stats: &ThreadStats) -> Option<(Buckets, u64)> {
        let kernel = stats.kernel?;
        let delays = std::mem::take(&mut self.delays);
        // The kernel counts since the thread began: the first totals are those of the first interval.
        let before = self.kernel.replace(kernel).unwrap_or_default();
        let run_delay = kernel.run_delay_ns.saturating_sub(before.run_delay_ns);
        let switches = kernel.involuntary_switches.saturating_sub(before.involuntary_switches);
        self.open.until_ns = at_ns;
        self.open.cpu_ns += kernel.cpu_ns.saturating_sub(before.cpu_ns);
        self.open.run_delay_ns += run_delay;
        self.open.involuntary_switches += switches;
        self.open_stats += 1;
        if self.open_stats == self.stats_per_interval {
            self.close_interval();
        }
        Some((delays, run_delay))
    }

    pub fn has_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    fn close_interval(&mut self) {
        let fresh = KernelInterval { until_ns: 0, cpu_ns: 0, run_delay_ns: 0, involuntary_switches: 0 };
        self.row.kernel.push(std::mem::replace(&mut self.open, fresh));
        self.open_stats = 0;
        if self.row.kernel.len() == INTERVALS_MAX {
            self.row.kernel =
                self.row.kernel.chunks(2).map(|pair| pair.iter().copied().fold(fresh, sum)).collect();
            self.stats_per_interval *= 2;
        }
    }

    pub fn finish(mut self) -> ThreadRow {
        if self.open_stats > 0 {
            self.row.kernel.push(self.open);
        }
        self.row
    }
}

fn sum(a: KernelInterval, b: KernelInterval) -> KernelInterval {
    KernelInterval {
        until_ns: a.until_ns.max(b.until_ns),
        cpu_ns: a.cpu_ns + b.cpu_ns,
        run_delay_ns: a.run_delay_ns + b.run_delay_ns,
        involuntary_switches: a.involuntary_switches + b.involuntary_switches,
    }
}
