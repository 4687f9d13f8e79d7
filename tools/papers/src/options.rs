//! Options: what is run for a table, on how many threads, and the observer of its progress.
//!
//! Simulations are independent, so they run on several threads. Seeds are taken in order, and an observer of the
//! progress may stop the run. Simulations that have begun are finished, and only whole seeds are kept: the result is
//! that of a run with fewer seeds. 30 seeds of 4 settings are 120 simulations; a stop after 50 leaves 12 seeds with 4
//! each.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use warmcore_sim::machine::SimMachine;

/// An observer of the progress, called from several threads.
pub trait Progress: Debug + Send + Sync {
    /// Whether no further simulation is to begin.
    fn is_over(&self) -> bool {
        false
    }

    /// Called when as many simulations are finished as `seeds` seeds have; the current part of a table has `of` seeds.
    fn finished(&self, seeds: usize, of: usize) {
        let _ = (seeds, of);
    }

    /// Called when the simulation of a seed has panicked. The panic continues.
    fn failed(&self, seed: u64) {
        let _ = seed;
    }
}

/// What is run for a table.
#[derive(Debug, Clone)]
pub struct Options {
    /// The machine. `None`: the published one.
    pub machine: Option<SimMachine>,
    /// The seeds. Each simulation of a table runs once for each seed.
    pub seeds: Range<u64>,
    /// Fewer and shorter configurations, for a report within minutes.
    pub quick: bool,
    /// The number of threads, on which no result depends. `None`: the number of CPUs that this process may use.
    pub threads: Option<NonZeroUsize>,
    /// An observer of the progress.
    pub progress: Option<Arc<dyn Progress>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { machine: None, seeds: 0..10, quick: false, threads: None, progress: None }
    }
}

impl Options {
    /// The requested machine, or else the published one.
    ///
    /// # Panics
    ///
    /// If the machine file does not have the published machine.
    pub fn machine_or(&self, published: &str) -> SimMachine {
        self.machine.clone().unwrap_or_else(|| SimMachine::named(published).unwrap_or_else(|e| panic!("{e}")))
    }

    /// The same options with at most this many seeds, the first ones.
    pub fn first(&self, seeds: u64) -> Self {
        let end = self.seeds.end.min(self.seeds.start.saturating_add(seeds));
        Self { seeds: self.seeds.start..end, ..self.clone() }
    }

    /// One result per seed, in order. After a stop: those of the first seeds.
    pub fn per_seed<T: Send>(&self, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
        self.each_per_seed(&[()], |(), seed| run(seed)).into_iter().flatten().collect()
    }

    /// For each seed, one result for each of `all`. After a stop: those of the first seeds.
    pub fn each_per_seed<I: Sync, T: Send>(
        &self,
        all: &[I],
        run: impl Fn(&I, u64) -> T + Sync,
    ) -> Vec<Vec<T>> {
        let seeds: Vec<u64> = self.seeds.clone().collect();
        let pairs: Vec<(u64, &I)> =
            seeds.iter().flat_map(|seed| all.iter().map(move |item| (*seed, item))).collect();
        let tell = |done: usize| {
            if let Some(progress) = self.progress.as_ref().filter(|_| done.is_multiple_of(all.len())) {
                progress.finished(done / all.len(), seeds.len());
            }
        };
        let mut done =
            self.run(&pairs, |(seed, item)| run(item, *seed), |(seed, _)| Some(*seed), tell).into_iter();
        let whole = done.len().checked_div(all.len()).unwrap_or(0);
        (0..whole).map(|_| done.by_ref().take(all.len()).collect()).collect()
    }

    /// One result for each of `all`, in order. After a stop: the first ones.
    pub fn each<I: Sync, T: Send>(&self, all: &[I], run: impl Fn(&I) -> T + Sync) -> Vec<T> {
        self.run(all, run, |_| None, |_| ())
    }

