//! What a recording says of tasks of the face, on both schedulers. Each test runs again in processes of its own, which
//! record, and compares the recording with what these processes did.

mod process;

use process::{is_rerun, rerun};
use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::path::Path;
use std::process::Output;
use std::sync::mpsc;
use std::task::Poll;
use tokio::runtime::{Builder, LocalRuntime, Runtime};
use tokio::task::{self, JoinSet, LocalSet};
use warmcore_record::{Event, Recording};
use warmcore_sys::affinity;
use warmcore_types::CpuId;

/// The environment for each scheduler.
const SCHEDULERS: [&[(&str, &str)]; 2] = [&[("WARMCORE", "0")], &[]];

/// What a recording has of one task.
#[derive(Default)]
struct Task {
    polls: Vec<warmcore_record::Poll>,
    /// How often it was dropped between two polls.
    drops: usize,
    /// The line of this file in which it was spawned.
    line: Option<u32>,
}

/// The tasks of a process's recording that were spawned in this file, and what the process printed.
fn recorded(test: &str, scheduler: &[(&str, &str)]) -> (BTreeMap<u32, Task>, Output) {
    let name = format!("warmcore-face-{test}-{}-{}.warmrec", scheduler.len(), std::process::id());
    let path = std::env::temp_dir().join(name);
    let record = ("WARMCORE_RECORD", path.to_str().expect("the path is UTF-8"));
    let output = rerun(test, &[scheduler, &[record]].concat());
    let tasks = read(&path);
    std::fs::remove_file(&path).expect("the process has recorded");
    (tasks, output)
}

fn read(path: &Path) -> BTreeMap<u32, Task> {
    let mut recording = Recording::open(path).expect("the process has recorded");
    let mut tasks: BTreeMap<u32, Task> = BTreeMap::new();
    let mut end = None;
    while let Some(event) = recording.next_event().expect("the recording is whole") {
        match event {
            Event::Poll(poll) => tasks.entry(poll.task).or_default().polls.push(poll),
            Event::Drop { task, .. } => tasks.entry(task).or_default().drops += 1,
            Event::Spawn(spawn) => {
                let location = recording.location(spawn.location);
                let is_here = location.file.ends_with("tests/record.rs");
                tasks.entry(spawn.task).or_default().line = is_here.then_some(location.line);
            }
            Event::Gap { records, .. } => panic!("{records} records are missing"),
            Event::End { why } => end = Some(why),
            _ => {}
        }
    }
    assert!(end.is_some(), "the process wrote the end of its recording");
    tasks.retain(|_, task| task.line.is_some());
    tasks
}

/// The lines that the process has printed with [`print_line`].
fn lines(output: &Output) -> Vec<u32> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.strip_prefix("LINE ")?.parse().ok()).collect()
}

fn print_line(line: u32) {
    println!("\nLINE {line}");
}

/// A runtime with one worker, whose threads run on this CPU.
fn runtime_on(cpu: CpuId) -> Runtime {
    let pin = move || affinity::pin(cpu).expect("the CPU is allowed");
    Builder::new_multi_thread().worker_threads(1).on_thread_start(pin).enable_all().build().unwrap()
}

fn cpus() -> [CpuId; 2] {
    let cpus = affinity::allowed().expect("the system says which CPUs are allowed");
    let first = cpus.iter().next().expect("at least one");
    [first, cpus.iter().last().unwrap_or(first)]
}

/// A future that yields in each of its polls but the last. Tokio wakes its task when its driver is polled.
async fn yields(polls: u32) {
    for _ in 1..polls {
        task::yield_now().await;
    }
}

