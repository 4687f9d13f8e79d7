//! The rate at which tasks that do nothing are spawned and joined.
//!
//! There are three cases: a task spawns a batch and then joins all tasks of the batch; a task joins each task before it
//! spawns the next; a thread that is not a worker spawns a batch and joins it. Rayon runs the first case, with a scope.
//! Go does not run the last one: a thread that runs Go code holds a processor of Go's pool even if it is locked, so it
//! always spawns from inside of the pool. 3 M/s are 330 ns for making, running, joining and freeing a task.

use super::slice::*;
use crate::case::CaseCtx;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

/// How tasks are spawned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// From a task, many at a time.
    Task,
    /// From a task, one at a time.
    One,
    /// From outside, many at a time.
    Outside,
}

/// The number of tasks that are spawned before the first is joined.
const BATCH: usize = 128;

pub(super) struct Spawn(pub(super) From);

/// Spawns and joins `batch` tasks at a time until the window ends; returns the number of tasks whose batch was joined
/// in the window.
async fn make<H: Executor>(executor: H, batch: usize, window: Window) -> u64 {
    let mut counted = 0;
    loop {
        let tasks: Vec<_> = (0..batch).map(|_| executor.spawn(async {})).collect();
        for task in tasks {
            H::join(task).await;
        }
        let now = clock::now().0;
        if now > window.end {
            return counted;
        }
        counted += if window.holds(now) { batch as u64 } else { 0 };
    }
}

/// As [`make`], one task at a time, without a list of tasks.
async fn make_one<H: Executor>(executor: H, window: Window) -> u64 {
    let mut counted = 0;
    loop {
        H::join(executor.spawn(async {})).await;
        let now = clock::now().0;
        if now > window.end {
            return counted;
        }
        counted += u64::from(window.holds(now));
    }
}

impl Slice for Spawn {
    fn metrics(&self) -> &'static [Metric] {
        const { &[rate("spawned and joined")] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let window = Window::open(plan);
        let counted = match self.0 {
            From::Task => executor.join_all(vec![executor.spawn_nth(0, make(executor, BATCH, window))])[0],
            From::One => executor.join_all(vec![executor.spawn_nth(0, make_one(executor, window))])[0],
            From::Outside => executor.block_on(make(executor, BATCH, window)),
        };
        vec![window.rate(counted)]
    }

    fn go(&self) -> String {
        match self.0 {
            From::One => "spawn 1".into(),
            _ => format!("spawn {BATCH}"),
        }
    }

    fn rayon(&self, pool: &'static rayon::ThreadPool, plan: Plan) -> Vec<f64> {
        let (counts, over) = (Counts::new(), AtomicBool::new(false));
        let scopes = || {
            while !counts.is_over() {
                rayon::scope(|scope| (0..BATCH).for_each(|_| scope.spawn(|_| ())));
                counts.add(BATCH as u64);
            }
            over.store(true, Relaxed);
        };
        let rate = std::thread::scope(|scope| {
            scope.spawn(|| pool.install(scopes));
            counts.watch(plan)
        });
        assert!(over.into_inner());
        vec![rate]
    }
}

pub(super) fn run(ctx: &CaseCtx, from: From) -> anyhow::Result<Vec<Row>> {
    let contenders: &[Contender] = match from {
        From::Task => &[EACH, &[Contender::Rayon]].concat(),
        From::One => EACH,
        // Go always spawns from inside: see the module's documentation.
        From::Outside => &EACH[..EACH.len() - 1],
    };
    let race = whole(ctx, contenders, &Spawn(from), Plan::busy(ctx.effort))?;
    let promise = |over, value| {
        let row = race.promise("spawned and joined", over, Bound::AtLeast, value);
        row.filter(|_| from == From::Task)
    };
    Ok(race.rows([promise(Contender::Smol, 1.2), promise(Contender::Tokio, 2.0)]))
}
