//! The runtimes and policies that the cases compare, and a slice of a case on one of them.
//!
//! A slice spawns its tasks, lets them warm up, measures for a while, and waits until all of them have ended; then its
//! runtime is idle again. The slice of another variant leaves cold caches, so each slice begins with a warm-up.
//!
//! 15 rounds of 36 ms for seven variants take 4 s.

pub use super::executor::*;
use super::go;
use super::ours::Ours;
use crate::case::CaseCtx;
use crate::measure::check_interrupted;
pub use crate::race::{Metric, Plan, Race, rate, time};
pub use crate::runtimes::Contender;
use crate::runtimes::{rayon_pool, smol_threads, tokio_per_core, tokio_threads};
use anyhow::Context;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;
use warmcore_line::Padded;
use warmcore_runtime::PolicyKind;
use warmcore_sys::clock;

/// Warmcore with its default policy, and the other runtimes.
pub const EACH: &[Contender] = &[
    Contender::Ours,
    Contender::Tokio,
    Contender::TokioPinned,
    Contender::TokioPerCore,
    Contender::Smol,
    Contender::Go,
];

/// Returns [`EACH`], and `other` after its first element.
pub fn each_and(other: Contender) -> Vec<Contender> {
    [&EACH[..1], &[other], &EACH[1..]].concat()
}

/// Returns Warmcore with every policy, which shows how much of a result depends on the policy, then the other runtimes.
pub fn all() -> Vec<Contender> {
    each_and(Contender::OursSharedQueue)
}

/// Returns those of `contenders` that can run here: without Go if its program can't be built and started.
pub fn available(contenders: &[Contender]) -> Vec<Contender> {
    contenders.iter().copied().filter(|contender| *contender != Contender::Go || go::is_there()).collect()
}

/// The time in which a slice counts events, on [`clock`].
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub begin: u64,
    pub end: u64,
}

impl Window {
    /// The window that begins when the warm-up has ended; the warm-up begins now.
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

/// A count to which many tasks add mostly without sharing cache lines: it has 64 numbers, and the threads share them by
/// their numbers modulo 64.
pub struct Counts {
    /// Indexed by the thread's number ([`me`]) modulo 64. Written by the threads with that index; read by the measuring
    /// thread.
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

    /// Whether the measurement is over, so that the tasks have to end.
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

/// The rate of the slowest task of a case, in thousands per second. It and [`UNEVENNESS`] accompany every throughput of
/// several tasks: a sum alone looks fast where some tasks starve.
pub const SLOWEST: Metric = rate("slowest task");

/// The fastest task's count divided by the slowest task's, where 0 is taken as 1: at least 1.
pub const UNEVENNESS: Metric = Metric { name: "largest ÷ smallest", unit: "x" };

/// [`SLOWEST`] and [`UNEVENNESS`] of tasks that together had `rate`, by each task's count. In the ratio a count of 0 is
/// taken as 1: a slice can be short.
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

    /// Runs one slice. Returns a number for each metric, as for [`Race::run`].
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

/// A function over an [`Executor`] of any type.
pub trait Visit {
    type Out;
    fn visit<H: Executor>(self, executor: H) -> Self::Out;
}

/// Calls the function with the executor of this contender. Panics if it has none, such as Go.
pub fn visit<V: Visit>(contender: Contender, function: V) -> V::Out {
    match contender {
        Contender::Ours => function.visit(Ours::get(PolicyKind::Home)),
        Contender::OursShared => function.visit(Ours::shared()),
        Contender::OursSharedQueue => function.visit(Ours::get(PolicyKind::SharedQueue)),
        Contender::OursWithoutTenants => function.visit(Ours::without_tenants()),
        Contender::Tokio => function.visit(Tokio(tokio_threads(false))),
        Contender::TokioPinned => function.visit(Tokio(tokio_threads(true))),
        Contender::TokioPerCore => function.visit(Tokio(tokio_per_core())),
        Contender::Smol => function.visit(Smol(smol_threads())),
        Contender::Rayon | Contender::Alone | Contender::Go => {
            unreachable!("{contender:?} is no executor")
        }
    }
}

impl<S: Slice> Visit for (&S, Plan) {
    type Out = Vec<f64>;

    fn visit<H: Executor>(self, executor: H) -> Vec<f64> {
        self.0.run(executor, self.1)
    }
}

fn run_on(contender: Contender, slice: &impl Slice, plan: Plan) -> anyhow::Result<Vec<f64>> {
    let values = match contender {
        Contender::Rayon => Ok(slice.rayon(rayon_pool(), plan)),
        Contender::Alone => Ok(slice.alone(plan)),
        Contender::Go => go::ask(&slice.go(), plan),
        contender => Ok(visit(contender, (slice, plan))),
    };
    values.with_context(|| contender.name())
}

/// Runs all slices of a case on those of `contenders` that can run here; `tick` as for [`Race::run`].
pub fn race(
    case: &str,
    contenders: &[Contender],
    slice: &impl Slice,
    plan: Plan,
    tick: impl Fn(usize),
) -> anyhow::Result<Race> {
    let contenders = available(contenders);
    // The first slices are not timed: the first use makes threads, builds the Go program and grows queues.
    let short = Plan { warm: Duration::from_millis(1), measure: Duration::from_millis(2), ..plan };
    for contender in &contenders {
        check_interrupted()?;
        run_on(*contender, slice, short)?;
    }
    Race::run(case, &contenders, slice.metrics(), plan, tick, |i| run_on(contenders[i], slice, plan))
}

/// Runs a case that has a single race.
pub fn whole(
    ctx: &CaseCtx,
    contenders: &[Contender],
    slice: &impl Slice,
    plan: Plan,
) -> anyhow::Result<Race> {
    race(ctx.name, &ctx.chosen(contenders), slice, plan, |round| ctx.part_of(round, plan.rounds))
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
