//! Charges from several threads that reach the limit again and again.
//!
//! Each of four threads, two on a CPU so that they preempt each other, keeps its charges in a queue. In the phase *too
//! much* the threads together want more than the limit, so a gate that keeps the limit has to refuse charges. The held
//! units are counted by one atomic, after each charge and before each uncharge, so that count never exceeds the units
//! that were granted. In the phase *all fits* each thread charges up to exactly a quarter of the limit, so every
//! refusal is wrong. At the end of a phase the threads uncharge everything, and the usage should be 0.
//!
//! The limit is 100 000 units; 1000 of them may be in stocks (units that a CPU holds ready), at most 255 in each. The
//! kind of account that is not strict, `StockKind::Rseq`, may exceed the limit by the units that may be in all stocks.
//!
//! Every thread writes its own queue; all threads write `held`.

use super::peers::*;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::{INTERRUPTED, check_interrupted};
use fastrand::Rng;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use warmcore_budget::{StockKind, capacity};
use warmcore_line::Padded;
use warmcore_results::{Bound, Row};
use warmcore_sys::affinity;
use warmcore_types::CpuId;

const UNITS: u64 = 100_000;
const THREADS: usize = 4;
const SIZE_MAX: usize = 64;
/// The units that one thread wants in *too much*: four threads want a third more than the limit.
const WANTED: u64 = UNITS / 3;
const PHASE: Duration = Duration::from_millis(40);
/// The largest capacity of Warmcore's stocks here; the thread-cached peer gets the same.
const BATCH: u64 = 255;

/// A gate (a way to keep an account within a limit), and what is promised of it.
struct Contender<'a> {
    name: &'static str,
    gate: &'a dyn Gate,
    /// The promise, if there is one: the most units by which the limit may be exceeded, and whether a charge that fits
    /// is never refused.
    promise: Option<(u64, bool)>,
}

/// The result of a phase.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    operations: u64,
    refusals: u64,
    /// The largest number of units that the threads held together.
    held_max: u64,
    stranded_max: Option<u64>,
    /// The usage after the threads uncharged everything.
    left: u64,
    wall_ns: u64,
}

/// The body of one thread: charges until it has `most` units or a charge is refused, then uncharges its eight oldest
/// charges, and so on until `over` is set; then uncharges all.
fn thread(gate: &dyn Gate, most: u64, seed: u64, held: &AtomicU64, over: &AtomicBool) -> Found {
    let (mut queue, mut own, mut found) = (VecDeque::with_capacity(4096), 0, Found::default());
    let mut rng = Rng::with_seed(seed);
    let give_back = |queue: &mut VecDeque<u64>, own: &mut u64| {
        let Some(n) = queue.pop_front() else { return };
        held.fetch_sub(n, AcqRel);
        gate.uncharge(n);
        *own -= n;
    };
    while !over.load(Relaxed) {
        // Cut the last charge, so that it reaches exactly `most`.
        let n = (1 + rng.usize(..SIZE_MAX) as u64).min(most - own);
        found.operations += 1;
        if n > 0 && gate.charge(n) {
            found.held_max = found.held_max.max(held.fetch_add(n, AcqRel) + n);
            queue.push_back(n);
            own += n;
        } else {
            found.refusals += u64::from(n > 0);
            // Uncharge a few, so that the limit is reached again and again.
            for _ in 0..8 {
                give_back(&mut queue, &mut own);
                found.operations += 1;
            }
        }
    }
    while !queue.is_empty() {
        give_back(&mut queue, &mut own);
    }
    gate.leave();
    found
}

/// Runs all threads for `length`, or until a signal comes; each holds at most `most` units.
fn phase(gate: &dyn Gate, most: u64, cpus: [CpuId; 2], length: Duration) -> Found {
    let (held, over) = (&Padded::new(AtomicU64::new(0)), &AtomicBool::new(false));
    let began = Instant::now();
    let mut all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                scope.spawn(move || {
                    let _ = affinity::pin(cpus[i % 2]);
                    thread(gate, most, i as u64, held, over)
                })
            })
            .collect();
        let mut stranded_max = None;
        while began.elapsed() < length && !INTERRUPTED.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            stranded_max = stranded_max.max(gate.stranded(held.load(Acquire)));
        }
        over.store(true, Relaxed);
        let mut all = Found { stranded_max, ..Found::default() };
        for thread in threads {
            let found = thread.join().expect("what was charged can be uncharged");
            all.operations += found.operations;
            all.refusals += found.refusals;
            all.held_max = all.held_max.max(found.held_max);
        }
        all
    });
    all.wall_ns = began.elapsed().as_nanos() as u64;
    all.left = gate.usage();
    all
}

