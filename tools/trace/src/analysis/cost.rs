//! What moves cost, as plain data. `cost.rs` says how it is found.

use crate::origin::Origin;
use serde::Serialize;

/// What moves cost, and how that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// All moves of all tasks.
    pub total: Total,
    /// What the machine's probe measured, if the caller passed it.
    pub probe: Vec<Probed>,
}

/// What the machine's probe measured for moves of one origin. It knows the machine, and nothing of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Probed {
    /// The origin.
    pub origin: Origin,
    /// Time until one cache line has come from the other CPU.
    pub line_ns: u64,
    /// Time by which a walk over 256 KiB takes longer after a move.
    pub refill_ns: u64,
}

/// What moves cost together, in millionths of a CPU: microseconds per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Total {
    /// On what the figures rest. They are 0 for [`Basis::CannotTell`].
    pub basis: Basis,
    /// The most likely figure. With [`Basis::Probe`] the middle of the two ends, and no more than that.
    pub micro_cpus: i64,
    /// The lower end of the interval.
    pub low: i64,
    /// The upper end.
    pub high: i64,
    /// Polls that moved.
    pub moved: u64,
    /// Those of them that the figures are of.
    pub priced: u64,
}

/// On what a figure rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Polls of this program: those after a move beside those without one. The interval holds the true figure with 95 %.
    Program,
    /// The machine's probe: from one cache line per move to 256 KiB per move.
    Probe,
    /// Nothing moved.
    NoMoves,
    /// Neither, or it is not known of any poll whether it moved.
    CannotTell,
}

/// What a move from one origin costs the tasks of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MoveCost {
    /// The origin.
    pub origin: Origin,
    /// Polls that moved from there.
    pub moved: u64,
    /// Those of them for which there are polls without a move to compare with: as long after the task's last poll, and
    /// behind as many other polls.
    pub matched: u64,
    /// Moved polls among the matched that were compared. If there are fewer than [`needed`](Self::needed), the cost cannot
    /// be told.
    pub compared: u64,
    /// How many are needed.
    pub needed: u64,
    /// How much longer a poll takes after a move. `None`: it cannot be told.
    pub measured: Option<Estimate>,
}

/// A difference and its interval, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The difference of medians, weighted over strata.
    pub ns: i64,
    /// The lower end of the 95 % interval.
    pub low_ns: i64,
    /// The upper end.
    pub high_ns: i64,
    /// Of [`SHUFFLES`](crate::SHUFFLES) repetitions with shuffled labels, those whose interval holds 0. Fewer than 90: the
    /// interval is too narrow, and the total does not rest on it.
    pub shuffles_with_zero: u32,
}
