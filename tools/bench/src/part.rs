//! Part: what must run in a process of its own, because a process has one of it.
//!
//! Model.   The kernel's ids and the memory in use are the process's. A part is asked for as JSON on
//!          the command line of this same program and answers with JSON on its stdout.
//! Number.  Starting one takes about 10 ms, half of it to calibrate the clock.
//! Writers. `UNDER_WAY`: who asks, one at a time. A signal's thread ends what is in it.

use crate::measure::INTERRUPTED;
use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{Read, Seek};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The hidden command that runs a part.
pub const COMMAND: &str = "bench-part";

/// What is run in a process of its own.
pub trait Part: Serialize + DeserializeOwned + Debug {
    /// Its name on the command line.
    const NAME: &'static str;
    /// What comes back.
    type Answer: Serialize + DeserializeOwned;

    /// Runs it in this process.
    fn answer(self) -> anyhow::Result<Self::Answer>;
}

/// The process of the part that is under way.
static UNDER_WAY: Mutex<Option<Child>> = Mutex::new(None);

fn under_way() -> MutexGuard<'static, Option<Child>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the part that is under way, which has nothing to keep. To be called when [`INTERRUPTED`] is set.
pub fn give_up() {
    if let Some(child) = under_way().as_mut() {
        // One that has ended already answers as it would have.
        let _ = child.kill();
    }
}

/// What a part says, until it ends or is given up.
fn output(command: &mut Command) -> anyhow::Result<Output> {
    // To a file: a second pipe would have to be read meanwhile, and be held open by what the part started.
    let mut complaints = tempfile::tempfile()?;
    let mut child = command.stdout(Stdio::piped()).stderr(complaints.try_clone()?).spawn()?;
    let said = child.stdout.take();
    *under_way() = Some(child);
    // A signal that came before found no part to end.
    if INTERRUPTED.load(Relaxed) {
        give_up();
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let read = said.context("it has a stdout").and_then(|mut said| Ok(said.read_to_end(&mut stdout)?));
    let mut child = under_way().take().context("who asks for a part waits for it")?;
    if read.is_err() {
        // Nobody hears it any more.
        let _ = child.kill();
    }
    let status = child.wait()?;
    read?;
    complaints.rewind()?;
    complaints.read_to_end(&mut stderr)?;
    Ok(Output { status, stdout, stderr })
}

/// Runs a part in a process of its own. `None` if it was interrupted.
pub fn ask<P: Part>(part: &P) -> anyhow::Result<Option<P::Answer>> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg(COMMAND).arg(serde_json::to_string(&BTreeMap::from([(P::NAME, part)]))?);
    let output = output(child.stdin(Stdio::null()))?;
    if INTERRUPTED.load(Relaxed) {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{part:?} in a process of its own: {text}");
    serde_json::from_slice(&output.stdout)
        .map(Some)
        .with_context(|| format!("{part:?} answered something else"))
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
