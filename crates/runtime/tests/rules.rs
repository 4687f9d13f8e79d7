//! Each rule of `Home` on real threads: with the rule changed, eight workers count something else.
//!
//! `fixtures/script.txt` and the simulator's curves have the same rules in virtual time. Where a rule acts only sometimes, a
//! test repeats its load until it has, and then runs the changed rule as often.

mod limit;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use warmcore_runtime::{Placement, PolicyKind, Runtime, WorkerStats, spawn, yield_now};
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
fn run_burst(runtime: &Runtime) {
    let on_first = Placement::cpu(runtime.metrics().workers[0].cpu);
    let burst = burst(200, 40, Duration::from_micros(2));
    runtime.block_on(runtime.task_builder().placement(on_first).spawn(burst)).unwrap();
}

/// Runs bursts until `has_acted`, and returns how many that took. The limit of the test ends it otherwise.
fn until(runtime: &Runtime, has_acted: impl Fn(&WorkerStats) -> bool) -> usize {
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
        assert_eq!(repeats(Home { lifo_order_min_poll: Nanos(u64::MAX), ..HOME }), 0);
    });
}

#[test]
fn the_steal_share_is_how_many_tasks_a_steal_takes() {
    limit::ends(|| {
        let more_than_one = |stats: &WorkerStats| stolen(stats) > stats.steal_operations;
        let half = runtime(WORKERS, HOME);
        until(&half, more_than_one);
        let one = runtime(WORKERS, Home { steal_divisor: 1_000_000, ..HOME });
        until(&one, |stats| stolen(stats) > 10);
        assert!(!more_than_one(&total(&one)), "{:?}", total(&one));
    });
}

#[test]
fn where_no_worker_may_search_nothing_is_stolen() {
    limit::ends(|| {
        let bursts = until(&runtime(WORKERS, HOME), |stats| stolen(stats) > 10);
        let nobody = runtime(WORKERS, Home { max_searching: 0, ..HOME });
        (0..bursts).for_each(|_| run_burst(&nobody));
        assert_eq!(stolen(&total(&nobody)), 0);
    });
}

#[test]
fn with_a_long_steal_delay_nothing_is_stolen() {
    limit::ends(|| {
        let bursts = until(&runtime(WORKERS, HOME), |stats| stolen(stats) > 10);
        let patient = runtime(WORKERS, Home { min_steal_delay: Nanos(3_600_000_000_000), ..HOME });
        // Before a worker has measured its polls, tasks count as having no data, and are stolen at once.
        (0..3).for_each(|_| run_burst(&patient));
        let before = stolen(&total(&patient));
        (0..bursts).for_each(|_| run_burst(&patient));
        assert_eq!(stolen(&total(&patient)), before);
    });
}

/// Spawns new tasks from outside, one at a time, while tasks on some workers sleep briefly. Returns after how many an idle
/// worker was kept for such a task, or its window was broken; at most `at_most`.
fn spawns_until_kept(rules: Home, at_most: usize) -> Option<usize> {
    let runtime = runtime(WORKERS, rules);
    let bell = Arc::new(Notify::new());
    for _ in 0..WORKERS / 2 {
        let bell = bell.clone();
        drop(runtime.spawn(async move {
            loop {
                bell.notified().await;
            }
        }));
    }
    (0..at_most).find(|n| {
        // Longer than a poll, shorter than the longest sleep that counts.
        compute(Duration::from_micros(50));
        bell.notify_waiters();
        if n % 8 == 0 {
            runtime.block_on(runtime.spawn(async {})).unwrap();
        }
        let stats = total(&runtime);
        stats.hot_kept + stats.hot_broken > 0
    })
}

#[test]
fn with_hot_windows_idle_workers_are_kept_for_tasks_that_sleep_briefly() {
    limit::ends(|| {
        let kept = spawns_until_kept(HOME, usize::MAX).expect("a worker is kept");
        let without = Home { keeps_hot: false, ..HOME };
        assert_eq!(spawns_until_kept(without, 10 * (kept + 100)), None);
    });
}

/// Lets a task wake forty tasks that sleep, many times, and adds the polls on another worker than the task's last one.
fn count_moves(runtime: &Runtime) -> u64 {
    let before = total(runtime);
    let fan_out = async {
        let bell = Arc::new(Notify::new());
        let all: Vec<_> = (0..40)
            .map(|_| {
                let bell = bell.clone();
                spawn(async move {
                    for _ in 0..20 {
                        bell.notified().await;
                        compute(Duration::from_micros(5));
                    }
                })
            })
            .collect();
        while !all.iter().all(|task| task.is_finished()) {
            bell.notify_waiters();
            yield_now().await;
        }
    };
    runtime.block_on(runtime.spawn(fan_out)).unwrap();
    let after = total(runtime);
    let moves = |stats: &WorkerStats| stats.same_llc + stats.other_llc + stats.other_node;
    moves(&after) - moves(&before)
}

/// As in the posted measurements of shared_runq, which keep CPUs busy by moving more tasks.
#[test]
fn with_a_shared_queue_tasks_move_more_than_at_home() {
    limit::ends(|| {
        let [home, shared] = [PolicyKind::Home, PolicyKind::SharedQueue].map(|policy| {
            let builder = Runtime::builder().worker_threads(WORKERS).policy(policy);
            builder.long_poll_threshold(Duration::from_secs(3600)).build().unwrap()
        });
        let (mut at_home, mut in_shared) = (0, 0);
        while in_shared <= 2 * at_home + 100 {
            at_home += count_moves(&home);
            in_shared += count_moves(&shared);
        }
    });
}
