//! Jobs that borrow data and compute, as in a thread pool for computations.
//!
//! A scope runs a thousand jobs, each on a different element of one array; then the next scope is opened. A thread that
//! is not a worker opens the scopes. For comparison, one thread alone does the same in a loop. Go has no scopes: there
//! a goroutine starts a goroutine for each job and waits with a wait group. A job takes 5 µs: two workers do at most
//! 400 000 of them a second.

use super::noisy::{compute, steps_in};
use super::slice::*;
use crate::case::CaseCtx;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use warmcore_results::Row;
use warmcore_sys::clock;

const JOBS: usize = 1000;
const JOB: Duration = Duration::from_micros(5);

pub(super) struct Scope;

/// Opens scopes until the window ends. A scope takes milliseconds, so whole scopes that began after the warm-up are
/// counted, divided by the time that they took.
fn scopes(plan: Plan, run: impl Fn(&(dyn Fn(usize) + Sync))) -> Vec<f64> {
    let (steps, window, mut counted, mut first) = (steps_in(JOB), Window::open(plan), 0, None);
    let results: Vec<AtomicU64> = (0..JOBS).map(|_| AtomicU64::new(0)).collect();
    loop {
        let from = clock::now().0;
        run(&|job| results[job].store(compute(steps), Relaxed));
        if from < window.begin {
            continue;
        }
        counted += JOBS;
        let (now, first) = (clock::now().0, *first.get_or_insert(from));
        if now > window.end {
            return vec![counted as f64 * 1e6 / (now - first) as f64];
        }
    }
}

impl Slice for Scope {
    fn metrics(&self) -> &'static [Metric] {
        const { &[rate("jobs")] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        scopes(plan, |job| executor.scope(JOBS, job))
    }

    fn rayon(&self, pool: &'static rayon::ThreadPool, plan: Plan) -> Vec<f64> {
        scopes(plan, |job| {
            pool.scope(|scope| (0..JOBS).for_each(|number| scope.spawn(move |_| job(number))));
        })
    }

    fn go(&self) -> String {
        format!("scope {JOBS} {}", JOB.as_nanos())
    }

    fn alone(&self, plan: Plan) -> Vec<f64> {
        scopes(plan, |job| (0..JOBS).for_each(job))
    }
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let contenders = [Contender::Ours, Contender::Rayon, Contender::Alone, Contender::Go];
    Ok(whole(ctx, &contenders, &Scope, Plan::busy(ctx.effort))?.rows([]))
}
