//! A thousand tasks that only yield: the cost of a pass through the run queue.
//!
//! Every task yields until the slice ends. The case counts polls. 10 M/s on two workers are 200 ns a poll, including
//! the count.

use super::slice::*;
use crate::case::CaseCtx;
use std::sync::Arc;
use warmcore_results::Row;

const TASKS: usize = 1000;

pub(super) struct Storm;

impl Slice for Storm {
    fn metrics(&self) -> &'static [Metric] {
        const { &[rate("yields"), SLOWEST, UNEVENNESS] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let counts = Arc::new(Counts::new());
        let task = |counts: Arc<Counts>| async move {
            let mut mine = 0;
            while !counts.is_over() {
                counts.add(1);
                mine += 1;
                H::yield_now().await;
            }
            mine
        };
        let tasks = (0..TASKS).map(|number| executor.spawn_nth(number, task(counts.clone()))).collect();
        let rate = counts.watch(plan);
        let [slowest, uneven] = shares(rate, executor.join_all(tasks));
        vec![rate, slowest, uneven]
    }

    fn go(&self) -> String {
        format!("storm {TASKS}")
    }
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    Ok(whole(ctx, EACH, &Storm, Plan::busy(ctx.effort))?.rows([]))
}
