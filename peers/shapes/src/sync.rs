//! Shapes in which tasks meet at channels and locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::{Notify, RwLock, Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, yield_now};

/// Senders of a run of `mpsc`, and the messages of each.
pub const SENDERS: usize = 5;
pub const MESSAGES: usize = 1000;
/// The messages that the channel holds.
const CAPACITY: usize = 64;
/// Requests of a run of `oneshot`.
pub const REQUESTS: usize = 1000;
/// Notifications of a run of `notify_one`.
pub const NOTIFIED: usize = 1000;
/// Tasks of a run of `notify_waiters`, and how often each waits.
pub const WAITERS: usize = 50;
pub const WAITS: usize = 50;
/// Tasks of a run of `rwlock` and of `semaphore`, and how often each acquires.
pub const CONTENDERS: usize = 6;
pub const ACQUIRED: usize = 500;
/// One of so many acquisitions of the lock is for writing.
const WRITE_EVERY: usize = 10;
/// The permits for which the tasks of `semaphore` contend.
const PERMITS: usize = 2;

async fn join(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no task panics");
    }
}

/// Several tasks send to one, through a channel that is full at times.
pub async fn mpsc() {
    let (sender, mut receiver) = mpsc::channel(CAPACITY);
    let senders = (0..SENDERS).map(|_| {
        let sender = sender.clone();
        tokio::spawn(async move {
            for message in 0..MESSAGES {
                sender.send(message).await.expect("the receiver lives");
            }
        })
    });
    let senders = senders.collect();
    drop(sender);
    let received = tokio::spawn(async move {
        let (mut count, mut sum) = (0, 0);
        while let Some(message) = receiver.recv().await {
            (count, sum) = (count + 1, sum + message);
        }
        (count, sum)
    });
    join(senders).await;
    let expected = (SENDERS * MESSAGES, SENDERS * MESSAGES * (MESSAGES - 1) / 2);
    assert_eq!(received.await.expect("no task panics"), expected);
}

/// A task asks another one, and each answer comes through a channel of its own.
pub async fn oneshot() {
    let (ask, mut asked) = mpsc::channel::<(usize, oneshot::Sender<usize>)>(1);
    let server = tokio::spawn(async move {
        while let Some((question, answer)) = asked.recv().await {
            answer.send(question + 1).expect("the client waits");
        }
    });
    for question in 0..REQUESTS {
        let (answer, answered) = oneshot::channel();
        ask.send((question, answer)).await.expect("the server lives");
        assert_eq!(answered.await, Ok(question + 1));
    }
    drop(ask);
    server.await.expect("the server does not panic");
}

/// Two tasks that wake each other in turn.
pub async fn notify_one() {
    let [there, back] = [(); 2].map(|()| Arc::new(Notify::new()));
    let other = {
        let (there, back) = (there.clone(), back.clone());
        tokio::spawn(async move {
            for _ in 0..NOTIFIED / 2 {
                there.notified().await;
                back.notify_one();
            }
        })
    };
    for _ in 0..NOTIFIED / 2 {
        there.notify_one();
        back.notified().await;
    }
    other.await.expect("the task does not panic");
}

/// One task that wakes all waiting ones, until each has waited often enough.
pub async fn notify_waiters() {
    let (notify, ended) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let waiters = (0..WAITERS).map(|_| {
        let (notify, ended) = (notify.clone(), ended.clone());
        tokio::spawn(async move {
            for _ in 0..WAITS {
                notify.notified().await;
            }
            ended.fetch_add(1, Relaxed);
        })
    });
    let waiters = waiters.collect();
    while ended.load(Relaxed) < WAITERS {
        notify.notify_waiters();
        yield_now().await;
    }
    join(waiters).await;
}

/// Tasks that mostly read what is behind a lock and at times write, and yield in between.
pub async fn rwlock() {
    let lock = Arc::new(RwLock::new(0));
    let tasks = (0..CONTENDERS).map(|_| {
        let lock = lock.clone();
        tokio::spawn(async move {
            for i in 0..ACQUIRED {
                if i % WRITE_EVERY == 0 {
                    let mut value = lock.write().await;
                    yield_now().await;
                    *value += 1;
                } else {
                    let value = lock.read().await;
                    yield_now().await;
                    assert!(*value <= CONTENDERS * ACQUIRED);
                }
            }
        })
    });
    join(tasks.collect()).await;
    assert_eq!(*lock.read().await, CONTENDERS * ACQUIRED / WRITE_EVERY);
}

/// More tasks than permits.
pub async fn semaphore() {
    let semaphore = Arc::new(Semaphore::new(PERMITS));
    let tasks = (0..CONTENDERS).map(|_| {
        let semaphore = semaphore.clone();
        tokio::spawn(async move {
            for _ in 0..ACQUIRED {
                let _permit = semaphore.acquire().await.expect("the semaphore is open");
                yield_now().await;
            }
        })
    });
    join(tasks.collect()).await;
    assert_eq!(semaphore.available_permits(), PERMITS);
}
