//! Progress: for how long a step's output has not grown.
//!
//! A step that compiles for an hour on a busy machine prints a line per crate and is not hung; a test that waits for
//! ever prints nothing. So the limit of a step counts from the last growth of its output, not from its start.

use std::time::{Duration, Instant};

/// The length of a step's output, and when that was last seen to change.
pub struct Progress {
    len: u64,
    since: Instant,
}

impl Progress {
    /// Of a step that starts now and has printed nothing.
    pub fn new(now: Instant) -> Self {
        Self { len: 0, since: now }
    }

    /// Returns for how long the output has had its present length of `len` bytes.
    pub fn silent_for(&mut self, len: u64, now: Instant) -> Duration {
        if len != self.len {
            (self.len, self.since) = (len, now);
        }
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_prints_now_and_then_is_never_silent_for_long() {
        let minute = Duration::from_mins(1);
        let start = Instant::now();
        let mut progress = Progress::new(start);
        // An hour of compiling, a line every 20 minutes.
        for at in 1..=60 {
            let silent = progress.silent_for(u64::from(at / 20 * 80), start + minute * at);
            assert!(silent < minute * 20, "silent for {silent:?} after {at} minutes");
        }
    }

    #[test]
    fn a_step_that_stops_printing_is_silent_from_its_last_line_on() {
        let minute = Duration::from_mins(1);
        let start = Instant::now();
        let mut progress = Progress::new(start);
        assert_eq!(progress.silent_for(0, start + minute), minute);
        assert_eq!(progress.silent_for(80, start + minute * 2), Duration::ZERO);
        assert_eq!(progress.silent_for(80, start + minute * 30), minute * 28);
    }
}
