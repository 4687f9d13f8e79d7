//! Number: a cost, and how far to trust it.
//!
//! Model.   Thousandths of a unit, so that 5.3 ns is 5300 and a time in ns is one in picoseconds. The unit is what the
//!          name says (`_mhz`, `_kib`, `_cycles`, `_percent`), or ns.

/// How far a number is to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// The published report says it.
    Said,
    /// Measured data that were read.
    Measured,
    /// Documentation, or mail.
    Documented,
    /// From well-known figures, not checked.
    Recalled,
    /// By analogy.
    Estimated,
}

impl Trust {
    /// The letter that machine files have.
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

/// One number.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Number {
    /// Thousandths of the unit that its name says, ns where it says none.
    pub milli: u64,
    /// How far to trust it.
    pub trust: Trust,
    /// What the file says of it, or why it was assumed.
    pub basis: String,
}
