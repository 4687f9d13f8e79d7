//! The time of a message from a thread outside of the runtime to a task whose workers are all parked.
//!
//! A thread that is not a worker sends the time to a task and waits for its answer; then it sleeps long enough for the
//! workers to park again. The case measures the wake, from before the send until the task runs, and the round trip. In
//! Go the sender is a goroutine that is locked to its thread and sleeps in the kernel. A futex wake of a thread on an
//! idle virtual CPU takes 10 to 30 µs, most of it in the host.

use super::quantiles::Quantiles;
use super::slice::*;
use crate::case::CaseCtx;
use fastrand::Rng;
use std::time::Duration;
use tokio::sync::mpsc;
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

pub(super) struct Parked;

/// The shortest pause in µs, and the width of the range from which a random number of µs is added to it. After the
/// shortest pause the workers of every runtime have parked.
const PAUSE_US: [usize; 2] = [300, 400];

impl Slice for Parked {
    fn metrics(&self) -> &'static [Metric] {
        const { &[time("p50"), time("p99"), time("round trip p50")] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let (sender, mut messages) = mpsc::unbounded_channel::<u64>();
        let (answer, answers) = std::sync::mpsc::channel();
        let task = executor.spawn_nth(0, async move {
            while let Some(sent) = messages.recv().await {
                if answer.send(clock::now().0.saturating_sub(sent)).is_err() {
                    break;
                }
            }
        });
        let window = Window::open(plan);
        // The pauses are random and differ from slice to slice, so that they are not synchronous with the kernel's
        // tick.
        let mut rng = Rng::with_seed(window.begin);
        let (mut wakes, mut trips) = (Quantiles::new(), Quantiles::new());
        loop {
            std::thread::sleep(Duration::from_micros((PAUSE_US[0] + rng.usize(..PAUSE_US[1])) as u64));
            let sent = clock::now().0;
            if sent > window.end || sender.send(sent).is_err() {
                break;
            }
            let Ok(ns) = answers.recv() else { break };
            if window.holds(sent) {
                wakes.note(ns);
                trips.note(clock::now().0 - sent);
            }
        }
        drop(sender);
        executor.join_all(vec![task]);
        vec![wakes.at(0.5), wakes.at(0.99), trips.at(0.5)]
    }

    fn go(&self) -> String {
        format!("parked {} {}", PAUSE_US[0], PAUSE_US[1])
    }
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let race = whole(ctx, EACH, &Parked, Plan::slow(ctx.effort, 3))?;
    let best = race.lowest_peer("p50").map(|contender| race.promise("p50", contender, Bound::AtMost, 1.0));
    Ok(race.rows(best))
}
