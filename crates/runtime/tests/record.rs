//! What a recording has of a runtime's tasks.
//!
//! The recorder is the process's, so each test runs its tasks in a process of its own: it starts this binary again, which
//! runs the test [`child`] in one of its modes.

#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::sync::mpsc;
use warmcore_record::{Event, Poll, Recording};
use warmcore_runtime::{Placement, Runtime, block_in_place, yield_now};
use warmcore_sys::affinity;
use warmcore_types::CpuId;

/// The variable with the child's mode.
const MODE: &str = "RECORD_TEST_MODE";

const TASKS: u64 = 20;
const YIELDS: u64 = 500;
const ROUND_TRIPS: u64 = 300;

/// The part of the tests that runs in a process of its own.
#[test]
#[ignore = "the other tests start it"]
fn child() {
    let Ok(mode) = std::env::var(MODE) else { return };
    let workers = if mode == "two workers" { 2 } else { 1 };
    let runtime = Runtime::builder().worker_threads(workers).pin(true).build().unwrap();
    match mode.as_str() {
        "yields" => {
            let tasks: Vec<_> = (0..TASKS).map(|_| runtime.spawn(yields())).collect();
            tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
        }
        "two workers" => two_workers(&runtime),
        "ends" => {
            let named = runtime.task_builder().name("panics").spawn(async { panic!("as the test wants it") });
            assert!(runtime.block_on(named).is_err_and(|error| error.is_panic()));
            let waits = runtime.spawn(std::future::pending::<()>());
            // On the one worker, this task is polled after the first poll of the other one.
            runtime.block_on(runtime.spawn(async {})).unwrap();
            waits.abort();
            assert!(runtime.block_on(waits).is_err_and(|error| error.is_cancelled()));
        }
        "hands off" => {
            let blocks = async {
                block_in_place(|| ());
                yield_now().await;
            };
            runtime.block_on(runtime.spawn(blocks)).unwrap();
        }
        other => panic!("{other}"),
    }
}

async fn yields() {
    for _ in 0..YIELDS {
        yield_now().await;
    }
}

/// A task on the first worker and a task on the second one wake each other in turn.
fn two_workers(runtime: &Runtime) {
    let cpus = runtime.metrics().workers.iter().map(|worker| CpuId(worker.cpu)).collect::<Vec<_>>();
    let ((ping, mut pings), (pong, mut pongs)) = (mpsc::channel(1), mpsc::channel(1));
    let serve = async move { while pings.recv().await.is_some() && pong.send(()).await.is_ok() {} };
    let play = async move {
        for _ in 0..ROUND_TRIPS {
            ping.send(()).await.unwrap();
            pongs.recv().await.unwrap();
        }
    };
    let on =
        |worker: usize, name: &str| runtime.task_builder().placement(Placement::Cpu(cpus[worker])).name(name);
    let serve = on(1, "serve").spawn(serve);
    runtime.block_on(on(0, "play").spawn(play)).unwrap();
    runtime.block_on(serve).unwrap();
}

#[derive(Default)]
struct Found {
    polls: Vec<Poll>,
    spawn_lines: BTreeSet<u32>,
    /// Names by task.
    names: BTreeMap<u32, String>,
    /// The worker that a thread runs, in order.
    workers: Vec<Option<u32>>,
}

impl Found {
    fn of(&self, task: u32) -> impl Iterator<Item = &Poll> {
        self.polls.iter().filter(move |poll| poll.task == task)
    }

    fn task(&self, name: &str) -> u32 {
        *self.names.iter().find(|(_, of)| *of == name).unwrap().0
    }
}

