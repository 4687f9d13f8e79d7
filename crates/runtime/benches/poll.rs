//! Cost of a poll with its wake: tasks that yield, and pairs of tasks that only wake each other. Two cases count something
//! else as a poll: `spawn and join` each spawned task, and `messaging` each message.
//!
//! This runtime and tokio run in turn, each with one worker on the same CPU. So no data move between CPUs, no worker
//! parks, and the CPU's SMT sibling is not used. The result is the ratio within each round, since clock rates drift.
//!
//! The least that a poll with its wake can cost here are four locked instructions of 2 to 8 ns: three changes of the task's
//! word, and one of the ring's head. A channel or a oneshot costs
//! the same on both runtimes and is added to that.
//!
//! With arguments the bench measures no time: `poll cases` prints the names of the cases, and `poll count ours|tokio
//! CASE POLLS` runs one case for about that many polls and prints their exact number. One task spawns all others.
//! `cargo xtask instructions` runs that under callgrind, with the feature `counted-clock`.

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use warmcore_runtime::{Runtime, observe};
use warmcore_sys::affinity;
use warmcore_tenant::Tenant;

const ROUNDS: usize = 15;
const SLICE: Duration = Duration::from_millis(100);

struct Case {
    name: &'static str,
    make: Make,
    /// How often `make` is called.
    times: usize,
    how: How,
}

impl Case {
    /// Pairs of tasks of tenants.
    const fn of_tenants(name: &'static str, pairs: usize, awake: usize, asleep: usize) -> Self {
        Self { name, make: channels, times: pairs, how: How::Tenants { awake, asleep } }
    }
}

/// Options of this runtime and its tasks. Of them tokio's runtime has [`How::Recorded`] alone.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Plain,
    /// All tasks belong to tenants: each pair to one of those that are `awake`, the first task of all to the first. A task of each
    /// that is `asleep` waits.
    Tenants {
        awake: usize,
        asleep: usize,
    },
    /// `warmcore top` could observe the runtime, but does not.
    Observable,
    /// The polls are recorded, of tokio's tasks by `Recorded`. Counted only: the recorder is the process's.
    Recorded,
}

const CASES: &[Case] = &[
    Case { name: "1 task yields", make: yields, times: 1, how: How::Plain },
    Case { name: "8 tasks yield", make: yields, times: 8, how: How::Plain },
    Case { name: "1 pair, channels", make: channels, times: 1, how: How::Plain },
    Case { name: "8 pairs, channels", make: channels, times: 8, how: How::Plain },
    Case::of_tenants("8 pairs, of a tenant", 8, 1, 0),
    Case::of_tenants("8 pairs, of 2 tenants", 8, 2, 0),
    Case::of_tenants("100 pairs, of 2 tenants", 100, 2, 0),
    Case::of_tenants("100 pairs, of 1000 tenants", 100, 100, 900),
    Case { name: "8 pairs, observable", make: channels, times: 8, how: How::Observable },
    Case { name: "8 pairs, recorded", make: channels, times: 8, how: How::Recorded },
    Case { name: "1 pair, oneshots", make: oneshots, times: 1, how: How::Plain },
    Case { name: "8 pairs, oneshots", make: oneshots, times: 8, how: How::Plain },
    Case { name: "spawn and join, batches of 128", make: batches, times: 1, how: How::Plain },
    Case { name: "messaging, 4 groups", make: messaging, times: 4, how: How::Plain },
];

/// The number of tasks that are spawned before the first is joined, as in `warmcore bench wake`.
const BATCH: u64 = 128;

/// A group of [`messaging`]: its senders and as many receivers, the bytes of a message, and the messages that a channel
/// holds; as in `warmcore bench wake`.
const SIDE: usize = 20;
const BYTES: usize = 100;
const HELD: usize = 64;

/// The cases that can run on this machine: a runtime is observable only if it can open a socket.
fn cases() -> impl Iterator<Item = &'static Case> {
    let is_listed = || {
        let _runtime = Host::ours(How::Observable);
        observe::list().iter().any(|one| one.pid == std::process::id())
    };
    CASES.iter().filter(move |case| case.how != How::Observable || is_listed())
}

/// The end of a run, and the number of polls.
struct Count {
    is_over: AtomicBool,
    /// Polls after which each task or pair stops.
    polls_max: u64,
    polls: AtomicU64,
}

impl Count {
    fn new(polls_max: u64) -> Arc<Self> {
        Arc::new(Self { is_over: AtomicBool::new(false), polls_max, polls: AtomicU64::new(0) })
    }

