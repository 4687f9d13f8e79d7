//! Tasks that wait beside an idle worker.
//!
//! Five programs run one after the other on a runtime of a separate process, which records them: tasks whose polls are of uneven
//! length, timers, pairs, bursts of short tasks, and pairs beside a task that computes. Then the recording says how long tasks
//! waited during which a worker had none (`warmcore_trace`). A worker that the kernel lets wait for a CPU counts as idle too, so
//! what its run delay may explain is counted apart: all parts that are shorter than that delay in their second and the one before, so where
//! workers often wait for a CPU, the count of all decides.
//!
//! # The limit
//! A worker kicks another one when a task has waited for ten kicks of 100 µs at most, between two polls of up to 1 ms, and a worker that
//! comes may kick the next, four times at most: 2.4 ms. The histogram's next boundary is 3.1 ms. What only the watchdog finds may wait for
//! two of its looks, up to 20 ms, and is counted.

use super::noisy::{compute, steps_in};
use super::slice::*;
use crate::case::CaseCtx;
use crate::part::{self, Part};
use crate::runtimes::cpus;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use warmcore_record::Recording;
use warmcore_results::{Bound, Row};
use warmcore_trace::DelayBucket;

/// Waits of which an idle worker was beside for so long break the rule, unless the kernel explains it.
const LIMIT_NS: u64 = 3_000_000;

/// The programs, in a process of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    contender: Contender,
    /// How long each program runs.
    ms: u64,
}

impl Part for Late {
    const NAME: &'static str = "WakeLate";
    type Answer = ();

    fn answer(self) -> anyhow::Result<()> {
        visit(self.contender, self);
        Ok(())
    }
}

/// Computes for a random time of so many µs.
fn run(rng: &mut Rng, us: std::ops::Range<u64>) {
    compute(steps_in(Duration::from_micros(rng.u64(us))));
}

/// One half of a pair, which computes and wakes the other one. It ends when the other one has ended.
async fn half(
    counts: Arc<Counts>,
    first: bool,
    to: mpsc::UnboundedSender<()>,
    mut from: mpsc::UnboundedReceiver<()>,
) {
    let mut rng = Rng::new();
    if first {
        _ = to.send(());
    }
    while !counts.is_over() && from.recv().await.is_some() {
        run(&mut rng, 5..50);
        _ = to.send(());
    }
}

fn spawn_pairs<H: Executor>(executor: H, counts: &Arc<Counts>, pairs: usize) -> Vec<H::Join<()>> {
    let pair = |number| {
        let ((ping, pings), (pong, pongs)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let halves = [half(counts.clone(), true, ping, pongs), half(counts.clone(), false, pong, pings)];
        halves.map(|half| executor.spawn_nth(number, half))
    };
    (0..pairs).flat_map(pair).collect()
}

fn spawn_uneven<H: Executor>(
    executor: H,
    counts: &Arc<Counts>,
    tasks: usize,
    us: std::ops::Range<u64>,
) -> Vec<H::Join<()>> {
    let task = |counts: Arc<Counts>, us: std::ops::Range<u64>| async move {
        let mut rng = Rng::new();
        while !counts.is_over() {
            run(&mut rng, us.clone());
            H::yield_now().await;
        }
    };
    (0..tasks).map(|number| executor.spawn_nth(number, task(counts.clone(), us.clone()))).collect()
}

fn spawn_timers<H: Executor>(executor: H, counts: &Arc<Counts>, tasks: usize) -> Vec<H::Join<()>> {
    let task = |counts: Arc<Counts>| async move {
        let mut rng = Rng::new();
        while !counts.is_over() {
            run(&mut rng, 16..100);
            H::sleep(Duration::from_millis(rng.u64(1..4))).await;
        }
    };
    (0..tasks).map(|number| executor.spawn_nth(number, task(counts.clone()))).collect()
}

fn spawn_bursts<H: Executor>(executor: H, counts: &Arc<Counts>, tasks: usize) -> Vec<H::Join<()>> {
    let task = |counts: Arc<Counts>| async move {
        let child = || async { run(&mut Rng::new(), 20..200) };
        while !counts.is_over() {
            let children: Vec<_> = (0..16).map(|_| executor.spawn(child())).collect();
            for child in children {
                H::join(child).await;
            }
            H::sleep(Duration::from_millis(2)).await;
        }
    };
    (0..tasks).map(|number| executor.spawn_nth(number, task(counts.clone()))).collect()
}

impl Visit for Late {
    type Out = ();

    fn visit<H: Executor>(self, executor: H) {
        let n = cpus().len();
        let plan = Plan { rounds: 1, warm: Duration::ZERO, measure: Duration::from_millis(self.ms) };
        for program in 0..5 {
            let counts = Arc::new(Counts::new());
            let tasks = match program {
                0 => spawn_uneven(executor, &counts, n + n / 2, 16..1000),
                1 => spawn_timers(executor, &counts, 8 * n),
                2 => spawn_pairs(executor, &counts, n),
                3 => spawn_bursts(executor, &counts, 1),
                _ => {
                    let mut tasks = spawn_pairs(executor, &counts, n.div_ceil(2));
                    tasks.extend(spawn_uneven(executor, &counts, 1, 900..1000));
                    tasks
                }
            };
            counts.watch(plan);
            executor.join_all(tasks);
        }
    }
}

pub(super) fn run_case(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let ms = if ctx.effort.is_quick() { 300 } else { 2000 };
    let folder = tempfile::tempdir()?;
    let (mut rows, hosts) = (Vec::new(), [Contender::Ours, Contender::OursShared]);
    for (i, contender) in hosts.into_iter().enumerate() {
        let file = folder.path().join(format!("{i}.warmrec"));
        let mut child = Command::new(std::env::current_exe()?);
        child.env("WARMCORE_RECORD", &file);
        part::ask_with(&Late { contender, ms }, child)?;
        let analysis = warmcore_trace::analyze(|| Recording::open(&file), &[])?;
        let beside = analysis.delays.beside_idle;
        let polls = analysis.coverage.polls;
        let row =
            |metric, unit, value: f64| Row::exact(ctx.name, contender.name(), metric, unit, value, polls);
        // NaN: polls are missing in the recording.
        let number = |of: &dyn Fn(&warmcore_trace::BesideIdle) -> u64| {
            beside.as_ref().map_or(f64::NAN, |beside| of(beside) as f64)
        };
        let long = |beside: &warmcore_trace::BesideIdle, kernel: fn(&DelayBucket) -> u64| {
            let long = beside.buckets.iter().filter(|bucket| bucket.from_ns >= LIMIT_NS);
            long.map(|bucket| bucket.polls - kernel(bucket).min(bucket.polls)).sum()
        };
        rows.extend([
            row("polls", "polls", polls as f64),
            row("waited beside an idle worker", "polls", number(&|beside| beside.times.count)),
            row("longest", "ns", number(&|beside| beside.times.max_ns)),
            row("over 3 ms", "polls", number(&|beside| long(beside, |_| 0))),
            row(
                "over 3 ms without the kernel",
                "polls",
                number(&|beside| long(beside, |it| it.maybe_kernel)),
            )
            .promise(Bound::AtMost, 0.0),
        ]);
        ctx.part_of(i + 1, hosts.len());
    }
    Ok(rows)
}
