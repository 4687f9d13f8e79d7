//! Each rule of `Home` on real threads: with the rule changed, eight workers count something else.
//!
//! `fixtures/script.txt` and the simulator's curves have the same rules in virtual time. Where a rule acts only sometimes, a
//! test repeats its load until it has, and then runs the changed rule as often.

mod limit;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use warmcore_runtime::driver::{Driver, Entered};
use warmcore_runtime::{Placement, PolicyKind, Runtime, WorkerMetrics, WorkerStats, spawn, yield_now};
use warmcore_sched::Home;
use warmcore_types::Nanos;

const WORKERS: usize = 8;

/// The product's rules.
const HOME: Home = Home::DEFAULT;

/// A runtime on which no poll counts as long, so that no worker is helped for that reason.
fn runtime(workers: usize, rules: Home) -> Runtime {
    let builder = Runtime::builder().worker_threads(workers).policy(PolicyKind::Changed(rules));
    builder.long_poll_threshold(Duration::from_secs(3600)).build().unwrap()
}

fn total(runtime: &Runtime) -> WorkerStats {
    runtime.metrics().total()
}

/// Computes for about this long.
fn compute(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Tasks that a task has spawned on its worker and that yield: the other workers are idle.
async fn burst(tasks: usize, polls: usize, poll: Duration) {
    let all: Vec<_> = (0..tasks)
        .map(|_| {
            spawn(async move {
                for _ in 0..polls {
                    compute(poll);
                    yield_now().await;
                }
            })
        })
        .collect();
    for task in all {
        task.await.unwrap();
    }
}

/// Runs a burst, each on the same worker.
fn run_on_first(runtime: &Runtime, burst: impl Future<Output = ()> + Send + 'static) {
    let on_first = Placement::cpu(runtime.metrics().workers[0].cpu);
    runtime.block_on(runtime.task_builder().placement(on_first).spawn(burst)).unwrap();
}

/// Runs a burst of many light tasks.
fn run_burst(runtime: &Runtime) {
    run_on_first(runtime, burst(200, 40, Duration::from_micros(2)));
}

/// Runs a burst of tasks with long polls.
fn run_long_polls(runtime: &Runtime) {
    run_on_first(runtime, burst(40, 5, Duration::from_micros(100)));
}

/// Runs bursts until `has_acted`, and returns how many that took. The limit of the test ends it otherwise.
fn until(runtime: &Runtime, run_burst: fn(&Runtime), has_acted: impl Fn(&WorkerStats) -> bool) -> usize {
    let mut bursts = 0;
    while !has_acted(&total(runtime)) {
        run_burst(runtime);
        bursts += 1;
    }
    bursts
}

/// Tasks that idle workers took from the queues of busy ones.
fn stolen(stats: &WorkerStats) -> u64 {
    stats.stolen_tasks - stats.balanced
}

/// How often a task's poll followed the same task's poll before, on a worker with four tasks.
fn repeats(rules: Home) -> usize {
    let runtime = runtime(1, rules);
    let polls = Arc::new(Mutex::new(Vec::new()));
    let task = |number, polls: Arc<Mutex<Vec<_>>>| async move {
        for _ in 0..500 {
            compute(Duration::from_micros(20));
            polls.lock().unwrap().push(number);
            yield_now().await;
        }
    };
    let begins = polls.clone();
    // All four are queued before the first one runs.
    let all = runtime
        .spawn(async move { (0..4).map(|number| spawn(task(number, begins.clone()))).collect::<Vec<_>>() });
    runtime.block_on(async {
        for task in all.await.unwrap() {
            task.await.unwrap();
        }
    });
    // At the end tasks have ended, and the last one runs alone.
    let polls = polls.lock().unwrap();
    polls[..1_600].windows(2).filter(|pair| pair[0] == pair[1]).count()
}

#[test]
fn with_lifo_order_each_round_begins_with_the_task_that_ended_the_last_one() {
    limit::ends(|| {
        assert!(repeats(HOME) > 300, "a round of four");
        assert_eq!(repeats(Home { lifo_order_min_cost: Nanos(u64::MAX), ..HOME }), 0);
    });
}

#[test]
fn the_steal_share_is_how_many_tasks_a_steal_takes() {
    limit::ends(|| {
        let more_than_one = |stats: &WorkerStats| stolen(stats) > stats.steal_operations;
        let half = runtime(WORKERS, HOME);
        until(&half, run_burst, more_than_one);
        let one = runtime(WORKERS, Home { steal_divisor: 1_000_000, ..HOME });
        until(&one, run_burst, |stats| stolen(stats) > 10);
        assert!(!more_than_one(&total(&one)), "{:?}", total(&one));
    });
}

#[test]
fn where_no_worker_may_search_nothing_is_stolen() {
    limit::ends(|| {
        let bursts = until(&runtime(WORKERS, HOME), run_burst, |stats| stolen(stats) > 10);
        let nobody = runtime(WORKERS, Home { max_searching: 0, ..HOME });
        (0..bursts).for_each(|_| run_burst(&nobody));
        assert_eq!(stolen(&total(&nobody)), 0);
    });
}

#[test]
fn with_a_long_steal_delay_no_task_with_long_polls_is_stolen() {
    limit::ends(|| {
        let bursts = until(&runtime(WORKERS, HOME), run_long_polls, |stats| stolen(stats) > 10);
        let patient = runtime(WORKERS, Home { min_steal_delay: Nanos(3_600_000_000_000), ..HOME });
        // Before a worker has measured its polls, tasks count as having no data, and are stolen at once.
        (0..3).for_each(|_| run_long_polls(&patient));
        let before = stolen(&total(&patient));
        (0..bursts).for_each(|_| run_long_polls(&patient));
        assert_eq!(stolen(&total(&patient)), before);
    });
}

/// A driver without sockets whose clock stands still until the test moves it.
struct Still {
    clock: Arc<AtomicU64>,
    is_unparked: Mutex<bool>,
    condvar: Condvar,
}

impl Driver for Still {
    fn now(&self) -> Nanos {
        Nanos(self.clock.load(SeqCst))
    }

    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
        let mut is_unparked = self.is_unparked.lock().unwrap();
        while !*is_unparked && !is_awake() && until.is_none_or(|until| self.now() < until) {
            // Long enough for few looks at the clock, short enough for a test.
            is_unparked = self.condvar.wait_timeout(is_unparked, Duration::from_millis(5)).unwrap().0;
        }
        *is_unparked = false;
    }

    fn poll_events(&self) {}

    fn unpark(&self) {
        *self.is_unparked.lock().unwrap() = true;
        self.condvar.notify_one();
    }

    fn wake_at(&self, _at: Nanos) {
        self.unpark();
    }

    fn enter(&self) -> Entered<'_> {
        Entered::none()
    }

    fn close(&self) {}
}