    fn goes_on(&self, polls: u64) -> bool {
        polls < self.polls_max && !self.is_over.load(Relaxed)
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Make = fn(&Arc<Count>, &Host) -> Vec<Work>;

enum Host {
    /// The runtime, and the tenants of its tasks that are awake.
    Ours(Runtime, Vec<Tenant>),
    Tokio(tokio::runtime::Runtime),
}

impl Host {
    fn ours(how: How) -> Self {
        let builder = Runtime::builder().worker_threads(1).observe(how == How::Observable);
        let runtime = builder.build().expect("threads and descriptors can be had");
        let How::Tenants { awake, asleep } = how else { return Self::Ours(runtime, Vec::new()) };
        let mut tenants: Vec<_> =
            (0..awake + asleep).map(|_| Tenant::builder().name("bench").build()).collect();
        let sleepers = tenants.split_off(awake);
        let all = runtime.spawn_in(&tenants[0], async move {
            let sleep = |tenant| drop(warmcore_runtime::spawn_in(tenant, std::future::pending::<()>()));
            sleepers.iter().for_each(sleep);
        });
        runtime.block_on(all).expect("it ends by itself");
        Self::Ours(runtime, tenants)
    }

    /// `turns` is the number of polls after which the worker looks at the shared queue. If it is `None`, tokio adapts
    /// the number to the duration of polls.
    fn tokio(turns: Option<u32>) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all();
        turns.into_iter().for_each(|turns| _ = builder.global_queue_interval(turns));
        Self::Tokio(builder.build().expect("threads and an epoll instance can be had"))
    }

    fn works(&self, case: &Case, count: &Arc<Count>) -> Vec<Work> {
        (0..case.times).flat_map(|_| (case.make)(count, self)).collect()
    }

    /// The average time of a poll in ns, in a run of [`SLICE`] with the spawns and the end of its tasks.
    fn slice(&self, case: &Case) -> f64 {
        let count = Count::new(u64::MAX);
        let began = Instant::now();
        let works = self.works(case, &count).into_iter();
        let run_for_a_while = || {
            std::thread::sleep(SLICE);
            count.is_over.store(true, Relaxed);
        };
        match self {
            Self::Ours(runtime, tenants) => {
                let spawn = spawner(tenants.clone());
                let tasks: Vec<_> = runtime.with_context(|| works.map(spawn).collect());
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

    /// Runs about `polls` polls, and returns their exact number. One task spawns the others, because the time at which
    /// spawns from another thread arrive varies.
    fn count(&self, case: &Case, polls: u64) -> u64 {
        let count = Count::new(polls / case.times as u64);
        let works = self.works(case, &count).into_iter();
        match self {
            Self::Ours(runtime, tenants) => {
                let spawn = spawner(tenants.clone());
                let all = async move {
                    let tasks: Vec<_> = works.map(spawn).collect();
                    for task in tasks {
                        task.await.expect("it ends by itself");
                    }
                };
                let all = match tenants.first() {
                    Some(tenant) => runtime.spawn_in(tenant, all),
                    None => runtime.spawn(all),
                };
                runtime.block_on(all).expect("it ends by itself");
            }
            Self::Tokio(runtime) => {
                let is_recorded = case.how == How::Recorded;
                let all = runtime.spawn(async move {
                    let spawn = |work| match is_recorded {
                        true => tokio::spawn(warmcore_record::record(work)),
                        false => tokio::spawn(work),
                    };
                    let tasks: Vec<_> = works.map(spawn).collect();
                    for task in tasks {
                        task.await.expect("it ends by itself");
                    }
                });
                runtime.block_on(all).expect("it ends by itself");
            }
        }
        count.polls.load(Relaxed)
    }
}

/// Spawns on the current thread's runtime: two tasks each in the tenants, in turn.
fn spawner(tenants: Vec<Tenant>) -> impl FnMut(Work) -> warmcore_runtime::JoinHandle<()> + Send {
    let mut spawned = 0;
    move |work| {
        spawned += 1;
        match tenants.len() {
            0 => warmcore_runtime::spawn(work),
            all => warmcore_runtime::spawn_in(&tenants[(spawned - 1) / 2 % all], work),
        }
    }
}

fn yields(count: &Arc<Count>, host: &Host) -> Vec<Work> {
    let (count, is_ours) = (count.clone(), matches!(host, Host::Ours(..)));
    vec![Box::pin(async move {
        let mut polls = 0;
        while count.goes_on(polls) {
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
        while count.goes_on(polls) && ping.send(()).await.is_ok() && pongs.recv().await.is_some() {
            polls += 2;
        }
        count.polls.fetch_add(polls, Relaxed);
    };
    vec![Box::pin(serve), Box::pin(play)]
}

/// A message with the sender for its answer. The answer contains the sender for the next ping.
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
        while count.goes_on(polls) {
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

/// A task that spawns [`BATCH`] tasks and then joins all of them, again and again. A poll here is a spawned task.
fn batches(count: &Arc<Count>, host: &Host) -> Vec<Work> {
    /// Spawns and joins batches until the count is reached, and returns the number of spawned tasks.
    async fn batches<J: Future<Output: Send> + Send>(count: &Count, spawn: impl Fn() -> J + Send) -> u64 {
        let mut spawned = 0;
        while count.goes_on(spawned) {
            let tasks: Vec<J> = (0..BATCH).map(|_| spawn()).collect();
            for task in tasks {
                task.await;
            }
            spawned += BATCH;
        }
        spawned
    }
    let (count, is_ours) = (count.clone(), matches!(host, Host::Ours(..)));
    vec![Box::pin(async move {
        let spawned = if is_ours {
            batches(&count, || warmcore_runtime::spawn(async {})).await
        } else {
            batches(&count, || tokio::spawn(async {})).await
        };
        count.polls.fetch_add(spawned, Relaxed);
    })]
}

/// A group of [`SIDE`] senders, each of which sends to each of [`SIDE`] receivers in turn. A poll here is a message,
/// since the number of polls depends on the order in which a runtime polls the tasks.
fn messaging(count: &Arc<Count>, _: &Host) -> Vec<Work> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..SIDE).map(|_| mpsc::channel(HELD)).unzip();
    let receive = |mut messages: mpsc::Receiver<[u8; BYTES]>| -> Work {
        Box::pin(async move {
            while let Some(message) = messages.recv().await {
                std::hint::black_box(message);
            }
        })
    };
    let send = |_| -> Work {
        let (senders, count) = (senders.clone(), count.clone());
        Box::pin(async move {
            let mut sent = 0;
            while count.goes_on(sent * SIDE as u64) {
                for sender in &senders {
                    sender.send([1; BYTES]).await.expect("the receiver waits for the last sender");
                    sent += 1;
                }
            }
            count.polls.fetch_add(sent, Relaxed);
        })
    };
    receivers.into_iter().map(receive).chain((0..SIDE).map(send)).collect()
}

fn main() -> ExitCode {
    // `cargo bench` adds the argument `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    // Both runtimes run on the last of the CPUs that this process may use. A process that counts tokio's instructions runs
    // on the first, because `cargo xtask instructions` counts both runtimes' at a time.
    let cpus = affinity::allowed().expect("the system says which CPUs are allowed");
    let cpu = if args.contains(&"tokio") { cpus.iter().next() } else { cpus.iter().last() };
    affinity::pin(cpu.expect("one is allowed")).expect("an allowed CPU can be had");
    match args[..] {
        [] => time(),
        ["cases"] => cases().for_each(|case| println!("{}", case.name)),
        ["count", whose @ ("ours" | "tokio"), name, polls] => {
            let case = CASES.iter().find(|case| case.name == name).expect("one of `cases`");
            let polls = polls.parse().expect("a number of polls");
            let folder = tempfile::tempdir().expect("a folder for the recording");
            if case.how == How::Recorded {
                // SAFETY: the process has one thread yet.
                unsafe { std::env::set_var(warmcore_record::VARIABLE, folder.path().join("poll.rec")) };
            }
            // Natively tokio adapts to 127, because the polls are so short. Under Valgrind they take longer, so the
            // number is set.
            let host = if whose == "ours" { Host::ours(case.how) } else { Host::tokio(Some(127)) };
            println!("polls {}", host.count(case, polls));
            let is_counted = whose == "ours" && matches!(case.how, How::Tenants { .. });
            println!("uses {}", if is_counted { warmcore_percpu::backend().name() } else { "nothing" });
        }
        _ => {
            eprintln!("no arguments, or: cases; count ours|tokio CASE POLLS");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn time() {
    let tokio = Host::tokio(None);
    println!("{:<32}{:>10}{:>10}{:>9}{:>16}", "ns a poll", "ours", "tokio's", "ratio", "p25 to p75");
    for case in cases().filter(|case| case.how != How::Recorded) {
        let ours = Host::ours(case.how);
        let round = |_| [ours.slice(case), tokio.slice(case)];
        let rounds: Vec<[f64; 2]> = (0..ROUNDS).map(round).collect();
        let [a, b] = [0, 1].map(|host| quartiles(rounds.iter().map(|round| round[host])));
        let ratio = quartiles(rounds.iter().map(|[ours, tokio]| ours / tokio));
        let spread = format!("{:.2} to {:.2}", ratio[0], ratio[2]);
        println!("{:<32}{:>10.1}{:>10.1}{:>8.2}×{spread:>16}", case.name, a[1], b[1], ratio[1]);
    }
}

fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|part| values[values.len() * part / 4])
}
