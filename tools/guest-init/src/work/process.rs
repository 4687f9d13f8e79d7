//! A task of a workload: a process of its own.
//!
//! Not a thread: from Linux 7.0 on the kernel's own scheduler moves the threads of one process to one last-level cache, and a server and
//! its client are two programs. [`messages`](super::messages) has threads.

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{PipeReader, Read, Write};

/// A process of the workload, named for the probe.
pub struct Process {
    pid: Pid,
    /// What the process says at its end.
    result: PipeReader,
}

impl Process {
    /// Starts a process that returns how much it did. The kernel keeps 15 bytes of the name.
    ///
    /// # Errors
    /// There can't be one more process, or this one has further threads.
    pub fn spawn(name: &str, body: impl FnOnce() -> anyhow::Result<u64>) -> anyhow::Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task").context("no /proc")?.count();
        ensure!(threads == 1, "a process of {threads} threads can't be copied");
        let (result, mut end) = std::io::pipe().context("no pipe")?;
        // SAFETY: this process has one thread, so no lock is held by another one that the child would not have.
        let pid = unsafe { libc::fork() };
        if pid != 0 {
            let pid = Pid::from_raw(pid).filter(|_| pid > 0).context("can't start a process")?;
            return Ok(Self { pid, result });
        }
        let name = std::ffi::CString::new(name).unwrap_or_default();
        let done = rustix::thread::set_name(&name).map_err(anyhow::Error::from).and_then(|()| body());
        let status = match done.and_then(|done| Ok(end.write_all(&done.to_le_bytes())?)) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("init: {}: {error:#}", name.to_string_lossy());
                1
            }
        };
        std::process::exit(status)
    }

    /// Waits for its end; what it did.
    pub fn join(mut self) -> anyhow::Result<u64> {
        let mut done = [0; 8];
        let said = self.result.read_exact(&mut done);
        let (_, status) = waitpid(Some(self.pid), WaitOptions::empty())?.context("a process is gone")?;
        if said.is_err() || status.exit_status() != Some(0) {
            bail!("a task ended early: {status:?}");
        }
        Ok(u64::from_le_bytes(done))
    }

    /// Ends it.
    pub fn kill(self) -> anyhow::Result<()> {
        kill_process(self.pid, Signal::KILL)?;
        waitpid(Some(self.pid), WaitOptions::empty())?;
        Ok(())
    }
}
