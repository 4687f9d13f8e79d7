//! Runs one slice of a case on every variant in every round, in an order that changes.
//!
//! A slice spawns its tasks, lets them warm up, measures for a while, and waits until all of them have ended; then its
//! runtime is idle again. It yields one number per metric. A row is the distribution over the rounds; a ratio compares
//! slices of the same round. The slice of another variant leaves cold caches, so each slice begins with a warm-up.
//!
//! 15 rounds of 36 ms for 10 variants take 5 s. A 99th percentile is computed for each slice, and its row is the
//! distribution over the slices, so its median is the tail of an ordinary slice, not of the worst one.
//!
//! The measuring thread writes everything except [`Counts`], to which the tasks add.

use super::contender::{Contender, there};
use super::executor::{Executor, Smol, Tokio, TokioPerCore, me};
use super::go;
use super::ours::Ours;
pub use super::plan::Plan;
use crate::case::CaseCtx;
use crate::measure::INTERRUPTED;
use anyhow::Context;
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;
use warmcore_line::Padded;
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

/// The time in which a slice counts events, on [`clock`].
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub begin: u64,
    pub end: u64,
}

impl Window {
    /// The window that begins when the warm-up, which begins now, has ended.
    pub fn open(plan: Plan) -> Self {
        let begin = clock::now().0 + plan.warm.as_nanos() as u64;
        Self { begin, end: begin + plan.measure.as_nanos() as u64 }
    }

    /// Whether an event at this moment is counted.
    #[inline]
    pub fn holds(self, now: u64) -> bool {
        (self.begin..=self.end).contains(&now)
    }

    /// Converts a count in the window into thousands per second.
    pub fn rate(self, count: u64) -> f64 {
        count as f64 * 1e6 / (self.end - self.begin) as f64
    }
}

/// A count to which many tasks add without sharing cache lines: it has a number for each worker thread.
pub struct Counts {
    /// Indexed by the thread's number. Written by the threads with that number; read by the measuring thread.
    counts: Vec<Padded<AtomicU64>>,
    /// Written by the measuring thread at the end; read by all tasks.
    stop: Padded<AtomicBool>,
}

impl Counts {
    const THREADS: usize = 64;

    pub fn new() -> Self {
        Self {
            counts: (0..Self::THREADS).map(|_| Padded::new(AtomicU64::new(0))).collect(),
            stop: Padded::new(AtomicBool::new(false)),
        }
    }

    /// Adds to the count, from a task.
    #[inline]
    pub fn add(&self, n: u64) {
        self.counts[me() as usize % Self::THREADS].fetch_add(n, Relaxed);
    }

    /// Whether the slice is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        // ORDERING: Relaxed; no data depends on `stop`, and a task that reads it late does a little more work.
        self.stop.load(Relaxed)
    }

    pub fn sum(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Sleeps through the warm-up and the measurement, then stops the tasks; returns the rate in thousands per second.
    pub fn watch(&self, plan: Plan) -> f64 {
        std::thread::sleep(plan.warm);
        let (before, began) = (self.sum(), clock::now().0);
        std::thread::sleep(plan.measure);
        let rate = (self.sum() - before) as f64 * 1e6 / (clock::now().0 - began) as f64;
        self.stop.store(true, Relaxed);
        rate
    }
}

/// A number that a slice measures.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    pub unit: &'static str,
}

/// A rate, in thousands per second.
pub const fn rate(name: &'static str) -> Metric {
    Metric { name, unit: "k/s" }
}

/// A time.
pub const fn time(name: &'static str) -> Metric {
    Metric { name, unit: "ns" }
}

/// The rate of the slowest task of a case, in thousands per second. It and [`UNEVENNESS`] accompany every throughput of
/// several tasks: a sum alone looks fast where some tasks starve.
pub const SLOWEST: Metric = rate("slowest task");

/// The fastest task's rate divided by the slowest task's: at least 1.
pub const UNEVENNESS: Metric = Metric { name: "largest ÷ smallest", unit: "x" };

/// [`SLOWEST`] and [`UNEVENNESS`] of tasks that together had `rate`, by each task's count. A count of 0 is taken as 1: a
/// slice can be short.
pub fn shares(rate: f64, tasks: impl IntoIterator<Item = u64>) -> [f64; 2] {
    let (mut sum, mut least, mut most) = (0, u64::MAX, 0);
    for did in tasks {
        (sum, least, most) = (sum + did, least.min(did), most.max(did));
    }
    let slowest = if sum == 0 { 0.0 } else { rate * least as f64 / sum as f64 };
    [slowest, most.max(1) as f64 / least.clamp(1, most.max(1)) as f64]
}

/// A case: what it does in a slice, on any executor.
pub trait Slice {
    /// The metrics of a slice, the most important one first.
    fn metrics(&self) -> &'static [Metric];

