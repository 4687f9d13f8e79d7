//! Requests that fan out to tasks with 256 KiB of state each: `fan-out SECONDS`.
//!
//! Each of four clients asks the eight tasks of its own group at once and waits for their answers. To answer, a task reads
//! and writes all of its state. A task that is polled on another core than before finds none of it in that core's caches.
//!
//! A scheduler gets more requests if one client has a core to itself, whose tasks then stay in its second-level cache, and the others
//! share the rest: so the slowest client's are printed too.

use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

const CLIENTS: usize = 4;
const TASKS_PER_CLIENT: usize = 8;
const STATE_BYTES: usize = 256 << 10;

/// A number to add to each word of the state, and where the sum goes.
type Request = (u64, oneshot::Sender<u64>);

async fn keep_state(mut requests: mpsc::Receiver<Request>) {
    let mut state = vec![0_u64; STATE_BYTES / size_of::<u64>()];
    while let Some((number, answer)) = requests.recv().await {
        let mut sum = 0_u64;
        for word in &mut state {
            *word = word.wrapping_add(number);
            sum = sum.wrapping_add(*word);
        }
        // The client may have ended.
        let _ = answer.send(sum);
    }
}

/// Returns how many requests were answered.
async fn ask(until: Instant) -> anyhow::Result<u64> {
    let tasks: Vec<_> = (0..TASKS_PER_CLIENT)
        .map(|_| {
            let (sender, receiver) = mpsc::channel(1);
            tokio::spawn(keep_state(receiver));
            sender
        })
        .collect();
    let mut requests = 0;
    while Instant::now() < until {
        let mut answers = Vec::with_capacity(tasks.len());
        for task in &tasks {
            let (sender, receiver) = oneshot::channel();
            task.send((1, sender)).await?;
            answers.push(receiver);
        }
        requests += 1;
        for answer in answers {
            // Each word was raised by 1 for each request.
            anyhow::ensure!(
                answer.await? == requests * (STATE_BYTES / size_of::<u64>()) as u64,
                "a wrong sum"
            );
        }
    }
    Ok(requests)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, seconds] = &args[..] else { anyhow::bail!("fan-out SECONDS") };
    let time = Duration::from_secs(seconds.parse()?);
    let until = Instant::now() + time;
    let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(ask(until))).collect();
    let (mut requests, mut fewest) = (0, u64::MAX);
    for client in clients {
        let answered = client.await??;
        requests += answered;
        fewest = fewest.min(answered);
    }
    let per_second = |requests: u64| requests as f64 / time.as_secs_f64();
    println!("{} requests/s, {} of the slowest client", per_second(requests), per_second(fewest));
    Ok(())
}
