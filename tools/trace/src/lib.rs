//! What a recording of a program's polls says: how far tasks moved between their polls, how late polls came, and what
//! moves cost.
//!
//! [`analyze`] reads a recording and returns an [`Analysis`], which is plain data. It reads the recording twice: first to
//! find when it ends and where records are missing, then for the rest, so that its memory does not grow with the
//! recording's length.

mod analysis;
mod cost;
mod delays;
pub mod export;
mod first_pass;
mod idle;
mod machine;
mod matrix;
mod origin;
mod places;
mod quantiles;
mod rebuild;
mod sentence;
mod stream;
mod tasks;
mod threads;
mod timeline;
mod what_if;

pub use analysis::*;
pub use origin::{ByOrigin, Origin};
pub use rebuild::{Rebuilt, Wakes, rebuild};
pub use stream::analyze;
pub use what_if::{Answer, Change, Check, Question, REPLAYS, stratified, what_if};

/// How often the labels *moved* and *not moved* are shuffled to check an interval.
pub const SHUFFLES: u32 = 100;
