//! The output of a run: a line per step, and below it a line that shows what is running now.
//!
//! On a terminal the last line is overwritten at most five times a second. Otherwise, as in a log of CI, a new one is
//! printed at most every half minute.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The least time between two displays of the running step: on a terminal, and otherwise.
const EVERY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(30)];

/// The output.
pub struct Live {
    is_terminal: bool,
    shown: Instant,
}

impl Live {
    /// Writes to standard output.
    pub fn new() -> Self {
        Self { is_terminal: std::io::stdout().is_terminal(), shown: Instant::now() }
    }

    /// Prints a line that stays.
    pub fn line(&self, text: &str) {
        if self.is_terminal {
            print!("\r\x1b[K");
        }
        println!("{text}");
    }

    /// Shows the running step, its running part, and how much time is left if that is known, if the time of [`EVERY`]
    /// has passed since the last display.
    pub fn show(&mut self, step: &str, part: &str, left: Option<Duration>) {
        if self.shown.elapsed() < EVERY[usize::from(!self.is_terminal)] {
            return;
        }
        self.shown = Instant::now();
        let left = left.map(|left| format!(", {} left", words(left))).unwrap_or_default();
        let text = format!("...   {step}{left}: {part}");
        if self.is_terminal {
            // A line that is wider than the terminal would not be overwritten.
            let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(80);
            let cut: String = text.chars().take(width - 1).collect();
            print!("\r\x1b[K{cut}");
        } else {
            println!("{text}");
        }
        let _ = std::io::stdout().flush();
    }
}

/// `3 min`, or `under a minute`.
fn words(left: Duration) -> String {
    match left.as_secs().div_ceil(60) {
        0 | 1 => "under a minute".to_owned(),
        minutes => format!("{minutes} min"),
    }
}
