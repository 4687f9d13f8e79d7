//! Pairs of a client and a server.

use super::clock::Around;
use super::mailbox::{MESSAGE, mailbox};
use super::process::Process;
use super::{Done, join};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// What lies between a client and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// A pair of Unix stream sockets. The kernel wakes the sleeping peer once more when a message's memory is freed.
    Sockets,
    /// Two pipes.
    Pipes,
    /// Two mailboxes in shared memory, with futexes. Their wakes are not synchronous: the kernel does not say that the waker sleeps soon.
    Futexes,
}

/// Pairs of a client and a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairs {
    /// What lies between them.
    pub over: Over,
    /// How many.
    pub pairs: u64,
    /// Requests of each client.
    pub rounds: u64,
    /// How long the client runs before it asks.
    pub client_us: u64,
    /// How long the server runs before it answers.
    pub server_us: u64,
    /// How long the client sleeps after an answer.
    pub sleep_us: u64,
    /// Tasks beside the pairs, which a timer wakes again and again.
    #[serde(default)]
    pub timers: u64,
    /// How long such a task sleeps.
    #[serde(default)]
    pub timer_sleep_us: u64,
    /// How long it runs then.
    #[serde(default)]
    pub timer_run_us: u64,
}

/// Both directions of a connection, of which a task has one end each.
type End = (Box<dyn Read + Send>, Box<dyn Write + Send>);

impl Over {
    /// The ends of the client and of the server.
    pub fn connect(self) -> anyhow::Result<(End, End)> {
        Ok(match self {
            Self::Sockets => {
                let (client, server) = UnixStream::pair().context("no socket")?;
                let end = |socket: UnixStream| -> anyhow::Result<End> {
                    Ok((Box::new(socket.try_clone()?), Box::new(socket)))
                };
                (end(client)?, end(server)?)
            }
            Self::Pipes => {
                let (asked, ask) = std::io::pipe().context("no pipe")?;
                let (answered, answer) = std::io::pipe().context("no pipe")?;
                ((Box::new(answered), Box::new(ask)), (Box::new(asked), Box::new(answer)))
            }
            Self::Futexes => {
                let ((asked, ask), (answered, answer)) = (mailbox()?, mailbox()?);
                ((Box::new(answered), Box::new(ask)), (Box::new(asked), Box::new(answer)))
            }
        })
    }
}

impl Pairs {
    /// Until all clients have done their rounds.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        let timers = (0..self.timers).map(|timer| {
            let mut around = Around::of(seed, 1_000_000 + timer);
            Process::spawn(&format!("timer{timer}"), || {
                loop {
                    around.sleep(self.timer_sleep_us);
                    around.run(self.timer_run_us);
                }
            })
        });
        let timers = timers.collect::<anyhow::Result<Vec<_>>>()?;
        let mut tasks = Vec::new();
        for pair in 0..self.pairs {
            let (client, server) = self.over.connect()?;
            tasks.push(self.server(pair, seed, server)?);
            tasks.push(self.client(pair, seed, client)?);
        }
        let done = join(tasks);
        timers.into_iter().try_for_each(Process::kill)?;
        Ok(Done { done: done?, of: self.pairs * self.rounds, ..Done::default() })
    }

    fn server(&self, pair: u64, seed: u64, (mut asked, mut answer): End) -> anyhow::Result<Process> {
        let (rounds, run_us, mut around) = (self.rounds, self.server_us, Around::of(seed, 2 * pair));
        Process::spawn(&format!("pair-server{pair}"), move || {
            let mut message = [0; MESSAGE];
            for _ in 0..rounds {
                asked.read_exact(&mut message).context("the client has ended")?;
                around.run(run_us);
                answer.write_all(&message).context("the client has ended")?;
            }
            Ok(0)
        })
    }

    fn client(&self, pair: u64, seed: u64, (mut answered, mut ask): End) -> anyhow::Result<Process> {
        let Self { rounds, client_us, sleep_us, .. } = *self;
        let mut around = Around::of(seed, 2 * pair + 1);
        Process::spawn(&format!("pair-client{pair}"), move || {
            let mut message = [0; MESSAGE];
            around.sleep(client_us + sleep_us);
            for _ in 0..rounds {
                around.run(client_us);
                ask.write_all(&message).context("the server has ended")?;
                answered.read_exact(&mut message).context("the server has ended")?;
                around.sleep(sleep_us);
            }
            Ok(rounds)
        })
    }
}
