//! Polls, wakes, spawns and unparks, one kind at a time.
//!
//! The tasks of `yields`, `hops` and `spawns` run on one worker, which no other thread disturbs: `block_on` waits on
//! the measuring thread until they end. `unparks` wakes a task again and again, with a pause in which the worker parks:
//! the longer the pause, the deeper the worker's CPU sleeps.

use crate::wake::Executor;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::sync::mpsc;
use warmcore_sys::clock;

const POLLS: u64 = 20_000;
const SPAWNS: usize = 128;
const PUSHES: u64 = 200;
/// The time after which a worker without tasks is parked for sure.
const PAUSE: Duration = Duration::from_micros(300);
/// The number of wakes of a worker after a pause, and of those with the longest pauses.
const UNPARKS: u64 = 60;
const LONG_UNPARKS: u64 = 10;
const LONG_PAUSE: Duration = Duration::from_millis(1);

/// The ns of a poll that yields, with this many tasks on one worker.
pub(super) fn yields<H: Executor>(executor: H, tasks: u64) -> f64 {
    let each = POLLS / tasks;
    timed(executor, each * tasks, async move {
        let yielding = || async move {
            for _ in 0..each {
                H::yield_now().await;
            }
        };
        let all: Vec<_> = (0..tasks).map(|_| executor.spawn(yielding())).collect();
        for task in all {
            H::join(task).await;
        }
    })
}

/// Runs a future as a task of the executor; returns its ns divided by `n`.
fn timed<H: Executor>(executor: H, n: u64, work: impl Future<Output = ()> + Send + 'static) -> f64 {
    let task = executor.spawn_nth(0, async move {
        let began = clock::now().0;
        work.await;
        clock::now().0 - began
    });
    executor.join_all(vec![task])[0] as f64 / n as f64
}

