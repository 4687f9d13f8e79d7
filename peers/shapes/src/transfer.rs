//! Shapes with timers and with streams of bytes.

use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

/// Tasks of a run of `timeouts`, and the timers of each.
pub const TIMING: usize = 50;
pub const TIMEOUTS: usize = 40;
/// Tasks of a run of `sleeps`, and how often each sleeps for a millisecond.
pub const SLEEPING: usize = 500;
pub const SLEEPS: usize = 4;
/// Blocks of 64 KiB that are copied in a run.
pub const BLOCKS: usize = 64;
const BLOCK: usize = 64 * 1024;

async fn join(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no task panics");
    }
}

/// Timers that are made and dropped before they fire, as around each request of a server.
pub async fn timeouts() {
    let tasks = (0..TIMING).map(|_| {
        tokio::spawn(async {
            for _ in 0..TIMEOUTS {
                timeout(Duration::from_secs(60), yield_now()).await.expect("a yield takes no minute");
            }
        })
    });
    join(tasks.collect()).await;
}

/// Timers that fire.
pub async fn sleeps() {
    let tasks = (0..SLEEPING).map(|_| {
        tokio::spawn(async {
            for _ in 0..SLEEPS {
                sleep(Duration::from_millis(1)).await;
            }
        })
    });
    join(tasks.collect()).await;
}

/// A task copies from memory into a stream, this one copies from the stream into nothing.
async fn copy(mut from: impl AsyncRead + Unpin + Send, mut to: impl AsyncWrite + Unpin + Send + 'static) {
    let sender = tokio::spawn(async move {
        let block = vec![7_u8; BLOCK];
        for _ in 0..BLOCKS {
            tokio::io::copy(&mut &block[..], &mut to).await.expect("the stream is open");
        }
        to.shutdown().await.expect("the stream is open");
    });
    let copied = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    assert_eq!(copied.expect("the stream is open"), (BLOCKS * BLOCK) as u64);
    sender.await.expect("no task panics");
}

/// Through a pipe in memory that holds a block.
pub async fn copy_in_memory() {
    let (to, from) = tokio::io::duplex(BLOCK);
    copy(from, to).await;
}

/// Through a connection of its own.
pub async fn copy_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port can be had");
    let address = listener.local_addr().expect("the listener is bound");
    let (to, from) = tokio::join!(TcpStream::connect(address), listener.accept());
    copy(from.expect("a connection comes").0, to.expect("the listener listens")).await;
}
