//! Charges from several threads that reach the limit again and again.
//!
//! Each of four threads, two on a CPU so that they preempt each other, keeps its charges in a queue. In the phase *too
//! much* the threads together want more than the limit, so some charges must be refused. The held units are counted by
//! one atomic, after each charge and before each uncharge, so that count never exceeds the units that were granted. In
//! the phase *all fits* each thread charges up to exactly a quarter of the limit, so every refusal is wrong. At the end
//! the threads uncharge everything, and the usage must be 0.
//!
//! The limit is 100 000 units; 1000 of them may be in stocks, 255 in each. The kind of account that is not strict may
//! exceed the limit by the units that may be in all stocks.
//!
//! Every thread writes its own queue; all threads write `held`.

use super::peers::*;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::INTERRUPTED;
use fastrand::Rng;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use warmcore_budget::stock::LockedStocks;
use warmcore_budget::{Account, Accounts, Node, StockKind, capacity};
use warmcore_line::Padded;
use warmcore_results::{Bound, Row};
use warmcore_sys::affinity;
use warmcore_sys::rseq::current_cpu;
use warmcore_types::CpuId;

const UNITS: u64 = 100_000;
const THREADS: usize = 4;
const SIZE_MAX: usize = 64;
/// The units that one thread wants in *too much*: four threads want a third more than the limit.
const WANTED: u64 = UNITS / 3;
const PHASE: Duration = Duration::from_millis(40);
/// The capacity of Warmcore's stocks here.
const BATCH: u64 = 255;

/// A way to keep within a limit.
struct Gate<'a> {
    name: &'static str,
    charge: Box<dyn Fn(u64) -> bool + Sync + 'a>,
    uncharge: Box<dyn Fn(u64) + Sync + 'a>,
    /// Each thread calls this when it ends.
    leave: Box<dyn Fn() + Sync + 'a>,
    /// The number of units that are charged and not in use, while about `held` units are in use; `None` if the gate
    /// can't tell.
    stranded: Box<dyn Fn(u64) -> Option<u64> + Sync + 'a>,
    /// The units in use at the end.
    usage: Box<dyn Fn() -> u64 + Sync + 'a>,
    /// The promise: the most units by which the limit may be exceeded, and whether a charge that fits is never refused.
    promise: Option<(u64, bool)>,
}

fn account_gate<'a>(name: &'static str, leaf: &'a Account) -> Gate<'a> {
    // The kind that is not strict may exceed the limit by the units that may be in all stocks.
    let promise = if leaf.kind().is_strict() { (0, true) } else { (capacity::share(UNITS), false) };
    Gate {
        name,
        charge: Box::new(|n| leaf.try_charge(n).is_ok()),
        uncharge: Box::new(|n| must(leaf.uncharge(n))),
        leave: Box::new(|| ()),
        stranded: Box::new(|_| Some(leaf.explain().stranded())),
        usage: Box::new(|| leaf.exact_usage()),
        promise: Some(promise),
    }
}

fn locked_gate<'a>(accounts: &'a Accounts<LockedStocks>, leaf: &'a Node) -> Gate<'a> {
    Gate {
        name: LOCK,
        charge: Box::new(|n| accounts.try_charge(leaf, current_cpu, n).is_ok()),
        uncharge: Box::new(|n| must(accounts.uncharge(leaf, current_cpu, n))),
        leave: Box::new(|| ()),
        stranded: Box::new(|_| Some(accounts.explain(leaf).stranded())),
        usage: Box::new(|| accounts.exact_usage(leaf)),
        promise: Some((0, true)),
    }
}

fn peer_gate<'a>(
    name: &'static str,
    charge: impl Fn(u64) -> bool + Sync + 'a,
    uncharge: impl Fn(u64) + Sync + 'a,
) -> Gate<'a> {
    Gate {
        name,
        charge: Box::new(charge),
        uncharge: Box::new(uncharge),
        leave: Box::new(|| ()),
        stranded: Box::new(|_| None),
        usage: Box::new(|| 0),
        promise: None,
    }
}

fn cached_gate(cached: &ThreadCached) -> Gate<'_> {
    Gate {
        leave: Box::new(|| cached.leave()),
        stranded: Box::new(|held| Some(cached.used().saturating_sub(held))),
        usage: Box::new(|| cached.used()),
        ..peer_gate(CACHED, |n| cached.charge(n), |n| cached.uncharge(n))
    }
}

/// The result of a phase.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    operations: u64,
    refusals: u64,
    /// The largest number of units that all threads held at the same time.
    held_max: u64,
    stranded_max: Option<u64>,
    /// The usage after the threads uncharged everything.
    left: u64,
    wall_ns: u64,
}

