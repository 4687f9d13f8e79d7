//! Soak: real threads and all features at once; no task is lost, polled twice at a time, or left behind.
//!
//! The test has rounds. Each builds a runtime with some policy and number of workers, and spawns tasks of all kinds:
//! they yield, sleep, wake each other, panic, block in place, belong to tenants, are refused by budgets, or are
//! aborted. A thread outside of the runtime wakes some of them. Meanwhile the process's threads are moved between CPUs.
//! Every task is joined. At the end the process must have about as much memory ([`RSS_GROWTH_MAX_KIB`]) as after the
//! first seven rounds, and no more threads and descriptors than after the first round.
//!
//! By default the rounds go on until tasks were polled 2 million times, which takes some seconds.
//! `WARMCORE_SOAK=1000000000` takes 12 minutes on two CPUs.

#![cfg(target_os = "linux")]

use fastrand::Rng;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use warmcore_budget::Account;
use warmcore_runtime::{JoinHandle, PolicyKind, Runtime, block_in_place, yield_now};
use warmcore_tenant::Tenant;

/// Largest allowed growth of resident memory. Allocators and thread stacks keep some memory.
const RSS_GROWTH_MAX_KIB: u64 = 64 * 1024;

static LIVING: AtomicU64 = AtomicU64::new(0);
static POLLS: AtomicU64 = AtomicU64::new(0);

/// A future that checks that only one thread polls it at a time.
struct Checked<F> {
    future: Pin<Box<F>>,
    is_polled: AtomicBool,
}

fn checked<F: Future>(future: F) -> Checked<F> {
    LIVING.fetch_add(1, Relaxed);
    Checked { future: Box::pin(future), is_polled: AtomicBool::new(false) }
}

impl<F: Future> Future for Checked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        struct Out<'a>(&'a AtomicBool);
        impl Drop for Out<'_> {
            fn drop(&mut self) {
                assert!(self.0.swap(false, Relaxed), "polled by two at a time");
            }
        }
        POLLS.fetch_add(1, Relaxed);
        let this = &mut *self;
        assert!(!this.is_polled.swap(true, Relaxed), "polled by two at a time");
        let _out = Out(&this.is_polled);
        this.future.as_mut().poll(cx)
    }
}

impl<F> Drop for Checked<F> {
    fn drop(&mut self) {
        assert!(!*self.is_polled.get_mut(), "dropped while it is polled");
        LIVING.fetch_sub(1, Relaxed);
    }
}

/// A bell that wakes the tasks that wait for it. A ring just before a task begins to wait is not missed.
#[derive(Default)]
struct Bell(Mutex<(u64, Vec<Waker>)>);

