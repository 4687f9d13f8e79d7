//! Usage: how much a group of CPUs ran lately.
//!
//! The time in which the group's CPUs ran tasks is summed per window of about a millisecond, and added to an average
//! whose older part halves in 32 windows. A CPU that is leaving its idle state does not count as running. Four CPUs
//! that always run give 4096. One CPU that begins to run gives 512 after 32 ms.
//!
//! # Source
//!
//! Linux `util_avg`: windows of 1024 µs, y³² = 1/2, and 1024 for a CPU that always runs.

/// The length of a window, in ns.
const WINDOW: u64 = 1 << 20;

/// The part of the older average that remains after a window, in 65536ths: 0.5^(1/32).
const KEPT: u64 = 64_132;

/// After this many windows nothing is left of the older average.
const WINDOWS_MAX: u64 = 320;

/// How much a group of CPUs ran lately.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// CPUs that run something.
    running: u64,
    /// The time up to which everything is counted.
    at: u64,
    /// The run time in the current window, in CPU × ns.
    ran: u64,
    /// The average, in 65536ths of 1/1024 CPU.
    average: u64,
}

impl Usage {
    /// A CPU begins or ends to run.
    pub(crate) fn set_running(&mut self, now: u64, runs: bool) {
        self.count(now);
        self.running = if runs { self.running + 1 } else { self.running - 1 };
    }

    /// Counts up to `now`.
    fn count(&mut self, now: u64) {
        let windows = (now / WINDOW).saturating_sub(self.at / WINDOW);
        for _ in 0..windows.min(WINDOWS_MAX) {
            let end = (self.at / WINDOW + 1) * WINDOW;
            self.ran += self.running * (end - self.at);
            // A window's share: 1024 × 65536 for a CPU that ran during all of it.
            self.average = (self.average * KEPT + self.ran * 64 * (65_536 - KEPT)) >> 16;
            (self.at, self.ran) = (end, 0);
        }
        let begin = self.at.max(now / WINDOW * WINDOW);
        self.ran += self.running * (now - begin);
        self.at = now;
    }

    /// The average at `now`, in 1/1024 CPU.
    pub(crate) fn now(&self, now: u64) -> u64 {
        let mut copy = Self { ..*self };
        copy.count(now);
        copy.average >> 16
    }
}