    /// Runs all items on several threads, and returns the results in the order of the items. `seed`: an item's seed;
    /// `tell` gets the number of finished items.
    fn run<I: Sync, T: Send>(
        &self,
        all: &[I],
        run: impl Fn(&I) -> T + Sync,
        seed: impl Fn(&I) -> Option<u64> + Sync,
        tell: impl Fn(usize) + Sync,
    ) -> Vec<T> {
        let progress = self.progress.as_deref();
        // The index of the next item, the number of finished items, and whether a simulation panicked. Writers and
        // readers: all threads.
        let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let is_over = AtomicBool::new(false);
        let work = || {
            let mut done = Vec::new();
            // ORDERING: Relaxed, here and below. A thread that takes an index does not need to see what the thread
            // with the index before wrote. If a thread reads a stop late, it runs one simulation more.
            while !is_over.load(Ordering::Relaxed) && !progress.is_some_and(|progress| progress.is_over()) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = all.get(at) else { break };
                let result = catch_unwind(AssertUnwindSafe(|| run(item))).unwrap_or_else(|panic| {
                    is_over.store(true, Ordering::Relaxed);
                    if let Some((progress, seed)) = progress.zip(seed(item)) {
                        progress.failed(seed);
                    }
                    resume_unwind(panic)
                });
                done.push((at, result));
                tell(finished.fetch_add(1, Ordering::Relaxed) + 1);
            }
            done
        };
        let threads = self.threads.or_else(|| std::thread::available_parallelism().ok());
        let threads = threads.map_or(1, NonZeroUsize::get).min(all.len());
        let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let done = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| resume_unwind(e)));
            done.flatten().collect()
        });
        done.sort_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, result)| result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct StopAfter {
        left: AtomicUsize,
        told: AtomicUsize,
        failed: AtomicUsize,
    }

    impl Progress for StopAfter {
        fn is_over(&self) -> bool {
            self.told.load(Ordering::Relaxed) >= self.left.load(Ordering::Relaxed)
        }

        fn finished(&self, seeds: usize, of: usize) {
            assert!(seeds <= of);
            self.told.fetch_max(seeds, Ordering::Relaxed);
        }

        fn failed(&self, seed: u64) {
            self.failed.store(seed as usize, Ordering::Relaxed);
        }
    }

    fn options(threads: usize, left: usize) -> (Options, Arc<StopAfter>) {
        let progress = Arc::new(StopAfter { left: AtomicUsize::new(left), ..StopAfter::default() });
        let options = Options {
            seeds: 5..105,
            threads: NonZeroUsize::new(threads),
            progress: Some(progress.clone()),
            ..Options::default()
        };
        (options, progress)
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        for threads in [1, 2, 8, 300] {
            let (options, progress) = options(threads, usize::MAX);
            let done = options.each_per_seed(&[10, 20], |item, seed| item * seed);
            assert_eq!(done, (5..105).map(|seed| vec![10 * seed, 20 * seed]).collect::<Vec<_>>());
            assert_eq!(progress.told.load(Ordering::Relaxed), 100);
            assert_eq!(options.first(3).per_seed(|seed| seed), [5, 6, 7]);
            assert_eq!(options.each(&[1, 2, 3], |n| n + 1), [2, 3, 4]);
            assert!(options.each_per_seed(&[], |(), seed| seed).is_empty());
        }
    }

    #[test]
    fn a_stop_leaves_all_of_the_first_seeds() {
        for threads in [1, 2, 8] {
            let (options, _) = options(threads, 7);
            let done = options.each_per_seed(&[1, 2, 3], |item, seed| (*item, seed));
            assert!((7..=7 + threads).contains(&done.len()), "{}", done.len());
            for (i, seed) in done.iter().enumerate() {
                assert_eq!(*seed, [1, 2, 3].map(|item| (item, 5 + i as u64)));
            }
            assert!(options.per_seed(|seed| seed).is_empty(), "after a stop no simulation begins");
        }
    }

    #[test]
    fn a_panic_names_its_seed_and_continues() {
        let (options, progress) = options(2, usize::MAX);
        let run = |seed| assert!(seed != 42, "the broken one");
        let panic = catch_unwind(AssertUnwindSafe(|| options.per_seed(run))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the broken one"));
        assert_eq!(progress.failed.load(Ordering::Relaxed), 42);
    }
}
