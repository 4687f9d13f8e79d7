//! The recorded counts with which `cargo xtask instructions` and `cargo xtask syscalls` compare, in `xtask/gates.json`.
//!
//! A record is the ratio of a case's count on this runtime to that on tokio, from the same run. So a change of the
//! machine, of the compiler or of tokio, which changes both counts, changes it less than it changes the counts. A case
//! that is worse than recorded by more than the command's tolerance fails the command, and so does a case without a
//! record. With `--record` the command writes its records instead.

use crate::process;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use warmcore_results::write_whole;

/// How many more locked instructions a poll may have than recorded. The count repeats to 0.01.
const LOCKED_MORE_MAX: f64 = 0.05;

/// What is recorded of a case.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// The count on this runtime ÷ the count on tokio.
    ratio: f64,
    /// The locked instructions on this runtime − those on tokio, if the command counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    locked: Option<f64>,
}

impl Counted {
    /// Rounds to what the file contains.
    pub fn new(ratio: f64, locked: Option<f64>) -> Self {
        let round = |value: f64, parts: f64| (value * parts).round() / parts;
        Self { ratio: round(ratio, 10_000.0), locked: locked.map(|locked| round(locked, 100.0)) }
    }

    /// Compares with a record. `tolerance` is the part of the recorded ratio by which the ratio may differ.
    fn compare(self, recorded: Option<Self>, tolerance: f64) -> Outcome {
        let Some(recorded) = recorded else { return Outcome::New };
        let locked = self.locked.unwrap_or(0.0) - recorded.locked.unwrap_or(0.0);
        if self.ratio > recorded.ratio * (1.0 + tolerance) || locked > LOCKED_MORE_MAX {
            Outcome::Worse
        } else if self.ratio < recorded.ratio * (1.0 - tolerance) || locked < -LOCKED_MORE_MAX {
            Outcome::Better
        } else {
            Outcome::Same
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}×", self.ratio)?;
        self.locked.map_or(Ok(()), |locked| write!(f, " and {locked:+.2} locked"))
    }
}

/// A case beside its record.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    New,
    Worse,
    Same,
    Better,
}

/// The records of a command.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Records {
    /// The compiler of the programs that were counted.
    rustc: String,
    cases: BTreeMap<String, Counted>,
}

/// The gate of a command: its records, and what its run counted so far.
pub struct Gate {
    path: PathBuf,
    command: &'static str,
    tolerance: f64,
    is_recording: bool,
    /// By command.
    all: BTreeMap<String, Records>,
    counted: BTreeMap<String, Counted>,
}

