//! Tasks that compute in registers, without shared data: `compute SECONDS`.
//!
//! A task that moves to another core loses nothing but a few cache lines, so there is no locality to gain. Each step takes
//! about 20 µs, and a task sleeps for a millisecond after every 50 steps, so that wakes come from the timer too.

use std::hint::black_box;
use std::time::{Duration, Instant};

const TASKS: u64 = 16;
const STEPS_BETWEEN_SLEEPS: u64 = 50;
const TURNS_PER_STEP: u64 = 16_000;

/// Returns how many steps were done.
async fn compute(mut state: u64, until: Instant) -> u64 {
    let mut steps = 0;
    while Instant::now() < until {
        for _ in 0..TURNS_PER_STEP {
            // xorshift
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        steps += 1;
        match steps % STEPS_BETWEEN_SLEEPS {
            0 => tokio::time::sleep(Duration::from_millis(1)).await,
            _ => tokio::task::yield_now().await,
        }
    }
    black_box(state);
    steps
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, seconds] = &args[..] else { anyhow::bail!("compute SECONDS") };
    let time = Duration::from_secs(seconds.parse()?);
    let until = Instant::now() + time;
    let tasks: Vec<_> = (1..=TASKS).map(|seed| tokio::spawn(compute(seed, until))).collect();
    let mut steps = 0;
    for task in tasks {
        steps += task.await?;
    }
    println!("{} steps/s", steps as f64 / time.as_secs_f64());
    Ok(())
}
