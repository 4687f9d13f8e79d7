//! Sample: which polls are measured, and how a long poll is found.
//!
//! One poll of sixteen is measured on average. A long poll that is not measured is found when the worker reads its clock:
//! the polls since the last reading then took longer together than their average allows. Which one was long is not known,
//! so for a second each poll is measured. Short polls take 1.2 to 1.4 times as long meanwhile. So where polls are short, such a
//! second begins once in 160 seconds at most, and time that other threads had the CPU is taken off, as the kernel counts it.

use super::*;
use crate::TaskState;
use crate::estimate::{SAMPLE_MAX, UPKEEP_SHARE};
use crate::refill::SHORT_POLL_NS;

/// One poll of 16 is measured on average: the number of polls until the next one is random, up to this.
pub const SAMPLE_MASK: u32 = 31;

/// How long a long poll counts as recent. So long each poll is measured, so that the next long one is found with its task.
pub const RECENT: Nanos = Nanos(1_000_000_000);

impl<H: Host> Core<H> {
    /// Whether this poll is measured. If so, [`draw_sample`](Self::draw_sample) decides which one is next.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        let left = self.until_sample.get();
        if left > 0 {
            self.until_sample.set(left - 1);
        }
        left == 0
    }

    /// For tests of hosts: the next poll that is measured is the one after this many.
    #[doc(hidden)]
    pub fn set_until_sample(&self, polls: u32) {
        self.until_sample.set(polls);
    }

    /// Draws which poll is measured after this one. Returns how many half polls this one stands for, on average: the
    /// distance between two measured polls is half the mask and one.
    pub fn draw_sample(&self) -> u32 {
        // At random: a fixed interval would hit the same one of two alternating tasks.
        let mask = self.sample_mask.get();
        self.until_sample.set(self.next_rand() & mask);
        self.stands_for.replace(mask + 2)
    }

    /// The next poll is measured, since its task has moved, unless it was chosen at random already.
    pub(super) fn measure_after_move(&self) {
        let left = self.until_sample.get();
        if left > 0 {
            self.after_move.set(Some(left - 1));
            self.until_sample.set(0);
        }
    }

    /// Whether this poll is measured because its task has moved. It stands for no other poll.
    pub fn is_after_move(&self) -> bool {
        let left = self.after_move.take();
        left.into_iter().for_each(|left| self.until_sample.set(left));
        left.is_some()
    }

    /// The first poll of a task after a move took so many ns.
    pub fn learn_refill(&self, host: &H, task: &TaskState, took: u64) {
        if let Some(poll_ns) = task.poll_ns() {
            host.workers().refills.learn(poll_ns, took);
        }
    }

    /// A poll took so many ns of a task of this kind of which [`TaskState::record_poll`] has recorded none, so it is new.
    pub fn learn_first_poll(&self, host: &H, kind: usize, took: u64) {
        host.workers().first_polls.learn(kind, took);
    }

    /// Returns how long a measured poll took that began at `since`.
    pub fn end_sample(&self, host: &H, since: Nanos) -> u64 {
        let now = self.read_clock(host);
        // This counts the polls before this one, since this one is measured.
        self.check_long_poll(host, since);
        self.restart_long_poll_check(now);
        if now.0 > self.interval_start.get().0 + 2 * self.event_interval_ns() {
            // Polls are longer than in the last interval, so the driver is polled before the rest of this one.
            self.shorten_interval(1);
        }
        now.0.saturating_sub(since.0)
    }

    /// Whether a measured poll that took so many ns, and has just ended, is a long one.
    pub fn is_long(&self, host: &H, ran: u64) -> bool {
        ran > self.long_poll.0 && ran.saturating_sub(self.lost_by_now(host)) > self.long_poll.0
    }

    /// Asks what the kernel has counted of the thread if polls are short or tenants share the worker, so that what other threads had is known.
    pub(super) fn record_usage(&self, host: &H) {
        // A lone task that yields cuts intervals short.
        let is_recent = |(_, at): (_, Nanos)| self.now().0 < at.0 + self.event_interval_ns();
        if !self.are_polls_short() && !self.virtual_times.has_several_tenants() {
            self.usage.set(None);
        } else if !self.usage.get().is_some_and(is_recent) {
            self.usage.set(host.thread_usage(self.me).map(|usage| (usage, self.now())));
        }
    }

    /// How long other threads have had the CPU since that was recorded, in ns. 0: not known, or the thread was not
    /// preempted, or it waited in the kernel too: a poll that does so counts as running.
    #[cold]
    fn lost_since(&self, now: Option<ThreadUsage>) -> u64 {
        let Some(((before, at), now)) = self.usage.get().zip(now) else { return 0 };
        let (wall, ran) = (self.now().0.saturating_sub(at.0), now.cpu.0.saturating_sub(before.cpu.0));
        let was_preempted = now.preempted > before.preempted && now.waited == before.waited;
        if was_preempted { wall.saturating_sub(ran) } else { 0 }
    }

    fn lost_by_now(&self, host: &H) -> u64 {
        self.lost_since(host.thread_usage(self.me))
    }

    /// The same, which is added to `lost`, and counts for no other time then.
    pub fn take_lost(&self, host: &H) -> u64 {
        let now = host.thread_usage(self.me);
        let lost = self.lost_since(now);
        self.usage.set(now.map(|now| (now, self.now())));
        self.lost.set(self.lost.get() + lost);
        lost
    }

    /// Whether the poll that has just ended, and that another worker found to be long, was not: other threads had the CPU.
    pub fn was_preempted(&self, host: &H) -> bool {
        let now = self.read_clock(host);
        let wall = self.usage.get().map_or(0, |(_, at)| now.0.saturating_sub(at.0));
        let lost = self.lost_by_now(host);
        lost > 0 && wall - lost <= self.long_poll.0
    }

    fn are_polls_short(&self) -> bool {
        self.remote.status.mean_poll_ns.load(Relaxed) < SHORT_POLL_NS
    }

    /// Leaves the polls and the time until now out of the next check.
    pub(super) fn restart_long_poll_check(&self, now: Nanos) {
        self.checked_at.set(now);
        self.checked_polls.set(self.remote.status.poll_seq.load(Relaxed) / 2);
        self.checked_lost.set(self.lost.get());
    }

    /// Called when the clock was read: looks for a long poll among those since the last check, and returns whether there
    /// was one. Several long polls count as one.
    #[inline(always)]
    pub(super) fn check_long_poll(&self, host: &H, now: Nanos) -> bool {
        let status = &self.remote.status;
        let took = now.0.saturating_sub(self.checked_at.get().0);
        let polls = (status.poll_seq.load(Relaxed) / 2).wrapping_sub(self.checked_polls.get());
        let lost_before = self.checked_lost.get();
        self.restart_long_poll_check(now);
        let has_long = |took| is_one_long(took, polls, status.mean_poll_ns.load(Relaxed), self.long_poll);
        let is_one_long = has_long(took) && {
            self.take_lost(host);
            self.checked_lost.set(self.lost.get());
            has_long(took.saturating_sub(self.lost.get() - lost_before))
        };
        if is_one_long {
            host.found_long_poll(self);
        } else if now >= self.all_measured_until.get() {
            self.sample_mask.set(SAMPLE_MASK);
        }
        is_one_long
    }

    /// Counts a long poll. Returns whether each poll is measured for some time.
    pub fn count_long_poll(&self, host: &H) -> bool {
        Counters::add(&self.remote.counters.long_polls, 1);
        host.workers().set_stuck(self.me, false);
        let now = self.read_clock(host);
        self.restart_long_poll_check(now);
        if self.are_polls_short() && now < self.measured_again_at.get() {
            return false;
        }
        self.measured_again_at.set(Nanos(now.0 + RECENT.0 * UPKEEP_SHARE));
        self.all_measured_until.set(Nanos(now.0 + RECENT.0));
        self.sample_mask.set(0);
        self.until_sample.set(0);
        self.stands_for.set(2);
        true
    }
}

