//! Go: the same cases in Go's runtime, in a process beside that runs its slice when asked to.
//!
//! Model.   The program is built once, into a folder that goes away, and lives as long as this process,
//!          with all its goroutines waiting. A line asks for a slice, `run CASE WARM_NS MEASURE_NS`; a line
//!          answers with its numbers, as JSON. Where there is no `go`, its variant is left out, and a
//!          line says so.
//! Number.  Building takes about a second where Go's own packages are built already. A line and its answer
//!          are 50 µs, outside of what is timed.

use super::plan::Plan;
use crate::measure::INTERRUPTED;
use anyhow::Context;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock, PoisonError};

const PROGRAM: &str = include_str!("go/main.go");
const MODULE: &str = "module wake\n\ngo 1.22\n";

struct Go {
    asking: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Ends when `asking` is closed.
    _child: Child,
}

/// Whether Go can be asked. The first call builds the program.
pub fn is_there() -> bool {
    go().is_some()
}

fn go() -> Option<&'static Mutex<Go>> {
    static GO: OnceLock<Option<Mutex<Go>>> = OnceLock::new();
    let start = || match build() {
        Ok(go) => Some(Mutex::new(go)),
        Err(error) => {
            eprintln!("Go is left out: {error:#}");
            None
        }
    };
    GO.get_or_init(start).as_ref()
}

fn build() -> anyhow::Result<Go> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("main.go"), PROGRAM)?;
    std::fs::write(folder.path().join("go.mod"), MODULE)?;
    let mut build = Command::new("go");
    build.args(["build", "-o", "wake", "."]).current_dir(folder.path());
    // Nothing here is downloaded, neither packages nor another version of Go.
    build.env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("GOWORK", "off");
    let output = build.stdin(Stdio::null()).output().context("`go` can't be run; install it to compare")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`go build` failed: {}", said.trim());
    let mut child = Command::new(folder.path().join("wake"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("what `go` built can't be run")?;
    let (asking, answers) = (child.stdin.take(), child.stdout.take());
    let mut go = Go {
        asking: asking.context("it has a stdin")?,
        answers: BufReader::new(answers.context("it has a stdout")?),
        _child: child,
    };
    // It runs when it answers: then the folder may go.
    go.ask("hello")?;
    Ok(go)
}

impl Go {
    fn ask(&mut self, line: &str) -> anyhow::Result<Vec<f64>> {
        writeln!(self.asking, "{line}")?;
        self.asking.flush()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let numbers: Vec<Option<f64>> = serde_json::from_str(&answer)
            .with_context(|| format!("the Go program answered {answer:?} to {line:?}"))?;
        // `null`: nothing was counted.
        Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
    }
}

/// One slice of a case.
pub fn ask(case: &str, plan: Plan) -> anyhow::Result<Vec<f64>> {
    let go = go().context("Go is asked only where it is")?;
    let line = format!("run {case} {} {}", plan.warm.as_nanos(), plan.measure.as_nanos());
    let answer = go.lock().unwrap_or_else(PoisonError::into_inner).ask(&line);
    // It ignores SIGINT and SIGTERM and ends by its stdin. If it is gone all the same while a signal ends
    // this run, nothing was measured, and that is no error.
    if answer.is_err() && INTERRUPTED.load(Relaxed) {
        return Ok(vec![f64::NAN]);
    }
    answer
}
