//! Client: the process that sends the requests, as the measuring process sees it.
//!
//! Model.   This same program, run once for all cases, with nothing under way between two commands. It ends when
//!          its stdin is closed, which is when this process ends.
//! Number.  A command and its answer are 50 µs, outside of what is timed.

use super::load::{LoadCommand, PART, Seen};
use crate::part::COMMAND;
use anyhow::Context;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The client.
pub struct Client {
    asking: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    child: Child,
    opened: usize,
}

impl Client {
    /// Starts it.
    pub fn start() -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).arg(serde_json::json!({ PART: null }).to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("can't start the client")?;
        let answers = BufReader::new(child.stdout.take().context("it has a stdout")?);
        Ok(Self { asking: child.stdin.take(), answers, child, opened: 0 })
    }

    /// Connects to a server. Says the number by which to ask it.
    pub fn open(&mut self, open: LoadCommand) -> anyhow::Result<usize> {
        self.ask(&open)?;
        self.opened += 1;
        Ok(self.opened - 1)
    }

    /// Has it do something.
    pub fn ask(&mut self, say: &LoadCommand) -> anyhow::Result<Seen> {
        let asking = self.asking.as_mut().context("the client has ended")?;
        writeln!(asking, "{}", serde_json::to_string(say)?)?;
        asking.flush()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        anyhow::ensure!(!answer.is_empty(), "the client ended; it says why above");
        serde_json::from_str(&answer).with_context(|| format!("the client answered {answer:?} to {say:?}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Its stdin is closed, whereupon it ends.
        self.asking = None;
        let _ = self.child.wait();
    }
}
