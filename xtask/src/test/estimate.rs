//! Estimates how much time is left, from the times of the last run, or else from the estimates in `steps.rs`.
//!
//! A machine that is slower than the estimates is taken to be slower in all steps by one factor. So when the finished
//! steps were estimated at 20 s or more, the estimates of the steps that are left are multiplied by measured time ÷
//! estimated time of the finished steps, a factor from 0.2 to 10.

use super::steps::Step;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The estimates and the measured times.
pub struct Estimates {
    path: PathBuf,
    /// Seconds by step, of the last run in which the step succeeded.
    last: BTreeMap<String, f64>,
    /// The steps that have not ended, with their estimates.
    left: Vec<(String, f64)>,
    /// The sums of the estimated and of the measured seconds of the steps that have ended.
    done: (f64, f64),
    running: Option<Instant>,
}

impl Estimates {
    /// The estimates of `steps`: for each its time in the file `path`, from its last run, or else its own estimate.
    pub fn read<'a>(path: &Path, steps: impl Iterator<Item = &'a Step>) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = |line: &str| {
            let (seconds, name) = line.split_once(' ')?;
            Some((name.to_owned(), seconds.parse().ok()?))
        };
        let last: BTreeMap<String, f64> = text.lines().filter_map(line).collect();
        let estimate = |step: &Step| last.get(step.name).copied().unwrap_or(f64::from(step.seconds));
        let left = steps.map(|step| (step.name.to_owned(), estimate(step))).collect();
        Self { path: path.to_owned(), last, left, done: (0.0, 0.0), running: None }
    }

    /// Records that a step begins. Steps before it that have not ended were skipped.
    pub fn begin(&mut self, name: &str) {
        if let Some(at) = self.left.iter().position(|(left, _)| left == name) {
            self.left.drain(..at);
        }
        self.running = Some(Instant::now());
    }

    /// Records that a step ended. If it succeeded, its time is kept for the next run. An error of writing the file is
    /// ignored: the next run's estimates are then less exact.
    pub fn end(&mut self, name: &str, seconds: f64, ok: bool) {
        self.running = None;
        if let Some(at) = self.left.iter().position(|(left, _)| left == name) {
            let (_, estimate) = self.left.remove(at);
            self.done = (self.done.0 + estimate, self.done.1 + seconds);
        }
        if ok {
            self.last.insert(name.to_owned(), seconds);
            let lines: String =
                self.last.iter().map(|(name, seconds)| format!("{seconds:.1} {name}\n")).collect();
            let _ = std::fs::write(&self.path, lines);
        }
    }

    /// The time left.
    pub fn left(&self) -> Duration {
        self.left_after(self.running.map_or(0.0, |since| since.elapsed().as_secs_f64()))
    }

    /// How long a step takes that has not ended.
    pub fn estimate(&self, name: &str) -> Duration {
        let estimate = self.left.iter().find(|(left, _)| left == name).map_or(0.0, |(_, estimate)| *estimate);
        Duration::from_secs_f64(estimate * self.factor())
    }

    /// How much slower than estimated the steps were that have ended. Steps of less than 20 s by estimate, such as
    /// formatting, are too little to compare the speed.
    fn factor(&self) -> f64 {
        let (estimated, measured) = self.done;
        if estimated < 20.0 { 1.0 } else { (measured / estimated).clamp(0.2, 10.0) }
    }

    /// The time left when the first remaining step has run for `running` seconds.
    fn left_after(&self, running: f64) -> Duration {
        let factor = self.factor();
        let mut steps = self.left.iter().map(|(_, estimate)| estimate * factor);
        let current = steps.next().unwrap_or(0.0);
        let rest = steps.sum::<f64>();
        // If a step already takes longer than estimated, a tenth of its time so far is taken to be left, and the steps
        // after it are taken to be as much slower than their estimates.
        let left = match running > current && current > 0.0 {
            true => running / 10.0 + rest * running / current,
            false => current - running + rest,
        };
        Duration::from_secs_f64(left.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::steps::{Level, step};

    #[test]
    fn what_is_left_follows_the_last_run_and_the_machine() {
        let folder = std::env::temp_dir().join(format!("warmcore-xtask-{}", std::process::id()));
        let steps =
            [step("a", Level::Test, 100, ""), step("b", Level::Test, 50, ""), step("c", Level::Test, 10, "")];
        let mut estimates = Estimates::read(&folder, steps.iter());
        assert_eq!(estimates.left_after(0.0).as_secs(), 160);
        assert_eq!(estimates.left_after(30.0).as_secs(), 130);
        assert_eq!(estimates.left_after(300.0).as_secs(), 210, "three times as slow, and not at its end yet");
        estimates.end("a", 200.0, true);
        assert_eq!(estimates.left_after(0.0).as_secs(), 120, "twice as slow as estimated");
        assert_eq!(estimates.estimate("b").as_secs(), 100);
        estimates.begin("c");
        assert_eq!(estimates.left_after(0.0).as_secs(), 20, "b was skipped");
        let again = Estimates::read(&folder, steps.iter());
        assert_eq!(again.left_after(0.0).as_secs(), 260, "a took 200 s");
        std::fs::remove_file(&folder).unwrap();
    }
}
