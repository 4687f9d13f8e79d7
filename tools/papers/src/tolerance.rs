//! Tolerance: how far a simulated number may be from the published one, written down beforehand.
//!
//! `tolerances.toml` is embedded. A row of a table that claims something names its tolerance; an unknown name is a
//! programming error. The file has twenty-seven tolerances; seven of them claim nothing and give the reason.

use serde::{Deserialize, Serialize};

/// The file, as in the repository.
const FILE: &str = include_str!("../tolerances.toml");

/// What is compared with the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Simulated divided by published.
    Ratio,
    /// Simulated minus published, in the row's unit.
    Difference,
    /// The simulated number itself.
    Simulated,
}

/// What a tolerance claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// No input was fitted to this table.
    Emerges,
    /// Some input was fitted to this table, and the row names it.
    Fitted,
    /// Only that the number is within the bounds: its sign, or its largest size.
    Bound,
    /// Nothing.
    None,
}

/// A tolerance, as the file has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Its name: that of the table, then that of the rows.
    pub id: String,
    /// What must be within the bounds; `None` if nothing is claimed.
    pub what: Option<What>,
    /// The lower bound.
    #[serde(default)]
    pub low: f64,
    /// The upper bound.
    #[serde(default)]
    pub high: f64,
    /// What is claimed.
    pub claim: Claim,
    /// Why nothing is claimed, if so.
    pub why: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tolerance: Vec<Tolerance>,
}

/// All tolerances, in the file's order.
///
/// # Panics
///
/// If the embedded file is invalid, which a test would find.
pub fn all() -> Vec<Tolerance> {
    let file: File = toml::from_str(FILE).unwrap_or_else(|e| panic!("tolerances.toml: {e}"));
    file.tolerance
}

/// The tolerance of this name.
///
/// # Panics
///
/// If the file has none of this name.
pub fn named(id: &str) -> Tolerance {
    let found = all().into_iter().find(|tolerance| tolerance.id == id);
    found.unwrap_or_else(|| panic!("no tolerance is called {id:?} in tolerances.toml"))
}

impl Tolerance {
    /// A tolerance that claims nothing.
    pub fn unclaimed(why: &str) -> Self {
        let (id, why) = ("unclaimed".to_owned(), Some(why.to_owned()));
        Self { id, what: None, low: 0.0, high: 0.0, claim: Claim::None, why }
    }

    /// Whether a simulated number is within the bounds. `None`: nothing is claimed, or there is nothing to compare
    /// with.
    pub fn allows(&self, simulated: f64, published: Option<f64>) -> Option<bool> {
        let number = match self.what? {
            What::Ratio => simulated / published?,
            What::Difference => simulated - published?,
            What::Simulated => simulated,
        };
        Some((self.low..=self.high).contains(&number))
    }
}
