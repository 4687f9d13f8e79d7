//! `scx_probe [--json FILE] [--group NAME=PREFIX]… -- COMMAND [ARGS…]`: runs a command and writes one line of JSON
//! with counts of what the scheduler did meanwhile with all user tasks of the machine.
//!
//! The line goes to standard output after the command's own output, or to FILE. The exit status is the command's, or 1
//! if the probe cannot be loaded or written. SIGTERM is passed on to the command; SIGINT is ignored, as the terminal
//! sends it to the command, too.

use anyhow::{Context, Result};
use clap::Parser;
use scx_probe::{Group, Outcome, Probe, Storage};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Instant;
use warmcore_topo::Topology;

/// Runs a command and counts what the scheduler does meanwhile with all user tasks of the machine
#[derive(Parser)]
#[command(name = "scx_probe", version)]
struct Args {
    /// Write the line of JSON to FILE, not to standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Count the wakes of tasks whose name starts with PREFIX also by themselves, as NAME; at most 4 times. The first
    /// group that matches counts a task
    #[arg(long = "group", value_name = "NAME=PREFIX")]
    groups: Vec<Group>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        // A status is 0 to 255, see `status_of`.
        Ok(status) => ExitCode::from(status as u8),
        Err(error) => {
            eprintln!("scx_probe: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command under the probe, writes the report, and returns the command's status.
fn run(args: &Args) -> Result<i32> {
    // Before the command runs, so that a long run is not lost to a wrong path.
    let mut output: Box<dyn Write> = match &args.json {
        Some(file) => {
            Box::new(File::create(file).with_context(|| format!("{} cannot be written", file.display()))?)
        }
        None => Box::new(std::io::stdout()),
    };
    let topology = Topology::this_machine().context("the CPUs of this machine cannot be read")?;
    let mut storage = Storage::uninit();
    let mut probe = Probe::load(&mut storage, &topology, &args.groups)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("signals cannot be handled")?;

    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    probe.start()?;
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| {
        format!("{:?} does not start: the path of a program is expected after `--`", args.command[0])
    })?;
    let pid = child.id() as libc::pid_t;
    std::thread::spawn(move || {
        for signal in signals.forever().filter(|signal| *signal == SIGTERM) {
            // SAFETY: `kill` accesses no memory. The process ends right after the child was reaped, so that `pid` is
            // not another process's.
            unsafe { libc::kill(pid, signal) };
        }
    });
    let ended = child.wait().context("the command's end cannot be awaited")?;
    let elapsed_ns = started.elapsed().as_nanos() as u64;
    let counted = probe.stop()?;

    let outcome = Outcome { status: status_of(ended), elapsed_ns };
    let mut line = serde_json::to_string(&counted.report(outcome)).context("the report is no JSON")?;
    line.push('\n');
    output.write_all(line.as_bytes()).context("the report cannot be written")?;
    Ok(outcome.status)
}

/// Returns the exit code, or 128 + the signal's number, as shells do.
fn status_of(ended: ExitStatus) -> i32 {
    ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_status_above_128() {
        assert_eq!(status_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(status_of(ExitStatus::from_raw(libc::SIGKILL)), 137);
    }

    #[test]
    fn the_command_keeps_its_own_options() {
        let args = Args::try_parse_from(["scx_probe", "--group", "a=b", "--", "ls", "--json", "x"]).unwrap();
        assert_eq!((args.command.len(), args.json, args.groups.len()), (3, None, 1));
        assert!(Args::try_parse_from(["scx_probe"]).is_err());
    }
}
