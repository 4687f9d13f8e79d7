//! Hot window: how long a CPU is kept for a task that sleeps shortly.
//!
//! Model.   A task remembers when it went to sleep and, as a running average, for how long it usually does.
//!          Sleeps longer than a migration costs say nothing and are not recorded. At each sleep of a task with
//!          a history the CPU's window is moved forward to now + average, never back.
//!          The posted code differs: there the first sleep counts an eighth, as if the average had been 0 before, and a
//!          long sleep halves the average. `Home` knows a task's habit after one sleep, and a pause between two bursts
//!          does not spoil it.
//! Number.  Weight 1/8: after a change of habit the average is within a tenth in 18 sleeps.
//! Writers. The host: a task's history by whoever wakes it, a CPU's window by that CPU.
//! Source.  SIS_CACHE, 2023, v1 and v2.

use warmcore_types::Nanos;

/// Sleeps longer than this are not recorded: by then another CPU's cache is as good.
pub const SYSCTL_MIGRATION_COST: Nanos = Nanos(500_000);

/// How a task sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SleepHistory {
    /// When it last went to sleep. 0: never.
    pub since: Nanos,
    /// For how long it sleeps, usually. 0: nothing is known.
    pub average: Nanos,
}

impl SleepHistory {
    /// It goes to sleep. Says until when its CPU is to be kept for it, if its habits are known.
    pub fn sleep(&mut self, now: Nanos) -> Option<Nanos> {
        self.since = now;
        (self.average.0 > 0).then_some(Nanos(now.0.saturating_add(self.average.0)))
    }

    /// As [`sleep`](Self::sleep), and says until when the CPU is kept now that was kept until `hot_until`.
    pub fn sleep_on(&mut self, now: Nanos, hot_until: Nanos) -> Nanos {
        self.sleep(now).map_or(hot_until, |until| until.max(hot_until))
    }

    /// It wakes: once per sleep, and not if it was woken while it ran.
    pub fn wake(&mut self, now: Nanos) {
        let slept = now.0.saturating_sub(self.since.0);
        if self.since.0 == 0 || slept > SYSCTL_MIGRATION_COST.0 {
            return;
        }
        let average = self.average.0;
        self.average = Nanos(if average == 0 { slept } else { average - average / 8 + slept / 8 }.max(1));
    }
}
