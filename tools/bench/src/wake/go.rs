//! Runs the cases in Go's runtime, in a child process that runs a slice on request.
//!
//! The program is built at most once per process, in a temporary folder, and runs as long as this process; between
//! slices all its goroutines wait. A line on its stdin requests a slice, `run CASE WARM_NS MEASURE_NS`, where `CASE`
//! includes the case's arguments; a line on its stdout answers with the numbers, as JSON. If the program can't be built
//! and started, the variant with Go is left out and a message says so.
//!
//! Building takes about a second if Go's standard packages are built already. A line and its answer take 50 µs, which
//! is not part of a timed slice.

use crate::measure::INTERRUPTED;
use crate::part::LineChild;
use crate::race::Plan;
use anyhow::Context;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock, PoisonError};

const PROGRAM: &str = include_str!("go/main.go");
const MODULE: &str = "module wake\n\ngo 1.22\n";

/// Whether Go can be run here. The first call builds and starts the program.
pub fn is_there() -> bool {
    go().is_some()
}

fn go() -> Option<&'static Mutex<LineChild>> {
    static GO: OnceLock<Option<Mutex<LineChild>>> = OnceLock::new();
    let start = || match build() {
        Ok(go) => Some(Mutex::new(go)),
        Err(error) => {
            eprintln!("Go is left out: {error:#}");
            None
        }
    };
    GO.get_or_init(start).as_ref()
}

fn build() -> anyhow::Result<LineChild> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("main.go"), PROGRAM)?;
    std::fs::write(folder.path().join("go.mod"), MODULE)?;
    let mut build = Command::new("go");
    build.args(["build", "-o", "wake", "."]).current_dir(folder.path());
    // Download nothing, neither packages nor another version of Go.
    build.env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("GOWORK", "off");
    let output = build.stdin(Stdio::null()).output().context("`go` can't be run; install it to compare")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`go build` failed: {}", said.trim());
    let mut go = LineChild::start(&mut Command::new(folder.path().join("wake")))
        .context("what `go` built can't be run")?;
    // The answer shows that the program runs, so the folder can be removed.
    numbers(&mut go, "hello")?;
    Ok(go)
}

fn numbers(go: &mut LineChild, line: &str) -> anyhow::Result<Vec<f64>> {
    let answer = go.ask(line)?;
    let numbers: Vec<Option<f64>> = serde_json::from_str(&answer)
        .with_context(|| format!("the Go program answered {answer:?} to {line:?}"))?;
    // `null` means that nothing was counted.
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
}

/// Runs one slice of a case, named with its arguments. Returns its numbers; NaN for a number that nothing was counted
/// for.
pub fn ask(case: &str, plan: Plan) -> anyhow::Result<Vec<f64>> {
    let go = go().context("Go is asked only where it is")?;
    let line = format!("run {case} {} {}", plan.warm.as_nanos(), plan.measure.as_nanos());
    let answer = numbers(&mut go.lock().unwrap_or_else(PoisonError::into_inner), &line);
    // The child ignores SIGINT and SIGTERM and ends when its stdin is closed. If the child has ended while a signal is
    // ending this process, return NaN (nothing was measured) and no error.
    if answer.is_err() && INTERRUPTED.load(Relaxed) {
        return Ok(vec![f64::NAN]);
    }
    answer
}
