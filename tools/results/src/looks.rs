//! When a comparison of two variants may stop, and what it then says.
//!
//! Both variants run in each round, and a round gives one ratio. After 16, 32, 64 and 128 rounds ([`LOOKS`]) [`look`]
//! computes an interval of the median ratio. The comparison stops as soon as all of the interval is inside of the
//! [`band`] (level) or all of it is on one side of the band (ahead or behind); after the last look it says what the last
//! interval permits.
//!
//! # Error
//!
//! A comparison that is looked at four times with a 95 % interval each time is wrong more often than in one of 20 runs.
//! So the looks share [`ERROR`]: each may spend a part that is proportional to the rounds since the look before, that is
//! 1/8, 1/8, 1/4 and 1/2 of it. The probability that any of the four intervals misses the true median is at most the sum
//! of the parts, whatever look ends the run and however the looks depend on each other (Boole's inequality). The same
//! holds for each further metric of the same slices.
//!
//! An interval lies between two of the sorted ratios. Each ratio is above the true median with probability 1/2, so the
//! binomial distribution of 1/2 gives the ranks exactly: no assumption about the noise is made, except that rounds are
//! independent. If the ratios of equal variants have a standard deviation of 0.04, 0.05, 0.09 or 0.13, the first,
//! second, third or fourth look is usually narrow enough.
//!
//! Source: Lan and DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 1983, for spending the error
//! in proportion to the samples; the sign test for the ranks.

use crate::{Bound, Row};

/// The numbers of rounds after which a comparison is looked at.
pub const LOOKS: [usize; 4] = [16, 32, 64, 128];

/// Ratios of a metric between these two count as no difference. High percentiles vary more.
pub fn band(metric: &str) -> [f64; 2] {
    if metric.starts_with("p99") { [0.8, 1.2] } else { [0.95, 1.05] }
}

/// The probability with which at least one interval of a comparison misses the true median is at most this.
pub const ERROR: f64 = 0.05;

/// What a look says about a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All of the interval is beyond the band, on the bad side.
    Behind,
    /// The interval has values inside of the band and values beyond it on the bad side.
    Undecided,
    /// No value of the interval is beyond the band on the bad side; some are on the good side and some inside of it.
    NotBehind,
    /// All of the interval is inside of the band.
    Level,
    /// All of the interval is beyond the band, on the good side.
    Ahead,
}

impl Verdict {
    /// All verdicts, the worst first.
    pub const ALL: [Self; 5] = [Self::Behind, Self::Undecided, Self::NotBehind, Self::Level, Self::Ahead];

    /// Whether the comparison may stop before the last look.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Behind | Self::Level | Self::Ahead)
    }

    /// A word for a cell of a table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Behind => "behind",
            Self::Undecided => "undecided",
            Self::NotBehind => "not behind",
            Self::Level => "level",
            Self::Ahead => "ahead",
        }
    }
}

/// What is known of a ratio after a number of rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// The interval of the median, low and high.
    pub interval: [f64; 2],
    /// What it says.
    pub verdict: Verdict,
    band: [f64; 2],
}

impl Look {
    /// The row of the ratio with the interval of this look, and with the bound that it has to meet so that it is not
    /// behind.
    pub fn row(&self, ratio: Row, better: Bound) -> Row {
        let edge = self.band[usize::from(better == Bound::AtMost)];
        ratio.with_ci(self.interval).promise(better, edge)
    }
}

/// Looks at the ratios of a metric in all rounds so far; `better` is the side of 1 that is good. Panics if their number is none of
/// [`LOOKS`].
pub fn look(metric: &str, ratios: &[f64], better: Bound) -> Look {
    let ([low, high], band) = (ranks(ratios.len()), band(metric));
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let interval = [sorted[low], sorted[high]];
    // Mirrored, so that more is better below: 0.9 is as bad for a rate as 1.1 is for a time.
    let [worst, best] = match better {
        Bound::AtLeast => [interval[0] - band[0], interval[1] - band[0]],
        Bound::AtMost => [band[1] - interval[1], band[1] - interval[0]],
    };
    let width = band[1] - band[0];
    let verdict = match (worst, best) {
        (_, best) if best < 0.0 => Verdict::Behind,
        (worst, _) if worst > width => Verdict::Ahead,
        (worst, _) if worst < 0.0 => Verdict::Undecided,
        (_, best) if best > width => Verdict::NotBehind,
        _ => Verdict::Level,
    };
    Look { interval, verdict, band }
}

/// The share of [`ERROR`] that the look after `n` rounds may spend. Panics if there is no such look.
fn error_of(n: usize) -> f64 {
    let at = LOOKS.iter().position(|rounds| *rounds == n);
    let at = at.unwrap_or_else(|| panic!("no look after {n} rounds: they are {LOOKS:?}"));
    let before = if at == 0 { 0 } else { LOOKS[at - 1] };
    ERROR * (n - before) as f64 / LOOKS[LOOKS.len() - 1] as f64
}

/// The ranks, from 0, of the narrowest symmetric interval of the median that the error of this look permits.
fn ranks(n: usize) -> [usize; 2] {
    let (tail_max, mut tail) = (error_of(n) / 2.0, 0.0);
    // The probability that exactly `low` of the `n` ratios are below the true median.
    let mut exactly = 0.5f64.powi(n as i32);
    let mut low = 0;
    // The interval from the rank `low` on misses if `low` or fewer ratios are below.
    while tail + exactly <= tail_max {
        tail += exactly;
        exactly *= (n - low) as f64 / (low + 1) as f64;
        low += 1;
    }
    // `low` tails fit, so the last rank that fits is the one before.
    let low = low.checked_sub(1).expect("the first look is after enough rounds");
    [low, n - 1 - low]
}

#[cfg(test)]
mod tests;
