//! Hot windows: a hot window is the time for which an idle CPU is kept for the task that last ran there and sleeps
//! briefly.
//!
//! A task has a [`SleepHistory`]: when it fell asleep, and the running average of how long it sleeps. Sleeps longer
//! than a move can cost are not recorded. When a task with a known average falls asleep, its CPU's window
//! moves forward to now + average, never back. Each recorded sleep after the first changes the average by an eighth of
//! the difference. So 18 sleeps after a task changes the length of its sleeps, the average is within a tenth of the
//! change.
//!
//! The scheduler stores the histories and the windows. The thread that wakes a task updates the task's history; each
//! CPU updates its own window.
//!
//! # Source
//! SIS_CACHE, linux-kernel, September and November 2023. The posted code differs: a task's first sleep counts an
//! eighth, as if the average had been 0 before, and a long sleep halves the average. Here the first sleep sets the
//! average, and a long pause between two bursts does not change it.

use crate::policy::INTERVAL_MAX;
use warmcore_types::Nanos;

/// When a task fell asleep, and how long it sleeps on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SleepHistory {
    /// When the task last fell asleep. 0: never.
    pub since: Nanos,
    /// How long it sleeps on average. 0: not known yet.
    pub average: Nanos,
}

impl SleepHistory {
    /// The task falls asleep. Returns until when its CPU is to be kept for it, or `None` if the average is not known
    /// yet.
    pub fn sleep(&mut self, now: Nanos) -> Option<Nanos> {
        self.since = now;
        (self.average.0 > 0).then_some(Nanos(now.0.saturating_add(self.average.0)))
    }

    /// As [`sleep`](Self::sleep), but returns the new end of the CPU's window, whose end was `hot_until` before.
    pub fn sleep_on(&mut self, now: Nanos, hot_until: Nanos) -> Nanos {
        self.sleep(now).map_or(hot_until, |until| until.max(hot_until))
    }

    /// The task wakes. Called once per sleep, and not for a wake that comes while the task runs.
    pub fn wake(&mut self, now: Nanos) {
        let slept = now.0.saturating_sub(self.since.0);
        if self.since.0 == 0 || slept > INTERVAL_MAX.0 {
            return;
        }
        let average = self.average.0;
        self.average = Nanos(if average == 0 { slept } else { average - average / 8 + slept / 8 }.max(1));
    }
}
