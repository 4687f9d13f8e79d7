//! Runs a process, shows its output meanwhile, and ends it if it makes no progress.
//!
//! Progress is new output. If it has a limit, a process that prints nothing is ended with its descendants when they
//! have used the CPU time of the limit since the last output, or when for more than [`IDLE_MAX`] they have used almost
//! no CPU time. A test that waits for ever uses almost none; a slow test on a busy machine uses more than that.
//!
//! A process writes its output to files. A pipe would stay open until each process that a test left behind has ended.

mod tree;

use anyhow::{Context, bail};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tree::Tree;

/// How long a process may wait without printing anything.
const IDLE_MAX: Duration = Duration::from_mins(5);

/// A process that uses less than this part of a CPU counts as waiting. Threads that only check something every 100 ms
/// use less.
const IDLE_SHARE: f64 = 0.01;

/// Time between two readings of the CPU time of a process and its descendants.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How a process ended.
pub enum Ended {
    Well,
    Badly(ExitStatus),
    /// The process made no progress and was ended. The text lists the processes and threads that were running.
    Stuck(String),
}

impl Ended {
    /// The reason if the process failed.
    pub fn failure(&self) -> Option<String> {
        match self {
            Self::Well => None,
            Self::Badly(status) => Some(status.to_string()),
            Self::Stuck(tree) => {
                Some(format!("ended, since it made no progress; these were running:\n{tree}"))
            }
        }
    }
}

/// Runs a command to its end, or ends it if it makes no progress; without `limit` it may take as long as it needs.
/// `outputs` are the files that the command writes. About every 50 ms `show` is called with the last 2 KiB of the first
/// of these that is not empty, if there is one.
pub fn wait(
    command: &mut Command,
    limit: Option<Duration>,
    outputs: &[&PathBuf],
    show: &mut dyn FnMut(&str),
) -> anyhow::Result<Ended> {
    let mut child =
        command.spawn().with_context(|| format!("can't run {}", command.get_program().display()))?;
    let mut lengths = vec![0; outputs.len()];
    let mut progress = Progress::new(Instant::now());
    let mut looked = Instant::now();
    let mut stuck = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match stuck {
                Some(tree) => Ended::Stuck(tree),
                None if status.success() => Ended::Well,
                None => Ended::Badly(status),
            });
        }
        for (output, length) in outputs.iter().zip(&mut lengths) {
            let now = std::fs::metadata(output).map_or(0, |file| file.len());
            if now != *length {
                *length = now;
                progress.printed(Instant::now());
            }
        }
        // Shown even without a new line, because the time left changes.
        if let Some((output, length)) = outputs.iter().zip(&lengths).find(|(_, length)| **length > 0) {
            show(&end_of(output, *length));
        }
        if let Some(limit) = limit.filter(|_| stuck.is_none() && looked.elapsed() > LOOK_EVERY) {
            looked = Instant::now();
            let tree = Tree::under(child.id());
            if progress.is_stuck(tree.cpu(), looked, limit) {
                stuck = Some(tree.describe());
                tree.end();
                // Works without the program `kill` too, so that this loop ends.
                let _ = child.kill();
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The last 2 KiB of a file of this length, as text.
fn end_of(path: &Path, length: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(2048)));
        let _ = file.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// When a process began or last printed something, and how much CPU time it had used then.
struct Progress {
    since: Instant,
    /// The CPU time of the process and its descendants at the first reading after that output.
    used_before: Option<Duration>,
}

impl Progress {
    fn new(now: Instant) -> Self {
        Self { since: now, used_before: None }
    }

    fn printed(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Whether a process that with its descendants has used the CPU time `used` in all makes no progress. The sum can
    /// fall, because the time of a child that ended without being waited for is lost; then the CPU time is counted from
    /// the smaller sum on.
    fn is_stuck(&mut self, used: Duration, now: Instant, limit: Duration) -> bool {
        let before = *self.used_before.get_or_insert(used);
        if used < before {
            self.used_before = Some(used);
            return false;
        }
        let (used, waited) = (used - before, now - self.since);
        used > limit || (waited > IDLE_MAX && used.as_secs_f64() < waited.as_secs_f64() * IDLE_SHARE)
    }
}

/// What the last line about compiling or a test names: for `Compiling tokio v1.47.0`, `tokio v1.47.0`. Empty if there
/// is no such line.
pub fn last_compiled(text: &str) -> String {
    let crates = text.lines().rev().filter_map(|line| {
        let (verb, rest) = line.trim_start().split_once(' ')?;
        let verbs = ["Compiling", "Checking", "Documenting", "Doc-tests", "Running", "test"];
        verbs.contains(&verb).then(|| rest.split(" (").next().unwrap_or(rest).to_owned())
    });
    crates.into_iter().next().unwrap_or_default()
}

/// A command that calls cargo in the folder `root`: the cargo that runs this program, if one does, or the `cargo` in
/// the `PATH`. If the first argument is a toolchain such as `+nightly`, it is always the latter, because only rustup's
/// cargo takes a toolchain.
pub fn cargo(root: &Path, args: &[&str]) -> Command {
    let is_of_rustup = args.first().is_some_and(|arg| arg.starts_with('+'));
    let mut cargo = match std::env::var_os("CARGO").filter(|_| !is_of_rustup) {
        Some(path) => Command::new(path),
        None => Command::new("cargo"),
    };
    if is_of_rustup {
        cargo.env("RUSTUP_AUTO_INSTALL", "0").env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC");
    }
    cargo.args(args).current_dir(root).stdin(Stdio::null());
    cargo
}

/// Runs a program and returns its standard output. Returns an error if the program can't be run or fails.
pub fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("can't run {command:?}"))?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("{command:?} failed:\n{}{}", text(&output.stdout), text(&output.stderr));
    }
    Ok(text(&output.stdout))
}

