//! Error: a program that no world can run, and where in it that stands.
//!
//! Model.   The place, the fact, and what to do.

use std::fmt;

/// A program that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramError {
    place: String,
    fact: String,
    next: String,
}

impl ProgramError {
    pub(crate) fn new(place: impl Into<String>, fact: impl Into<String>, next: impl Into<String>) -> Self {
        Self { place: place.into(), fact: fact.into(), next: next.into() }
    }

    /// Where: ``program `web`, step 3`` or `tasks.web.phases.p1.run`.
    pub fn place(&self) -> &str {
        &self.place
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.fact, self.next)
    }
}

impl std::error::Error for ProgramError {}
