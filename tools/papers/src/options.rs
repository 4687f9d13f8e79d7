//! Options: what is run for a table, on how many threads, and the observer of its progress.
//!
//! Simulations are independent, so they run on several threads. Seeds are taken in order, and an observer of the
//! progress may stop the run. Simulations that have begun are finished, and only whole seeds are kept: the result is
//! that of a run with fewer seeds. 30 seeds of 4 settings are 120 simulations; a stop after 50 leaves 12 seeds with 4
//! each.
//!
//! A table's simulations are sweeps: each result is a few numbers. A run may simulate a shard of the seeds and keep these numbers
//! ([`Record`]); a table that is given the numbers of all shards simulates nothing, and is that of the whole run.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// A result of a simulation that [`Record`] can keep.
pub trait Numbers: Sized {
    /// The result as numbers.
    fn numbers(&self) -> Vec<f64>;

    /// The result that gives these numbers. `None`: it has another form.
    fn of_numbers(numbers: &[f64]) -> Option<Self>;
}

impl Numbers for f64 {
    fn numbers(&self) -> Vec<f64> {
        vec![*self]
    }

    fn of_numbers(numbers: &[f64]) -> Option<Self> {
        <[f64; 1]>::try_from(numbers).ok().map(|[number]| number)
    }
}

/// One of several equal parts of the seeds: every `of`th, from the `number`th on, which is counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which part.
    pub number: u64,
    /// How many parts there are.
    pub of: u64,
}

/// The results of one call of [`Options::sweep`], by seed and then by item. A number that is not finite is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// How many items it has for each seed.
    pub items: usize,
    /// The results.
    pub by_seed: BTreeMap<u64, Vec<Vec<Option<f64>>>>,
}

/// Keeps the results of a table's simulations, or gives those that were kept to a table, which then simulates nothing.
#[derive(Debug, Default)]
pub struct Record {
    given: Option<Vec<Sweep>>,
    /// Written and read by the thread that makes the table.
    kept: Mutex<Vec<Sweep>>,
    is_foreign: AtomicBool,
}

impl Record {
    /// A record that gives these results, which another record has kept.
    pub fn of(given: Vec<Sweep>) -> Self {
        Self { given: Some(given), ..Self::default() }
    }

    /// The results so far.
    pub fn kept(&self) -> Vec<Sweep> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the given results are those of the table's simulations: as many sweeps, seeds and items.
    pub fn fits(&self) -> bool {
        let is_whole = self.given.as_ref().is_none_or(|given| given.len() == self.kept().len());
        is_whole && !self.is_foreign.load(Ordering::Relaxed)
    }

    /// The given results of the next sweep. `None`: it has to be simulated.
    fn next<T: Numbers>(&self, seeds: &[u64], items: usize) -> Option<Vec<Vec<T>>> {
        let given = self.given.as_ref()?;
        let at = self.kept().len();
        let sweep = given.get(at).cloned().unwrap_or_default();
        let all = || -> Option<Vec<Vec<T>>> {
            let is_same = sweep.items == items && sweep.by_seed.keys().eq(seeds);
            let number = |numbers: &Vec<Option<f64>>| {
                T::of_numbers(&numbers.iter().map(|n| n.unwrap_or(f64::NAN)).collect::<Vec<f64>>())
            };
            let mut by_seed = sweep.by_seed.values().filter(|_| is_same);
            let all = by_seed.try_fold(Vec::new(), |mut all, results| {
                let results: Vec<T> = results.iter().map(number).collect::<Option<_>>()?;
                all.push(Some(results).filter(|results| results.len() == items)?);
                Some(all)
            })?;
            is_same.then_some(all)
        };
        let found = all();
        self.is_foreign.fetch_or(found.is_none(), Ordering::Relaxed);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(sweep);
        Some(found.unwrap_or_default())
    }

