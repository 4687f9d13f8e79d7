//! The difference that a move makes, its interval, and the control.
//!
//! The interval is that of a bootstrap over blocks of time: the recording is cut into 64 blocks, and each draw takes 64 of
//! them at random, some several times. Polls are not independent: those of one task follow each other, and those of one
//! moment share the CPU's frequency and whatever else runs. A block of time holds both together. Blocks of tasks would hold
//! the first only, and many servers have few tasks that live long.
//!
//! The control shuffles in each stratum which polls count as moved. Nothing is left to find then, so 95 of 100 intervals
//! should hold 0.

use super::samples::Sample;
use crate::SHUFFLES;
use crate::analysis::Estimate;
use fastrand::Rng;

/// Blocks of time.
pub const BLOCKS: usize = 64;

/// Draws of a bootstrap.
pub const DRAWS: usize = 200;

/// Polls that came after the same: of one place, in one stratum.
pub struct Stratum {
    /// Moved polls, with those that are in no sample.
    moved: u64,
    /// The samples by duration, ascending.
    polls: Vec<Sample>,
    /// Which of them moved.
    has_moved: Vec<bool>,
}

impl Stratum {
    pub fn new(moves: u64, moved: &[Sample], stayed: &[Sample]) -> Self {
        let of = |samples: &[Sample], is: bool| {
            samples.iter().map(move |sample| (*sample, is)).collect::<Vec<_>>()
        };
        let mut polls = [of(moved, true), of(stayed, false)].concat();
        polls.sort_unstable();
        let (polls, has_moved) = polls.into_iter().unzip();
        Self { moved: moves, polls, has_moved }
    }

    /// The polls with a move, or those without, by duration.
    fn arm(&self, has_moved: bool) -> Vec<Sample> {
        let of_arm = self.polls.iter().zip(&self.has_moved).filter(|(_, is)| **is == has_moved);
        of_arm.map(|(sample, _)| *sample).collect()
    }
}

/// A mean of strata, each weighted by its moved polls.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: i128,
    moved: u64,
}

impl Mean {
    fn add(&mut self, difference_ns: i64, moved: u64) {
        self.sum += i128::from(difference_ns) * i128::from(moved);
        self.moved += moved;
    }

    fn ps(self) -> i64 {
        (self.sum * 1000 / i128::from(self.moved.max(1))) as i64
    }
}

/// The difference over all strata, in picoseconds.
fn difference_ps(strata: &[Stratum]) -> i64 {
    let mut mean = Mean::default();
    for stratum in strata {
        let median = |arm: Vec<Sample>| i64::from(arm[(arm.len() - 1) / 2].0);
        mean.add(median(stratum.arm(true)) - median(stratum.arm(false)), stratum.moved);
    }
    mean.ps()
}

/// A number for each draw. Loops over it become vector instructions.
type PerDraw = [u16; DRAWS];

/// How often each block of time counts, for each draw.
pub struct Draws(Vec<PerDraw>);

impl Draws {
    pub fn new() -> Self {
        let mut rng = Rng::with_seed(2);
        let mut weights = vec![[0; DRAWS]; BLOCKS];
        (0..DRAWS * BLOCKS).for_each(|i| weights[rng.usize(..BLOCKS)][i / BLOCKS] += 1);
        Self(weights)
    }

    /// The median of polls that are sorted by duration, for each draw; `None` for a draw without their blocks.
    fn medians(&self, polls: &[Sample]) -> [Option<i64>; DRAWS] {
        // At most 128 samples that count 64 times at most: twice their sum fits.
        let (mut wholes, mut sums, mut below): (PerDraw, PerDraw, PerDraw) =
            ([0; DRAWS], [0; DRAWS], [0; DRAWS]);
        for (_, block) in polls {
            let weights = &self.0[usize::from(*block)];
            wholes.iter_mut().zip(weights).for_each(|(whole, weight)| *whole += weight);
        }
        // The median is the first poll up to which at least half of the whole counts.
        for (_, block) in polls {
            let weights = &self.0[usize::from(*block)];
            for draw in 0..DRAWS {
                sums[draw] += weights[draw];
                below[draw] += u16::from(sums[draw] * 2 < wholes[draw]);
            }
        }
        std::array::from_fn(|draw| (wholes[draw] > 0).then(|| i64::from(polls[usize::from(below[draw])].0)))
    }

    /// The difference over all strata, in picoseconds, for each draw.
    fn differences_ps(&self, strata: &[Stratum]) -> Vec<i64> {
        let mut means = vec![Mean::default(); DRAWS];
        for stratum in strata {
            let (moved, stayed) = (self.medians(&stratum.arm(true)), self.medians(&stratum.arm(false)));
            for (mean, medians) in means.iter_mut().zip(moved.into_iter().zip(stayed)) {
                if let (Some(moved), Some(stayed)) = medians {
                    mean.add(moved - stayed, stratum.moved);
                }
            }
        }
        means.into_iter().map(Mean::ps).collect()
    }
}

/// What was measured for a pair of place and origin.
pub struct StrataCost {
    /// The difference in picoseconds.
    pub ps: i64,
    /// The difference in each draw.
    pub draws_ps: Vec<i64>,
    shuffles_with_zero: u32,
}

impl StrataCost {
    pub fn estimate(&self) -> Estimate {
        let (low, high) = interval(self.draws_ps.iter().copied());
        let ns = |ps: i64| (ps as f64 / 1000.0).round() as i64;
        let shuffles_with_zero = self.shuffles_with_zero;
        Estimate { ns: ns(self.ps), low_ns: ns(low), high_ns: ns(high), shuffles_with_zero }
    }
}

/// The interval that leaves out a fortieth of the draws at each end.
pub fn interval(draws: impl Iterator<Item = i64>) -> (i64, i64) {
    let mut draws: Vec<i64> = draws.collect();
    draws.sort_unstable();
    let out = draws.len() / 40;
    (draws[out], draws[draws.len() - 1 - out])
}

/// Measures the difference, its interval, and in how many of [`SHUFFLES`] the interval holds 0.
pub fn measure(strata: &[Stratum], draws: &Draws, seed: u64) -> StrataCost {
    let mut rng = Rng::with_seed(seed);
    let with_labels = |has_moved: &dyn Fn(&Stratum) -> Vec<bool>| -> Vec<Stratum> {
        let copy =
            |it: &Stratum| Stratum { moved: it.moved, polls: it.polls.clone(), has_moved: has_moved(it) };
        strata.iter().map(copy).collect()
    };
    let mut shuffled = with_labels(&|it| it.has_moved.clone());
    let holds_zero = |_: &u32| {
        shuffled.iter_mut().for_each(|stratum| rng.shuffle(&mut stratum.has_moved));
        let (low, high) = interval(draws.differences_ps(&shuffled).into_iter());
        (low..=high).contains(&0)
    };
    let shuffles_with_zero = (0..SHUFFLES).filter(holds_zero).count() as u32;
    StrataCost { ps: difference_ps(strata), draws_ps: draws.differences_ps(strata), shuffles_with_zero }
}
