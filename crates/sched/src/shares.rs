//! Shares: how tasks of equal right get equal turns on CPUs that always have something to do.
//!
//! A CPU gives each task that is queued there one poll a round. Where two CPUs never idle, nothing is stolen, and the
//! tasks of the one with the longer round get fewer polls for as long as nothing moves. Each worker therefore keeps a
//! [`Shares`], and looks now and then at one of its neighbours: how many polls did each of the two do since the last
//! look, and among how many tasks? The *lag* is how many polls a task here had more than a task there, times the
//! tasks here. All is counted in polls, so no clock is read, and a CPU that the system gives to another process
//! counts as the slower CPU that it is.
//!
//! If moving tasks here makes the longer of the two rounds shorter, they move as soon as the lag has reached what
//! the move costs. If not (three tasks on two CPUs, two CPUs that are not equally fast), one task moves whenever the
//! lag has reached [`POLLS_PER_MOVE`]: the task more goes from CPU to CPU, and each task is alike often on the
//! shorter side. With equal rounds the lag stays near 0 and nothing moves.
//!
//! However uneven rounds are, a CPU takes at most one task for each [`POLLS_PER_MOVE`] polls of its own, and
//! [`MOVES_SAVED`] besides, those aside that never ran.

use crate::Distance;

/// A CPU takes at most one task in so many polls of its own, so that less than 1 % of all polls follow a move.
pub const POLLS_PER_MOVE: u64 = 160;

/// A CPU that has not moved tasks for long may take so many at once.
pub const MOVES_SAVED: u64 = 8;

/// A move costs what so many polls take, on the nearest CPUs; the same as for a wake.
const POLLS_PER_MIGRATION: i64 = super::policy::MIGRATION_COST_PER_POLL as i64;

/// So many neighbours are kept apart.
pub const NEIGHBOURS: usize = 8;

/// Polls in the average of how fast each of two CPUs is. Long enough that a time slice of another process, some
/// milliseconds, is no reason to move tasks that run for 500 µs at a time.
const POLLS_REMEMBERED: u64 = 256;

/// Parts of a poll in which the lag is counted.
const PART: i64 = 256;

/// The lag is at most this, in polls: it can't overflow while nothing may move.
const LAG_MAX: i64 = 1 << 20;

/// What a CPU has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    /// Polls.
    pub polls: u64,
    /// How often it had nothing to do.
    pub parks: u64,
    /// Tasks that take turns there at this moment, the one that runs included.
    pub queued: u32,
}

/// What one CPU knows of one other.
#[derive(Debug, Clone, Copy, Default)]
struct Lag {
    /// At the last look.
    here: Pace,
    there: Pace,
    is_known: bool,
    /// Recent polls: how fast each of the two is.
    polls_here: u64,
    polls_there: u64,
    /// In parts of a poll, at least 0: if the tasks here are behind it is for the other CPU to take some.
    lag: i64,
}

/// What a CPU remembers of its neighbours.
#[derive(Debug, Clone)]
pub struct Shares {
    lags: [Lag; NEIGHBOURS],
    /// In polls: what is not used up by moves.
    saved: u64,
    /// Polls that `saved` has.
    polls: u64,
}

impl Default for Shares {
    fn default() -> Self {
        Self { lags: [Lag::default(); NEIGHBOURS], saved: MOVES_SAVED * POLLS_PER_MOVE, polls: 0 }
    }
}

impl Shares {
    /// This CPU looks at its neighbour number `which`, at that distance: how many of the tasks that wait there are to
    /// come here. The caller says by [`moved`](Self::moved) how many came that had run elsewhere.
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

    /// So many tasks came after the last look that had run elsewhere. Those that never ran carry nothing.
    pub fn moved(&mut self, tasks: u32) {
        self.saved = self.saved.saturating_sub(u64::from(tasks) * POLLS_PER_MOVE);
    }
}

impl Lag {
    fn look(&mut self, here: Pace, there: Pace, distance_factor: i64, affordable: u64) -> u64 {
        let before = std::mem::replace(self, Self { here, there, is_known: true, ..*self });
        let is_saturated = |now: Pace, then: Pace| now.parks == then.parks && now.queued > 0;
        if !before.is_known || !is_saturated(here, before.here) || !is_saturated(there, before.there) {
            // One that had nothing to do is not slow, and what idles takes by itself.
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
        // So many that the round here is no longer afterwards than the round there; a round is tasks / polls.
        let (ahead, speed) = (their_tasks * self.polls_here, self.polls_here + self.polls_there);
        let evens = ahead.saturating_sub(tasks * self.polls_there) / speed.max(1);
        let paid = (lag / POLLS_PER_MIGRATION) as u64;
        let come = match evens.min(their_tasks / 2) {
            // The only task there has that CPU to itself: it shares this one only if its round becomes no longer by that.
            0 if their_tasks == 1 && (tasks + 1) * self.polls_there > self.polls_here => 0,
            0 => u64::from(lag >= POLLS_PER_MOVE as i64),
            _ if paid == 0 => 0,
            // What both the queues and the speeds call for comes at once; what only the speeds do, as it is paid for:
            // they change with what other processes do.
            evens => evens.min(paid.max(their_tasks.saturating_sub(tasks) / 2)),
        };
        let come = come.min(affordable);
        if come > 0 {
            // The lag is spent; how fast both are stays.
            self.lag = 0;
        }
        come
    }
}
