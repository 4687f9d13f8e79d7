//! Runs tests, each in a process of its own, and keeps the results in a file.
//!
//! A process of its own makes a hang or an abort the failure of one test with a name, and makes the face's counters
//! those of one test. A test is never retried: if it fails once, it has failed.

use crate::process;
use crate::test::binaries::Binary;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How many tests run at the same time.
const JOBS: usize = 2;

/// The longest time of a test: so long that only a test that hangs reaches it, on a busy machine too.
const LIMIT: Duration = Duration::from_mins(3);

/// Time between two writes of the file with the results.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// The name of a file of its package, `::`, and the name of the test in this file's program: `rt_common::threaded::x`.
pub type TestName = String;

/// A test: its program and its name there.
#[derive(Debug, Clone)]
pub struct Test<'a> {
    pub binary: &'a Binary,
    pub name: String,
}

/// The tests in test programs, without those that are marked `ignore`.
pub fn list(binaries: &[Binary]) -> anyhow::Result<BTreeMap<TestName, Test<'_>>> {
    let mut tests = BTreeMap::new();
    for binary in binaries {
        let names = |args: &[&str]| -> anyhow::Result<BTreeSet<String>> {
            let output = binary.command(args)?.output().context("can't run a test program")?;
            ensure!(output.status.success(), "{} does not list its tests", binary.name());
            Ok(names_in(&String::from_utf8_lossy(&output.stdout)))
        };
        let ignored = names(&["--list", "--ignored"])?;
        for name in names(&["--list"])?.difference(&ignored) {
            let test = Test { binary, name: name.clone() };
            tests.insert(format!("{}::{name}", binary.target), test);
        }
    }
    Ok(tests)
}

/// The names in the output of `--list`.
fn names_in(list: &str) -> BTreeSet<String> {
    list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The results of a test on one side.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The test program, with its length and time of modification. Another program has other results.
    pub program: String,
    pub passed: u32,
    pub failed: u32,
    /// The most polls by the face's workers in one run.
    pub polls: u64,
    /// The most multi-thread runtimes that the face made in one run.
    pub runtimes: u64,
    /// The output of the first run that failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Record {
    pub fn has_passed(&self) -> bool {
        self.passed > 0 && self.failed == 0
    }

    pub fn is_flaky(&self) -> bool {
        self.passed > 0 && self.failed > 0
    }

    fn add(&mut self, outcome: Outcome) {
        match outcome.failure {
            None => self.passed += 1,
            Some(message) => {
                self.failed += 1;
                if self.message.is_empty() {
                    self.message = message;
                }
            }
        }
        self.polls = self.polls.max(outcome.polls);
        self.runtimes = self.runtimes.max(outcome.runtimes);
    }
}

/// The results of a suite by side and test, and the file that keeps them.
pub struct Results {
    path: PathBuf,
    pub sides: BTreeMap<String, BTreeMap<TestName, Record>>,
    saved: Instant,
}

impl Results {
    /// No results, or if `resumes` those in the file.
    pub fn open(path: PathBuf, resumes: bool) -> anyhow::Result<Self> {
        let sides = match std::fs::read(&path) {
            Ok(bytes) if resumes => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is not a file of results", path.display()))?,
            _ => BTreeMap::new(),
        };
        Ok(Self { path, sides, saved: Instant::now() })
    }

    /// The results of one test, without runs.
    pub fn record(&self, side: &str, test: &str) -> Record {
        self.sides.get(side).and_then(|tests| tests.get(test)).cloned().unwrap_or_default()
    }

    fn record_mut(&mut self, side: &str, test: &str) -> &mut Record {
        self.sides.entry(side.to_owned()).or_default().entry(test.to_owned()).or_default()
    }

    /// Writes a new file and renames it, so that an interrupted write leaves the file as it was.
    pub fn save(&mut self) -> anyhow::Result<()> {
        let new = self.path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(&self.sides)?)?;
        std::fs::rename(new, &self.path)?;
        self.saved = Instant::now();
        Ok(())
    }
}

/// Runs of tests on one side.
pub struct Runs<'a> {
    pub side: &'static str,
    /// The scheduler of multi-thread runtimes: the value of `WARMCORE`, if it is set.
    pub warmcore: Option<&'static str>,
    /// Each test, and how often it is to have run, earlier runs in the file of results included.
    pub tests: Vec<(TestName, Test<'a>, u32)>,
}

