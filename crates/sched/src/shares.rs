//! Shares: equal tasks get equal numbers of polls on CPUs that are never idle.
//!
//! A CPU gives each task of its queue one poll per round. If two CPUs are never idle, neither steals, and the tasks of
//! the CPU with the longer round get fewer polls until a task moves. Each CPU therefore keeps a [`Shares`], and now and
//! then compares itself with one of its neighbours, *here* and *there*: how many polls each of the two did since the
//! last comparison, and among how many tasks. The *lag* is how many more polls a task here had than a task there, times
//! the number of tasks here. Everything is counted in polls, so no clock is read, and a CPU that the system partly
//! gives to another process counts as a slower CPU.
//!
//! If moving tasks from there to here makes the longer of the two rounds shorter, they move as soon as the lag has
//! reached the cost of one move. If not (three tasks on two CPUs, or two CPUs that are not equally fast), one task
//! moves each time the lag has reached [`POLLS_PER_MOVE`], or a multiple of it between CPUs that share no LLC. So the
//! surplus task goes from CPU to CPU, and each task is equally often on the CPU with the shorter round. With equal
//! rounds the lag stays near 0 and nothing moves.
//!
//! Tasks that wake each other make queues long and short again within a round or two. If the CPUs took tasks from each other for
//! that, they would part tasks that talk, and each message would cross between two caches. So nothing moves before several looks in
//! a row found the round here the shorter one: 2n looks, if it is shorter by one part in n, up to n = 256. From then on tasks move as
//! above, until a look finds it no shorter.
//!
//! However unequal the rounds are, a CPU takes at most one task for each [`POLLS_PER_MOVE`] polls that it does, plus
//! [`MOVES_SAVED`]. Tasks that have never run don't count towards this limit.

use crate::Distance;

/// A CPU takes at most one task for this many polls that it does, so that less than 1 % of all polls follow a move.
pub const POLLS_PER_MOVE: u64 = crate::estimate::UPKEEP_SHARE;

/// How many tasks a CPU may take at once if it has taken none for long: one of each neighbour.
pub const MOVES_SAVED: u64 = NEIGHBOURS as u64;

/// A move between the nearest CPUs costs as much as this many polls. Wake placement uses the same number.
const POLLS_PER_MIGRATION: i64 = super::policy::MIGRATION_COST_PER_POLL as i64;

/// The number of neighbours with which a CPU compares itself: the nearest ones, or all other CPUs if they are fewer.
pub const NEIGHBOURS: usize = 8;

/// The speeds of two CPUs are compared over about this many recent polls. Enough that a time slice of another process,
/// some milliseconds, moves no tasks whose polls take 500 µs.
const POLLS_REMEMBERED: u64 = 256;

/// By how much the round here must have been shorter before tasks move, in parts of the neighbour's round, added up over looks in
/// a row.
const SHORTER_MIN: u64 = 2 * PART as u64;

/// The lag is counted in parts of a poll, and the length of a round in parts of another one: this many are a whole.
const PART: i64 = 256;

/// The counters of a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    /// Polls that the CPU has done.
    pub polls: u64,
    /// How often the CPU ran out of tasks.
    pub parks: u64,
    /// Tasks in the CPU's queue now, including the running task.
    pub queued: u32,
}

/// What one CPU knows of one neighbour. `here` is the CPU, `there` the neighbour.
#[derive(Debug, Clone, Copy, Default)]
struct Lag {
    /// The counters of both as they were at the last look.
    here: Pace,
    there: Pace,
    is_known: bool,
    /// Recent polls of each of the two, as a measure of its speed.
    polls_here: u64,
    polls_there: u64,
    /// In units of 1/[`PART`] poll, never below 0. If a task here had fewer polls than a task there, the other CPU's
    /// `Lag` records it.
    lag: i64,
    /// By how much the looks in a row so far found the round here shorter, in 1/[`PART`] of the other one. Moves don't end the row.
    shorter: u64,
}

/// What a CPU remembers of its neighbours.
#[derive(Debug, Clone)]
pub struct Shares {
    lags: [Lag; NEIGHBOURS],
    /// Polls that were not spent on moves, at most as many as [`MOVES_SAVED`] moves cost; a move costs
    /// [`POLLS_PER_MOVE`].
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
    /// Compares this CPU with its neighbour number `which`, which is at `distance`. Returns how many tasks of the
    /// neighbour's backlog are to move here. After the move the caller passes to [`moved`](Self::moved) how many of the
    /// tasks had run before.
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

    /// Records that this many tasks that had run on another CPU came after the last look. Tasks that never ran have no
    /// data in a cache and do not count.
    pub fn moved(&mut self, tasks: u32) {
        self.saved = self.saved.saturating_sub(u64::from(tasks) * POLLS_PER_MOVE);
    }
}

impl Lag {
    fn look(&mut self, here: Pace, there: Pace, distance_factor: i64, affordable: u64) -> u64 {
        let before = std::mem::replace(self, Self { here, there, ..*self });
        let is_saturated = |now: Pace, then: Pace| now.parks == then.parks && now.queued > 0;
        if !before.is_known || !is_saturated(here, before.here) || !is_saturated(there, before.there) {
            // This is the first comparison, or one of the two ran out of tasks, so that its number of polls is no
            // measure of its speed. An idle CPU steals anyway.
            *self = Self { here, there, is_known: true, ..Self::default() };
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
        self.lag = (self.lag + did as i64 * PART - due).max(0);
        // The number of tasks that can move until the round here is as long as the round there. The length of a round
        // is in proportion to tasks ÷ polls.
        let (ahead, speed) = (their_tasks * self.polls_here, self.polls_here + self.polls_there);
        let by = ahead.saturating_sub(tasks * self.polls_there);
        if by == 0 {
            (self.lag, self.shorter) = (0, 0);
            return 0;
        }
        self.shorter += by * PART as u64 / ahead;
        if self.shorter < SHORTER_MIN {
            return 0;
        }
        let evens = by / speed.max(1);
        let lag = self.lag / PART / distance_factor;
        let paid = (lag / POLLS_PER_MIGRATION) as u64;
        let come = match evens.min(their_tasks / 2) {
            // The neighbour's only task has that CPU to itself: it moves only if its round does not get longer by
            // sharing this CPU.
            0 if their_tasks == 1 && (tasks + 1) * self.polls_there > self.polls_here => 0,
            0 => u64::from(lag >= POLLS_PER_MOVE as i64),
            _ if paid == 0 => 0,
            // Tasks that have to move even if both CPUs are equally fast move at once. Further tasks, which have to
            // move because of the speeds, move as the lag reaches their cost, because speeds change with the load of
            // other processes.
            evens => evens.min(paid.max(their_tasks.saturating_sub(tasks) / 2)),
        };
        let come = come.min(affordable);
        if come > 0 {
            // The move uses up the lag. The recent polls of both are kept.
            self.lag = 0;
        }
        come
    }
}
