//! Progress while seeds are simulated, and the signal that ends the simulation.
//!
//! The simulation runs on separate threads and asks [`ProgressReporter`] whether to continue. The command's thread
//! waits; when a signal has arrived, this thread prints one message. The seeds that are being simulated are then
//! finished, which takes one or two seconds; a second signal ends the process at once ([`warmcore_bench::signals`]).
//!
//! `failed` is written by the thread whose simulation panicked, `enough` by any thread that found an error.

use indicatif::ProgressBar;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_papers::Progress;

/// How often the command's thread checks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Reports progress to a bar, and tells the simulation to stop.
#[derive(Debug)]
pub(super) struct ProgressReporter {
    bar: ProgressBar,
    what: String,
    failed: Mutex<Option<u64>>,
    enough: AtomicBool,
}

impl Progress for ProgressReporter {
    fn is_over(&self) -> bool {
        self.enough.load(Relaxed) || INTERRUPTED.load(Relaxed)
    }

    fn finished(&self, seeds: usize, of: usize) {
        self.bar.set_length(of as u64);
        self.bar.set_position(seeds as u64);
        self.bar.set_message(format!("{}, seed {seeds} of {of}", self.what));
    }

    fn failed(&self, seed: u64) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(seed);
    }
}

impl ProgressReporter {
    /// Makes a reporter that shows `what` on `bar`.
    pub(super) fn new(bar: &ProgressBar, what: &str) -> Arc<Self> {
        bar.set_message(what.to_owned());
        let (failed, enough) = (Mutex::new(None), AtomicBool::new(false));
        Arc::new(Self { bar: bar.clone(), what: what.to_owned(), failed, enough })
    }

    /// Stops the simulation after an error.
    pub(super) fn enough(&self) {
        self.enough.store(true, Relaxed);
    }

    /// Runs `simulate` on a thread until it returns; a signal makes it return early. If it panics, returns an error
    /// with the command that `replay` makes for the seed, if that is known.
    pub(super) fn wait<T: Send>(
        &self,
        simulate: impl FnOnce() -> T + Send,
        replay: impl Fn(Option<u64>) -> String,
    ) -> anyhow::Result<T> {
        std::thread::scope(|scope| {
            let (done, result) = channel();
            let named = std::thread::Builder::new().name(self.what.clone());
            let thread = named.spawn_scoped(scope, move || _ = done.send(simulate()))?;
            let mut is_told = false;
            loop {
                match result.recv_timeout(LOOK_EVERY) {
                    Ok(found) => return Ok(found),
                    // The panic's message was printed already.
                    Err(RecvTimeoutError::Disconnected) => {
                        _ = thread.join();
                        let seed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                        let in_seed = seed.map_or_else(String::new, |seed| format!(" in seed {seed}"));
                        anyhow::bail!(
                            "the simulation of {} panicked{in_seed}; this is a bug. Replay it: {}",
                            self.what,
                            replay(seed)
                        );
                    }
                    Err(RecvTimeoutError::Timeout) if INTERRUPTED.load(Relaxed) && !is_told => {
                        is_told = true;
                        self.bar.suspend(|| {
                            eprintln!(
                                "interrupted: the seeds under way are finished first; once more gives them up"
                            );
                        });
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_papers::Options;

    #[test]
    fn a_simulation_that_panics_is_reported_with_the_command_that_replays_it() {
        let progress = ProgressReporter::new(&ProgressBar::hidden(), "drain");
        let options = Options { seeds: 0..9, progress: Some(progress.clone()), ..Options::default() };
        let simulate = || options.per_seed(|seed| assert!(seed != 5, "the broken one"));
        let error =
            progress.wait(simulate, |seed| format!("warmcore sim drain --seed {}", seed.unwrap_or(0)));
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("panicked in seed 5") && text.ends_with("warmcore sim drain --seed 5"),
            "{text}"
        );
    }

    #[test]
    fn after_an_error_nothing_more_is_begun() {
        let progress = ProgressReporter::new(&ProgressBar::hidden(), "load");
        let options = Options { seeds: 0..1000, progress: Some(progress.clone()), ..Options::default() };
        let done = progress
            .wait(|| options.per_seed(|seed| (seed == 3).then(|| progress.enough())), |_| String::new());
        assert!((4..20).contains(&done.unwrap().len()));
    }
}
