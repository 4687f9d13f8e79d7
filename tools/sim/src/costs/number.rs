//! Number: a cost, and how far to trust it.
//!
//! A number is stored in thousandths of its unit: 5.3 ns is 5300, so a time in ns is stored in picoseconds. The unit
//! is in the name (`_mhz`, `_kib`, `_cycles`, `_percent`), or else it is ns.

/// How far to trust a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// The published report states it.
    Said,
    /// Measured data that were read.
    Measured,
    /// From documentation, or a mailing list.
    Documented,
    /// From well-known figures, not checked.
    Recalled,
    /// Estimated by analogy.
    Estimated,
}

impl Trust {
    /// Its letter in machine files.
    pub fn letter(self) -> char {
        match self {
            Self::Said => 'S',
            Self::Measured => 'M',
            Self::Documented => 'D',
            Self::Recalled => 'R',
            Self::Estimated => 'E',
        }
    }

    pub(super) fn of(letter: char) -> Option<Self> {
        let all = [Self::Said, Self::Measured, Self::Documented, Self::Recalled, Self::Estimated];
        all.into_iter().find(|trust| trust.letter() == letter)
    }
}

/// A cost.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Number {
    /// Thousandths of the unit in its name, or of ns.
    pub milli: u64,
    /// How far to trust it.
    pub trust: Trust,
    /// What the file's comment says about it, or why the default was chosen.
    pub basis: String,
}
