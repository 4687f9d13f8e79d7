//! A task's clock, and its work.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;

/// Durations around their means.
pub struct Around(fastrand::Rng);

impl Around {
    /// The durations of the task with this number, by the guest's seed.
    pub fn of(seed: u64, task: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ task.wrapping_mul(7919)))
    }

    /// A duration between half of `us` and one and a half times that.
    pub fn us(&mut self, us: u64) -> u64 {
        us / 2 + self.0.u64(0..=us)
    }

    /// Runs for about `us` of this thread's own CPU time.
    pub fn run(&mut self, us: u64) {
        run_for(self.us(us));
    }

    /// Sleeps for about `us`.
    pub fn sleep(&mut self, us: u64) {
        if us > 0 {
            std::thread::sleep(Duration::from_micros(self.us(us)));
        }
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }
}

/// CPU time of this thread, in ns.
pub fn cpu_ns() -> u64 {
    ns(ClockId::ThreadCPUTime)
}

/// Time since the boot, in ns.
pub fn now_ns() -> u64 {
    ns(ClockId::Monotonic)
}

fn ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs until this thread has used `us` of CPU time more.
pub fn run_for(us: u64) {
    let end = cpu_ns() + us * 1000;
    while cpu_ns() < end {
        spin();
    }
}

/// About 1500 instructions.
pub fn spin() {
    let mut x = black_box(88_172_645_463_325_252_u64);
    for _ in 0..500 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}