/// How often an idle worker was kept for a task that sleeps, or was not although its window was open, while a thread
/// outside spawns new tasks.
///
/// On each CPU the first worker has a task that sleeps for 100 µs at a time, on a clock that stands still when the tasks have
/// fallen asleep. A search for an idle worker begins with the first worker of the thread's CPU, or of the first CPU. So it
/// finds an open window, on whichever CPU the thread runs. With the real clock, and tasks that are not pinned, on some
/// machines no task was on the worker with which the search begins, or that worker had not parked again.
fn count_kept(rules: Home) -> u64 {
    let clock = Arc::new(AtomicU64::new(1_000_000_000));
    let of = clock.clone();
    let make = move |_| {
        let (clock, is_unparked, condvar) = (of.clone(), Mutex::default(), Condvar::new());
        Ok(Box::new(Still { clock, is_unparked, condvar }) as Box<dyn Driver>)
    };
    let builder = Runtime::builder().worker_threads(WORKERS).policy(PolicyKind::Changed(rules));
    let runtime = builder.long_poll_threshold(Duration::from_secs(3600)).driver(make).build().unwrap();
    let cpus: BTreeSet<u32> = runtime.metrics().workers.iter().map(|worker| worker.cpu).collect();
    let (bell, polls) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    for cpu in &cpus {
        let (bell, polls) = (bell.clone(), polls.clone());
        drop(runtime.task_builder().placement(Placement::cpu(*cpu)).spawn(async move {
            loop {
                let notified = bell.notified();
                polls.fetch_add(1, SeqCst);
                notified.await;
            }
        }));
    }
    // A worker publishes its window before it counts the park.
    let is_parked = |worker: &WorkerMetrics| worker.park_unpark_count % 2 == 1;
    let all_sleep = |round: usize| {
        polls.load(SeqCst) == round * cpus.len() && runtime.metrics().workers.iter().all(is_parked)
    };
    // The first sleep gives a task its average, and the second one opens its worker's window. Which polls are measured is
    // random, but at least one in 32.
    for round in 1..=64 {
        while !all_sleep(round) {
            thread::sleep(Duration::from_micros(50));
        }
        runtime.block_on(runtime.spawn(async {})).unwrap();
        clock.fetch_add(100_000, SeqCst);
        bell.notify_waiters();
    }
    let stats = total(&runtime);
    stats.hot_kept + stats.hot_broken
}

#[test]
fn with_hot_windows_idle_workers_are_kept_for_tasks_that_sleep_briefly() {
    limit::ends(|| {
        assert!(count_kept(HOME) > 0);
        assert_eq!(count_kept(Home { keeps_hot: false, ..HOME }), 0);
    });
}