/// A future that wakes itself during each of its polls but the last, and is polled `polls` times.
async fn wakes_itself(polls: u32) {
    let mut left = polls;
    poll_fn(|cx| {
        left -= 1;
        if left == 0 {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn one_worker_on_one_cpu_has_no_moves_and_each_poll_is_there_once() {
    const TASKS: usize = 10;
    const POLLS: u32 = 8;
    let [cpu, _] = cpus();
    if is_rerun() {
        let runtime = runtime_on(cpu);
        let of = |n| async move { if n % 2 == 0 { wakes_itself(POLLS).await } else { yields(POLLS).await } };
        print_line(line!() + 1);
        let tasks: Vec<_> = (0..TASKS).map(|n| runtime.spawn(of(n))).collect();
        for task in tasks {
            runtime.block_on(task).unwrap();
        }
        return;
    }
    for scheduler in SCHEDULERS {
        let (tasks, output) =
            recorded("one_worker_on_one_cpu_has_no_moves_and_each_poll_is_there_once", scheduler);
        let line = lines(&output)[0];
        let tasks: Vec<_> = tasks.values().filter(|task| task.line == Some(line)).collect();
        assert_eq!(tasks.len(), TASKS, "{scheduler:?}");
        for task in tasks {
            assert_eq!(task.polls.len(), POLLS as usize, "{scheduler:?}");
            assert!(
                task.polls.iter().all(|poll| poll.cpu == Some(cpu) && !poll.changed_cpu),
                "{scheduler:?}"
            );
            let woken: Vec<bool> = task.polls.iter().map(|poll| poll.woken_in_poll).collect();
            let last: Vec<bool> = task.polls.iter().map(|poll| poll.is_last).collect();
            let after_the_first: Vec<bool> = (0..POLLS).map(|n| n > 0).collect();
            let only_the_last: Vec<bool> = (1..=POLLS).map(|n| n == POLLS).collect();
            assert_eq!((woken, last), (after_the_first, only_the_last), "{scheduler:?}");
        }
    }
}

#[test]
fn a_wake_has_the_cpu_of_its_waker() {
    const WAKES: usize = 100;
    let [cpu, wakers_cpu] = cpus();
    if is_rerun() {
        let (send, wakers) = mpsc::channel();
        let waking = std::thread::spawn(move || {
            affinity::pin(wakers_cpu).expect("the CPU is allowed");
            for waker in wakers {
                let waker: std::task::Waker = waker;
                waker.wake();
            }
        });
        let runtime = runtime_on(cpu);
        // The only worker polls `passes_on` after the poll of `waits` that sent the waker, so no wake is within a poll.
        let (send_here, mut here) = tokio::sync::mpsc::unbounded_channel();
        let passes_on = async move {
            while let Some(waker) = here.recv().await {
                send.send(waker).unwrap();
            }
        };
        let mut left = WAKES;
        let waits = poll_fn(move |cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            send_here.send(cx.waker().clone()).unwrap();
            Poll::Pending
        });
        runtime.spawn(passes_on);
        print_line(line!() + 1);
        let task = runtime.spawn(waits);
        runtime.block_on(task).unwrap();
        return waking.join().unwrap();
    }
    for scheduler in SCHEDULERS {
        let (tasks, output) = recorded("a_wake_has_the_cpu_of_its_waker", scheduler);
        let task = tasks.values().find(|task| task.line == Some(lines(&output)[0])).expect("it is recorded");
        assert_eq!(task.polls.len(), WAKES + 1, "{scheduler:?}");
        for poll in &task.polls[1..] {
            assert_eq!((poll.cpu, poll.waker_cpu), (Some(cpu), Some(wakers_cpu)), "{scheduler:?}: {poll:?}");
            assert!(poll.woken_at.is_some_and(|at| at <= poll.start), "{scheduler:?}: {poll:?}");
        }
    }
}

/// Spawns a task in each way, and prints the lines of the calls.
fn spawn_in_each_way() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let current = Builder::new_current_thread().enable_all().build().unwrap();
    let mut lines = Vec::new();
    macro_rules! here {
        ($call:expr) => {{
            lines.push(line!());
            $call
        }};
    }
    let of_runtime = here!(runtime.spawn(async {}));
    let of_handle = here!(runtime.handle().spawn(async {}));
    let of_current = here!(current.spawn(async {}));
    here!(current.block_on(of_current)).unwrap();
    let handle = runtime.handle().clone();
    here!(runtime.block_on(async {}));
    here!(handle.block_on(async {}));
    runtime.block_on(async {
        of_runtime.await.unwrap();
        of_handle.await.unwrap();
        here!(tokio::spawn(async {})).await.unwrap();
        let mut set = JoinSet::new();
        here!(set.spawn(async {}));
        here!(set.spawn_on(async {}, &handle));
        set.join_all().await;
        let local = LocalSet::new();
        let of_set = here!(local.spawn_local(async {}));
        local.run_until(of_set).await.unwrap();
        let free = async { here!(task::spawn_local(async {})).await.unwrap() };
        local.run_until(free).await;
        let mut set = JoinSet::new();
        here!(set.spawn_local_on(async {}, &local));
        local.run_until(set.join_all()).await;
    });
    let local = LocalRuntime::new().unwrap();
    let of_local = here!(local.spawn_local(async {}));
    here!(local.block_on(of_local)).unwrap();
    lines.into_iter().for_each(print_line);
}

#[test]
fn a_task_is_recorded_with_its_line_however_it_was_spawned() {
    if is_rerun() {
        return spawn_in_each_way();
    }
    for scheduler in SCHEDULERS {
        let (tasks, output) = recorded("a_task_is_recorded_with_its_line_however_it_was_spawned", scheduler);
        let lines = lines(&output);
        assert_eq!(lines.len(), 14, "{scheduler:?}");
        for line in lines {
            let here: Vec<_> = tasks.values().filter(|task| task.line == Some(line)).collect();
            let [task] = here[..] else { panic!("{scheduler:?}: {} tasks of line {line}", here.len()) };
            let last = task.polls.iter().filter(|poll| poll.is_last).count();
            assert_eq!((last, task.drops), (1, 0), "{scheduler:?}: line {line}");
        }
    }
}

#[test]
fn a_task_that_panics_or_was_aborted_has_an_end() {
    if is_rerun() {
        let runtime = runtime_on(cpus()[0]);
        return runtime.block_on(async {
            print_line(line!() + 1);
            let panics = tokio::spawn(async { panic!("of the test") });
            assert!(panics.await.unwrap_err().is_panic());
            let (polled, is_polled) = tokio::sync::oneshot::channel();
            print_line(line!() + 1);
            let aborted = tokio::spawn(async {
                polled.send(()).unwrap();
                pending::<()>().await;
            });
            is_polled.await.unwrap();
            aborted.abort();
            assert!(aborted.await.unwrap_err().is_cancelled());
        });
    }
    for scheduler in SCHEDULERS {
        let (tasks, output) = recorded("a_task_that_panics_or_was_aborted_has_an_end", scheduler);
        let lines = lines(&output);
        assert_eq!(lines.len(), 2);
        for (line, was_aborted) in lines.into_iter().zip([false, true]) {
            let task = tasks.values().find(|task| task.line == Some(line)).expect("it is recorded");
            let last: Vec<bool> = task.polls.iter().map(|poll| poll.is_last).collect();
            let expected = match (was_aborted, scheduler.is_empty()) {
                (false, _) => (vec![true], 0),
                // Tokio drops the future between two polls. A worker of Warmcore's drops it in the task's turn.
                (true, false) => (vec![false], 1),
                (true, true) => (vec![false, true], 0),
            };
            assert_eq!((last, task.drops), expected, "{scheduler:?}: line {line}");
        }
    }
}
