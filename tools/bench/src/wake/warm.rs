//! Tasks with a working set each. Between two passes over its set a task yields, exchanges a message, or sleeps.
//!
//! A pass reads and writes every line of the task's set. Then the task yields; or it sends to its partner and waits for
//! the answer, which comes after the partner's pass; or it sleeps. Only one of two partners runs at a time, so four
//! tasks can use two workers. `chase` follows a random cycle through the lines, each of which holds the index of the
//! next; `sequential` goes through them in order, where prefetching helps. A wake counts as moved if the task runs on
//! another thread than in its previous pass. All variants use the same sets, one after another; only the Go process has
//! its own.
//!
//! A `chase` through 256 KiB in the core's own cache is 4096 lines of 4 ns: 16 µs; after a move it takes 55 to 160 µs.
//! Four such sets fit into a core's 1 MiB, sixteen on two cores don't.
//!
//! A set's lines are written only by its task, on the thread that runs the task.

use super::contender::*;
use super::executor::*;
use super::quantiles::Quantiles;
use super::race;
use super::race::{Metric, Plan, Race, SLOWEST, Slice, UNEVENNESS, Window, rate, shares, time};
use crate::case::CaseCtx;
use crate::measure::INTERRUPTED;
use crate::runtimes::cpus;
use fastrand::Rng;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::mpsc;
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

/// What a task does between two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Between {
    Yield,
    Message,
    Sleep,
}

/// The order in which a pass visits the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    Chase,
    Sequential,
}

/// The number of tasks, and the size of each task's set in KiB.
const SHAPES: [(usize, usize); 6] = [(4, 256), (8, 256), (16, 256), (4, 512), (8, 512), (16, 512)];
const SLEEP: Duration = Duration::from_micros(100);
const LINE_BYTES: usize = 64;

const TOUCHES: &str = "touches";
const P99: &str = "p99";
const MOVED: &str = "moved";

/// A line of a set. Only the set's task writes the fields; they are atomic so that sets can be shared.
#[repr(C, align(64))]
struct Line {
    next: AtomicU32,
    touched: AtomicU32,
}

const _: () = assert!(size_of::<Line>() == LINE_BYTES);

/// The working set of a task.
struct Set(Vec<Line>);

impl Set {
    /// Makes lines whose `next` links form one random cycle through all lines (Sattolo's shuffle).
    fn new(kib: usize, seed: u64) -> Self {
        let lines = kib * 1024 / LINE_BYTES;
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut rng = Rng::with_seed(seed);
        (1..lines).rev().for_each(|i| order.swap(i, rng.usize(..i)));
        let line = |next: u32| Line { next: AtomicU32::new(next), touched: AtomicU32::new(0) };
        Self(order.into_iter().map(line).collect())
    }

    fn touch(&self, how: Touch) {
        let note = |line: &Line| line.touched.store(line.touched.load(Relaxed).wrapping_add(1), Relaxed);
        match how {
            Touch::Chase => {
                let mut at = 0;
                for _ in 0..self.0.len() {
                    let line = &self.0[at as usize];
                    note(line);
                    at = line.next.load(Relaxed);
                }
                black_box(at);
            }
            Touch::Sequential => self.0.iter().for_each(note),
        }
    }
}

pub(super) struct Warm {
    between: Between,
    touch: Touch,
    tasks: usize,
    kib: usize,
    sets: Arc<[Set]>,
}

impl Warm {
    pub(super) fn new(between: Between, touch: Touch, (tasks, kib): (usize, usize)) -> Self {
        let sets = (0..tasks).map(|i| Set::new(kib, i as u64)).collect();
        Self { between, touch, tasks, kib, sets }
    }
}

/// Lengthens the warm-up so that there is time for two passes over every set, even if no cache has any of its lines:
/// the Go process has separate sets, which the slices of other variants evict.
fn with_warm_up(plan: Plan, (tasks, kib): (usize, usize)) -> Plan {
    const MISS_NS: usize = 150;
    let misses = 2 * tasks * kib * 1024 / LINE_BYTES / cpus().len().max(1);
    Plan { warm: plan.warm + Duration::from_nanos((misses * MISS_NS) as u64), ..plan }
}

