//! Shapes that are only tasks: spawning, yielding, and tasks that answer each other.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use tokio::sync::oneshot;

/// Tasks of a run of `spawn_many` and `remote_spawn`.
pub const SPAWNED: usize = 1000;
/// Tasks of a run of `yield_many`.
pub const YIELDING: usize = 200;
/// How often each of them yields.
pub const YIELDS: usize = 50;
/// Pairs of tasks of a run of `ping_pong`.
pub const PINGS: usize = 500;
/// Tasks of a run of `chained_spawn`.
pub const CHAINED: usize = 1000;

/// Counts down to 0, and then tells the run.
struct Countdown {
    left: AtomicUsize,
    end: std::sync::Mutex<Option<oneshot::Sender<()>>>,
}

impl Countdown {
    fn new(count: usize) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        let end = std::sync::Mutex::new(Some(sender));
        (Arc::new(Self { left: AtomicUsize::new(count), end }), receiver)
    }

    fn one_less(&self) {
        if self.left.fetch_sub(1, Relaxed) == 1 {
            let sender = self.end.lock().expect("no lock is poisoned").take();
            sender.expect("the count reaches 0 once").send(()).expect("the run waits");
        }
    }
}

/// Spawns tasks that do nothing but count, and waits for the last one.
pub async fn spawn_many() {
    let (countdown, end) = Countdown::new(SPAWNED);
    for _ in 0..SPAWNED {
        let countdown = countdown.clone();
        tokio::spawn(async move { countdown.one_less() });
    }
    end.await.expect("every task counts");
}

/// As [`spawn_many`], while a task keeps one worker busy without yielding.
pub async fn spawn_beside_a_busy_worker() {
    let (is_over, is_busy) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let spinning = {
        let (is_over, is_busy) = (is_over.clone(), is_busy.clone());
        tokio::spawn(async move {
            is_busy.store(true, Relaxed);
            while !is_over.load(Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    while !is_busy.load(Relaxed) {
        std::thread::yield_now();
    }
    spawn_many().await;
    is_over.store(true, Relaxed);
    spinning.await.expect("the task does not panic");
}

/// Many tasks that yield in turns.
pub async fn yield_many() {
    let (countdown, end) = Countdown::new(YIELDING);
    for _ in 0..YIELDING {
        let countdown = countdown.clone();
        tokio::spawn(async move {
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
            countdown.one_less();
        });
    }
    end.await.expect("every task counts");
}

/// Pairs of new tasks that exchange one message each way.
pub async fn ping_pong() {
    let (countdown, end) = Countdown::new(PINGS);
    for _ in 0..PINGS {
        let countdown = countdown.clone();
        tokio::spawn(async move {
            let (ping, pinged) = oneshot::channel();
            let (pong, ponged) = oneshot::channel();
            tokio::spawn(async move {
                pinged.await.expect("the first task sends");
                pong.send(()).expect("the first task waits");
            });
            ping.send(()).expect("the second task waits");
            ponged.await.expect("the second task sends");
            countdown.one_less();
        });
    }
    end.await.expect("every pair counts");
}

/// A task that spawns the next one before it ends, many times.
pub async fn chained_spawn() {
    fn link(left: usize, end: oneshot::Sender<()>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if left == 0 {
                end.send(()).expect("the run waits");
            } else {
                tokio::spawn(link(left - 1, end));
            }
        })
    }
    let (sender, end) = oneshot::channel();
    tokio::spawn(link(CHAINED - 1, sender));
    end.await.expect("the last task sends");
}