impl Gate {
    /// Reads the records of `cargo xtask COMMAND`. If `is_recording`, a missing file is empty.
    pub fn read(
        root: &Path,
        command: &'static str,
        tolerance: f64,
        is_recording: bool,
    ) -> anyhow::Result<Self> {
        let path = root.join("xtask/gates.json");
        let all = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string())?,
            Err(_) if is_recording => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        Ok(Self { path, command, tolerance, is_recording, all, counted: BTreeMap::new() })
    }

    fn recorded(&self, case: &str) -> Option<Counted> {
        self.all.get(self.command)?.cases.get(case).copied()
    }

    /// Adds a case. Returns the cell for the table: the recorded ratio, and whether the case is within the tolerance.
    pub fn add(&mut self, case: &str, counted: Counted) -> String {
        self.counted.insert(case.to_owned(), counted);
        let recorded = self.recorded(case);
        let ratio = recorded.map_or(String::new(), |recorded| format!("{:.3}× ", recorded.ratio));
        let word = match counted.compare(recorded, self.tolerance) {
            Outcome::New => "not recorded",
            Outcome::Worse => "WORSE",
            Outcome::Same => "ok",
            Outcome::Better => "better",
        };
        ratio + word
    }

    /// Records the counted cases if the command was called to do that, and removes other cases if `is_whole`.
    /// Otherwise prints the cases that are better than recorded, and returns an error that names the worse ones.
    pub fn end(mut self, is_whole: bool) -> anyhow::Result<()> {
        let rustc = process::said(Command::new("rustc").arg("--version"))?.trim().to_owned();
        if self.is_recording {
            let mut records = self.all.remove(self.command).filter(|_| !is_whole).unwrap_or_default();
            println!("recorded: {} cases in {}", self.counted.len(), self.path.display());
            records.rustc = rustc;
            records.cases.extend(self.counted);
            self.all.insert(self.command.to_owned(), records);
            return write_whole(&self.path, &[serde_json::to_vec_pretty(&self.all)?, vec![b'\n']].concat());
        }
        let [better, mut worse] = [Outcome::Better, Outcome::Worse].map(|outcome| self.list(outcome));
        worse += &self.list(Outcome::New);
        let record = format!("`cargo xtask {} --record`", self.command);
        if !better.is_empty() {
            println!("better than recorded, so that the records can be lowered with {record}:{better}");
        }
        if !worse.is_empty() {
            let before = self.all.get(self.command).map_or("", |records| &records.rustc);
            let compilers = if before == rustc {
                String::new()
            } else {
                format!("\nthe compiler is another one: recorded with {before:?}, now {rustc:?}")
            };
            bail!(
                "worse than recorded by more than {:.0} % or {LOCKED_MORE_MAX} locked instructions:{worse}{compilers}\n\
                 if that is meant to be so, record anew with {record}, and give the reason in the commit",
                100.0 * self.tolerance
            );
        }
        Ok(())
    }

    /// The cases with this outcome, each on a line of its own with what is recorded and what is now.
    fn list(&self, outcome: Outcome) -> String {
        let cases = self.counted.iter().filter_map(|(case, now)| {
            let recorded = self.recorded(case);
            let before = recorded.map_or_else(|| "nothing".to_owned(), |recorded| recorded.to_string());
            (now.compare(recorded, self.tolerance) == outcome)
                .then(|| format!("\n  {case}: recorded {before}, now {now}"))
        });
        cases.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(ratio: f64, locked: f64) -> Counted {
        Counted::new(ratio, Some(locked))
    }

    #[test]
    fn a_case_is_worse_or_better_beyond_the_tolerance() {
        let compare = |now: Counted| now.compare(Some(counted(1.2, 4.0)), 0.02);
        assert_eq!(compare(counted(1.2239, 4.04)), Outcome::Same);
        assert_eq!(compare(counted(1.1761, 3.96)), Outcome::Same);
        assert_eq!(compare(counted(1.2241, 4.0)), Outcome::Worse);
        assert_eq!(compare(counted(1.1759, 4.0)), Outcome::Better);
        assert_eq!(compare(counted(1.2, 4.06)), Outcome::Worse);
        assert_eq!(compare(counted(1.2, 3.94)), Outcome::Better);
        // Fewer instructions do not make up for a locked one.
        assert_eq!(compare(counted(0.5, 5.0)), Outcome::Worse);
        assert_eq!(counted(1.2, 4.0).compare(None, 0.02), Outcome::New);
        assert_eq!(Counted::new(1.09, None).compare(Some(Counted::new(1.0, None)), 0.1), Outcome::Same);
    }

    #[test]
    fn a_record_is_read_again_and_the_other_command_and_other_cases_stay() {
        let root = std::env::temp_dir().join(format!("warmcore-gates-{}", std::process::id()));
        std::fs::create_dir_all(root.join("xtask")).unwrap();
        let gate = |command, is_recording| Gate::read(&root, command, 0.02, is_recording);
        let record = |command, cases: &[(&str, Counted)], is_whole| {
            let mut gate = gate(command, true).unwrap();
            cases.iter().for_each(|(case, counted)| _ = gate.add(case, *counted));
            gate.end(is_whole).unwrap();
        };
        assert!(gate("instructions", false).is_err(), "there is no file");
        record("syscalls", &[("hello", Counted::new(1.0, None))], true);
        record("instructions", &[("a", counted(1.2, 4.0)), ("b", counted(0.9, -1.0))], true);
        record("instructions", &[("a", counted(1.1, 4.0))], false);
        let mut one = gate("instructions", false).unwrap();
        assert_eq!(one.recorded("b"), Some(counted(0.9, -1.0)));
        assert_eq!(one.add("a", counted(1.11, 4.0)), "1.100× ok");
        one.end(false).unwrap();
        record("instructions", &[("a", counted(1.1, 4.0))], true);
        let mut one = gate("instructions", false).unwrap();
        assert_eq!(one.add("a", counted(1.2, 4.0)), "1.100× WORSE");
        assert_eq!(one.add("b", counted(0.9, 0.0)), "not recorded");
        let error = one.end(true).unwrap_err().to_string();
        assert!(
            error.contains("a: recorded 1.100× and +4.00 locked, now 1.200× and +4.00 locked"),
            "{error}"
        );
        assert!(error.contains("b: recorded nothing, now 0.900× and +0.00 locked"), "{error}");
        assert!(error.contains("`cargo xtask instructions --record`"), "{error}");
        assert!(gate("syscalls", false).unwrap().recorded("hello").is_some());
        std::fs::remove_dir_all(root).unwrap();
    }
}