    /// Runs one slice. Returns a number for each metric. A number that is not finite, or 0 as the first number, means
    /// that nothing happened in the slice: see [`bounded`].
    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64>;

    /// The Go program's name of the case, with arguments.
    fn go(&self) -> String {
        unreachable!("not raced against Go")
    }

    /// Runs the slice in rayon's pool.
    fn rayon(&self, _: &'static rayon::ThreadPool, _: Plan) -> Vec<f64> {
        unreachable!("not raced against rayon")
    }

    /// Runs the slice on one thread.
    fn alone(&self, _: Plan) -> Vec<f64> {
        unreachable!("not raced against one thread")
    }
}

impl Contender {
    fn run(self, slice: &impl Slice, plan: Plan) -> anyhow::Result<Vec<f64>> {
        Ok(match self {
            Self::Ours(policy) => slice.run(Ours::get(policy), plan),
            Self::OursWithoutTenants => slice.run(Ours::without_tenants(), plan),
            Self::Tokio => slice.run(Tokio::get(), plan),
            Self::TokioPinned => slice.run(Tokio::pinned(), plan),
            Self::TokioPerCore => slice.run(TokioPerCore::get(), plan),
            Self::Smol => slice.run(Smol::get(), plan),
            Self::Rayon => slice.rayon(super::scope::pool(), plan),
            Self::Alone => slice.alone(plan),
            Self::Go => return go::ask(&slice.go(), plan),
        })
    }
}

/// The metric that counts slices in which nothing happened; `n` is the number of all slices.
pub const STALLED: &str = "stalled slices";

/// The results of all slices of a case.
pub struct Race {
    case: String,
    who: Vec<Contender>,
    metrics: &'static [Metric],
    /// The numbers, indexed by variant, metric and round.
    samples: Vec<Vec<Vec<f64>>>,
    /// The number of slices in which nothing happened, indexed by variant.
    stalled: Vec<usize>,
}

/// Runs all slices. Returns `None` if a signal came. `tick` is called after every round.
pub fn run(
    case: &str,
    who: &[Contender],
    slice: &impl Slice,
    plan: Plan,
    tick: &dyn Fn(usize),
) -> anyhow::Result<Option<Race>> {
    let who = there(who);
    let metrics = slice.metrics();
    let mut samples = vec![vec![Vec::with_capacity(plan.rounds); metrics.len()]; who.len()];
    let mut stalled = vec![0; who.len()];
    let mut order: Vec<usize> = (0..who.len()).collect();
    let mut rng = Rng::with_seed(6);
    // The first slices are not timed: the first use makes threads, builds programs and grows queues.
    for who in &who {
        let short = Plan { warm: Duration::from_millis(1), measure: Duration::from_millis(2), ..plan };
        if INTERRUPTED.load(Relaxed) {
            return Ok(None);
        }
        who.run(slice, short).with_context(|| who.name())?;
    }
    for round in 0..plan.rounds {
        rng.shuffle(&mut order);
        for &i in &order {
            if INTERRUPTED.load(Relaxed) {
                return Ok(None);
            }
            let values = who[i].run(slice, plan).with_context(|| who[i].name())?;
            if INTERRUPTED.load(Relaxed) {
                return Ok(None);
            }
            debug_assert_eq!(values.len(), metrics.len());
            stalled[i] += usize::from(!is_whole(&values));
            for ((samples, metric), value) in samples[i].iter_mut().zip(metrics).zip(values) {
                samples.push(bounded(metric, value, plan));
            }
        }
        tick(round + 1);
    }
    Ok(Some(Race { case: case.to_owned(), who, metrics, samples, stalled }))
}

/// Whether something happened in a slice with these values.
fn is_whole(values: &[f64]) -> bool {
    values.iter().all(|v| v.is_finite()) && values[0] > 0.0
}

/// Returns the number of a slice for its row. A slice in which nothing happened is counted too, since users also wait
/// for a stalled task. Its rate is then one event in the slice, which is too high, and its time is the slice's length,
/// which is too low.
fn bounded(metric: &Metric, value: f64, plan: Plan) -> f64 {
    let slice_ns = plan.measure.as_nanos() as f64;
    match metric.unit {
        "k/s" if !value.is_finite() || value <= 0.0 => 1e6 / slice_ns,
        "ns" if !value.is_finite() => slice_ns,
        _ if !value.is_finite() => 0.0,
        _ => value,
    }
}

/// Runs a case that has a single race, and returns its rows.
pub fn whole(
    ctx: &CaseCtx,
    who: &[Contender],
    slice: &impl Slice,
    plan: Plan,
) -> anyhow::Result<Option<Race>> {
    run(ctx.name, who, slice, plan, &progress(ctx, 0, 1, plan))
}

