//! A program with scripted moves: two threads on two CPUs poll two tasks, each of which walks over 256 KiB of its own.
//!
//! The tasks are recorded as a runtime records them. The recorder is the process's, so the program needs a process of its
//! own.

#![allow(dead_code, reason = "a test and an example each use a part")]

use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Instant;
use warmcore_record::TaskRecord;
use warmcore_sys::affinity;
use warmcore_types::CpuId;

const KIB: usize = 256;
const TASKS: usize = 2;

/// Two CPUs that this process may use.
pub fn cpus() -> Option<[CpuId; 2]> {
    let cpus = affinity::allowed().expect("the affinity can be read");
    let mut cpus = cpus.iter();
    cpus.next().zip(cpus.next()).map(Into::into)
}

/// The script: which task each poll is of, and which of the two CPUs it is on. A task moves with one poll of two.
pub fn script(polls: usize) -> Vec<(usize, usize)> {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut on = [0; TASKS];
    let mut step = || {
        let task = rng.usize(..TASKS);
        on[task] ^= usize::from(rng.bool());
        (task, on[task])
    };
    (0..polls).map(|_| step()).collect()
}

/// How many polls of the script are on another CPU than the task's poll before.
pub fn moves(script: &[(usize, usize)]) -> u64 {
    let mut on = [None; TASKS];
    let has_moved = |(task, cpu): &&(usize, usize)| {
        let before = on[*task].replace(*cpu);
        before.is_some_and(|before| before != *cpu)
    };
    script.iter().filter(has_moved).count() as u64
}

/// A line of a task's memory.
#[repr(C, align(64))]
struct Line {
    next: AtomicU32,
    walks: AtomicU32,
}

/// 256 KiB, linked in one random cycle, so that no prefetcher knows the next line.
pub struct Lines(Vec<Line>);

impl Lines {
    pub fn new(seed: u64) -> Self {
        let count = KIB * 1024 / size_of::<Line>();
        let mut order: Vec<u32> = (0..count as u32).collect();
        let mut rng = fastrand::Rng::with_seed(seed);
        (1..count).rev().for_each(|i| order.swap(i, rng.usize(..i)));
        let line = |next| Line { next: AtomicU32::new(next), walks: AtomicU32::new(0) };
        Self(order.into_iter().map(line).collect())
    }

    /// Writes to each line once.
    pub fn walk(&self) {
        let mut at = 0;
        for _ in 0..self.0.len() {
            let line = &self.0[at as usize];
            line.walks.store(line.walks.load(Relaxed).wrapping_add(1), Relaxed);
            at = line.next.load(Relaxed);
        }
    }
}

/// Runs the script under the recorder. The first thread is this one, on the first CPU, which also wakes the tasks.
pub fn run(cpus: [CpuId; 2], script: &[(usize, usize)]) {
    // First: the recording says where the CPUs are that this thread may use.
    warmcore_record::start();
    affinity::pin(cpus[0]).expect("this process may use the CPU");
    let tasks: [_; TASKS] = std::array::from_fn(|task| {
        let record = TaskRecord::spawned(Location::caller(), None).expect("the recorder is on");
        Arc::new((record, Lines::new(task as u64)))
    });
    let poll = |task: &(TaskRecord, Lines), is_last: bool| {
        let _ = task.0.poll(|| {
            task.1.walk();
            if is_last { Poll::Ready(()) } else { Poll::Pending }
        });
    };
    let last: Vec<Option<usize>> =
        (0..TASKS).map(|task| script.iter().rposition(|step| step.0 == task)).collect();
    let (order, orders) = mpsc::channel::<(Arc<(TaskRecord, Lines)>, bool)>();
    let (done, answers) = mpsc::channel();
    let second = std::thread::spawn(move || {
        affinity::pin(cpus[1]).expect("this process may use the CPU");
        for (task, is_last) in orders {
            poll(&task, is_last);
            done.send(()).expect("the first thread waits for it");
        }
    });
    for (at, (task, cpu)) in script.iter().enumerate() {
        let is_last = last[*task] == Some(at);
        tasks[*task].0.woken();
        if *cpu == 0 {
            poll(&tasks[*task], is_last);
        } else {
            order.send((tasks[*task].clone(), is_last)).expect("the second thread runs");
            answers.recv().expect("the second thread runs");
        }
    }
    drop(order);
    second.join().expect("the second thread does not panic");
}

/// The machine's probe: by how much a walk takes longer where another CPU walked last, in nanoseconds; each a median.
pub fn probe(cpus: [CpuId; 2]) -> u64 {
    let lines = Lines::new(9);
    let walk = |cpu| {
        affinity::pin(cpu).expect("this process may use the CPU");
        let began = Instant::now();
        lines.walk();
        began.elapsed().as_nanos() as u64
    };
    let (mut stayed, mut moved) = (Vec::new(), Vec::new());
    for _ in 0..301 {
        walk(cpus[0]);
        stayed.push(walk(cpus[0]));
        moved.push(walk(cpus[1]));
    }
    let median = |walks: &mut Vec<u64>| *walks.select_nth_unstable(150).1;
    median(&mut moved).saturating_sub(median(&mut stayed))
}
