//! What a poll costs, with the wake that brought it: of tasks that yield, and of pairs that only wake each other.
//!
//! Model.   One worker on one CPU, ours and tokio's in turn: nothing crosses between CPUs, nobody sleeps, and what two
//!          CPUs that may share a core do to each other stays out. Of each round the ratio, since clocks drift.
//! Number.  The floor of a poll with its wake: three exchanges of async-task's, and two times the queue's lock, which
//!          nobody else holds, taken and given back: seven locked instructions of 2 ns. What a channel or a oneshot does
//!          is its own, and the same for both.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use warmcore_runtime::Runtime;
use warmcore_sys::affinity;

const ROUNDS: usize = 15;
const SLICE: Duration = Duration::from_millis(100);

const CASES: &[(&str, Make, usize)] = &[
    ("1 task yields", yields, 1),
    ("8 tasks yield", yields, 8),
    ("1 pair, channels", channels, 1),
    ("8 pairs, channels", channels, 8),
    ("1 pair, oneshots", oneshots, 1),
    ("8 pairs, oneshots", oneshots, 8),
];

/// When to stop, and how many polls there were.
#[derive(Default)]
struct Count {
    is_over: AtomicBool,
    polls: AtomicU64,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Make = fn(&Arc<Count>, &Host) -> Vec<Work>;

enum Host {
    Ours(Runtime),
    Tokio(tokio::runtime::Runtime),
}

impl Host {
    /// Nanoseconds a poll, of so many at once.
    fn slice(&self, make: Make, times: usize) -> f64 {
        let count = Arc::new(Count::default());
        let began = Instant::now();
        let works = (0..times).flat_map(|_| make(&count, self));
        let run_for_a_while = || {
            std::thread::sleep(SLICE);
            count.is_over.store(true, Relaxed);
        };
        match self {
            Self::Ours(runtime) => {
                let tasks: Vec<_> = works.map(|work| runtime.spawn(work)).collect();
                run_for_a_while();
                tasks.into_iter().for_each(|task| runtime.block_on(task).expect("it ends by itself"));
            }
            Self::Tokio(runtime) => {
                let tasks: Vec<_> = works.map(|work| runtime.spawn(work)).collect();
                run_for_a_while();
                tasks.into_iter().for_each(|task| runtime.block_on(task).expect("it ends by itself"));
            }
        }
        began.elapsed().as_nanos() as f64 / count.polls.load(Relaxed) as f64
    }
}

fn yields(count: &Arc<Count>, host: &Host) -> Vec<Work> {
    let (count, is_ours) = (count.clone(), matches!(host, Host::Ours(_)));
    vec![Box::pin(async move {
        let mut polls = 0;
        while !count.is_over.load(Relaxed) {
            if is_ours {
                warmcore_runtime::yield_now().await;
            } else {
                tokio::task::yield_now().await;
            }
            polls += 1;
        }
        count.polls.fetch_add(polls, Relaxed);
    })]
}

fn channels(count: &Arc<Count>, _: &Host) -> Vec<Work> {
    let ((ping, mut pings), (pong, mut pongs)) = (mpsc::channel(1), mpsc::channel(1));
    let count = count.clone();
    let serve = async move { while pings.recv().await.is_some() && pong.send(()).await.is_ok() {} };
    let play = async move {
        let mut polls = 0;
        while !count.is_over.load(Relaxed) && ping.send(()).await.is_ok() && pongs.recv().await.is_some() {
            polls += 2;
        }
        count.polls.fetch_add(polls, Relaxed);
    };
    vec![Box::pin(serve), Box::pin(play)]
}

/// Brings the sender for the answer, which brings the sender for the next.
struct Ping(oneshot::Sender<Pong>);
struct Pong(oneshot::Sender<Ping>);

fn oneshots(count: &Arc<Count>, _: &Host) -> Vec<Work> {
    let (mut ping, mut pings) = oneshot::channel();
    let count = count.clone();
    let serve = async move {
        while let Ok(Ping(answer)) = pings.await {
            let (sender, next) = oneshot::channel();
            if answer.send(Pong(sender)).is_err() {
                break;
            }
            pings = next;
        }
    };
    let play = async move {
        let mut polls = 0;
        while !count.is_over.load(Relaxed) {
            let (sender, pong) = oneshot::channel();
            if ping.send(Ping(sender)).is_err() {
                break;
            }
            let Ok(Pong(next)) = pong.await else { break };
            ping = next;
            polls += 2;
        }
        count.polls.fetch_add(polls, Relaxed);
    };
    vec![Box::pin(serve), Box::pin(play)]
}

fn main() {
    // Both runtimes have what their maker may use.
    let cpus = affinity::allowed().expect("the system says which CPUs are allowed");
    affinity::pin(cpus.iter().last().expect("one is allowed")).expect("an allowed CPU can be had");
    let ours = Runtime::builder().workers(1).build().expect("threads and descriptors can be had");
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let tokio =
        builder.worker_threads(1).enable_all().build().expect("threads and an epoll instance can be had");
    let (ours, tokio) = (Host::Ours(ours), Host::Tokio(tokio));
    println!("{:<20}{:>10}{:>10}{:>9}{:>16}", "ns a poll", "ours", "tokio's", "ratio", "p25 to p75");
    for (name, make, times) in CASES {
        let round = |_| [ours.slice(*make, *times), tokio.slice(*make, *times)];
        let rounds: Vec<[f64; 2]> = (0..ROUNDS).map(round).collect();
        let [a, b] = [0, 1].map(|who| quartiles(rounds.iter().map(|round| round[who])));
        let ratio = quartiles(rounds.iter().map(|[ours, tokio]| ours / tokio));
        let spread = format!("{:.2} to {:.2}", ratio[0], ratio[2]);
        println!("{name:<20}{:>10.1}{:>10.1}{:>8.2}×{spread:>16}", a[1], b[1], ratio[1]);
    }
}

fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|part| values[values.len() * part / 4])
}
