//! Watch: one worker that has nothing to do sees whether the others get on.
//!
//! Model.   While somebody runs, one of the workers that sleep sleeps with an alarm. When it rings it compares
//!          which poll each worker is in with what it saw last time: the same one is a long poll. That worker is
//!          *stuck*: what waits there may be taken, and the watcher serves its driver, until it comes back.
//!          Where no poll was long in the last second the alarm rings seldom.
//! Number.  A worker is stuck at the second look that finds it so, and not before the runtime's limit: 1.25 ms
//!          where polls are long, 20 ms where none was.
//!          It is the first that falls asleep while another runs; who goes to work while all others sleep sets
//!          the alarm of one of them.
//! Writers. `who`: workers that fall asleep or wake. `seen`: the watcher.

use crate::shared::Shared;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*, fence, lock};
use warmcore_line::Line;
use warmcore_types::{CpuId, Nanos};

/// Between two looks where polls were long lately.
const OFTEN: Nanos = Nanos(250_000);

/// Between two looks where none was.
const SELDOM: Nanos = Nanos(10_000_000);

/// Lately.
const LATELY: Nanos = Nanos(1_000_000_000);

const NOBODY: u32 = u32::MAX;

/// See the head of this file.
#[derive(Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub(crate) struct Watch {
    who: AtomicU32,
    /// When it is to look.
    at: AtomicU64,
    /// When a poll was last long.
    long_at: AtomicU64,
    seen: Mutex<Vec<(u64, Nanos)>>,
}

impl Watch {
    pub(crate) fn new(workers: usize) -> Self {
        let (who, at, long_at) = (AtomicU32::new(NOBODY), AtomicU64::new(0), AtomicU64::new(0));
        Self { who, at, long_at, seen: Mutex::new(vec![(0, Nanos(0)); workers]) }
    }

    fn next_look(&self, now: Nanos) -> Nanos {
        let long_at = self.long_at.load(Relaxed);
        let is_often = long_at > 0 && now.0 < long_at + LATELY.0;
        let at = Nanos(now.0 + if is_often { OFTEN.0 } else { SELDOM.0 });
        self.at.store(at.0, Relaxed);
        at
    }

    /// A worker falls asleep: says when it is to wake to look, if it is the one.
    pub(crate) fn begin(&self, shared: &Shared, me: CpuId, now: Nanos) -> Option<Nanos> {
        // One that was woken, and whose driver has not come back yet, counts as one that sleeps, and does not.
        if shared.count_idle() >= shared.desks.len() && shared.desks.iter().all(|desk| desk.inbox.is_asleep())
        {
            self.end(me);
            return None;
        }
        match self.who.compare_exchange(NOBODY, me.0, Relaxed, Relaxed) {
            Ok(_) => Some(self.next_look(now)),
            // Who wakes before its time and finds nothing to do does not put the look off.
            Err(who) => (who == me.0).then(|| Nanos(self.at.load(Relaxed))),
        }
    }

    /// It has other things to do.
    pub(crate) fn end(&self, me: CpuId) {
        if self.who.load(Relaxed) == me.0 {
            let _ = self.who.compare_exchange(me.0, NOBODY, Relaxed, Relaxed);
        }
    }

    /// A worker goes to work: if it was the one, or nobody is, one of those that sleep is to be. It is not woken
    /// for it before its time.
    pub(crate) fn appoint(&self, shared: &Shared, me: CpuId, now: Nanos) {
        // ORDERING: SeqCst; that this one is awake was written before, who watches is read after. Below it is the
        // other way round: one that wakes while it is appointed knows, or is known to be awake.
        fence(SeqCst);
        self.end(me);
        if self.who.load(Relaxed) != NOBODY || shared.count_idle() == 0 {
            return;
        }
        for other in shared.machine.others(me).filter(|cpu| shared.desk(*cpu).inbox.is_asleep()) {
            if self.who.compare_exchange(NOBODY, other.0, Relaxed, Relaxed).is_err() {
                return;
            }
            shared.desk(other).host.alarm(self.next_look(now));
            fence(SeqCst);
            if shared.desk(other).inbox.is_asleep() {
                return;
            }
            self.end(other);
        }
    }

    /// Whether this worker is the one, and it is time.
    pub(crate) fn is_due(&self, me: CpuId, now: Nanos) -> bool {
        self.who.load(Relaxed) == me.0 && now.0 >= self.at.load(Relaxed)
    }

    /// Looks at all others. Serves the drivers of those that are stuck.
    pub(crate) fn look(&self, shared: &Shared, me: CpuId, now: Nanos) {
        let mut seen = lock(&self.seen);
        for (i, desk) in shared.desks.iter().enumerate() {
            if i == me.index() {
                continue;
            }
            let (polls, driven) = (desk.says.polls.load(Relaxed), desk.host.driven());
            let both = polls.wrapping_mul(1 << 32) ^ driven;
            let (before, since) = seen[i];
            if both != before || (polls % 2 == 0 && driven % 2 == 0) {
                seen[i] = (both, now);
                continue;
            }
            // Another watcher may have looked since this one read the clock.
            if now.0.saturating_sub(since.0) >= shared.long_poll.0.max(OFTEN.0 / 2) {
                self.long_at.store(now.0, Relaxed);
                desk.is_stuck.store(true, Relaxed);
            }
        }
        drop(seen);
        // Who serves another's driver runs what was spawned there: somebody else is to watch meanwhile.
        self.end(me);
        for desk in shared.desks.iter().filter(|desk| desk.is_stuck.load(Relaxed)) {
            desk.host.turn();
        }
    }
}
