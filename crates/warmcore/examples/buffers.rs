//! Buffers that are reused on the core that freed them: a free list in front of the allocator.
//!
//! `cargo run --release -p warmcore --example buffers`

use std::time::Instant;
use warmcore::prelude::*;

type Buffer = Box<[u8; 16 * 1024]>;

/// A request: takes a buffer, fills a part of it, gives it back.
fn serve(buffers: &FreeList<Buffer>, new: &Counter, n: usize) -> u64 {
    let mut buffer = buffers.pop().unwrap_or_else(|| {
        new.add(1);
        Box::new([0; 16 * 1024])
    });
    buffer[..64].fill(n as u8);
    let sum = buffer[..64].iter().map(|b| u64::from(*b)).sum();
    buffers.push(buffer);
    sum
}

fn main() {
    const EACH: usize = 2_000_000;
    let (buffers, new) = (FreeList::<Buffer>::new(), Counter::new());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| std::hint::black_box((0..EACH).map(|n| serve(&buffers, &new, n)).sum::<u64>()));
        }
    });
    let ns = began.elapsed().as_nanos() as f64 / (4 * EACH) as f64;
    println!("{} requests, {} buffers allocated, {} at hand", 4 * EACH, new.sum(), buffers.len());
    println!("{ns:.1} ns per request, 4 threads, wall time");
    println!("given back to the system: {}", buffers.drain_all().len());
}
