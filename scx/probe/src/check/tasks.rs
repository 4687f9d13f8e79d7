//! The tasks of a scenario: forked processes that do one thing when released, and the system calls that they use.
//!
//! A task is prepared before the probe counts: it sets its name and its CPUs, and sleeps in `read` until
//! [`Task::release`]. So a released task adds exactly one wake, and all else is what its body does.

use anyhow::{Context, Result, ensure};
use std::io::{Error, PipeWriter, Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use warmcore_types::CpuSet;

/// A prepared task, a child of this process.
pub struct Task {
    pid: libc::pid_t,
    gate: PipeWriter,
}

impl Task {
    /// Forks a task of this name. It runs `prepare`, sleeps, and runs `body` when it is released.
    pub fn fork(name: &str, prepare: impl FnOnce(), body: impl FnOnce()) -> Result<Self> {
        let (mut gate_out, gate) = pipe()?;
        let (mut ready_out, mut ready) = pipe()?;
        let pid = fork(|| {
            set_name(name);
            prepare();
            ready.write_all(&[1]).expect("the checker reads this pipe");
            gate_out.read_exact(&mut [0]).expect("the checker writes this pipe");
            body();
        })?;
        drop(ready);
        ready_out.read_exact(&mut [0]).with_context(|| format!("task {name:?} ended before it was ready"))?;
        Ok(Self { pid, gate })
    }

    /// Wakes the task.
    pub fn release(&mut self) -> Result<()> {
        Ok(self.gate.write_all(&[1])?)
    }

    /// Waits for the task's end.
    pub fn join(self) -> Result<()> {
        let status = wait(self.pid)?;
        ensure!(status == 0, "a task ended with wait status {status}, expected 0: see its message above");
        Ok(())
    }

    /// Ends a task that never sleeps. The signal does not wake it, as it runs.
    pub fn kill(self) -> Result<()> {
        // SAFETY: `kill` accesses no memory, and `pid` is a child that was not waited for yet.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        wait(self.pid).map(drop)
    }
}

/// Forks a child that runs `body` and exits. Only for a process with one thread.
pub fn fork(body: impl FnOnce()) -> Result<libc::pid_t> {
    // SAFETY: this process has one thread, so the child may do what the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(Error::last_os_error()).context("a task cannot be forked"),
        0 => {
            let status = catch_unwind(AssertUnwindSafe(body)).map_or(101, |()| 0);
            // SAFETY: always sound. The parent's destructors and buffers are the parent's to run and to write.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(pid),
    }
}

/// Waits for the end of a child and returns its wait status.
pub fn wait(pid: libc::pid_t) -> Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    let ended = unsafe { libc::waitpid(pid, &mut status, 0) };
    ensure!(ended == pid, "waitpid({pid}): {}", Error::last_os_error());
    Ok(status)
}

/// Sets the calling task's name; at most 15 bytes.
pub fn set_name(name: &str) {
    let mut bytes = [0_u8; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the kernel reads the 16 bytes, which end in a 0.
    let result = unsafe { libc::prctl(libc::PR_SET_NAME, bytes.as_ptr()) };
    assert_eq!(result, 0, "prctl(PR_SET_NAME): {}", Error::last_os_error());
}

/// Allows the calling task these CPUs only. If its CPU is not among them, it moves before this returns.
pub fn allow(cpus: &CpuSet) {
    let words = cpus.words();
    // SAFETY: the kernel reads `words.len()` words.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(words), words.as_ptr().cast()) };
    assert_eq!(result, 0, "sched_setaffinity({cpus}): {}", Error::last_os_error());
}

/// Makes the calling task a real-time task, which runs before all tasks of the fair scheduler and of sched_ext.
pub fn be_real_time() {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads `param`.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) };
    assert_eq!(result, 0, "sched_setscheduler(SCHED_FIFO): {}; run as root", Error::last_os_error());
}

/// Sleeps `times` times, with a little work between. Each time is one sleep and one wake of the calling task.
pub fn sleep_repeatedly(times: u64, length: Duration) {
    for _ in 0..times {
        let length = libc::timespec { tv_sec: 0, tv_nsec: length.subsec_nanos().into() };
        // SAFETY: the kernel reads `length`; the null pointer says that the rest is not wanted. Not `thread::sleep`: it
        // would sleep again after a signal.
        unsafe { libc::nanosleep(&length, std::ptr::null_mut()) };
        spin(Duration::from_micros(20));
    }
}

/// Computes for this time on the clock on the wall, without sleeping.
pub fn spin(length: Duration) {
    let end = Instant::now() + length;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Computes for ever, without system calls.
pub fn spin_forever() {
    loop {
        std::hint::spin_loop();
    }
}