/// A flag that a task waits for: the least that a wake needs.
#[derive(Default)]
struct Flag {
    is_set: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Flag {
    fn set(&self) {
        // ORDERING: Release; pairs with the Acquire in `wait`, so that the woken task sees what was written before.
        self.is_set.store(true, Release);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until the flag is set, and clears it.
    async fn wait(&self) {
        poll_fn(|cx| {
            // ORDERING: Acquire; pairs with the Release in `set`.
            if self.is_set.swap(false, Acquire) {
                return Poll::Ready(());
            }
            *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
            // A `set` before the waker was stored found none.
            // ORDERING: Acquire; pairs with the Release in `set`.
            if self.is_set.swap(false, Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await
    }
}

/// The ns of a poll that wakes another task and waits, with two such tasks.
pub(super) fn hops<H: Executor>(executor: H) -> f64 {
    let flags = Arc::new([Flag::default(), Flag::default()]);
    timed(executor, POLLS, async move {
        let others = flags.clone();
        let other = executor.spawn(async move {
            for _ in 0..POLLS / 2 {
                others[1].wait().await;
                others[0].set();
            }
        });
        for _ in 0..POLLS / 2 {
            flags[1].set();
            flags[0].wait().await;
        }
        H::join(other).await;
    })
}

/// As [`hops`], through two bounded channels.
pub(super) fn channel_hops<H: Executor>(executor: H) -> f64 {
    timed(executor, POLLS, async move {
        let ((ping, mut pings), (pong, mut pongs)) = (mpsc::channel(1), mpsc::channel(1));
        let other = executor.spawn(async move {
            while let Some(n) = pings.recv().await {
                if pong.send(n).await.is_err() {
                    break;
                }
            }
        });
        for n in 0..POLLS / 2 {
            if ping.send(n).await.is_err() || pongs.recv().await.is_none() {
                break;
            }
        }
        drop(ping);
        H::join(other).await;
    })
}

/// The ns of a send of 100 bytes and a receive in one task.
pub(super) fn channel<H: Executor>(executor: H) -> f64 {
    timed(executor, POLLS, async move {
        let (sender, mut messages) = mpsc::channel([0u8; 100].len());
        for _ in 0..POLLS {
            if sender.send([1u8; 100]).await.is_err() || messages.recv().await.is_none() {
                break;
            }
        }
    })
}

/// The ns of spawning an empty task, of running it, and of joining it when it has ended.
pub(super) fn spawns<H: Executor>(executor: H) -> [f64; 3] {
    const BATCHES: usize = 20;
    let task = executor.spawn_nth(0, async move {
        let mut times = [0; 3];
        for _ in 0..BATCHES {
            let began = clock::now().0;
            let (left, ended) = (Arc::new(AtomicU64::new(SPAWNS as u64)), Arc::new(Flag::default()));
            let child = || {
                let (left, ended) = (left.clone(), ended.clone());
                executor.spawn(async move {
                    if left.fetch_sub(1, Relaxed) == 1 {
                        ended.set();
                    }
                })
            };
            let tasks: Vec<_> = (0..SPAWNS).map(|_| child()).collect();
            let spawned = clock::now().0;
            ended.wait().await;
            let all_ended = clock::now().0;
            for task in tasks {
                H::join(task).await;
            }
            let parts = [spawned - began, all_ended - spawned, clock::now().0 - all_ended];
            times.iter_mut().zip(parts).for_each(|(time, part)| *time += part);
        }
        times
    });
    executor.join_all(vec![task])[0].map(|ns: u64| ns as f64 / (BATCHES * SPAWNS) as f64)
}

/// The ns of a wake and of a spawn by this thread while the only worker runs a task that does not return.
pub(super) fn pushes<H: Executor>(executor: H) -> (f64, f64) {
    let (is_over, is_busy) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let flags: Arc<Vec<Flag>> = Arc::new((0..PUSHES).map(|_| Flag::default()).collect());
    let waiting = |n: usize| {
        let flags = flags.clone();
        executor.spawn_nth(0, async move { flags[n].wait().await })
    };
    let mut tasks: Vec<_> = (0..PUSHES as usize).map(waiting).collect();
    // Let all of them wait: a task spawned after them ends after their first polls, if the worker is the only one.
    std::thread::sleep(PAUSE * 3);
    let (over, busy) = (is_over.clone(), is_busy.clone());
    tasks.push(executor.spawn_nth(0, async move {
        busy.store(true, Relaxed);
        while !over.load(Relaxed) {
            std::hint::spin_loop();
        }
    }));
    while !is_busy.load(Relaxed) {
        std::hint::spin_loop();
    }
    let began = clock::now().0;
    flags.iter().for_each(Flag::set);
    let woken = clock::now().0;
    tasks.extend((0..PUSHES).map(|_| executor.spawn_nth(0, async {})));
    let spawned = clock::now().0;
    is_over.store(true, Relaxed);
    executor.join_all(tasks);
    ((woken - began) as f64 / PUSHES as f64, (spawned - woken) as f64 / PUSHES as f64)
}

/// Wakes a task of the only worker again and again, each time this long after its last poll. The calling thread spins
/// meanwhile, on a CPU that is not the worker's if there is one. Returns the ns of the call, and those from its beginning
/// to the poll: first deciles, since a waker whose CPU is needed by another thread is preempted in its call. Also returns
/// the mean CPU time of all threads but the calling one, for a wake, its poll and the sleep before.
pub(super) fn unparks<H: Executor>(executor: H, pause: Duration) -> [f64; 3] {
    let unparks = if pause < LONG_PAUSE { UNPARKS } else { LONG_UNPARKS };
    let (flag, polled_at) = (Arc::new(Flag::default()), Arc::new(AtomicU64::new(0)));
    let (waits, polled) = (flag.clone(), polled_at.clone());
    let task = executor.spawn_nth(0, async move {
        for _ in 0..unparks {
            waits.wait().await;
            // ORDERING: Release; pairs with the Acquire below: the waking thread reads the time that it was waiting for.
            polled.store(clock::now().0, Release);
        }
    });
    std::thread::sleep(PAUSE);
    let (mut calls, mut latencies) = (Vec::new(), Vec::new());
    let own = clock::ThreadCpu::current();
    let (cpu, own_cpu) = (clock::process_cpu().0, own.read().0);
    let mut last_poll = clock::now().0;
    for _ in 0..unparks {
        polled_at.store(0, Relaxed);
        let began = loop {
            let now = clock::now().0;
            if now >= last_poll + pause.as_nanos() as u64 {
                break now;
            }
            std::hint::spin_loop();
        };
        flag.set();
        calls.push(clock::now().0 - began);
        // ORDERING: Acquire; pairs with the Release of the task.
        while polled_at.load(Acquire) == 0 {
            std::hint::spin_loop();
        }
        last_poll = polled_at.load(Relaxed);
        latencies.push(last_poll.saturating_sub(began));
    }
    std::thread::sleep(PAUSE);
    let cycles = (clock::process_cpu().0 - cpu).saturating_sub(own.read().0 - own_cpu);
    executor.join_all(vec![task]);
    let [call, latency] = [calls, latencies].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 10] as f64
    });
    [call, latency, cycles as f64 / unparks as f64]
}
