//! A histogram of times, which is small so that it takes little space in the cache.
//!
//! There are 64 buckets for each power of two; a quantile is interpolated between the bounds of its bucket. The Go
//! program has the same buckets, so that its quantiles are computed in the same way. A bucket is 1 ns wide for times
//! below 128 ns, and at most 1.6 % of its lower bound for longer ones; times up to 36 minutes take 2304 counts, 9 KiB.
//! Each table is written by one task; they are merged when the tasks have ended.

const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
/// The last bucket also counts all times from 2⁴¹ ns on.
const BUCKETS: usize = SUB * 36;

/// Counts of times, by length.
#[derive(Debug, Clone)]
pub struct Quantiles {
    counts: Vec<u32>,
    total: u64,
}

impl Quantiles {
    /// An empty table.
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }

    /// Counts a time.
    #[inline]
    pub fn note(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
    }

    /// Adds the times of another table.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.total += other.total;
    }

    /// Returns the number of times in the table.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the quantile `q`, in ns; NaN for an empty table.
    pub fn at(&self, q: f64) -> f64 {
        let wanted = q * self.total as f64;
        let mut below = 0.0;
        for (i, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let with = below + f64::from(count);
            if with >= wanted {
                let (from, to) = borders(i);
                return from + (to - from) * ((wanted - below) / f64::from(count)).clamp(0.0, 1.0);
            }
            below = with;
        }
        f64::NAN
    }
}

fn bucket(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let sub = (ns >> (power - SUB_BITS)) as usize & (SUB - 1);
    ((power - SUB_BITS + 1) as usize * SUB + sub).min(BUCKETS - 1)
}

fn borders(bucket: usize) -> (f64, f64) {
    let (octave, sub) = (bucket / SUB, bucket % SUB);
    match octave {
        0 => (sub as f64, sub as f64 + 1.0),
        _ => {
            let width = (octave as f64 - 1.0).exp2();
            ((SUB + sub) as f64 * width, (SUB + sub + 1) as f64 * width)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_between_the_borders_of_its_bucket() {
        for ns in (0..40).flat_map(|power| [1u64 << power, (1 << power) + 1, (1 << power) * 3 / 2]).chain([0])
        {
            let (from, to) = borders(bucket(ns));
            assert!(from <= ns as f64 && (ns as f64) < to && to - from <= 1f64.max(ns as f64 / 60.0), "{ns}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_times_and_merging_adds_times() {
        let mut all = Quantiles::new();
        assert!(all.at(0.5).is_nan());
        (1..=900).for_each(|ns| all.note(ns));
        let mut slow = Quantiles::new();
        (0..100).for_each(|_| slow.note(1_000_000));
        all.merge(&slow);
        assert_eq!(all.total(), 1000);
        assert!((all.at(0.5) - 500.0).abs() < 10.0, "{}", all.at(0.5));
        assert!((all.at(0.99) - 1_000_000.0).abs() < 20_000.0, "{}", all.at(0.99));
    }
}
