//! Child: the recorded command, and the signals that it gets.
//!
//! A terminal sends the signal of Ctrl-C to every process in its foreground, so the command has it already. A signal that a
//! process sent to this one, as `kill` and service managers do, is passed on. One thread waits for both the signals and
//! the end of the command (SIGCHLD), so no signal reaches a process that has been waited for.

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

/// The signals that are passed on.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// A command that runs.
pub struct Running {
    child: Child,
    signals: SignalsInfo<WithOrigin>,
}

impl Running {
    /// Starts the command. From now on the signals above do not end this process.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let all = PASSED_ON.iter().chain([&SIGCHLD]);
        let signals = SignalsInfo::<WithOrigin>::new(all).context("can't wait for signals")?;
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("can't run {}", program.display()))?;
        Ok(Self { child, signals })
    }

    /// Waits until the command ends, and returns its status as a shell does.
    pub fn wait(&mut self) -> anyhow::Result<i32> {
        let pid = Pid::from_child(&self.child);
        loop {
            if let Some(status) = self.child.try_wait().context("can't wait for the command")? {
                return Ok(as_of_shell(status));
            }
            for origin in self.signals.wait() {
                let is_sent = origin.process.is_some() && PASSED_ON.contains(&origin.signal);
                let Some(signal) = Signal::from_named_raw(origin.signal).filter(|_| is_sent) else {
                    continue;
                };
                // The command has not been waited for since `try_wait`, so the number is still its own.
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Whether a signal came that asks this process to end.
    pub fn is_interrupted(&mut self) -> bool {
        self.signals.pending().any(|origin| [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&origin.signal))
    }
}

/// The exit status, or 128 and the number of the signal that ended the process.
fn as_of_shell(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
