//! Simulates all cases of `cases` on Warmcore's runtime, on the probed machine and on larger ones. `cargo xtask constants` compares
//! the lines with those of a tree with another constant.
//!
//! `cargo run --release -p warmcore-sim --example cases -- PROBE SEEDS` prints for each case, machine and seed: case, metric, CPUs,
//! seed, the metric, the part of the polls after a move, the slowest task.

use std::error::Error;
use std::path::Path;
use warmcore_sim::cases::{CASES, ProbeFile, Side, UNMEASURED};

/// Last-level caches, and CPUs below each. Two CPUs were probed; one LLC with 32 CPUs has two injection queues.
const SIZES: [(u32, u32); 4] = [(1, 2), (1, 8), (2, 8), (1, 32)];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [probe, seeds] = &args[..] else { return Err("expected PROBE SEEDS".into()) };
    let (probe, seeds) = (ProbeFile::read(Path::new(probe))?, seeds.parse()?);
    for size in SIZES {
        for case in CASES.iter().chain(&UNMEASURED) {
            for seed in 0..seeds {
                let of_case = case.simulate_on(&probe, Side::Warmcore, seed, size)?;
                let (name, metric, cpus) = (case.name, case.metric, format!("{}x{}", size.0, size.1));
                let numbers =
                    [of_case.metric, of_case.moved, of_case.slowest].map(|number| format!("{number:.6}"));
                println!("{name}\t{metric}\t{cpus}\t{seed}\t{}", numbers.join("\t"));
            }
        }
    }
    Ok(())
}
