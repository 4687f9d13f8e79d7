//! Why a source did not give a topology.
//!
//! Each error names one file (or the machine file's section), one fact about it, and the next step. There are four
//! kinds: missing, unreadable, malformed, contradiction.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a source did not give a topology. Its text has the file, the fact, and the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopoError {
    kind: ErrorKind,
    file: PathBuf,
    fact: String,
    next: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorKind {
    Missing,
    Unreadable,
    Malformed,
    Contradiction,
}

impl TopoError {
    /// The file or the machine file's section at fault, or one of two files that contradict each other.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether a file, a key or a section is missing that the source must have.
    pub fn is_missing(&self) -> bool {
        self.kind == ErrorKind::Missing
    }

    /// Whether the system returned an error when the file was read, other than that it does not exist.
    pub fn is_unreadable(&self) -> bool {
        self.kind == ErrorKind::Unreadable
    }

    /// Whether a file's text does not have the format of such a file.
    pub fn is_malformed(&self) -> bool {
        self.kind == ErrorKind::Malformed
    }

    /// Whether two facts in the source exclude each other.
    pub fn is_contradiction(&self) -> bool {
        self.kind == ErrorKind::Contradiction
    }

    pub(crate) fn missing(file: impl Into<PathBuf>, fact: impl Into<String>) -> Self {
        let next = "capture the tree again, whole, or point at one that has it";
        Self { kind: ErrorKind::Missing, file: file.into(), fact: fact.into(), next }
    }

    pub(crate) fn unreadable(file: impl Into<PathBuf>, why: &std::io::Error) -> Self {
        let next = "check that it is a readable file, or capture the tree again";
        Self { kind: ErrorKind::Unreadable, file: file.into(), fact: format!("cannot be read: {why}"), next }
    }

    pub(crate) fn malformed(file: impl Into<PathBuf>, fact: impl Into<String>) -> Self {
        let next = "the file is damaged or not of this kind; capture or write it again";
        Self { kind: ErrorKind::Malformed, file: file.into(), fact: fact.into(), next }
    }

    pub(crate) fn contradiction(file: impl Into<PathBuf>, fact: impl Into<String>) -> Self {
        let next = "one of the two is wrong; capture the tree again while no CPU goes on- or offline, \
                    or mend the wrong one by hand";
        Self { kind: ErrorKind::Contradiction, file: file.into(), fact: fact.into(), next }
    }

    /// Replaces the next step that errors of this kind have by default.
    pub(crate) fn or_else(self, next: &'static str) -> Self {
        Self { next, ..self }
    }
}

impl fmt::Display for TopoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.file.display(), self.fact, self.next)
    }
}

impl std::error::Error for TopoError {}