/// Returns the `tick` that moves the progress bar for race `index` of `of`.
pub fn progress<'a>(ctx: &'a CaseCtx, index: usize, of: usize, plan: Plan) -> impl Fn(usize) + 'a {
    let (steps, rounds) = (ctx.effort.rounds, plan.rounds);
    let at = move |round: usize| steps * (index * rounds + round) / (of * rounds);
    move |round| (at(round - 1)..at(round)).for_each(|_| (ctx.tick)())
}

impl Race {
    /// Returns a variant's numbers in a metric, by round, if the variant ran.
    pub fn of(&self, who: Contender, metric: &str) -> Option<&[f64]> {
        let variant = self.who.iter().position(|w| *w == who)?;
        let metric = self.metrics.iter().position(|m| m.name == metric)?;
        Some(&self.samples[variant][metric])
    }

    /// Returns the variant with the lowest median in a metric, without those of Warmcore.
    pub fn lowest_peer(&self, metric: &str) -> Option<Contender> {
        let median =
            |who: Contender| Row::of("", "", "", "", self.of(who, metric).unwrap_or(&[f64::MAX])).median;
        let peers = self.who.iter().copied().filter(|who| !who.is_ours());
        peers.min_by(|a, b| median(*a).total_cmp(&median(*b)))
    }

    /// Returns Warmcore's ratio over another variant in a metric, with a promise.
    pub fn promise(&self, metric: &str, over: Contender, kind: Bound, value: f64) -> Option<Row> {
        self.ratio(metric, Contender::OURS, over).map(|row| row.promise(kind, value))
    }

    /// Returns Warmcore's ratio over another variant in a metric, without a promise.
    pub fn over(&self, metric: &str, over: Contender) -> Option<Row> {
        self.ratio(metric, Contender::OURS, over)
    }

    fn ratio(&self, metric: &str, who: Contender, over: Contender) -> Option<Row> {
        let (above, below) = (self.of(who, metric)?, self.of(over, metric)?);
        let row = Row::ratio(&self.case, who.name(), over.name(), above, below);
        // Leave out a ratio that is not finite, such as a share of 0 over a share of 0.
        if ![row.p25, row.median, row.min, row.max].iter().all(|v| v.is_finite()) {
            return None;
        }
        let is_first = self.metrics[0].name == metric;
        let metric = if is_first { "ratio".to_owned() } else { format!("ratio, {metric}") };
        Some(Row { metric, ..row })
    }

    /// Returns the rows: all numbers, the promises, then Warmcore's ratios over the other variants in the first metric.
    /// `own` has the promises about Warmcore's numbers, without a comparison.
    pub fn rows(&self, own: &[(&str, Bound, f64)], promises: Vec<Option<Row>>) -> Vec<Row> {
        let mut rows = Vec::new();
        for (m, metric) in self.metrics.iter().enumerate() {
            for (who, samples) in self.who.iter().zip(&self.samples) {
                let row = Row::of(&self.case, who.name(), metric.name, metric.unit, &samples[m]);
                let promised = own.iter().find(|(name, ..)| *name == metric.name && *who == Contender::OURS);
                rows.push(match promised {
                    Some((_, kind, value)) => row.promise(*kind, *value),
                    None => row,
                });
            }
        }
        for ((who, stalled), samples) in self.who.iter().zip(&self.stalled).zip(&self.samples) {
            if *stalled > 0 {
                let (case, who, slices) = (&self.case, who.name(), samples[0].len() as u64);
                rows.push(Row::exact(case, who, STALLED, "slices", *stalled as f64, slices));
            }
        }
        let promised: Vec<Row> = promises.into_iter().flatten().collect();
        let others = self.who.iter().filter(|who| **who != Contender::OURS);
        let others = others.filter_map(|over| self.ratio(self.metrics[0].name, Contender::OURS, *over));
        let is_promised =
            |row: &Row| promised.iter().any(|p| (&p.metric, &p.over) == (&row.metric, &row.over));
        let others: Vec<Row> = others.filter(|row| !is_promised(row)).collect();
        rows.extend(promised);
        rows.extend(others);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_slowest_tasks_part_and_the_ratio() {
        // Three tasks on one worker, one task on the other.
        let [slowest, uneven] = shares(93.8, [13_278, 13_279, 13_280, 53_967]);
        assert!((slowest - 13.28).abs() < 0.01 && (uneven - 4.064).abs() < 0.001, "{slowest} {uneven}");
        assert_eq!(shares(10.0, [5, 5]), [5.0, 1.0]);
        assert_eq!(shares(10.0, [0, 5]), [0.0, 5.0]);
        // If no task ran, the shares are equal.
        assert_eq!(shares(0.0, [0, 0]), [0.0, 1.0]);
    }
}