/// Runs tests and adds what they did to `results`. `show` is called after each run with the number of runs, how many
/// are done, and the test's name.
pub fn run(
    runs: &Runs<'_>,
    results: &mut Results,
    show: &mut dyn FnMut(usize, usize, &str),
) -> anyhow::Result<()> {
    let mut queue = VecDeque::new();
    for (name, test, times) in &runs.tests {
        let program = identity(test.binary.program())?;
        let record = results.record_mut(runs.side, name);
        if record.program != program {
            *record = Record { program, ..Record::default() };
        }
        let done = record.passed + record.failed;
        queue.extend((done..*times).map(|round| (round, name, test)));
    }
    // A test that runs often runs beside different tests each time.
    queue.make_contiguous().sort_by_key(|(round, ..)| *round);
    let all = queue.len();
    let queue = Mutex::new(queue);
    let (sender, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((_, name, test)) = next else { break };
                    let outcome = run_once(test, runs.warmcore);
                    if sender.send((name, outcome)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let recorded = outcomes.iter().zip(1..).try_for_each(|((name, outcome), done)| {
            results.record_mut(runs.side, name).add(outcome?);
            show(all, done, name);
            if results.saved.elapsed() > SAVE_EVERY { results.save() } else { Ok(()) }
        });
        // After an error the threads are not to begin all that is left.
        queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
        recorded
    })?;
    results.save()
}

/// What identifies a program until it is built again.
fn identity(program: &Path) -> anyhow::Result<String> {
    let metadata = std::fs::metadata(program)?;
    let modified = metadata.modified()?.duration_since(std::time::UNIX_EPOCH)?.as_nanos();
    let name = program.file_name().unwrap_or_default().display();
    Ok(format!("{name} {} {modified}", metadata.len()))
}

/// What one run of a test did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// `None` if the test passed, or else what it printed.
    failure: Option<String>,
    polls: u64,
    runtimes: u64,
}

fn run_once(test: &Test<'_>, warmcore: Option<&str>) -> anyhow::Result<Outcome> {
    let thread = format!("{:?}", std::thread::current().id());
    let number: String = thread.chars().filter(char::is_ascii_digit).collect();
    let stem = std::env::temp_dir().join(format!("warmcore-suites-{}-{number}", std::process::id()));
    let (output, count) = (stem.with_extension("txt"), stem.with_extension("count"));
    let mut command = test.binary.command(&["--exact", &test.name])?;
    for name in ["WARMCORE", "TOKIO_WORKER_THREADS", "RUST_TEST_THREADS", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    if let Some(warmcore) = warmcore {
        command.env("WARMCORE", warmcore);
    }
    let file = File::create(&output)?;
    command.env("WARMCORE_FACE_COUNT", &count).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let (mut child, began) = (command.spawn().context("can't run a test program")?, Instant::now());
    let (status, threads) = loop {
        if let Some(status) = child.try_wait()? {
            break (status, None);
        }
        if began.elapsed() > LIMIT {
            let threads = process::end_tree(child.id());
            // Works without the program `kill` too.
            let _ = child.kill();
            break (child.wait()?, Some(threads));
        }
        std::thread::sleep(Duration::from_millis(4));
    };
    let text = String::from_utf8_lossy(&std::fs::read(&output)?).into_owned();
    let (polls, runtimes) = counters(&std::fs::read_to_string(&count).unwrap_or_default());
    let _ = (std::fs::remove_file(&output), std::fs::remove_file(&count));
    // The harness succeeds too if no test has this name.
    let has_passed = status.success() && threads.is_none() && text.contains("test result: ok. 1 passed;");
    let failure = (!has_passed).then(|| {
        let why = threads.map_or_else(
            || status.to_string(),
            |threads| format!("ended after {} s; these were running:\n{threads}", LIMIT.as_secs()),
        );
        format!("{why}\n{}", end_of(&text))
    });
    Ok(Outcome { failure, polls, runtimes })
}

/// The sums of the lines `POLLS RUNTIMES`, one for each process that ended.
fn counters(text: &str) -> (u64, u64) {
    let lines = text.lines().filter_map(|line| {
        let (polls, runtimes) = line.split_once(' ').unwrap_or((line, "0"));
        Some((polls.parse::<u64>().ok()?, runtimes.trim().parse::<u64>().ok()?))
    });
    lines.fold((0, 0), |sum, line| (sum.0 + line.0, sum.1 + line.1))
}

/// The end of what a test printed: at most 30 lines of at most 300 characters.
fn end_of(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| line.chars().take(300).collect()).collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[cfg(test)]
mod tests;