impl Bell {
    fn ring(&self) {
        let wakers = {
            let mut state = self.0.lock().unwrap();
            state.0 += 1;
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self, after: u64) -> u64 {
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap();
            if state.0 > after {
                return Poll::Ready(state.0);
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Waits up to five seconds until the process has at most as many threads and descriptors as the arguments, since
/// threads may still be ending. Returns both numbers.
fn settle(threads: usize, fds: usize) -> (usize, usize) {
    for _ in 0..500 {
        if count("/proc/self/task") <= threads && count("/proc/self/fd") <= fds {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// Whether the process may open this many files.
fn can_open(files: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur >= files }
}

/// Restricts each of up to 64 threads of the process to a random CPU, or, in two of three cases, allows it the CPUs
/// 0 to 63.
fn shake(rng: &mut Rng) {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get()).max(2) as u64;
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
    for task in tasks.flatten().take(64) {
        let Some(thread) = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let mask: u64 = if rng.u64(..3) == 0 { 1 << rng.u64(..cpus.min(64)) } else { u64::MAX };
        // SAFETY: the kernel reads eight bytes. It returns an error for a thread that has ended and for CPUs that do not exist.
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, thread, 8usize, &raw const mask) };
    }
}

/// One runtime, from its begin to its end.
fn round(workers: usize, policy: PolicyKind, seed: u64, wakes: u64) {
    let mut rng = Rng::with_seed(seed);
    let runtime = Runtime::builder().name("soak").worker_threads(workers).policy(policy).build().unwrap();
    let account = Account::root("soak").limit(64).build();
    let tenants =
        [Tenant::builder().name("free").build(), Tenant::builder().name("poor").account(&account).build()];
    let bell = Arc::new(Bell::default());
    let tasks_count = 32;
    let each = (wakes / tasks_count).max(4);
    let mut tasks: Vec<(u64, JoinHandle<u64>)> = Vec::new();
    for i in 0..tasks_count {
        let kind = rng.u64(..10);
        let bell = bell.clone();
        let account = account.clone();
        let future = checked(async move {
            let mut done = 0;
            let mut heard = 0;
            while done < each {
                done += 1;
                match (kind, done % 64) {
                    (0, 0) => tokio::time::sleep(Duration::from_micros(100)).await,
                    (1, 1) if done > each / 2 => panic!("as planned"),
                    (2, 0) if done < 256 => block_in_place(|| std::thread::sleep(Duration::from_micros(50))),
                    (3, _) => _ = warmcore_runtime::spawn(checked(yield_now())).await,
                    (4, _) => {
                        bell.ring();
                        yield_now().await;
                    }
                    (5, _) => heard = bell.wait(heard).await,
                    (6, 0) => assert!(account.try_charge(1 << 12).is_err(), "it does not fit"),
                    (7, 0) => drop(tokio::spawn(async { tokio::task::yield_now().await })),
                    _ => yield_now().await,
                }
            }
            done
        });
        let tenant = &tenants[(i % 2) as usize];
        let task = if i % 3 == 0 { runtime.spawn_in(tenant, future) } else { runtime.spawn(future) };
        tasks.push((kind, task));
    }
    // A thread that rings the bell as long as a task may wait for it, and sometimes changes the CPUs of threads.
    let is_shutdown = Arc::new(AtomicBool::new(false));
    let outside = std::thread::spawn({
        let (bell, is_shutdown, mut rng) = (bell.clone(), is_shutdown.clone(), Rng::with_seed(seed ^ 1));
        move || {
            while !is_shutdown.load(Relaxed) {
                bell.ring();
                if rng.u64(..50) == 0 {
                    shake(&mut rng);
                }
                std::thread::yield_now();
            }
        }
    });
    tasks.iter().filter(|(kind, _)| *kind == 9).for_each(|(_, task)| task.abort());
    for (kind, task) in tasks {
        match runtime.block_on(task) {
            Ok(done) => assert_eq!(done, each),
            Err(error) if kind == 1 => assert!(error.is_panic(), "{error}"),
            Err(error) => assert!(kind == 9 && error.is_cancelled(), "{error}"),
        }
    }
    is_shutdown.store(true, Relaxed);
    outside.join().unwrap();
    // Some tasks are left waiting; the shutdown cancels them.
    for _ in 0..8 {
        let bell = bell.clone();
        drop(runtime.spawn(checked(async move { bell.wait(u64::MAX).await })));
    }
    drop(runtime);
}

#[test]
fn everything_at_once_and_nothing_is_left() {
    // The panics that the test causes must not fill the screen.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some("as planned") {
            before(info);
        }
    }));
    let wakes: u64 =
        std::env::var("WARMCORE_SOAK").map_or(2_000_000, |n| n.parse().expect("a number of wakes"));
    // The first round makes the allocations that happen once per process.
    round(2, PolicyKind::Home, 0, 1000);
    let (threads, fds) = (count("/proc/self/task"), count("/proc/self/fd"));
    let (mut rss, mut seed) = (0, 0);
    while POLLS.load(Relaxed) < wakes {
        for policy in PolicyKind::all() {
            for workers in [1, 2, 7] {
                seed += 1;
                round(workers, policy, seed, (wakes / 30).clamp(1000, 200_000));
            }
        }
        if rss == 0 {
            rss = rss_kib();
        }
    }
    let rss_after = rss_kib();
    println!("{} polls, {seed} runtimes, {rss} KiB, then {rss_after}", POLLS.load(Relaxed));
    assert_eq!(LIVING.load(Relaxed), 0, "futures are left");
    let left = settle(threads, fds);
    assert!(left.0 <= threads && left.1 <= fds, "threads or descriptors are left: {left:?}");
    assert!(rss_after < rss + RSS_GROWTH_MAX_KIB, "{rss} KiB, then {rss_after}");

    // A thousand workers on the machine's CPUs, if the process may open enough files.
    if can_open(8192) {
        for policy in PolicyKind::all() {
            seed += 1;
            round(1024, policy, seed, 10_000);
        }
        assert_eq!(LIVING.load(Relaxed), 0, "futures are left");
    }

    // Runtimes that are built and dropped with a task in them.
    for i in 0..1000u64 {
        let runtime = Runtime::builder().worker_threads(1 + i as usize % 3).build().unwrap();
        let task = runtime.spawn(checked(yield_now()));
        if i % 2 == 0 {
            runtime.block_on(task).unwrap();
        }
    }
    assert_eq!(LIVING.load(Relaxed), 0, "futures are left");
    let left = settle(threads, fds);
    assert!(left.0 <= threads && left.1 <= fds, "threads or descriptors are left: {left:?}");
}