    fn keep<T: Numbers>(&self, seeds: &[u64], items: usize, results: &[Vec<T>]) {
        let numbers = |result: &T| {
            result.numbers().into_iter().map(|number| number.is_finite().then_some(number)).collect()
        };
        let of_seed = |results: &Vec<T>| results.iter().map(numbers).collect();
        let by_seed = seeds.iter().copied().zip(results.iter().map(of_seed)).collect();
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Sweep { items, by_seed });
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
    /// The part of the seeds that is simulated. `None`: all.
    pub shard: Option<Shard>,
    /// Keeps or gives the results of simulations.
    pub record: Option<Arc<Record>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            machine: None,
            seeds: 0..10,
            quick: false,
            threads: None,
            progress: None,
            shard: None,
            record: None,
        }
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

    /// The seeds to simulate.
    fn chosen(&self) -> Vec<u64> {
        let is_in = |seed: &u64| {
            self.shard.is_none_or(|shard| (seed - self.seeds.start) % shard.of.max(1) == shard.number - 1)
        };
        self.seeds.clone().filter(is_in).collect()
    }

    /// As [`each_per_seed`](Self::each_per_seed), for the simulations of a table: [`record`](Self::record) keeps or gives the
    /// results.
    pub fn sweep<I: Sync, T: Send + Numbers>(
        &self,
        all: &[I],
        run: impl Fn(&I, u64) -> T + Sync,
    ) -> Vec<Vec<T>> {
        let seeds = self.chosen();
        if let Some(given) = self.record.as_ref().and_then(|record| record.next(&seeds, all.len())) {
            return given;
        }
        let done = self.each_per_seed(all, run);
        if let Some(record) = &self.record {
            record.keep(&seeds, all.len(), &done);
        }
        done
    }

    /// As [`sweep`](Self::sweep), with one simulation for each seed.
    pub fn sweep_seeds<T: Send + Numbers>(&self, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
        self.sweep(&[()], |(), seed| run(seed)).into_iter().flatten().collect()
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
        let seeds = self.chosen();
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

    /// A table of two sweeps, of which the second has the first three seeds alone.
    fn two_sweeps(options: &Options) -> Vec<f64> {
        let of = |item: &f64, seed: u64| if seed == 9 { f64::NAN } else { item / (seed + 1) as f64 };
        let all = options.sweep(&[1.0, 2.0], of).into_iter().flatten();
        all.chain(options.first(3).sweep_seeds(|seed| of(&0.1, seed))).collect()
    }

    #[test]
    fn shards_that_are_put_together_give_what_the_whole_gives_without_a_simulation() {
        let whole = two_sweeps(&Options { seeds: 4..11, ..Options::default() });
        let mut joined: Vec<Sweep> = Vec::new();
        let mut simulated = 0;
        for number in 1..=5 {
            let record = Arc::<Record>::default();
            let options = Options {
                seeds: 4..11,
                shard: Some(Shard { number, of: 5 }),
                record: Some(record.clone()),
                ..Options::default()
            };
            simulated += two_sweeps(&options).len();
            let kept = record.kept();
            joined.resize(kept.len(), Sweep { items: 0, ..Sweep::default() });
            for (sum, sweep) in joined.iter_mut().zip(kept) {
                sum.items = sweep.items;
                sum.by_seed.extend(sweep.by_seed);
            }
        }
        assert_eq!((whole.len(), simulated), (17, 17), "each seed is in one shard");
        let options = |sweeps: &[Sweep]| {
            let record = Arc::new(Record::of(sweeps.to_vec()));
            (Options { seeds: 4..11, record: Some(record.clone()), ..Options::default() }, record)
        };
        let (merged, record) = options(&joined);
        let same = |a: &f64, b: &f64| a == b || a.is_nan() && b.is_nan();
        assert!(two_sweeps(&merged).iter().zip(&whole).all(|(a, b)| same(a, b)) && record.fits());
        // A seed less, a sweep less, a sweep more, other items.
        for damage in 0..4 {
            let mut damaged = joined.clone();
            match damage {
                0 => _ = damaged[0].by_seed.pop_last(),
                1 => _ = damaged.pop(),
                2 => damaged.push(Sweep::default()),
                _ => damaged[1].items = 2,
            }
            let (options, record) = options(&damaged);
            two_sweeps(&options);
            assert!(!record.fits(), "damage {damage}");
        }
    }
}
