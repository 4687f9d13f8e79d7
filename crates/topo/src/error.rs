//! TopoError: why a source did not give a topology.
//!
//! Model.   Each error names one file, one fact about it, and the next step. Four kinds, which
//!          callers may ask for: missing, unreadable, malformed, contradiction.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a source did not give a topology. Its text names the file, says the fact, then the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopoError {
    kind: Kind,
    file: PathBuf,
    fact: String,
    next: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Missing,
    Unreadable,
    Malformed,
    Contradiction,
}

impl TopoError {
    /// The file that is at fault, or the one that says what another one denies.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether something that every machine has is not there.
    pub fn is_missing(&self) -> bool {
        self.kind == Kind::Missing
    }

    /// Whether the file is there and the system would not let it be read.
    pub fn is_unreadable(&self) -> bool {
        self.kind == Kind::Unreadable
    }

    /// Whether a file's text is not what such a file holds.
    pub fn is_malformed(&self) -> bool {
        self.kind == Kind::Malformed
    }

    /// Whether two statements of the source exclude each other.
    pub fn is_contradiction(&self) -> bool {
        self.kind == Kind::Contradiction
    }

    pub(crate) fn missing(file: impl Into<PathBuf>, fact: impl Into<String>) -> Self {
        let next = "capture the tree again, whole, or point at one that has it";
        Self { kind: Kind::Missing, file: file.into(), fact: fact.into(), next }
    }

    pub(crate) fn unreadable(file: impl Into<PathBuf>, why: &std::io::Error) -> Self {
        let next = "check that it is a readable file, or capture the tree again";
        Self { kind: Kind::Unreadable, file: file.into(), fact: format!("cannot be read: {why}"), next }
    }

    pub(crate) fn malformed(file: impl Into<PathBuf>, fact: impl Into<String>) -> Self {
        let next = "the file is damaged or not of this kind; capture or write it again";
        Self { kind: Kind::Malformed, file: file.into(), fact: fact.into(), next }
    }

    pub(crate) fn contradiction(file: impl Into<PathBuf>, fact: impl Into<String>) -> Self {
        let next = "one of the two is wrong; capture the tree again while no CPU goes on- or offline, \
                    or mend the wrong one by hand";
        Self { kind: Kind::Contradiction, file: file.into(), fact: fact.into(), next }
    }

    /// The same error with a next step that fits better than the kind's usual one.
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
