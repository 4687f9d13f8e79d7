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
    polls: Vec<(u32, u8)>,
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

    /// The median after a move less that without, where a block of time counts `weights[block]` times. `None`: the blocks
    /// that count have no poll of one kind.
    fn difference(&self, weights: &[u32; BLOCKS]) -> Option<i64> {
        let weight = |block: u8| u64::from(weights[usize::from(block) % BLOCKS]);
        let (mut all, mut of_moved) = (0, 0);
        for ((_, block), has_moved) in self.polls.iter().zip(&self.has_moved) {
            all += weight(*block);
            of_moved += weight(*block) * u64::from(*has_moved);
        }
        let wholes = [all - of_moved, of_moved];
        if wholes.contains(&0) {
            return None;
        }
        let (mut sums, mut medians) = ([0; 2], [None; 2]);
        for ((duration, block), has_moved) in self.polls.iter().zip(&self.has_moved) {
            let arm = usize::from(*has_moved);
            sums[arm] += weight(*block);
            if sums[arm] * 2 >= wholes[arm] && medians[arm].is_none() {
                medians[arm] = Some(i64::from(*duration));
                if medians[1 - arm].is_some() {
                    break;
                }
            }
        }
        Some(medians[1]? - medians[0]?)
    }
}

/// The difference over all strata in picoseconds, each weighted by its moved polls.
fn difference_ps(strata: &[Stratum], weights: &[u32; BLOCKS]) -> i64 {
    let (mut sum, mut moved) = (0, 0);
    for stratum in strata {
        if let Some(difference) = stratum.difference(weights) {
            sum += i128::from(difference) * 1000 * i128::from(stratum.moved);
            moved += i128::from(stratum.moved);
        }
    }
    (sum / moved.max(1)) as i64
}

/// How often each block of time counts, for each draw.
pub struct Draws(Vec<[u32; BLOCKS]>);

impl Draws {
    pub fn new() -> Self {
        let mut rng = Rng::with_seed(2);
        let mut draw = || {
            let mut weights = [0; BLOCKS];
            (0..BLOCKS).for_each(|_| weights[rng.usize(..BLOCKS)] += 1);
            weights
        };
        Self((0..DRAWS).map(|_| draw()).collect())
    }

    fn differences_ps(&self, strata: &[Stratum]) -> Vec<i64> {
        self.0.iter().map(|weights| difference_ps(strata, weights)).collect()
    }
}

/// What was measured for a pair of place and origin.
pub struct Measured {
    /// The difference in picoseconds.
    pub ps: i64,
    /// The difference in each draw.
    pub draws_ps: Vec<i64>,
    shuffles_with_zero: u32,
}

impl Measured {
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
pub fn measure(strata: &[Stratum], draws: &Draws, seed: u64) -> Measured {
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
    Measured {
        ps: difference_ps(strata, &[1; BLOCKS]),
        draws_ps: draws.differences_ps(strata),
        shuffles_with_zero,
    }
}
