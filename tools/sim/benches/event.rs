//! The cost of an event: removing one and pushing another, by the number of events.
//!
//! The hold model: each removed event pushes one event a random time later. The queue of this crate and std's
//! `BinaryHeap` run in turn for five rounds; the best time of each counts, since the rest is noise of the machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Instant;
use warmcore_sim::event::Events;
use warmcore_sim::random::{Purpose, Random, below};
use warmcore_types::Nanos;

const ROUNDS: usize = 5;
const EVENTS: u64 = 1_000_000;

fn main() {
    println!("{:>9}{:>12}{:>14}", "pending", "ours, ns", "BinaryHeap, ns");
    for pending in [64u64, 512, 4096, 16_384, 65_536, 262_144] {
        let (mut ours, mut std) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            ours = ours.min(hold_ours(pending));
            std = std.min(hold_std(pending));
        }
        println!("{pending:>9}{ours:>12.1}{std:>14.1}");
    }
}

fn later(i: u64) -> u64 {
    1 + below(Random::new(1).bits(0, Purpose::Load, i), 100_000)
}

fn hold_ours(pending: u64) -> f64 {
    let mut events = Events::new();
    (0..pending).for_each(|i| events.push(Nanos(later(i)), 0, i));
    let begin = Instant::now();
    for i in 0..EVENTS {
        let due = events.pop().expect("as many as before");
        events.push(Nanos(due.at.0 + later(i)), 0, due.what);
    }
    black_box(events.len());
    begin.elapsed().as_nanos() as f64 / EVENTS as f64
}

fn hold_std(pending: u64) -> f64 {
    let mut events: BinaryHeap<Reverse<(u64, u64, u64)>> = BinaryHeap::new();
    (0..pending).for_each(|i| events.push(Reverse((later(i), i, i))));
    let begin = Instant::now();
    for i in 0..EVENTS {
        let Reverse((at, _, what)) = events.pop().expect("as many as before");
        events.push(Reverse((at + later(i), pending + i, what)));
    }
    black_box(events.len());
    begin.elapsed().as_nanos() as f64 / EVENTS as f64
}
