//! The client process, as the measuring process uses it.
//!
//! The client process runs the same program and is started once for all cases; between two commands it has no
//! outstanding request. It ends when its stdin is closed, which happens when this process ends. A command and its
//! answer take 50 µs, which is not part of a timed slice.

use super::load::{LoadCommand, PART, Seen};
use crate::part::COMMAND;
use anyhow::Context;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The client process.
pub struct Client {
    asking: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    child: Child,
    opened: usize,
}

impl Client {
    /// Starts the process.
    pub fn start() -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).arg(serde_json::json!({ PART: null }).to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("can't start the client")?;
        let answers = BufReader::new(child.stdout.take().context("it has a stdout")?);
        Ok(Self { asking: child.stdin.take(), answers, child, opened: 0 })
    }

    /// Connects to a server. Returns the number by which later commands name it.
    pub fn open(&mut self, open: LoadCommand) -> anyhow::Result<usize> {
        self.ask(&open)?;
        self.opened += 1;
        Ok(self.opened - 1)
    }

    /// Sends a command and waits for its answer.
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
        // Close the client's stdin, which ends the process.
        self.asking = None;
        let _ = self.child.wait();
    }
}
