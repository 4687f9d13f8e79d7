//! CostsError: why a machine file gives no costs.
//!
//! Model.   A text: the place, the fact, what to do.

use std::fmt;

/// Why there are no costs: names the section, the key, the line where there is one, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostsError {
    fact: String,
    next: String,
}

impl CostsError {
    pub(crate) fn new(fact: String, next: String) -> Self {
        Self { fact, next }
    }
}

impl fmt::Display for CostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fact)?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "; {}", self.next) }
    }
}

impl std::error::Error for CostsError {}