/// The body of one thread: charges up to `most` units and keeps the charges in a queue, until the phase ends.
fn thread(gate: &Gate, most: u64, seed: u64, held: &AtomicU64, over: &AtomicBool) -> Found {
    let (mut queue, mut own, mut found) = (VecDeque::with_capacity(4096), 0, Found::default());
    let mut rng = Rng::with_seed(seed);
    let give_back = |queue: &mut VecDeque<u64>, own: &mut u64| {
        let Some(n) = queue.pop_front() else { return };
        held.fetch_sub(n, AcqRel);
        (gate.uncharge)(n);
        *own -= n;
    };
    while !over.load(Relaxed) {
        // The last charge reaches exactly `most`.
        let n = (1 + rng.usize(..SIZE_MAX) as u64).min(most - own);
        found.operations += 1;
        if n > 0 && (gate.charge)(n) {
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
    (gate.leave)();
    found
}

/// Runs all threads at the same time; each charges up to `most` units.
fn phase(gate: &Gate, most: u64, cpus: [CpuId; 2], length: Duration) -> Found {
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
            stranded_max = stranded_max.max((gate.stranded)(held.load(Acquire)));
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
    all.left = (gate.usage)();
    all
}

/// The results of one gate in all rounds, by phase.
#[derive(Default)]
struct Sum {
    too_much: Vec<Found>,
    all_fits: Vec<Found>,
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    let cpus = [ctx.cpus.own, ctx.cpus.partner.expect("a case that needs two")];
    let (rseq, atomic) = (rseq_leaves(UNITS, 1), leaves(StockKind::Atomic, UNITS, 1));
    let locked = locked();
    let lock = locked_leaves(&locked, UNITS, 1)[0];
    let levels: [Level; 4] = std::array::from_fn(|_| Level::new(UNITS));
    let [alone, leaf, group, root] = &levels;
    let std_mutex: StdMutex = Padded::new(Mutex::new(Numbers::new(UNITS)));
    let cached = ThreadCached::new(UNITS, BATCH);
    let mut gates: Vec<Gate> = rseq.iter().flatten().map(|leaf| account_gate(RSEQ, leaf)).collect();
    gates.extend([
        account_gate(ATOMIC_STOCKS, &atomic[0]),
        locked_gate(&locked, lock),
        peer_gate(ATOMIC, |n| alone.charge(n), |n| alone.uncharge(n)),
        peer_gate(
            ATOMICS,
            |n| charge_path([leaf, group, root], n),
            |n| uncharge_path([leaf, group, root], n),
        ),
        peer_gate(STD_MUTEX, |n| charge_std(&std_mutex, n), |n| uncharge_std(&std_mutex, n)),
        cached_gate(&cached),
    ]);
    let rounds = if ctx.effort.is_quick() { 3 } else { 8 };
    let mut sums: Vec<Sum> = gates.iter().map(|_| Sum::default()).collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..gates.len()).collect();
        Rng::with_seed(round).shuffle(&mut order);
        for i in order {
            sums[i].too_much.push(phase(&gates[i], WANTED, cpus, PHASE));
            sums[i].all_fits.push(phase(&gates[i], UNITS / THREADS as u64, cpus, PHASE));
            if INTERRUPTED.load(Relaxed) {
                return Ok(None);
            }
        }
        let steps = ctx.effort.rounds as u64;
        (steps * round / rounds..steps * (round + 1) / rounds).for_each(|_| (ctx.tick)());
    }
    Ok(Some(gates.iter().zip(&sums).flat_map(|(gate, sum)| rows(ctx.name, gate, sum)).collect()))
}

fn rows(case: &str, gate: &Gate, sum: &Sum) -> Vec<Row> {
    let all = || sum.too_much.iter().chain(&sum.all_fits);
    let operations: u64 = sum.too_much.iter().map(|found| found.operations).sum();
    let fitting: u64 = sum.all_fits.iter().map(|found| found.operations).sum();
    let exact = |metric: &str, unit: &str, value: u64, n: u64| {
        Row::exact(case, gate.name, metric, unit, value as f64, n)
    };
    let promise = |row: Row, most: Option<u64>| match most {
        Some(most) => row.promise(Bound::AtMost, most as f64),
        None => row,
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
    let mut rows = vec![
        Row::of(case, gate.name, "time", "ns", &each),
        promise(exact("over the limit", "units", over, operations), gate.promise.map(|(over, _)| over)),
        promise(
            exact("false refusals", "refusals", false_ones, fitting),
            gate.promise.and_then(|(_, never)| never.then_some(0)),
        ),
        exact("refusals where all can't fit", "refusals", real_ones, operations),
        promise(exact("left in the end", "units", left, operations + fitting), gate.promise.map(|_| 0)),
    ];
    if let Some(stranded) = all().filter_map(|found| found.stranded_max).max() {
        let row = exact("not used, at most", "units", stranded, operations + fitting);
        rows.push(promise(row, gate.promise.map(|_| capacity::share(UNITS))));
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
        let leaf = &leaves(StockKind::Atomic, UNITS, 1)[0];
        let gate = account_gate(ATOMIC_STOCKS, leaf);
        let (too_much, all_fits) =
            (phase(&gate, WANTED, cpus(), SHORT), phase(&gate, UNITS / THREADS as u64, cpus(), SHORT));
        assert!(too_much.held_max <= UNITS && all_fits.held_max <= UNITS);
        assert_eq!((all_fits.refusals, too_much.left, all_fits.left), (0, 0, 0));
    }

    #[test]
    fn what_threads_keep_is_refused_to_others() {
        // The batches of two threads are more than the units that are not held.
        let cached = ThreadCached::new(UNITS, BATCH);
        let all_fits = phase(&cached_gate(&cached), UNITS / THREADS as u64, cpus(), SHORT * 5);
        assert!(all_fits.held_max <= UNITS && all_fits.left == 0, "{all_fits:?}");
    }

    #[test]
    fn a_limit_that_is_not_kept_is_seen() {
        let none = peer_gate("none", |_| true, |_| ());
        let found = phase(&none, WANTED, cpus(), SHORT * 5);
        assert_eq!(found.refusals, 0);
        let sum = Sum { too_much: vec![Found { held_max: UNITS + 5, ..found }], all_fits: vec![found] };
        let rows = rows("limit", &Gate { promise: Some((0, true)), ..none }, &sum);
        let over = rows.iter().find(|row| row.metric == "over the limit").unwrap();
        assert!(
            over.median >= 5.0
                && over.target.as_ref().unwrap().standing == warmcore_results::Standing::Missed,
            "{over:?}"
        );
    }
}
