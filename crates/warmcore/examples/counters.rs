//! Per-CPU statistics of a server: a struct of counters with a slot per CPU, a gauge, and an exact snapshot.
//!
//! `cargo run --release -p warmcore --example counters`

use std::time::Instant;
use warmcore::percpu::backend;
use warmcore::prelude::*;

/// The counts of all requests. The numbers of a slot are together, and slots share no cache line.
#[derive(Zeroable)]
struct Stats {
    requests: LocalU64,
    bytes: LocalU64,
    errors: LocalU64,
}

fn main() {
    let (stats, open) = (PerCid::<Stats>::new(), Gauge::new());
    let began = Instant::now();
    const EACH: u64 = 5_000_000;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..EACH {
                    open.add(1);
                    stats.add(field!(Stats, requests), 1);
                    stats.add(field!(Stats, bytes), i % 1500);
                    if i % 1000 == 0 {
                        stats.add(field!(Stats, errors), 1);
                    }
                    open.sub(1);
                }
            });
        }
    });
    let ns = began.elapsed().as_nanos() as f64 / (4.0 * EACH as f64);
    println!("backend   {}", backend());
    println!("requests  {}", stats.sum(field!(Stats, requests)));
    println!("bytes     {}", stats.sum(field!(Stats, bytes)));
    println!("errors    {}", stats.sum(field!(Stats, errors)));
    println!("open      {}", open.snapshot());
    println!("{ns:.2} ns per request of four numbers, 4 threads, wall time");
    println!("memory    {} KiB in {} slots", stats.resident_bytes().unwrap_or(0) / 1024, stats.slots());
}
