//! Shares: equal tasks get equal numbers of polls on CPUs that are never idle.
//!
//! A CPU gives each task of its queue one poll per round. Where two CPUs are never idle no task is stolen, and the
//! tasks of the CPU with the longer round get fewer polls for as long as nothing moves. Each worker therefore keeps a
//! [`Shares`], and looks now and then at one of its neighbours: how many polls did each of the two do since the last
//! look, and among how many tasks? The *lag* is how many more polls a task here had than a task there, times the number
//! of tasks here. All is counted in polls, so no clock is read, and a CPU that the system gives to another process
//! counts as the slower CPU that it is.
//!
//! If moving tasks here makes the longer of the two rounds shorter, they move as soon as the lag has reached what the
//! move costs. If not (three tasks on two CPUs, or two CPUs that are not equally fast), one task moves each time the
//! lag has reached [`POLLS_PER_MOVE`]: the surplus task goes from CPU to CPU, and each task is equally often on the
//! shorter side. With equal rounds the lag stays near 0 and nothing moves.
//!
//! However unequal rounds are, a CPU takes at most one task for each [`POLLS_PER_MOVE`] polls of its own, and
//! [`MOVES_SAVED`] more. Tasks that have never run are not counted.

use crate::Distance;

/// A CPU takes at most one task in this many polls of its own, so that less than 1 % of all polls follow a move.
pub const POLLS_PER_MOVE: u64 = 160;

/// How many tasks a CPU may take at once that has not taken any for long.
pub const MOVES_SAVED: u64 = 8;

/// A move between the nearest CPUs costs as much as this many polls, the same as for a wake.
const POLLS_PER_MIGRATION: i64 = super::policy::MIGRATION_COST_PER_POLL as i64;

/// With how many neighbours a CPU compares itself.
pub const NEIGHBOURS: usize = 8;

/// Polls in the average of how fast each of two CPUs is. Long enough that a time slice of another process, some
/// milliseconds, does not move tasks whose polls take 500 µs.
const POLLS_REMEMBERED: u64 = 256;

/// The lag is counted in this many parts of a poll.
const PART: i64 = 256;

/// The largest lag, in polls: it cannot overflow while no move is allowed.
const LAG_MAX: i64 = 1 << 20;

/// The counters of a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    /// Polls that it has done.
    pub polls: u64,
    /// How often it ran out of tasks.
    pub parks: u64,
    /// Tasks in its queue now, the running one included.
    pub queued: u32,
}

/// What one CPU knows of one other.
#[derive(Debug, Clone, Copy, Default)]
struct Lag {
    /// Both as they were at the last look.
    here: Pace,
    there: Pace,
    is_known: bool,
    /// Recent polls of both: how fast each of the two is.
    polls_here: u64,
    polls_there: u64,
    /// In parts of a poll, at least 0: a lag of the tasks here is for the other CPU to correct.
    lag: i64,
}

/// What a CPU remembers of its neighbours.
#[derive(Debug, Clone)]
pub struct Shares {
    lags: [Lag; NEIGHBOURS],
    /// Polls that were not used up by moves.
    saved: u64,
    /// The number of polls up to which `saved` is counted.
    polls: u64,
}

impl Default for Shares {
    fn default() -> Self {
        Self { lags: [Lag::default(); NEIGHBOURS], saved: MOVES_SAVED * POLLS_PER_MOVE, polls: 0 }
    }
}

impl Shares {
    /// This CPU looks at its neighbour number `which`, at that distance. Returns how many tasks of the neighbour's
    /// backlog are to move here. The caller then passes to [`moved`](Self::moved) how many came that had run before.
    ///
    /// # Panics
    /// If `which` is not below [`NEIGHBOURS`].
    pub fn look(&mut self, which: usize, here: Pace, there: Pace, distance: Distance) -> u32 {
        self.saved += here.polls.saturating_sub(self.polls);
        self.saved = self.saved.min(MOVES_SAVED * POLLS_PER_MOVE);
        self.polls = here.polls;
        let affordable = self.saved / POLLS_PER_MOVE;
        let distance_factor = super::policy::distance_factor(distance) as i64;
        self.lags[which].look(here, there, distance_factor, affordable) as u32
    }

    /// This many tasks came after the last look that had run on another CPU before. Tasks that never ran have no data
    /// to move and do not count.
    pub fn moved(&mut self, tasks: u32) {
        self.saved = self.saved.saturating_sub(u64::from(tasks) * POLLS_PER_MOVE);
    }
}

impl Lag {
    fn look(&mut self, here: Pace, there: Pace, distance_factor: i64, affordable: u64) -> u64 {
        let before = std::mem::replace(self, Self { here, there, is_known: true, ..*self });
        let is_saturated = |now: Pace, then: Pace| now.parks == then.parks && now.queued > 0;
        if !before.is_known || !is_saturated(here, before.here) || !is_saturated(there, before.there) {
            // A CPU that ran out of tasks is not slow, and an idle CPU steals by itself.
            (self.polls_here, self.polls_there, self.lag) = (0, 0, 0);
            return 0;
        }
        let (did, they_did) =
            (here.polls.saturating_sub(before.here.polls), there.polls.saturating_sub(before.there.polls));
        self.polls_here += did;
        self.polls_there += they_did;
        while self.polls_here.max(self.polls_there) > POLLS_REMEMBERED + did.max(they_did) {
            (self.polls_here, self.polls_there) = (self.polls_here / 2, self.polls_there / 2);
        }
        let (tasks, their_tasks) = (u64::from(here.queued), u64::from(there.queued));
        let due = (they_did * tasks * PART as u64 / their_tasks) as i64;
        self.lag = (self.lag + did as i64 * PART - due).clamp(0, LAG_MAX * PART);
        let lag = self.lag / PART / distance_factor;
        // The number of tasks after whose move the round here is not longer than the round there. A round takes tasks ÷
        // polls.
        let (ahead, speed) = (their_tasks * self.polls_here, self.polls_here + self.polls_there);
        let evens = ahead.saturating_sub(tasks * self.polls_there) / speed.max(1);
        let paid = (lag / POLLS_PER_MIGRATION) as u64;
        let come = match evens.min(their_tasks / 2) {
            // The neighbour's only task has that CPU to itself: it moves only if its round does not get longer by
            // sharing this CPU.
            0 if their_tasks == 1 && (tasks + 1) * self.polls_there > self.polls_here => 0,
            0 => u64::from(lag >= POLLS_PER_MOVE as i64),
            _ if paid == 0 => 0,
            // As many as both the queues and the speeds call for move at once. What only the speeds call for moves as
            // the lag pays for it: speeds change with what other processes do.
            evens => evens.min(paid.max(their_tasks.saturating_sub(tasks) / 2)),
        };
        let come = come.min(affordable);
        if come > 0 {
            // The lag is spent; the speeds of both stay known.
            self.lag = 0;
        }
        come
    }
}
