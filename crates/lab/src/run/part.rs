//! Part: what must run in a process of its own, because a process has one of it.
//!
//! Model.   The kernel's ids and the memory in use are the process's. A part is asked for as JSON on
//!          the command line of this same program and answers with JSON on its stdout.
//! Number.  Starting one takes about 10 ms, half of it to calibrate the clock.

use super::cid::{intermittent, memory};
use super::{budget, http, wake};
use crate::measure::INTERRUPTED;
use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;

/// The hidden command that runs a part.
pub const COMMAND: &str = "run-part";

/// What to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// One round of the intermittent program.
    Round(intermittent::Round),
    /// What tenants, or what one would have instead, take of memory.
    Memory(memory::Many),
    /// What accounts take of memory.
    Accounts(budget::memory::Many),
    /// What a runtime uses of the CPU while it has nothing to do.
    WakeIdle(wake::timers::Idle),
    /// What waiting tasks take of memory.
    WakeMemory(wake::memory::Waiting),
    /// Requests to servers, for as long as there are commands on stdin.
    HttpLoad,
}

/// Arguments of the hidden command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A part, as JSON
    part: String,
}

/// The hidden command: runs a part and prints its answer.
pub fn command(args: &Args) -> anyhow::Result<()> {
    let answer = match serde_json::from_str(&args.part)? {
        Part::Round(round) => serde_json::to_string(&round.run()?)?,
        Part::Memory(many) => serde_json::to_string(&many.bytes_each()?)?,
        Part::Accounts(many) => serde_json::to_string(&many.take()?)?,
        Part::WakeIdle(idle) => serde_json::to_string(&idle.watch())?,
        Part::WakeMemory(waiting) => serde_json::to_string(&waiting.bytes_each()?)?,
        Part::HttpLoad => return http::load::serve(),
    };
    println!("{answer}");
    Ok(())
}

/// Runs a part in a process of its own. `None` if it was interrupted.
pub fn ask<T: DeserializeOwned>(part: &Part) -> anyhow::Result<Option<T>> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg(COMMAND).arg(serde_json::to_string(part)?);
    let output = child.stdin(Stdio::null()).output()?;
    if INTERRUPTED.load(Relaxed) {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{part:?} in a process of its own: {text}");
    serde_json::from_slice(&output.stdout)
        .map(Some)
        .with_context(|| format!("{part:?} answered something else"))
}
