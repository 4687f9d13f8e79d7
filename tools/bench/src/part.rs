//! Parts: measurements that run in a process of their own; and child processes that answer each line of text.
//!
//! The kernel gives out concurrency ids and counts memory and CPU time per process, so a case that measures one of them
//! in isolation starts a child process. The child runs the same program: the parent passes the part as JSON on the
//! command line of a hidden command, and the child answers with JSON on stdout. Starting a child takes about 10 ms, half
//! of it to calibrate the clock.
//!
//! The measuring thread stores the child process of one part at a time in `UNDER_WAY`; the thread that waits for
//! signals kills that child.

use crate::measure::{INTERRUPTED, check_interrupted};
use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The name of the hidden command that runs a part.
pub const COMMAND: &str = "bench-part";

/// A measurement that runs in a separate process.
pub trait Part: Serialize + DeserializeOwned + Debug {
    /// The part's name on the command line.
    const NAME: &'static str;
    /// The result.
    type Answer: Serialize + DeserializeOwned;

    /// Runs the measurement in this process.
    fn answer(self) -> anyhow::Result<Self::Answer>;
}

/// The child process of the part that runs now; `None` between two parts.
static UNDER_WAY: Mutex<Option<Child>> = Mutex::new(None);

fn under_way() -> MutexGuard<'static, Option<Child>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the child process of the part that runs now, if there is one. Called after [`INTERRUPTED`] is set, by the
/// thread that waits for signals and, if the signal came before the child was stored, by the thread that started the
/// child.
pub fn give_up() {
    if let Some(child) = under_way().as_mut() {
        // Ignore an error: it means that the child has ended.
        let _ = child.kill();
    }
}

/// Runs the command and returns its output when it has ended, also if [`give_up`] killed it.
fn output(command: &mut Command) -> anyhow::Result<Output> {
    // Stderr goes to a file, not to a second pipe: a pipe would have to be read at the same time, and a grandchild
    // would hold it open.
    let mut complaints = tempfile::tempfile()?;
    let mut child = command.stdout(Stdio::piped()).stderr(complaints.try_clone()?).spawn()?;
    let said = child.stdout.take();
    *under_way() = Some(child);
    // A signal that arrived before the child was stored in `UNDER_WAY` did not kill it.
    if INTERRUPTED.load(Relaxed) {
        give_up();
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let read = said.context("it has a stdout").and_then(|mut said| Ok(said.read_to_end(&mut stdout)?));
    let mut child = under_way().take().context("only the thread that started a part takes its child")?;
    if read.is_err() {
        // The answer can't be read, so end the child.
        let _ = child.kill();
    }
    let status = child.wait()?;
    read?;
    complaints.rewind()?;
    complaints.read_to_end(&mut stderr)?;
    Ok(Output { status, stdout, stderr })
}

/// Runs a part in a separate process and returns its answer. Returns an error if the process fails or if a signal came.
pub fn ask<P: Part>(part: &P) -> anyhow::Result<P::Answer> {
    ask_with(part, Command::new(std::env::current_exe()?))
}

/// As [`ask`], of a process that starts with this environment.
pub fn ask_with<P: Part>(part: &P, mut child: Command) -> anyhow::Result<P::Answer> {
    child.arg(COMMAND).arg(serde_json::to_string(&BTreeMap::from([(P::NAME, part)]))?);
    let output = output(child.stdin(Stdio::null()))?;
    check_interrupted()?;
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{part:?} in a process of its own: {text}");
    serde_json::from_slice(&output.stdout).with_context(|| format!("{part:?} answered something else"))
}

/// A child process that answers each line on its stdin with a line on its stdout, and ends when its stdin is closed.
pub struct LineChild {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl LineChild {
    /// Starts the process.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(child.stdout.take().context("it has a stdout")?);
        Ok(Self { child, answers })
    }

    /// Sends a line and returns the answer; an empty one if the process ends without an answer. Returns an error if the
    /// line can't be sent, as to a process that has ended.
    pub fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        let mut asking = self.child.stdin.as_ref().context("it has a stdin")?;
        writeln!(asking, "{line}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for LineChild {
    fn drop(&mut self) {
        // `wait` first closes the child's stdin, which ends the child.
        let _ = self.child.wait();
    }
}

/// Returns the resident memory of this process, in bytes.
///
/// Source: proc(5), `/proc/pid/smaps_rollup`.
pub fn resident_process_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").context("can't tell the memory in use")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("/proc/self/smaps_rollup names no Rss")? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_complains_more_than_a_pipe_holds_still_answers() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero >&2; echo 7; exit 3"]).stdin(Stdio::null());
        let output = output(&mut command).unwrap();
        assert_eq!((output.stdout.as_slice(), output.stderr.len()), (&b"7\n"[..], 300_000));
        assert_eq!(output.status.code(), Some(3));
        assert!(under_way().is_none(), "it was not waited for");
    }
}