fn record(mode: &str) -> Found {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("a.rec");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(MODE, mode)
        .env("WARMCORE_RECORD", &file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    read(&file)
}

fn read(file: &Path) -> Found {
    let mut recording = Recording::open(file).unwrap();
    let mut found = Found::default();
    let mut is_whole = false;
    while let Some(event) = recording.next_event().unwrap() {
        match event {
            Event::Poll(poll) => found.polls.push(poll),
            Event::Spawn(spawn) => {
                let at = recording.location(spawn.location);
                assert!(at.file.ends_with("record.rs"), "{at}");
                found.spawn_lines.insert(at.line);
            }
            Event::Name { task, name } => _ = found.names.insert(task, recording.name(name).to_owned()),
            Event::Worker { worker, is_warmcore, .. } => {
                assert!(is_warmcore);
                found.workers.push(worker);
            }
            Event::Gap { records, .. } => panic!("{records} records were dropped"),
            Event::End { .. } => is_whole = true,
            Event::Drop { .. } | Event::Stats { .. } | Event::Sampled { .. } | Event::Machine { .. } => {}
        }
    }
    assert!(is_whole, "the recording has no end");
    found
}

#[test]
fn each_poll_of_one_worker_is_recorded_once_and_on_its_cpu() {
    let found = record("yields");
    assert_eq!(found.polls.len() as u64, TASKS * (YIELDS + 1));
    assert_eq!(found.polls.iter().filter(|poll| poll.is_last).count() as u64, TASKS);
    assert_eq!(found.polls.iter().filter(|poll| poll.woken_in_poll).count() as u64, TASKS * YIELDS);
    let cpus: BTreeSet<_> = found.polls.iter().map(|poll| poll.cpu).collect();
    assert!(cpus.len() == 1 && !cpus.contains(&None), "the worker is pinned, and polled on {cpus:?}");
    assert!(found.polls.iter().all(|poll| !poll.changed_cpu && poll.woken_at.is_some()));
    assert_eq!(found.spawn_lines.len(), 1);
    assert_eq!(found.workers.first(), Some(&Some(0)));
}

#[test]
fn a_wake_has_the_cpu_of_the_worker_that_made_it() {
    if affinity::allowed().unwrap().iter().count() < 2 {
        return;
    }
    let found = record("two workers");
    let tasks = [found.task("play"), found.task("serve")];
    let cpus = tasks.map(|task| found.of(task).next().unwrap().cpu);
    assert_ne!(cpus[0], cpus[1]);
    for (i, task) in tasks.into_iter().enumerate() {
        let polls: Vec<&Poll> = found.of(task).collect();
        assert!(polls.iter().all(|poll| poll.cpu == cpus[i]), "task {i} moved");
        // The first wake is the spawn's. Of one in a poll it is not known who made it.
        let known = polls[1..].iter().filter(|poll| !poll.woken_in_poll);
        let wakers: BTreeSet<_> = known.map(|poll| poll.waker_cpu).collect();
        assert_eq!(wakers, BTreeSet::from([cpus[1 - i]]), "task {i}");
        let waits = polls.iter().all(|poll| poll.woken_at.is_some_and(|woken| woken <= poll.start));
        assert!(waits, "a wake of task {i} is not known, or later than its poll");
    }
}

#[test]
fn a_panic_and_an_abort_are_the_last_polls_of_their_tasks() {
    let found = record("ends");
    let panics = found.task("panics");
    assert_eq!(found.of(panics).map(|poll| poll.is_last).collect::<Vec<_>>(), [true]);
    let tasks: BTreeSet<u32> = found.polls.iter().map(|poll| poll.task).collect();
    assert_eq!(tasks.len(), 3);
    for task in tasks {
        let last: Vec<bool> = found.of(task).map(|poll| poll.is_last).collect();
        assert!(last.iter().rev().skip(1).all(|is_last| !is_last) && last.ends_with(&[true]), "{last:?}");
    }
}

#[test]
fn a_thread_that_hands_its_worker_off_says_so() {
    let found = record("hands off");
    let threads: BTreeSet<u16> = found.polls.iter().map(|poll| poll.thread).collect();
    assert_eq!(threads.len(), 2, "the task goes on where its worker runs");
    assert_eq!(found.workers.iter().filter(|worker| **worker == Some(0)).count(), 2, "{:?}", found.workers);
    assert!(found.workers.contains(&None));
}
