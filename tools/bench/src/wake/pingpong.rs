//! Ping-pong: pairs of tasks that only wake each other; one pair, or many.
//!
//! `channel` uses a bounded channel in each direction. With `oneshot` each message contains the sender for the answer,
//! so every wake is by a new channel. A measured time is a round trip, which has two wakes. A round trip of 400 ns
//! contains two polls, two sends, two wakes, and one reading of the clock, which takes 20 ns.

use super::quantiles::Quantiles;
use super::slice::*;
use crate::case::CaseCtx;
use tokio::sync::{mpsc, oneshot};
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

/// The kind of channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Through {
    Channel,
    Oneshot,
}

pub(super) struct PingPong {
    pub(super) through: Through,
    pub(super) pairs: usize,
}

/// A message with the sender for the answer, which in turn brings the sender for the next message.
struct Ping(oneshot::Sender<Pong>);
struct Pong(oneshot::Sender<Ping>);

/// Counts round trips, and decides whether there is another one.
struct Trips {
    window: Window,
    last: u64,
    times: Quantiles,
}

impl Trips {
    fn new(window: Window) -> Self {
        Self { window, last: clock::now().0, times: Quantiles::new() }
    }

    #[inline]
    fn came_back(&mut self) -> bool {
        let now = clock::now().0;
        if self.window.holds(now) {
            self.times.note(now - self.last);
        }
        self.last = now;
        now <= self.window.end
    }
}

async fn serve_channel(mut pings: mpsc::Receiver<u64>, pongs: mpsc::Sender<u64>) -> Quantiles {
    while let Some(n) = pings.recv().await {
        if pongs.send(n).await.is_err() {
            break;
        }
    }
    Quantiles::new()
}

async fn play_channel(pings: mpsc::Sender<u64>, mut pongs: mpsc::Receiver<u64>, window: Window) -> Quantiles {
    let mut trips = Trips::new(window);
    for n in 0.. {
        if pings.send(n).await.is_err() || pongs.recv().await.is_none() || !trips.came_back() {
            break;
        }
    }
    trips.times
}

async fn serve_oneshot(first: oneshot::Receiver<Ping>) -> Quantiles {
    let mut pings = first;
    while let Ok(Ping(answer)) = pings.await {
        let (sender, next) = oneshot::channel();
        if answer.send(Pong(sender)).is_err() {
            break;
        }
        pings = next;
    }
    Quantiles::new()
}

async fn play_oneshot(first: oneshot::Sender<Ping>, window: Window) -> Quantiles {
    let (mut trips, mut pings) = (Trips::new(window), first);
    loop {
        let (sender, pong) = oneshot::channel();
        if pings.send(Ping(sender)).is_err() {
            break;
        }
        let Ok(Pong(next)) = pong.await else { break };
        pings = next;
        if !trips.came_back() {
            break;
        }
    }
    trips.times
}

impl Slice for PingPong {
    fn metrics(&self) -> &'static [Metric] {
        const ALONE: &[Metric] = &[rate("round trips"), time("p50"), time("p99"), time("p99.9")];
        const MANY: &[Metric] =
            &[rate("round trips"), time("p50"), time("p99"), time("p99.9"), SLOWEST, UNEVENNESS];
        if self.pairs == 1 { ALONE } else { MANY }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let window = Window::open(plan);
        let tasks = (0..self.pairs).flat_map(|pair| match self.through {
            Through::Channel => {
                let ((ping, pings), (pong, pongs)) = (mpsc::channel(1), mpsc::channel(1));
                [
                    executor.spawn_nth(2 * pair, serve_channel(pings, pong)),
                    executor.spawn_nth(2 * pair + 1, play_channel(ping, pongs, window)),
                ]
            }
            Through::Oneshot => {
                let (first, pings) = oneshot::channel();
                [
                    executor.spawn_nth(2 * pair, serve_oneshot(pings)),
                    executor.spawn_nth(2 * pair + 1, play_oneshot(first, window)),
                ]
            }
        });
        let mut all = Quantiles::new();
        let ended = executor.join_all(tasks.collect());
        ended.iter().for_each(|times| all.merge(times));
        let rate = window.rate(all.total());
        let mut values = vec![rate];
        values.extend([0.5, 0.99, 0.999].map(|q| all.at(q)));
        if self.pairs > 1 {
            // The second task of each pair has the counts.
            values.extend(shares(rate, ended.iter().skip(1).step_by(2).map(Quantiles::total)));
        }
        values
    }

    fn go(&self) -> String {
        format!("pingpong {:?} {}", self.through, self.pairs).to_lowercase()
    }
}

pub(super) fn run(ctx: &CaseCtx, through: Through, pairs: usize) -> anyhow::Result<Vec<Row>> {
    let race = whole(ctx, &all(), &PingPong { through, pairs }, Plan::busy(ctx.effort))?;
    let promise = |metric, kind, value| race.promise(metric, Contender::Tokio, kind, value);
    let promises = match pairs {
        1 => [promise("p50", Bound::AtMost, 1.0), promise("p99", Bound::AtMost, 0.3)],
        _ => [promise("round trips", Bound::AtLeast, 1.0), promise("p99", Bound::AtMost, 0.7)],
    };
    Ok(race.rows(promises))
}
