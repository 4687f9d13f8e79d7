//! Scripted moves: two threads on two CPUs poll a task in a known order, and wake it from a known CPU.
//!
//! The recorder is the process's, so the script runs in a process of its own.

#![cfg(target_os = "linux")]

use std::panic::Location;
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use warmcore_record::{Event, Recording, TaskRecord, set_worker};
use warmcore_sys::affinity;
use warmcore_types::CpuId;

const SCRIPT: &str = "RECORD_TEST_SCRIPT";

const POLLS: u32 = 30_000;

/// The task moves before each poll whose number is a multiple of this.
const HOPS_EVERY: u32 = 7;

fn cpus() -> Option<[CpuId; 2]> {
    let cpus = affinity::allowed().unwrap();
    let mut cpus = cpus.iter();
    cpus.next().zip(cpus.next()).map(Into::into)
}

/// The index of the CPU on which the script has this poll.
fn place(poll: u32) -> usize {
    (poll / HOPS_EVERY % 2) as usize
}

#[test]
#[ignore = "the other test starts it"]
fn script() {
    let Some(cpus) = cpus().filter(|_| std::env::var_os(SCRIPT).is_some()) else { return };
    warmcore_record::start();
    affinity::pin(cpus[0]).unwrap();
    let task = Arc::new(Mutex::new(TaskRecord::spawned(Location::caller(), None).unwrap()));
    let threads: [_; 2] = std::array::from_fn(|at| {
        let (order, orders) = mpsc::channel::<u32>();
        let (done, answers) = mpsc::channel();
        let task = task.clone();
        let thread = std::thread::spawn(move || {
            affinity::pin(cpus[at]).unwrap();
            set_worker(Some(at));
            for poll in orders {
                let is_last = poll == POLLS - 1;
                let _ = task.lock().unwrap().poll(|| if is_last { Poll::Ready(()) } else { Poll::Pending });
                done.send(()).unwrap();
            }
        });
        (order, answers, thread)
    });
    for poll in 0..POLLS {
        // This thread, on the first CPU, wakes the task for each poll.
        task.lock().unwrap().woken();
        let (order, answers, _) = &threads[place(poll)];
        order.send(poll).unwrap();
        answers.recv().unwrap();
    }
    for (order, _, thread) in threads {
        drop(order);
        thread.join().unwrap();
    }
}

#[test]
fn scripted_moves_are_counted_exactly() {
    let Some(cpus) = cpus() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.rec");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "script", "--ignored"]).env(SCRIPT, "1").env("WARMCORE_RECORD", &file);
    assert!(command.status().unwrap().success());

    let mut recording = Recording::open(&file).unwrap();
    let (mut number, mut moves, mut before) = (0, 0, None);
    let mut prev_end = 0;
    while let Some(event) = recording.next_event().unwrap() {
        let Event::Poll(poll) = event else { continue };
        assert_eq!(poll.cpu, Some(cpus[place(number)]), "poll {number}");
        assert_eq!(poll.waker_cpu, Some(cpus[0]), "poll {number}");
        assert!(prev_end <= poll.woken_at.unwrap() && poll.woken_at.unwrap() <= poll.start, "{poll:?}");
        assert_eq!((poll.is_last, poll.woken_in_poll, poll.changed_cpu), (number == POLLS - 1, false, false));
        moves += u32::from(before.is_some_and(|cpu| cpu != poll.cpu));
        (before, prev_end) = (Some(poll.cpu), poll.end());
        number += 1;
    }
    assert_eq!((number, moves), (POLLS, (POLLS - 1) / HOPS_EVERY));
}