/// What a task counted in the window.
struct Seen {
    touches: Quantiles,
    moved: u64,
}

/// The channels to a partner and back.
type Partner = (mpsc::Sender<()>, mpsc::Receiver<()>);

async fn work<H: Executor>(
    sets: Arc<[Set]>,
    number: usize,
    (between, touch): (Between, Touch),
    mut partner: Option<Partner>,
    window: Window,
) -> Seen {
    let mut seen = Seen { touches: Quantiles::new(), moved: 0 };
    // The second of two partners waits for the first.
    if let Some((_, from)) = &mut partner
        && number % 2 == 1
        && from.recv().await.is_none()
    {
        return seen;
    }
    let mut last = me();
    loop {
        let (thread, began) = (me(), clock::now().0);
        sets[number].touch(touch);
        let now = clock::now().0;
        if window.holds(now) {
            seen.touches.note(now - began);
            seen.moved += u64::from(thread != last);
        }
        last = thread;
        if now > window.end {
            return seen;
        }
        match (between, &mut partner) {
            (Between::Message, Some((to, from))) => {
                if to.send(()).await.is_err() || from.recv().await.is_none() {
                    return seen;
                }
            }
            (Between::Sleep, _) => H::sleep(SLEEP).await,
            _ => H::yield_now().await,
        }
    }
}

impl Slice for Warm {
    fn metrics(&self) -> &'static [Metric] {
        const MOVES: Metric = Metric { name: MOVED, unit: "%" };
        const { &[rate(TOUCHES), time("p50"), time(P99), MOVES, SLOWEST, UNEVENNESS] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let mut partners: Vec<Option<Partner>> = (0..self.tasks).map(|_| None).collect();
        if self.between == Between::Message {
            for pair in partners.chunks_exact_mut(2) {
                let ((to_second, from_first), (to_first, from_second)) = (mpsc::channel(1), mpsc::channel(1));
                pair[0] = Some((to_second, from_second));
                pair[1] = Some((to_first, from_first));
            }
        }
        let window = Window::open(plan);
        let how = (self.between, self.touch);
        let start =
            |(i, partner)| executor.spawn_nth(i, work::<H>(self.sets.clone(), i, how, partner, window));
        let seen = executor.join_all(partners.into_iter().enumerate().map(start).collect());
        let (mut touches, mut moved) = (Quantiles::new(), 0);
        for task in &seen {
            touches.merge(&task.touches);
            moved += task.moved;
        }
        let total = touches.total();
        let share = moved as f64 * 100.0 / total as f64;
        let rate = window.rate(total);
        let [slowest, uneven] = shares(rate, seen.iter().map(|task| task.touches.total()));
        vec![rate, touches.at(0.5), touches.at(0.99), share, slowest, uneven]
    }

    fn go(&self) -> String {
        let between = match self.between {
            Between::Yield => "yield",
            Between::Message => "message",
            Between::Sleep => "sleep",
        };
        let touch = if self.touch == Touch::Chase { "chase" } else { "sequential" };
        format!("warm {between} {touch} {} {} {}", self.tasks, self.kib, SLEEP.as_nanos())
    }
}

/// Returns the promises about a shape in the cases with `chase`.
fn promises(race: &Race, between: Between, shape: (usize, usize)) -> Vec<Option<Row>> {
    let at_least = |over, value| race.promise(TOUCHES, over, Bound::AtLeast, value);
    match (between, shape) {
        (Between::Yield, (4, 256)) => vec![
            at_least(Contender::Tokio, 1.5),
            at_least(Contender::Smol, 3.0),
            at_least(Contender::TokioPerCore, 0.97),
            race.promise(P99, Contender::Tokio, Bound::AtMost, 0.3),
        ],
        (Between::Yield, (16, 256)) => vec![at_least(Contender::Tokio, 1.25)],
        (Between::Yield, _) => vec![],
        (Between::Message, (16, 256)) => vec![at_least(Contender::Tokio, 1.6), at_least(Contender::Go, 0.9)],
        (Between::Message | Between::Sleep, _) => vec![at_least(Contender::Tokio, 1.0)],
    }
}

