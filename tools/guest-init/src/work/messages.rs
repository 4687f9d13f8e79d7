//! Threads that hand messages to many workers, as schbench does: the wake-up delays that the workers see.

use super::Done;
use super::clock::{Around, now_ns};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Message threads, each of which has workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Messages {
    /// Message threads.
    pub threads: u64,
    /// Workers of each.
    pub workers: u64,
    /// How often a message thread wakes all of its workers.
    pub rounds: u64,
    /// How long a worker runs for a message.
    pub run_us: u64,
    /// How long a message thread sleeps after all answers.
    pub sleep_us: u64,
}

impl Messages {
    /// Until all messages have been answered.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        let delays = Arc::new(Mutex::new(Vec::<u64>::new()));
        let mut tasks = Vec::new();
        for thread in 0..self.threads {
            let Self { workers, rounds, sleep_us, .. } = *self;
            let (answer, answered) = sync_channel(workers as usize);
            let mut senders: Vec<Sender<u64>> = Vec::new();
            for worker in 0..workers {
                let (sender, messages) = channel();
                senders.push(sender);
                let (answer, delays, run_us) = (answer.clone(), Arc::clone(&delays), self.run_us);
                let mut around = Around::of(seed, (thread * workers + worker) * 2 + 1);
                tasks.push(spawn(&format!("worker{thread}-{worker}"), move || {
                    let mut seen = Vec::new();
                    while let Ok(sent_ns) = messages.recv() {
                        seen.push(now_ns() - sent_ns);
                        around.run(run_us);
                        answer.send(()).context("the message thread has ended")?;
                    }
                    delays.lock().unwrap_or_else(PoisonError::into_inner).extend(&seen);
                    Ok(seen.len() as u64)
                })?);
            }
            let mut around = Around::of(seed, thread * 2);
            tasks.push(spawn(&format!("message{thread}"), move || {
                for _ in 0..rounds {
                    senders
                        .iter()
                        .try_for_each(|worker| worker.send(now_ns()))
                        .context("a worker has ended")?;
                    (0..senders.len()).try_for_each(|_| answered.recv()).context("the workers have ended")?;
                    around.sleep(sleep_us);
                }
                Ok(0)
            })?);
        }
        let mut done = 0;
        for task in tasks {
            done += task.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        let mut delays = std::mem::take(&mut *delays.lock().unwrap_or_else(PoisonError::into_inner));
        delays.sort_unstable();
        let at = |per_mille: usize| delays.get(delays.len().saturating_sub(1) * per_mille / 1000);
        let delay_us = at(500).zip(at(990)).map(|(p50, p99)| (p50 / 1000, p99 / 1000));
        Ok(Done { done, of: self.threads * self.workers * self.rounds, delay_us, ..Done::default() })
    }
}

fn spawn(
    name: &str,
    body: impl FnOnce() -> anyhow::Result<u64> + Send + 'static,
) -> anyhow::Result<JoinHandle<anyhow::Result<u64>>> {
    let thread = Builder::new().name(name.to_owned()).stack_size(64 << 10).spawn(body);
    thread.context("can't start a thread")
}
