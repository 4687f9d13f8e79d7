//! The number of rounds of a case and the length of its slices.

use crate::measure::Effort;
use std::time::Duration;

/// The number of rounds, and the length of the warm-up and of the measurement of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub rounds: usize,
    pub warm: Duration,
    pub measure: Duration,
}

impl Plan {
    /// For cases that are busy all the time.
    pub fn busy(effort: Effort) -> Self {
        match effort.is_quick() {
            true => Self { rounds: 9, warm: Duration::from_millis(3), measure: Duration::from_millis(10) },
            false => Self { rounds: 15, warm: Duration::from_millis(6), measure: Duration::from_millis(30) },
        }
    }

    /// For cases that mostly wait: slices that are `times` as long.
    pub fn slow(effort: Effort, times: u32) -> Self {
        let busy = Self::busy(effort);
        Self { measure: busy.measure * times, ..busy }
    }
}