/// Returns the row with the geometric mean over all shapes, round by round, of Warmcore's ratio over another variant in
/// one metric.
fn mean_row(case: &str, races: &[Race], of: &str, name: &str, over: Contender) -> Option<Row> {
    let ratios: Vec<Vec<f64>> = races
        .iter()
        .map(|race| {
            let (ours, other) = (race.of(Contender::OURS, of)?, race.of(over, of)?);
            Some(ours.iter().zip(other).map(|(a, b)| a / b).collect())
        })
        .collect::<Option<_>>()?;
    let rounds = ratios.iter().map(Vec::len).min()?;
    let mean = |round: usize| {
        let logs: f64 = ratios.iter().map(|shape| shape[round].ln()).sum();
        (logs / ratios.len() as f64).exp()
    };
    let means: Vec<f64> = (0..rounds).map(mean).collect();
    let row = Row::of(case, Contender::OURS.name(), name, "x", &means);
    Some(Row { over: Some(over.name().into()), ..row })
}

pub(super) fn run(ctx: &CaseCtx, between: Between, touch: Touch) -> anyhow::Result<Option<Vec<Row>>> {
    let (mut rows, mut races) = (Vec::new(), Vec::new());
    let plan = match between {
        Between::Sleep => Plan::slow(ctx.effort, 2),
        _ => Plan::busy(ctx.effort),
    };
    let is_promised = touch == Touch::Chase;
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let case = format!("{}.{}x{}K", ctx.name, shape.0, shape.1);
        let slice = Warm::new(between, touch, shape);
        let tick = race::progress(ctx, i, SHAPES.len(), plan);
        let plan = with_warm_up(plan, shape);
        let Some(race) = race::run(&case, &all(), &slice, plan, &tick)? else { break };
        let moved = match between {
            Between::Yield => Some((MOVED, Bound::AtMost, 1.0)),
            Between::Sleep => Some((MOVED, Bound::AtMost, 5.0)),
            Between::Message => None,
        };
        let own: Vec<_> = moved.into_iter().filter(|_| is_promised).collect();
        let promised = if is_promised { promises(&race, between, shape) } else { vec![] };
        rows.extend(race.rows(&own, promised));
        rows.extend(race.over(SLOWEST.name, Contender::Tokio));
        races.push(race);
        (ctx.part_done)(&case);
    }
    if INTERRUPTED.load(Relaxed) {
        // A signal came: return the rows of the shapes that are finished.
        return Ok((!rows.is_empty()).then_some(rows));
    }
    let mean = mean_row(ctx.name, &races, TOUCHES, "ratio, geometric mean of all", Contender::Tokio);
    // This ratio does not exist if a task did nothing in a slice.
    let slowest = mean_row(
        ctx.name,
        &races,
        SLOWEST.name,
        "ratio, slowest task, geometric mean of all",
        Contender::Tokio,
    );
    rows.extend(slowest.filter(|row| row.min.is_finite() && row.max.is_finite()));
    rows.extend(match (between, is_promised) {
        (Between::Yield, true) => mean.map(|row| row.promise(Bound::AtLeast, 1.4)),
        _ => mean,
    });
    Ok(Some(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_reaches_every_line_once_whichever_way() {
        for touch in [Touch::Chase, Touch::Sequential] {
            let set = Set::new(16, 7);
            assert_eq!(set.0.len(), 256);
            (0..3).for_each(|_| set.touch(touch));
            assert!(set.0.iter().all(|line| line.touched.load(Relaxed) == 3), "{touch:?}");
        }
    }
}
