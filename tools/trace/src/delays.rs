//! Delays from wake to poll: their histogram, and the longest ones.

use crate::analysis::{BesideIdle, DelayBucket, Delays, LongDelay};
use crate::quantiles::Times;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The number of the longest delays that are kept.
const LONGEST: usize = 50;

/// Two buckets for each doubling of the delay.
const BUCKETS: usize = 128;

/// Polls by their delay.
#[derive(Clone)]
pub struct Buckets([u64; BUCKETS]);

impl Default for Buckets {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Buckets {
    #[inline]
    fn of(ns: u64) -> usize {
        let Some(log) = ns.checked_ilog2().filter(|log| *log > 0) else { return ns as usize };
        (2 * log + (ns >> (log - 1) & 1) as u32) as usize
    }

    /// The shortest delay of a bucket.
    fn begin(bucket: usize) -> u64 {
        match bucket {
            0 | 1 => bucket as u64,
            BUCKETS.. => u64::MAX,
            _ => (2 + (bucket as u64 & 1)) << (bucket / 2 - 1),
        }
    }

    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.0[Self::of(ns)] += 1;
    }
}

/// A histogram of delays, and which of them the kernel may explain.
pub struct Histogram {
    pub times: Times,
    buckets: Buckets,
    maybe_kernel: Buckets,
}

impl Histogram {
    pub fn new() -> Self {
        Self { times: Times::new(), buckets: Buckets::default(), maybe_kernel: Buckets::default() }
    }

    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.times.add(ns);
        self.buckets.add(ns);
    }

    /// Delays of a thread during which the kernel kept it waiting for `run_delay_ns` in all. `None`: for any time.
    pub fn add_kernel(&mut self, delays: &Buckets, run_delay_ns: Option<u64>) {
        for (bucket, polls) in delays.0.iter().enumerate() {
            if run_delay_ns.is_none_or(|run_delay| Buckets::begin(bucket + 1) <= run_delay) {
                self.maybe_kernel.0[bucket] += polls;
            }
        }
    }

    pub fn buckets(&self) -> Vec<DelayBucket> {
        let used = |bucket: &usize| self.buckets.0[*bucket] > 0;
        let (first, last) = ((0..BUCKETS).find(used), (0..BUCKETS).rev().find(used));
        let bucket = |bucket| DelayBucket {
            from_ns: Buckets::begin(bucket),
            to_ns: Buckets::begin(bucket + 1),
            polls: self.buckets.0[bucket],
            maybe_kernel: self.maybe_kernel.0[bucket],
        };
        first.zip(last).map_or(Vec::new(), |(first, last)| (first..=last).map(bucket).collect())
    }
}

/// The delays of all polls.
pub struct AllDelays {
    pub histogram: Histogram,
    /// The longest ones, the shortest of them on top.
    longest: BinaryHeap<Reverse<(u64, u64, u32, SpawnPlace)>>,
}

/// A long delay, without what it is ordered by.
#[derive(PartialEq, Eq)]
struct SpawnPlace(LongDelay);

impl PartialOrd for SpawnPlace {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SpawnPlace {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl AllDelays {
    pub fn new() -> Self {
        Self { histogram: Histogram::new(), longest: BinaryHeap::new() }
    }

    #[inline]
    pub fn add(&mut self, ns: u64, long: impl FnOnce() -> LongDelay) {
        self.histogram.add(ns);
        let is_long = self.longest.len() < LONGEST
            || self.longest.peek().is_some_and(|Reverse((shortest, ..))| ns > *shortest);
        if is_long {
            let long = long();
            self.longest.push(Reverse((ns, long.at_ns, long.task, SpawnPlace(long))));
            if self.longest.len() > LONGEST {
                self.longest.pop();
            }
        }
    }

    /// `place` is the new index of a place.
    pub fn finish(
        self,
        place: impl Fn(u32) -> u32,
        run_delay_ns: Option<u64>,
        switches: Option<u64>,
        beside_idle: Option<BesideIdle>,
    ) -> Delays {
        let mut longest: Vec<LongDelay> =
            self.longest.into_iter().map(|Reverse((.., SpawnPlace(long)))| long).collect();
        longest.sort_by_key(|long| (Reverse(long.delay_ns), long.at_ns, long.task));
        longest.iter_mut().for_each(|long| long.place = place(long.place));
        Delays {
            all: self.histogram.times.quantiles(),
            buckets: self.histogram.buckets(),
            run_delay_ns,
            involuntary_switches: switches,
            longest,
            beside_idle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_in_the_bucket_that_names_it() {
        for ns in (0..2000).chain([u64::MAX / 3, u64::MAX - 1]) {
            let bucket = Buckets::of(ns);
            assert!(Buckets::begin(bucket) <= ns && ns < Buckets::begin(bucket + 1), "{ns} in {bucket}");
        }
    }
}
