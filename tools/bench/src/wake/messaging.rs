//! Groups in which each of 20 senders sends to each of 20 receivers, as in hackbench.
//!
//! A receiver has one bounded channel. A sender sends one message to each receiver of its group in turn, until the
//! slice ends. The receivers count messages. 16 groups are 640 tasks and 320 channels.
//!
//! Source: hackbench, from rt-tests: its groups, its numbers, its message size of 100 bytes.

use super::slice::*;
use crate::case::CaseCtx;
use std::sync::Arc;
use tokio::sync::mpsc;
use warmcore_results::{Bound, Row};

const SIDE: usize = 20;
const BYTES: usize = 100;
/// The number of messages that a channel holds, about as many as a socket.
const HELD: usize = 64;

pub(super) struct Messaging {
    pub(super) groups: usize,
}

/// Sends until the slice ends. Returns `None`, since the receivers count the messages.
async fn send(receivers: Vec<mpsc::Sender<[u8; BYTES]>>, counts: Arc<Counts>) -> Option<u64> {
    while !counts.is_over() {
        for receiver in &receivers {
            if receiver.send([1; BYTES]).await.is_err() {
                return None;
            }
        }
    }
    None
}

async fn receive(mut messages: mpsc::Receiver<[u8; BYTES]>, counts: Arc<Counts>) -> Option<u64> {
    let mut mine = 0;
    while let Some(message) = messages.recv().await {
        let n = u64::from(std::hint::black_box(message)[0]);
        counts.add(n);
        mine += n;
    }
    Some(mine)
}

impl Slice for Messaging {
    fn metrics(&self) -> &'static [Metric] {
        const { &[rate("messages"), SLOWEST, UNEVENNESS] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let (counts, mut tasks) = (Arc::new(Counts::new()), Vec::new());
        for _ in 0..self.groups {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..SIDE).map(|_| mpsc::channel(HELD)).unzip();
            for messages in receivers {
                tasks.push(executor.spawn_nth(tasks.len(), receive(messages, counts.clone())));
            }
            for _ in 0..SIDE {
                tasks.push(executor.spawn_nth(tasks.len(), send(senders.clone(), counts.clone())));
            }
        }
        let rate = counts.watch(plan);
        let received = executor.join_all(tasks);
        let [slowest, uneven] = shares(rate, received.into_iter().flatten());
        vec![rate, slowest, uneven]
    }

    fn go(&self) -> String {
        format!("messaging {} {SIDE} {HELD}", self.groups)
    }
}

pub(super) fn run(ctx: &CaseCtx, groups: usize) -> anyhow::Result<Vec<Row>> {
    let race = whole(ctx, &all(), &Messaging { groups }, Plan::busy(ctx.effort))?;
    Ok(race.rows([race.promise("messages", Contender::Tokio, Bound::AtLeast, 1.0)]))
}
