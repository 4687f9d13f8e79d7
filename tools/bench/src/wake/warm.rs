//! Tasks with a working set each. Between two passes over its set a task yields, exchanges a message, or sleeps.
//!
//! A pass reads and writes every line of the task's set. Then the task yields; or it sends to its partner and waits for
//! the answer, which comes after the partner's pass; or it sleeps. Only one of two partners runs at a time, so four
//! tasks can use two workers. `chase` follows a random cycle through the lines, each of which holds the index of the
//! next; `sequential` goes through them in order, where prefetching helps. A pass counts as moved if the task runs on
//! another thread than in its previous pass. All variants use the same sets, one after another; only the Go process has
//! its own.
//!
//! A `chase` through 256 KiB in the core's own cache is 4096 lines of 4 ns: 16 µs; after a move it takes 55 to 160 µs.
//! Four such sets fit into a core's 1 MiB, sixteen on two cores don't.
//!
//! A set is written only by its task, on the thread that runs the task.

use super::quantiles::Quantiles;
use super::slice::*;
use crate::case::CaseCtx;
use crate::measure::Interrupted;
use crate::runtimes::cpus;
use crate::working_set::WorkingSet;
use std::sync::Arc;
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
/// The names of [`SHAPES`], which are the parts of a case.
pub(super) const PARTS: [&str; 6] = ["4x256K", "8x256K", "16x256K", "4x512K", "8x512K", "16x512K"];
const SLEEP: Duration = Duration::from_micros(100);

const TOUCHES: &str = "touches";
const P99: &str = "p99";
const MOVED: &str = "moved";

pub(super) struct Warm {
    between: Between,
    touch: Touch,
    tasks: usize,
    kib: usize,
    sets: Arc<[WorkingSet]>,
}

impl Warm {
    pub(super) fn new(between: Between, touch: Touch, (tasks, kib): (usize, usize)) -> Self {
        let sets = (0..tasks).map(|i| WorkingSet::new(kib, i as u64)).collect();
        Self { between, touch, tasks, kib, sets }
    }
}

/// Lengthens the warm-up so that there is time for two passes over every set, even if no cache has any of its lines:
/// the Go process has separate sets, which the slices of other variants evict.
fn with_warm_up(plan: Plan, (tasks, kib): (usize, usize)) -> Plan {
    const MISS_NS: usize = 150;
    let misses = 2 * tasks * WorkingSet::lines(kib) / cpus().len().max(1);
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
    sets: Arc<[WorkingSet]>,
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
        match touch {
            Touch::Chase => sets[number].chase(|_| ()),
            Touch::Sequential => sets[number].walk(),
        }
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
        let Self { between, touch, tasks, kib, .. } = self;
        format!("warm {between:?} {touch:?} {tasks} {kib} {}", SLEEP.as_nanos()).to_lowercase()
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
/// one metric; `None` if the other variant did not run.
fn mean_row(case: &str, races: &[Race], of: &str, name: &str, over: Contender) -> Option<Row> {
    let ratios: Vec<Vec<f64>> = races
        .iter()
        .map(|race| {
            let (ours, other) = (race.of(Contender::Ours, of)?, race.of(over, of)?);
            Some(ours.iter().zip(other).map(|(a, b)| a / b).collect())
        })
        .collect::<Option<_>>()?;
    let rounds = ratios.iter().map(Vec::len).min()?;
    let mean = |round: usize| {
        let logs: f64 = ratios.iter().map(|shape| shape[round].ln()).sum();
        (logs / ratios.len() as f64).exp()
    };
    let means: Vec<f64> = (0..rounds).map(mean).collect();
    let row = Row::of(case, Contender::Ours.name(), name, "x", &means);
    Some(Row { over: Some(over.name().into()), ..row })
}

pub(super) fn run(ctx: &CaseCtx, between: Between, touch: Touch) -> anyhow::Result<Vec<Row>> {
    let (mut rows, mut races) = (Vec::new(), Vec::new());
    let plan = match between {
        Between::Sleep => Plan::slow(ctx.effort, 2),
        _ => Plan::busy(ctx.effort),
    };
    for (i, (shape, part)) in SHAPES.into_iter().zip(PARTS).enumerate() {
        if !ctx.has_part(part) {
            continue;
        }
        let case = format!("{}.{part}", ctx.name);
        let slice = Warm::new(between, touch, shape);
        let tick = |round| ctx.part_of(i * plan.rounds + round, SHAPES.len() * plan.rounds);
        let race = match race(&case, &ctx.chosen(&all()), &slice, with_warm_up(plan, shape), tick) {
            // A signal came: return the rows of the shapes that are finished.
            Err(error) if error.is::<Interrupted>() && !rows.is_empty() => return Ok(rows),
            race => race?,
        };
        let moved_max = match between {
            Between::Yield => Some((MOVED, Bound::AtMost, 1.0)),
            Between::Sleep => Some((MOVED, Bound::AtMost, 5.0)),
            Between::Message => None,
        };
        let (own, promised) = match touch {
            Touch::Chase => (moved_max, promises(&race, between, shape)),
            Touch::Sequential => (None, vec![]),
        };
        rows.extend(race.numbers(own.as_slice()));
        rows.extend(race.ratios(promised));
        rows.extend(race.ratio(SLOWEST.name, Contender::Ours, Contender::Tokio));
        races.push(race);
        (ctx.part_done)(&case);
    }
    let mean = mean_row(ctx.name, &races, TOUCHES, "ratio, geometric mean of all", Contender::Tokio);
    // Leave out a mean that is not finite, as when a task of the other variant did nothing in a slice.
    let slowest = mean_row(
        ctx.name,
        &races,
        SLOWEST.name,
        "ratio, slowest task, geometric mean of all",
        Contender::Tokio,
    );
    rows.extend(slowest.filter(|row| row.min.is_finite() && row.max.is_finite()));
    let is_promised = (between, touch) == (Between::Yield, Touch::Chase);
    rows.extend(mean.map(|row| row.promise_if(is_promised, Bound::AtLeast, 1.4)));
    Ok(rows)
}
