//! Programs of the shapes by which the field measures async runtimes, written for tokio.
//!
//! `shapes list` prints the names of the cases. `shapes time CASE MS` repeats a case for so many milliseconds and prints
//! the wall time and the CPU time of one operation, in ns, and the number of operations. `shapes count CASE TIMES` runs
//! a case so many times, for profilers, and prints the number of operations.
//!
//! The runtime has the settings of `#[tokio::main]`: a worker for each CPU, all drivers. A case is a future that does
//! its work once, checks the result, and is repeated. Except for the cases of `remote_spawn` it runs in a task.

mod sync;
mod tasks;
mod transfer;

use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One shape. A case with `busy` in its name needs two CPUs.
struct Case {
    name: &'static str,
    /// The number of operations in one run.
    operations: u64,
    /// Whether the run is polled by the thread that called `block_on`, which is no worker.
    is_outside: bool,
    run: fn() -> Run,
}

const fn case(name: &'static str, operations: usize, run: fn() -> Run) -> Case {
    Case { name, operations: operations as u64, is_outside: false, run }
}

const fn outside(name: &'static str, operations: usize, run: fn() -> Run) -> Case {
    Case { is_outside: true, ..case(name, operations, run) }
}

const CASES: &[Case] = &[
    case("spawn_many", tasks::SPAWNED, || Box::pin(tasks::spawn_many())),
    outside("remote_spawn", tasks::SPAWNED, || Box::pin(tasks::spawn_many())),
    outside("remote_spawn_busy", tasks::SPAWNED, || Box::pin(tasks::spawn_beside_a_busy_worker())),
    case("yield_many", tasks::YIELDING * tasks::YIELDS, || Box::pin(tasks::yield_many())),
    case("ping_pong", tasks::PINGS, || Box::pin(tasks::ping_pong())),
    case("chained_spawn", tasks::CHAINED, || Box::pin(tasks::chained_spawn())),
    case("mpsc", sync::SENDERS * sync::MESSAGES, || Box::pin(sync::mpsc())),
    case("oneshot", sync::REQUESTS, || Box::pin(sync::oneshot())),
    case("notify_one", sync::NOTIFIED, || Box::pin(sync::notify_one())),
    case("notify_waiters", sync::WAITERS * sync::WAITS, || Box::pin(sync::notify_waiters())),
    case("rwlock", sync::CONTENDERS * sync::ACQUIRED, || Box::pin(sync::rwlock())),
    case("semaphore", sync::CONTENDERS * sync::ACQUIRED, || Box::pin(sync::semaphore())),
    case("timeouts", transfer::TIMING * transfer::TIMEOUTS, || Box::pin(transfer::timeouts())),
    case("sleeps", transfer::SLEEPING * transfer::SLEEPS, || Box::pin(transfer::sleeps())),
    case("copy", transfer::BLOCKS, || Box::pin(transfer::copy_in_memory())),
    case("copy_tcp", transfer::BLOCKS, || Box::pin(transfer::copy_over_tcp())),
];

/// Repeats a case until `is_over` says so, with the number of runs so far, and returns that number.
async fn repeat(case: &'static Case, is_over: impl Fn(u64) -> bool + Send + 'static) -> u64 {
    let runs = async move {
        let mut runs = 0;
        while !is_over(runs) {
            (case.run)().await;
            runs += 1;
        }
        runs
    };
    if case.is_outside { runs.await } else { tokio::spawn(runs).await.expect("no run panics") }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Warms up for a fifth of `window`, then measures.
async fn time(case: &'static Case, window: Duration) {
    let until = |window: Duration| {
        let end = Instant::now() + window;
        move |runs| runs > 0 && Instant::now() >= end
    };
    repeat(case, until(window / 5)).await;
    let (began, cpu) = (Instant::now(), cpu_time());
    let operations = repeat(case, until(window)).await * case.operations;
    let (wall, cpu) = (began.elapsed(), cpu_time() - cpu);
    let per_operation = |time: Duration| time.as_nanos() as f64 / operations as f64;
    println!("{:.2} {:.2} {operations}", per_operation(wall), per_operation(cpu));
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let named = |name: &str| CASES.iter().find(|case| case.name == name);
    let number = |text: &str| text.parse::<u64>().ok();
    let runtime = || Builder::new_multi_thread().enable_all().build().expect("threads can be had");
    match args[..] {
        ["list"] => CASES.iter().for_each(|case| println!("{}", case.name)),
        [how, name, amount] if let (Some(case), Some(amount)) = (named(name), number(amount)) => {
            let runtime = runtime();
            match how {
                "time" => runtime.block_on(time(case, Duration::from_millis(amount))),
                _ => {
                    let runs = runtime.block_on(repeat(case, move |runs| runs >= amount));
                    println!("{}", runs * case.operations);
                }
            }
        }
        _ => {
            eprintln!("usage: shapes list | shapes time CASE MS | shapes count CASE TIMES");
            std::process::exit(2);
        }
    }
}
