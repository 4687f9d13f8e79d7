//! Long polls: which polls are measured, and how a long poll is found and reported.
//!
//! One poll of sixteen is measured on average. The worker finds an unmeasured long poll when it reads its clock: the polls
//! since the last reading then took longer together than their average allows. It is not known which one was long, so for
//! a second every poll is measured. Polls pay nothing for that.

use super::*;
use crate::header::Header;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How long each poll is measured after a long poll, so that the next one is reported with its task.
pub(super) const MEASURED_FOR: Nanos = Nanos(1_000_000_000);

/// Minimum time between two reports of a worker that name a task: each may be a line of a log.
const NAMED_EVERY: Nanos = Nanos(1_000_000_000);

/// One of several unmeasured polls was long if together they took this many times their average.
const UNUSUAL: u64 = 4;

impl Worker {
    /// Whether this poll is measured. If so, [`draw_sample`](Self::draw_sample) decides which one is next.
    #[inline]
    pub(crate) fn is_sampled(&self) -> bool {
        let left = self.until_sample.get();
        if left > 0 {
            self.until_sample.set(left - 1);
        }
        left == 0
    }

    /// Draws which poll is measured after this one. Returns how many half polls this one stands for, on average: the
    /// distance between two measured polls is half the mask and one.
    pub(crate) fn draw_sample(&self) -> u32 {
        // At random: a fixed interval would hit the same one of two alternating tasks.
        let mask = self.sample_mask.get();
        self.until_sample.set(self.next_rand() & mask);
        self.stands_for.replace(mask + 2)
    }

    /// Returns how long a measured poll took that began at `since`.
    pub(crate) fn end_sample(&self, since: Nanos) -> u64 {
        let now = self.read_clock();
        // This counts the polls before this one, since this one is measured.
        self.check_long_poll(since);
        self.restart_long_poll_check(now);
        if now.0 > self.interval_start.get().0 + 2 * EVENT_INTERVAL.0 {
            // Polls are longer than in the last interval, so the driver is polled before the rest of this one.
            self.shorten_interval(1);
        }
        now.0.saturating_sub(since.0)
    }

    /// Whether a poll that took so many ns is a long one.
    pub(crate) fn is_long(&self, ran: u64) -> bool {
        ran > self.shared.long_poll.0
    }

    /// Leaves the polls and the time until now out of the next check.
    pub(super) fn restart_long_poll_check(&self, now: Nanos) {
        self.checked_at.set(now);
        self.checked_polls.set(self.remote().status.poll_seq.load(Relaxed) / 2);
    }

    /// Called when the clock was read: counts a long poll among those since the last check, and returns whether there was
    /// one. Several long polls count as one.
    pub(super) fn check_long_poll(&self, now: Nanos) -> bool {
        let status = &self.remote().status;
        let took = now.0.saturating_sub(self.checked_at.get().0);
        let polls = (status.poll_seq.load(Relaxed) / 2).wrapping_sub(self.checked_polls.get());
        self.restart_long_poll_check(now);
        let is_one_long = is_one_long(took, polls, status.mean_poll_ns.load(Relaxed), self.shared.long_poll);
        if is_one_long {
            self.count_long_poll(None);
        } else if now >= self.all_measured_until.get() {
            self.sample_mask.set(SAMPLE_MASK);
        }
        is_one_long
    }

    /// Counts a long poll, of this task if it is known, and reports it: with its task at most once in [`NAMED_EVERY`].
    #[cold]
    pub(crate) fn count_long_poll(&self, header: Option<&Header>) {
        let remote = self.remote();
        Stats::add(&remote.stats.long_polls, 1);
        remote.is_stuck.store(false, Relaxed);
        let now = self.read_clock();
        self.restart_long_poll_check(now);
        self.all_measured_until.set(Nanos(now.0 + MEASURED_FOR.0));
        self.sample_mask.set(0);
        self.until_sample.set(0);
        self.stands_for.set(2);
        if header.is_some() {
            if now.0 < remote.status.unreported_until.load(Relaxed) {
                return Stats::add(&remote.status.unreported, 1);
            }
            remote.status.unreported_until.store(now.0 + NAMED_EVERY.0, Relaxed);
        }
        let worker = self.me.0;
        let limit_ms = self.shared.long_poll.0 / 1_000_000;
        let unreported = if header.is_some() { remote.status.unreported.swap(0, Relaxed) } else { 0 };
        // A subscriber that panics ends neither the task nor the worker's round.
        let _ = catch_unwind(AssertUnwindSafe(|| match header.map(Header::name) {
            Some(Some(task)) => {
                tracing::warn!(worker, %task, limit_ms, unreported, "long poll: the tasks behind it waited")
            }
            Some(None) => {
                tracing::warn!(
                    worker,
                    limit_ms,
                    unreported,
                    "long poll of a task without a name: the tasks behind it waited"
                )
            }
            None => tracing::warn!(
                worker,
                limit_ms,
                "long poll: the tasks behind it waited; the next one within a second is reported with its task"
            ),
        }));
    }

    /// Ends a long run of the driver: clears the mark that the watchdog set, and reports it.
    pub(super) fn clear_stuck(&self) {
        let remote = self.remote();
        if remote.is_stuck.load(Relaxed) {
            remote.is_stuck.store(false, Relaxed);
            Stats::add(&remote.stats.long_polls, 1);
            tracing::warn!(
                worker = self.me.0,
                "long poll of a task of tokio::spawn: the tasks behind it waited"
            );
        }
    }
}

/// Whether one of `polls` polls, which took `took` ns together, was longer than `limit`, where a poll takes `average` ns.
///
/// The polls between two readings take 200 µs on average, so a poll that exceeds the limit by 0.8 ms and eight average
/// polls is always found. Polls that all become five times as long count as a long one, once.
pub(super) fn is_one_long(took: u64, polls: u64, average: u32, limit: Nanos) -> bool {
    // Without an average, only what so many polls can't have taken together if none of them was long.
    let usual = if average == 0 { limit.0 } else { UNUSUAL * u64::from(average) };
    polls > 0 && took > limit.0.saturating_add(polls.saturating_mul(usual))
}