/// Builds a bench whose clock counts polls, with these further arguments of cargo, and returns its path.
///
/// The packages are those of the tests, since the packages determine the features of dependencies: after the tests cargo
/// builds only what depends on the clock.
pub fn counted_bench(root: &Path, name: &str, args: &[&str]) -> anyhow::Result<PathBuf> {
    let mut cargo = cargo(root, &["bench", "--workspace", "--exclude", "xtask", "--bench", name]);
    cargo.args(["--features", "warmcore-runtime/counted-clock"]);
    cargo.args(args).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let messages = said(cargo.stderr(Stdio::inherit()))?;
    let bench = messages.lines().filter(|line| line.contains("\"kind\":[\"bench\"]"));
    let program =
        bench.filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next()).next_back();
    Ok(program.context("cargo names no executable of the bench")?.into())
}

/// Checks that a program is installed. If it is not, the error names the package to install.
pub fn needs_program(program: &str, package: &str) -> anyhow::Result<()> {
    match Command::new(program).arg("--version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{program} is not installed: `apt-get install {package}` or `dnf install {package}`")
        }
        other => bail!("`{program} --version` failed: {other:?}"),
    }
}

/// Calls git in a folder and returns what it prints, without the end of the line.
pub fn git(folder: &Path, args: &[&str]) -> anyhow::Result<String> {
    Ok(said(Command::new("git").args(args).current_dir(folder))?.trim().to_owned())
}

/// Whether a program can be run and succeeds. Rustup is kept from installing a missing toolchain.
pub fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).env("RUSTUP_AUTO_INSTALL", "0").env_remove("RUSTUP_TOOLCHAIN");
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Whether the toolchain has the standard library of a target.
pub fn has_target(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Ends a process with all of its descendants. Returns a list of those and of their threads.
pub fn end_tree(root: u32) -> String {
    let tree = Tree::under(root);
    let description = tree.describe();
    tree.end();
    description
}

/// The CPU time that a process and its descendants have used.
pub fn cpu_of_tree(root: u32) -> Duration {
    Tree::under(root).cpu()
}

/// The CPU time of all descendants of this process that have ended and were waited for; 0 if it can't be read.
pub fn children_cpu() -> Duration {
    tree::cpu_fields("/proc/self/stat").map_or(Duration::ZERO, |[_, of_children]| of_children)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_process_that_waits_is_stuck_after_five_minutes() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        let used = |minutes: u32| Duration::from_millis(100) * minutes;
        assert!((1..=5).all(|minutes| !progress.is_stuck(
            used(minutes),
            start + MINUTE * minutes,
            MINUTE * 15
        )));
        assert!(progress.is_stuck(used(6), start + MINUTE * 6, MINUTE * 15));
    }

    #[test]
    fn a_process_that_computes_has_the_limit_of_its_step_however_slow_the_machine_is() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        // An hour on a tenth of a CPU is six minutes.
        assert!((1..=60).all(|minute| !progress.is_stuck(
            MINUTE / 10 * minute,
            start + MINUTE * minute,
            MINUTE * 15
        )));
        assert!(progress.is_stuck(MINUTE * 16, start + MINUTE * 61, MINUTE * 15));
    }

    #[test]
    fn a_line_begins_the_count_again() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        assert!(!progress.is_stuck(MINUTE, start + MINUTE, MINUTE * 15));
        progress.printed(start + MINUTE * 20);
        assert!(!progress.is_stuck(MINUTE * 20, start + MINUTE * 20, MINUTE * 15));
        assert!(!progress.is_stuck(MINUTE * 34, start + MINUTE * 34, MINUTE * 15));
        assert!(progress.is_stuck(MINUTE * 36, start + MINUTE * 36, MINUTE * 15));
    }

    #[test]
    fn the_crate_that_is_compiled_is_in_the_last_line_that_names_one() {
        let text = "   Compiling syn v2.0.1\n   Compiling warmcore-cid v0.1.0 (/r/crates/cid)\nwarning: x\n";
        assert_eq!(last_compiled(text), "warmcore-cid v0.1.0");
        assert_eq!(last_compiled("error: x"), "");
    }

    #[test]
    fn the_end_of_a_process_is_told() {
        let output = std::env::temp_dir().join(format!("warmcore-wait-{}", std::process::id()));
        let mut seen = String::new();
        let mut echo = Command::new("sh");
        echo.args(["-c", "echo test a ... ok; sleep 0.3; exit 3"]).stdout(File::create(&output).unwrap());
        let ended = wait(&mut echo, Some(MINUTE), &[&output], &mut |text| seen = text.to_owned()).unwrap();
        assert_eq!(seen, "test a ... ok\n");
        assert!(
            matches!(&ended, Ended::Badly(status) if status.code() == Some(3)) && ended.failure().is_some()
        );
        std::fs::remove_file(&output).unwrap();
    }
}
