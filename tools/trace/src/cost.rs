//! What a move costs, from the program itself.
//!
//! Polls of one place after a move are compared with polls of that place without one. Moved polls differ in more than the
//! move: a task that waited longer has colder caches wherever it runs. So both are put into *strata* by what came before:
//! the time since the task's last poll, and the queue in front of this one, each by doublings. The cost is the difference of
//! the medians in each stratum, weighted by the moved polls of the stratum ([`estimate`]).
//!
//! What is left is that within a stratum the scheduler may still move tasks that are slower anyway. No shuffling finds that;
//! the machine's probe stands beside the figure for this reason.
//!
//! # Cost
//! A sample of each stratum is kept, of 1 KiB at most, in at most 65 536 cells (`samples.rs`). The comparison takes some
//! 30 ms for each of at most [`PAIRS_MAX`] pairs of place and origin.

mod estimate;
mod samples;

use crate::analysis::{Basis, Estimate, MoveCost, Probed, Total};
use crate::origin::{ByOrigin, Origin};
use estimate::{Draws, StrataCost};
pub use samples::Samples;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The pairs of place and origin with the most moves for which the cost is measured.
const PAIRS_MAX: usize = 24;

/// Moved polls that have to be compared: with fewer, medians of strata say little, and the interval of them less.
const NEEDED: u64 = 100;

/// Of 100 shuffles, those whose interval has to hold 0.
const WITH_ZERO_MIN: u32 = 90;

/// What the moves of a recording cost.
pub struct Costs {
    pub total: Total,
    /// By place.
    pub places: Vec<(Vec<MoveCost>, Total)>,
}

/// A pair of place and origin.
struct Pair {
    place: usize,
    cost: MoveCost,
    measured: Option<StrataCost>,
}

/// Compares the polls of each place. `moves` is by place; `per_second` turns moves into how often they were per second.
pub fn costs(samples: &Samples, moves: &[ByOrigin], rate: Rate, probe: &[Probed]) -> Costs {
    let mut pairs: Vec<Pair> = Vec::new();
    for (place, moves) in moves.iter().enumerate() {
        for origin in Origin::MOVED.into_iter().filter(|origin| moves[*origin] > 0) {
            let (matched, compared) = samples.matched(place, origin);
            let moved = moves[origin];
            let cost = MoveCost { origin, moved, matched, compared, needed: NEEDED, measured: None };
            pairs.push(Pair { place, cost, measured: None });
        }
    }
    measure(samples, &mut pairs);
    let total = |of: &dyn Fn(&Pair) -> bool, moves: &ByOrigin| {
        total(&pairs.iter().filter(|pair| of(pair)).collect::<Vec<_>>(), moves, rate, probe)
    };
    let mut all = ByOrigin::default();
    moves.iter().for_each(|moves| all += *moves);
    let place = |(place, moves)| {
        let of_place = pairs.iter().filter(|pair| pair.place == place);
        (of_place.map(|pair| pair.cost).collect(), total(&|pair| pair.place == place, moves))
    };
    Costs { total: total(&|_| true, &all), places: moves.iter().enumerate().map(place).collect() }
}

/// Measures the pairs with the most moves, on all CPUs of this process.
fn measure(samples: &Samples, pairs: &mut [Pair]) {
    let mut chosen: Vec<usize> = (0..pairs.len()).filter(|at| pairs[*at].cost.compared >= NEEDED).collect();
    chosen.sort_by_key(|at| Reverse(pairs[*at].cost.moved));
    chosen.truncate(PAIRS_MAX);
    let (draws, next) = (Draws::new(), AtomicUsize::new(0));
    let work = || {
        let mut measured = Vec::new();
        while let Some(at) = chosen.get(next.fetch_add(1, Relaxed)) {
            let Pair { place, cost, .. } = &pairs[*at];
            measured.push((*at, estimate::measure(&samples.strata(*place, cost.origin), &draws, *at as u64)));
        }
        measured
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chosen.len());
    let measured: Vec<(usize, StrataCost)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a comparison does not panic")).collect()
    });
    for (at, measured) in measured {
        pairs[at].cost.measured = Some(measured.estimate());
        pairs[at].measured = Some(measured);
    }
}

/// How often recorded polls were, for the whole program: each stands for `all / recorded` polls in `length_ns`.
#[derive(Clone, Copy)]
pub struct Rate {
    pub recorded: u64,
    pub all: u64,
    pub length_ns: u64,
}

impl Rate {
    /// Millionths of a CPU, for recorded polls that take so many picoseconds longer.
    fn micro_cpus(self, polls: u64, ps: i64) -> i64 {
        let Self { recorded, all, length_ns } = self;
        let whole = i128::from(recorded.max(1)) * i128::from(length_ns.max(1));
        let product = i128::from(ps).saturating_mul(i128::from(polls)).saturating_mul(i128::from(all));
        (product.saturating_mul(1000) / whole) as i64
    }
}

/// Whether an estimate's interval holds 0 as often as it should when the labels are shuffled.
pub fn is_sound(estimate: &Estimate) -> bool {
    estimate.shuffles_with_zero >= WITH_ZERO_MIN
}

fn total(pairs: &[&Pair], moves: &ByOrigin, rate: Rate, probe: &[Probed]) -> Total {
    let moved = moves.moved();
    let of = |basis| Total { basis, micro_cpus: 0, low: 0, high: 0, moved, priced: 0 };
    if moved == 0 {
        let is_known = moves[Origin::Unknown] == 0 || moves.known() > 0;
        return of(if is_known { Basis::NoMoves } else { Basis::CannotTell });
    }
    let sound = pairs.iter().filter(|pair| pair.cost.measured.as_ref().is_some_and(is_sound));
    let sound: Vec<(u64, &StrataCost)> =
        sound.filter_map(|pair| Some((pair.cost.moved, pair.measured.as_ref()?))).collect();
    let priced = sound.iter().map(|(moved, _)| moved).sum::<u64>();
    if priced * 2 >= moved {
        let sum = |ps: &dyn Fn(&StrataCost) -> i64| {
            sound.iter().map(|(moved, measured)| rate.micro_cpus(*moved, ps(measured))).sum::<i64>()
        };
        // The draws are the same for all pairs, so what happened in a block of time is in all of them or in none.
        let (low, high) = estimate::interval((0..estimate::DRAWS).map(|draw| sum(&|it| it.draws_ps[draw])));
        return Total { micro_cpus: sum(&|it| it.ps), low, high, priced, ..of(Basis::Program) };
    }
    let probed: Vec<(u64, &Probed)> = probe.iter().map(|probed| (moves[probed.origin], probed)).collect();
    let priced = probed.iter().map(|(moved, _)| moved).sum::<u64>();
    if priced == 0 {
        return of(Basis::CannotTell);
    }
    let sum = |ns: fn(&Probed) -> u64| {
        probed.iter().map(|(moved, probed)| rate.micro_cpus(*moved, ns(probed) as i64 * 1000)).sum::<i64>()
    };
    let (low, high) = (sum(|probed| probed.line_ns), sum(|probed| probed.refill_ns));
    Total { micro_cpus: (low + high) / 2, low, high, priced, ..of(Basis::Probe) }
}
