//! Usage: how much a group of CPUs has run tasks lately.
//!
//! Model.   The time that its CPUs ran something, per window of a millisecond, folded into an average that forgets half
//!          in 32 of them. A CPU on its way out of an idle state runs nothing yet.
//! Number.  Four CPUs that always run: 4096. One that begins to: 512 after 32 ms.
//! Writers. The simulation, when a CPU begins to run or ends to.
//! Source.  Linux `util_avg`: a window of 1024 µs, y³² = 1/2, and 1024 for a CPU that always runs.

/// A window.
const WINDOW: u64 = 1 << 20;

/// What is left of the average after a window, in 65536ths: 0.5^(1/32).
const KEPT: u64 = 64_132;

/// After so many windows nothing is left.
const WINDOWS_MAX: u64 = 320;

/// How much a group of CPUs has run tasks lately.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// CPUs that run something.
    running: u64,
    /// Up to when all is counted.
    at: u64,
    /// Of this window, CPU × ns.
    ran: u64,
    /// In 65536ths of 1/1024 CPU.
    average: u64,
}

impl Usage {
    /// A CPU more, or less, runs something from now on.
    pub(crate) fn set_running(&mut self, now: u64, runs: bool) {
        self.count(now);
        self.running = if runs { self.running + 1 } else { self.running - 1 };
    }

    /// Up to now.
    fn count(&mut self, now: u64) {
        let windows = (now / WINDOW).saturating_sub(self.at / WINDOW);
        for _ in 0..windows.min(WINDOWS_MAX) {
            let end = (self.at / WINDOW + 1) * WINDOW;
            self.ran += self.running * (end - self.at);
            // A window's share: 1024 × 65536 for a CPU that ran through all of it.
            self.average = (self.average * KEPT + self.ran * 64 * (65_536 - KEPT)) >> 16;
            (self.at, self.ran) = (end, 0);
        }
        let begin = self.at.max(now / WINDOW * WINDOW);
        self.ran += self.running * (now - begin);
        self.at = now;
    }

    /// The average now, in 1/1024 CPU.
    pub(crate) fn now(&self, now: u64) -> u64 {
        let mut copy = Self { ..*self };
        copy.count(now);
        copy.average >> 16
    }
}
