//! Error: why an input cannot be simulated, and where in it the reason is.
//!
//! An error is a location, a fact, and what to do. Costs, machines and programs use the same type under other names.

use std::fmt;

/// Why an input cannot be simulated: the location, what is wrong there, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    location: String,
    fact: String,
    next: String,
}

impl Error {
    /// Creates an error: the location, what is wrong there, and what to do.
    pub fn new(location: impl Into<String>, fact: impl Into<String>, next: impl Into<String>) -> Self {
        Self { location: location.into(), fact: fact.into(), next: next.into() }
    }

    /// The same error at a more precise location.
    pub fn at(self, location: impl Into<String>) -> Self {
        Self { location: location.into(), ..self }
    }

    /// The location: a file and line, ``program `web`, step 3``, or `tasks.web.phases.p1.run`.
    pub fn location(&self) -> &str {
        &self.location
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.fact)?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "; {}", self.next) }
    }
}

impl std::error::Error for Error {}

/// Up to three of `names` that are similar to `name`, as `a, b or c`.
pub fn similar_names<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let allowed = 1 + name.len() / 4;
    // The number of letters to change, add or leave out.
    let distance = |other: &str| strsim::levenshtein(&name.to_ascii_lowercase(), &other.to_ascii_lowercase());
    let mut found: Vec<(usize, &str)> = names
        .filter(|other| other.len().abs_diff(name.len()) <= allowed)
        .map(|other| (distance(other), other))
        .filter(|(far, _)| *far <= allowed)
        .collect();
    found.sort();
    found.dedup();
    let names: Vec<&str> = found.iter().take(3).map(|(_, name)| *name).collect();
    match names.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        [some @ .., last] => Some(format!("{} or {last}", some.join(", "))),
    }
}
