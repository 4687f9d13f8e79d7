//! Writes the recording of a large server: `large FILE [POLLS]`, by default 60 million, which is ten minutes at 100 000
//! polls per second. `large --analyze FILE` reads it and prints the sentence and how long that took.
//!
//! Sixteen workers on 16 CPUs poll tasks of five places. A connection has some hundred polls and ends; one wake of five
//! comes from another worker, and one poll of eight moves.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{PollAt, Writer, places};
use std::io::BufWriter;
use std::path::Path;
use std::time::Instant;
use warmcore_record::{KernelStats, Recording, ThreadStats};

const WORKERS: u16 = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [flag, file] if flag == "--analyze" => analyze(Path::new(file)),
        [file] => write(Path::new(file), 60_000_000),
        [file, polls] => write(Path::new(file), polls.parse().expect("a number of polls")),
        _ => panic!("large FILE [POLLS], or large --analyze FILE"),
    }
}

fn analyze(file: &Path) {
    let began = Instant::now();
    let analysis = warmcore_trace::analyze(|| Recording::open(file), &[]).expect("the recording can be read");
    println!("{}", analysis.sentence);
    println!("{} polls in {:.1} s", analysis.coverage.polls, began.elapsed().as_secs_f64());
}

fn write(file: &Path, polls: u64) {
    let out = std::fs::File::create(file).expect("the file can be written");
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, out), places(u32::from(WORKERS)));
    (0..WORKERS).for_each(|_| writer.thread());
    (1..=5).for_each(|key| writer.location(key, key as u32 * 10));
    let mut rng = fastrand::Rng::with_seed(7);
    // Task, place, CPU, polls that are left.
    let mut tasks: Vec<(u32, u64, u16, u32)> = Vec::new();
    let mut next_task = 1;
    // Each worker polls in turn: 160 µs for 16 polls are 100 000 per second.
    let mut at = 0;
    for poll in 0..polls {
        let worker = (poll % u64::from(WORKERS)) as u16;
        at += u64::from(worker == 0) * 160_000;
        let begins = at + u64::from(worker) * 100;
        if tasks.len() < 10_000 {
            let key = 1 + rng.u64(..5);
            writer.spawn(worker, next_task, begins, key, u32::from(worker));
            tasks.push((next_task, key, worker, 100 + rng.u32(..400)));
            next_task += 1;
        }
        // Tasks of this worker are at indices that have its remainder, so that most polls do not move.
        let mut index = rng.usize(..tasks.len());
        if !rng.u32(..8).eq(&0) {
            index = (index / 16 * 16 + usize::from(worker)).min(tasks.len() - 1);
        }
        let (task, key, cpu, left) = tasks[index];
        let has_moved = cpu != worker;
        let ns = 5_000 + rng.u32(..20_000) + key as u32 * 1000 + u32::from(has_moved) * 8_000;
        let waker = if rng.u32(..5) == 0 { rng.u32(..u32::from(WORKERS)) } else { u32::from(worker) };
        let delay = if rng.u32(..1000) == 0 { 2_000_000 } else { 1_000 + rng.u32(..20_000) };
        let mut record = PollAt::new(worker, task, u32::from(worker), begins + 1_000, ns).woken(delay, waker);
        if left == 0 {
            record = record.last();
            tasks.swap_remove(index);
        } else {
            tasks[index] = (task, key, worker, left - 1);
        }
        writer.poll(record);
        if poll % 10_000 == 9_999 {
            writer.round(at);
        }
        if poll % 100_000 == 99_999 {
            for thread in 0..WORKERS {
                let kernel = KernelStats {
                    cpu_ns: at / 4,
                    run_delay_ns: at / 1000,
                    involuntary_switches: poll / 10_000,
                };
                let stats = ThreadStats { polls: poll / 16, kernel: Some(kernel), ..ThreadStats::default() };
                writer.stats(thread, at, stats);
            }
        }
    }
    writer.end();
}
