//! The runtime reports once that tasks of `tokio::spawn` keep one worker busy while another idles, and does not report
//! other loads. The subscriber gets the events of the whole process, so the file's other test must cause no such
//! report.
#![cfg(target_os = "linux")]

mod common;

use common::{Hear, listen};
use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tracing::{Level, Metadata};
use warmcore_runtime::Runtime;

/// The reported events, with their fields.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A test that takes longer has failed.
const HANG: Duration = Duration::from_secs(60);

struct Warnings;

impl Hear for Warnings {
    fn wants(&self, of: &Metadata<'_>) -> bool {
        of.is_event() && *of.level() == Level::WARN
    }

    fn event(&self, text: String) {
        if text.contains("tokio::spawn keep") {
            TOLD.lock().unwrap().push(text);
        }
    }
}

fn told() -> Vec<String> {
    TOLD.lock().unwrap().clone()
}

fn compute(for_us: u64) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(for_us) {
        spin_loop();
    }
}

#[test]
#[cfg_attr(
    feature = "counted-clock",
    ignore = "by that clock ten looks a second are one in millions of polls"
)]
fn only_foreign_tasks_that_keep_one_worker_busy_beside_an_idle_one_are_reported_and_once() {
    listen(Warnings);
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let runtime = || Runtime::builder().worker_threads(2).name("busy").observe(false).build().unwrap();

    // A separate runtime with tasks of `tokio::spawn` that mostly sleep, and its own tasks that compute.
    let quiet = runtime();
    let ours: Vec<_> = (0..4)
        .map(|_| {
            quiet.spawn(async {
                while !IS_OVER.load(Relaxed) {
                    compute(50);
                    warmcore_runtime::yield_now().await;
                }
            })
        })
        .collect();
    let seldom = quiet.spawn(async {
        let mut set = JoinSet::new();
        for _ in 0..4 {
            set.spawn(async {
                for _ in 0..500 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
        set.join_all().await;
    });
    quiet.block_on(seldom).unwrap();
    assert_eq!(told(), [""; 0]);
    IS_OVER.store(true, Relaxed);
    ours.into_iter().for_each(|task| quiet.block_on(task).unwrap());
    drop(quiet);

    // The tasks' polls are separated by a wait of the driver, or not.
    for pause in [Some(Duration::from_micros(100)), None] {
        IS_OVER.store(false, Relaxed);
        TOLD.lock().unwrap().clear();
        let busy = runtime();
        let work = busy.spawn(async move {
            let mut set = JoinSet::new();
            for _ in 0..8 {
                set.spawn(async move {
                    while !IS_OVER.load(Relaxed) {
                        compute(3_000);
                        match pause {
                            Some(pause) => tokio::time::sleep(pause).await,
                            None => tokio::task::yield_now().await,
                        }
                    }
                });
            }
            set.join_all().await;
        });
        let began = Instant::now();
        while told().is_empty() {
            assert!(began.elapsed() < HANG, "pause {pause:?}: nothing was told");
            std::thread::sleep(Duration::from_millis(5));
        }
        // In as much time again the warning is not repeated.
        std::thread::sleep(began.elapsed());
        IS_OVER.store(true, Relaxed);
        busy.block_on(work).unwrap();
        let told = told();
        assert_eq!(told.len(), 1, "{told:?}");
        for word in ["busy", "worker=", "tasks=8", "http::serve"] {
            assert!(told[0].contains(word), "no {word} in {told:?}");
        }
    }
}

#[test]
#[cfg_attr(
    feature = "counted-clock",
    ignore = "by that clock ten looks a second are one in millions of polls"
)]
fn a_runtime_whose_foreign_tasks_all_wait_sleeps() {
    let runtime = Runtime::builder().worker_threads(2).name("waits").observe(false).build().unwrap();
    let began = Instant::now();
    // Spawns until each worker has tasks of `tokio::spawn`.
    while runtime.metrics().workers.iter().any(|worker| worker.foreign_tasks == 0) {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                runtime.spawn(async {
                    tokio::spawn(std::future::pending::<()>());
                    compute(500);
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
        assert!(began.elapsed() < HANG, "one worker spawned all");
    }
    // Waits until no worker wakes for longer than the time between two checks.
    let parks = || runtime.metrics().total().parks;
    let mut before = parks();
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = parks();
        if now == before {
            break;
        }
        assert!(began.elapsed() < HANG, "the workers wake each other");
        before = now;
    }
}
