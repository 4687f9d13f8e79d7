//! Tolerance: how far a simulated number may be from the published one, as was written down beforehand.
//!
//! Model.   `tolerances.toml`, embedded. A row of a table names its tolerance; one that names none that is there
//!          is a mistake of the programmer.
//! Number.  Twenty-three entries; seven of them say why nothing is claimed.

use serde::{Deserialize, Serialize};

/// The file, as it is in the repository.
const FILE: &str = include_str!("../tolerances.toml");

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Simulated divided by published.
    Ratio,
    /// Simulated less published, in the row's unit.
    Difference,
    /// The simulated number itself.
    Simulated,
}

/// What is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// Nothing was fitted to this table.
    Emerges,
    /// Something was, and the row says what.
    Fitted,
    /// The sign, and how large it can be.
    Bound,
    /// Nothing.
    None,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Its name: the table's, then the rows'.
    pub id: String,
    /// What must lie between the two. Nothing where nothing is claimed.
    pub what: Option<What>,
    /// The least that is good.
    #[serde(default)]
    pub low: f64,
    /// The most that is good.
    #[serde(default)]
    pub high: f64,
    /// What is claimed.
    pub claim: Claim,
    /// Why nothing is.
    pub why: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tolerance: Vec<Tolerance>,
}

/// All of them, in the file's order.
///
/// # Panics
///
/// If the embedded file is not what it should be, which a test would have said.
pub fn all() -> Vec<Tolerance> {
    let file: File = toml::from_str(FILE).unwrap_or_else(|e| panic!("tolerances.toml: {e}"));
    file.tolerance
}

/// The one with that name.
///
/// # Panics
///
/// If there is none.
pub fn named(id: &str) -> Tolerance {
    let found = all().into_iter().find(|tolerance| tolerance.id == id);
    found.unwrap_or_else(|| panic!("no tolerance is called {id:?} in tolerances.toml"))
}

impl Tolerance {
    /// Nothing is claimed, whatever else the row is.
    pub fn unclaimed(why: &str) -> Self {
        let (id, why) = ("unclaimed".to_owned(), Some(why.to_owned()));
        Self { id, what: None, low: 0.0, high: 0.0, claim: Claim::None, why }
    }

    /// Whether a simulated number is good. `None`: nothing is claimed, or there is nothing to compare it with.
    pub fn allows(&self, simulated: f64, published: Option<f64>) -> Option<bool> {
        let number = match self.what? {
            What::Ratio => simulated / published?,
            What::Difference => simulated - published?,
            What::Simulated => simulated,
        };
        Some((self.low..=self.high).contains(&number))
    }
}
