//! A noisy neighbour: 64 tasks that compute and yield (the hogs), and one other task that is woken about once per
//! millisecond.
//!
//! A thread that is not a worker wakes the task, whether or not the task has run since the last wake. The measured time
//! begins before the wake and ends when the task runs. Each poll of a hog does a fixed amount of work, and the polls
//! are counted, so preempted time does not count as work. On Warmcore the hogs are in one tenant and the task in
//! another of equal weight; a second variant of Warmcore has no tenants, like the other runtimes.
//!
//! Polls can't be interrupted, so there is a lower bound: the task waits until the first worker ends its poll. With two
//! workers, each at a random point of a poll of 20 µs, the 99th percentile of this wait is 18 µs.

use super::quantiles::Quantiles;
use super::slice::*;
use crate::case::CaseCtx;
use crate::runtimes::cpus;
use fastrand::Rng;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

const HOGS: usize = 64;
/// The least work of Warmcore's hogs, as a share of the work of tokio's hogs.
const WORK_MIN: f64 = 0.97;

/// Computes for a number of steps, with two multiplications each.
#[inline(never)]
pub(super) fn compute(steps: u64) -> u64 {
    let mut x = black_box(1u64);
    for i in 0..steps {
        x = (x ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    black_box(x)
}

/// Returns how many steps take this long on an undisturbed CPU. The speed is measured once.
pub(super) fn steps_in(time: Duration) -> u64 {
    static PS_PER_STEP: OnceLock<u64> = OnceLock::new();
    const STEPS: u64 = 10_000;
    let ps = *PS_PER_STEP.get_or_init(|| {
        let timed = || {
            let began = clock::now().0;
            compute(STEPS);
            clock::now().0 - began
        };
        (0..200).map(|_| timed()).min().unwrap_or(1).max(1) * 1000 / STEPS
    });
    (time.as_nanos() as u64 * 1000 / ps.max(1)).max(1)
}

pub(super) struct Noisy {
    pub(super) poll: Duration,
}

async fn hog<H: Executor>(steps: u64, counts: Arc<Counts>) -> (Quantiles, u64) {
    let mut mine = 0;
    while !counts.is_over() {
        compute(steps);
        counts.add(1);
        mine += 1;
        H::yield_now().await;
    }
    (Quantiles::new(), mine)
}

async fn quick(mut wakes: mpsc::UnboundedReceiver<u64>, window: Window) -> (Quantiles, u64) {
    let mut times = Quantiles::new();
    while let Some(sent) = wakes.recv().await {
        if window.holds(sent) {
            times.note(clock::now().0.saturating_sub(sent));
        }
    }
    (times, 0)
}

impl Slice for Noisy {
    fn metrics(&self) -> &'static [Metric] {
        const { &[time("p99"), time("p50"), rate("hogs' polls"), SLOWEST, UNEVENNESS] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let (counts, steps) = (Arc::new(Counts::new()), steps_in(self.poll));
        let (sender, wakes) = mpsc::unbounded_channel();
        let window = Window::open(plan);
        let mut tasks = vec![executor.spawn_for(Tenancy::Quick, 0, quick(wakes, window))];
        for number in 0..HOGS {
            tasks.push(executor.spawn_for(Tenancy::Hogs, number, hog::<H>(steps, counts.clone())));
        }
        let watch = counts.clone();
        let rate = std::thread::scope(|scope| {
            let watching = scope.spawn(move || watch.watch(plan));
            let mut rng = Rng::with_seed(window.begin);
            loop {
                std::thread::sleep(Duration::from_micros(800 + rng.usize(..400) as u64));
                let now = clock::now().0;
                if now > window.end || sender.send(now).is_err() {
                    break;
                }
            }
            watching.join().expect("it only sleeps and counts")
        });
        drop(sender);
        let (mut all, ended) = (Quantiles::new(), executor.join_all(tasks));
        ended.iter().for_each(|(times, _)| all.merge(times));
        // The first task is the one that is woken.
        let [slowest, uneven] = shares(rate, ended.iter().skip(1).map(|(_, polls)| *polls));
        vec![all.at(0.99), all.at(0.5), rate, slowest, uneven]
    }

    fn go(&self) -> String {
        format!("noisy {HOGS} {}", self.poll.as_nanos())
    }
}

/// Returns the quantile `q` of the wait if the first worker that ends its poll runs the task.
fn floor_ns(poll: Duration, workers: usize, q: f64) -> f64 {
    poll.as_nanos() as f64 * (1.0 - (1.0 - q).powf(1.0 / workers as f64))
}

pub(super) fn run(ctx: &CaseCtx, poll: Duration) -> anyhow::Result<Vec<Row>> {
    let contenders = each_and(Contender::OursWithoutTenants);
    let race = whole(ctx, &contenders, &Noisy { poll }, Plan::slow(ctx.effort, 6))?;
    let p99_max = if poll <= Duration::from_micros(20) { 0.3 } else { 0.5 };
    let mut rows = race.rows([
        race.promise("p99", Contender::Tokio, Bound::AtMost, p99_max),
        race.promise("hogs' polls", Contender::Tokio, Bound::AtLeast, WORK_MIN),
    ]);
    let workers = cpus().len();
    let name = format!("floor of {workers} workers (computed)");
    for (metric, q) in [("p99", 0.99), ("p50", 0.5)] {
        rows.push(Row::exact(ctx.name, &name, metric, "ns", floor_ns(poll, workers, q), 1));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_that_of_the_first_worker_to_end_its_poll() {
        let poll = Duration::from_micros(20);
        assert!((floor_ns(poll, 1, 0.5) - 10_000.0).abs() < 1.0);
        assert!((floor_ns(poll, 2, 0.99) - 18_000.0).abs() < 1.0);
        // Compare the formula with random numbers.
        let mut rng = Rng::with_seed(3);
        let mut waits: Vec<usize> =
            (0..10_000).map(|_| rng.usize(..20_000).min(rng.usize(..20_000))).collect();
        waits.sort_unstable();
        assert!((waits[5000] as f64 - floor_ns(poll, 2, 0.5)).abs() < 300.0, "{}", waits[5000]);
    }
}