/// The results of one gate in all rounds, by phase.
#[derive(Default)]
struct Sum {
    too_much: Vec<Found>,
    all_fits: Vec<Found>,
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let cpus = [ctx.cpus.own, ctx.partner()];
    let (rseq, atomic) = (rseq_leaves(UNITS, 1), leaves(StockKind::Atomic, UNITS, 1));
    let locked = locked();
    let levels: [Level; 4] = std::array::from_fn(|_| Level::new(UNITS));
    let [alone, leaf, group, root] = &levels;
    let std_mutex: &StdMutex = &Padded::new(Mutex::new(Numbers::new(UNITS)));
    let rseq = rseq.as_ref().map(|leaves| &leaves[0]);
    let exact = Some((0, true));
    let others = [
        Contender { name: ATOMIC_STOCKS, gate: &atomic[0], promise: exact },
        Contender { name: LOCK, gate: &locked_leaves(&locked, UNITS, 1)[0], promise: exact },
        Contender { name: ATOMIC, gate: alone, promise: None },
        Contender { name: ATOMICS, gate: &[leaf, group, root], promise: None },
        Contender { name: STD_MUTEX, gate: std_mutex, promise: None },
        Contender { name: CACHED, gate: &ThreadCached::new(UNITS, BATCH), promise: None },
    ];
    // The kind that is not strict may exceed the limit by the units that may be in all stocks.
    let promise = Some((capacity::share(UNITS), false));
    let rseq = rseq.iter().map(|leaf| Contender { name: RSEQ, gate: leaf, promise });
    let contenders: Vec<Contender> = rseq.chain(others).collect();
    let rounds = if ctx.effort.is_quick() { 3 } else { 8 };
    let mut sums: Vec<Sum> = contenders.iter().map(|_| Sum::default()).collect();
    ctx.in_rounds(rounds, contenders.len(), |i| {
        let gate = contenders[i].gate;
        sums[i].too_much.push(phase(gate, WANTED, cpus, PHASE));
        sums[i].all_fits.push(phase(gate, UNITS / THREADS as u64, cpus, PHASE));
        Ok(check_interrupted()?)
    })?;
    Ok(contenders.iter().zip(&sums).flat_map(|(contender, sum)| rows(ctx.name, contender, sum)).collect())
}

fn rows(case: &str, Contender { name, promise, .. }: &Contender, sum: &Sum) -> Vec<Row> {
    let all = || sum.too_much.iter().chain(&sum.all_fits);
    let operations: u64 = sum.too_much.iter().map(|found| found.operations).sum();
    let fitting: u64 = sum.all_fits.iter().map(|found| found.operations).sum();
    let exact = |metric: &str, unit: &str, value: u64, n: u64, most: Option<u64>| {
        let row = Row::exact(case, name, metric, unit, value as f64, n);
        row.promise_if(most.is_some(), Bound::AtMost, most.unwrap_or(0) as f64)
    };
    let each: Vec<f64> = sum
        .too_much
        .iter()
        .map(|found| found.wall_ns as f64 * 2.0 / found.operations.max(1) as f64)
        .collect();
    let over = all().map(|found| found.held_max).max().unwrap_or(0).saturating_sub(UNITS);
    let false_ones = sum.all_fits.iter().map(|found| found.refusals).sum();
    let real_ones = sum.too_much.iter().map(|found| found.refusals).sum();
    let left = all().map(|found| found.left).max().unwrap_or(0);
    let never = promise.and_then(|(_, never)| never.then_some(0));
    let mut rows = vec![
        Row::of(case, name, "time", "ns", &each),
        exact("over the limit", "units", over, operations, promise.map(|(over, _)| over)),
        exact("false refusals", "refusals", false_ones, fitting, never),
        exact("refusals where all can't fit", "refusals", real_ones, operations, None),
        exact("left in the end", "units", left, operations + fitting, promise.map(|_| 0)),
    ];
    if let Some(stranded) = all().filter_map(|found| found.stranded_max).max() {
        let most = promise.map(|_| capacity::share(UNITS));
        rows.push(exact("not used, at most", "units", stranded, operations + fitting, most));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn cpus() -> [CpuId; 2] {
        let allowed = affinity::allowed().unwrap();
        [allowed.first().unwrap(), allowed.last().unwrap()]
    }

    #[test]
    fn the_strict_kind_is_never_over_and_never_wrong() {
        let gate = &leaves(StockKind::Atomic, UNITS, 1)[0];
        let (too_much, all_fits) =
            (phase(gate, WANTED, cpus(), SHORT), phase(gate, UNITS / THREADS as u64, cpus(), SHORT));
        assert!(too_much.held_max <= UNITS && all_fits.held_max <= UNITS);
        assert_eq!((all_fits.refusals, too_much.left, all_fits.left), (0, 0, 0));
    }

    #[test]
    fn what_threads_keep_is_refused_to_others() {
        // A thread's cached units may cause a refusal of a charge that fits, so refusals are not checked here.
        let cached = &ThreadCached::new(UNITS, BATCH);
        let all_fits = phase(&cached, UNITS / THREADS as u64, cpus(), SHORT * 5);
        assert!(all_fits.held_max <= UNITS && all_fits.left == 0, "{all_fits:?}");
    }

    #[test]
    fn a_limit_that_is_not_kept_is_seen() {
        struct NoLimit;
        impl Gate for NoLimit {
            fn charge(&self, _: u64) -> bool {
                true
            }

            fn uncharge(&self, _: u64) {}
        }
        let found = phase(&NoLimit, WANTED, cpus(), SHORT * 5);
        assert_eq!(found.refusals, 0);
        let sum = Sum { too_much: vec![Found { held_max: UNITS + 5, ..found }], all_fits: vec![found] };
        let contender = Contender { name: "none", gate: &NoLimit, promise: Some((0, true)) };
        let rows = rows("limit", &contender, &sum);
        let over = rows.iter().find(|row| row.metric == "over the limit").unwrap();
        assert!(
            over.median >= 5.0
                && over.target.as_ref().unwrap().standing == warmcore_results::Standing::Missed,
            "{over:?}"
        );
    }
}