/// Whether one of `polls` polls, which took `took` ns together, was longer than `limit`, where a poll takes `average` ns.
///
/// The polls between two readings take an event interval at most, of 256 to 400 µs, so a poll that exceeds the limit by four times
/// that and eight average polls is always found. Polls that all become five times as long count as a long one, once.
fn is_one_long(took: u64, polls: u64, average: u32, limit: Nanos) -> bool {
    // Without an average, only what so many polls can't have taken together if none of them was long.
    let usual = if average == 0 { limit.0 } else { SAMPLE_MAX * u64::from(average) };
    polls > 0 && took > limit.0.saturating_add(polls.saturating_mul(usual))
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;

    const LIMIT: Nanos = Nanos(1_000_000);

    #[test]
    fn a_long_poll_among_a_whole_interval_of_short_ones_is_found() {
        for (polls, average) in [(512, 100), (512, 390), (200, 1000), (2, 100_000), (1, 1_000_000)] {
            let others = polls * u64::from(average);
            let found = |took| is_one_long(took, polls, average, LIMIT);
            assert!(found(others + 30_000_000), "30 ms among {polls} of {average} ns");
            // As the doc of `is_one_long` says: the limit and four intervals more, here of 200 µs.
            assert!(polls == 1 || found(1_801_000), "1.8 ms among {polls} of {average} ns");
        }
    }

    #[test]
    fn an_interval_that_took_four_times_as_long_as_usual_has_no_long_poll() {
        for (polls, average) in [(512, 390), (200, 1000), (2, 100_000)] {
            assert!(!is_one_long(4 * polls * u64::from(average), polls, average, LIMIT));
        }
        assert!(!is_one_long(5_000_000_000, 0, 100, LIMIT), "no poll ended");
    }

    #[test]
    fn before_the_first_interval_has_ended_a_poll_is_long_if_short_polls_cannot_take_the_time() {
        let never = Nanos(u64::MAX);
        assert!(!is_one_long(u64::MAX, 8, 0, never) && !is_one_long(u64::MAX, 8, 100, never));
        assert!(!is_one_long(8_000_000, 8, 0, LIMIT), "eight polls of 1 ms");
        assert!(is_one_long(30_000_000, 8, 0, LIMIT), "30 ms among eight polls");
    }
}
