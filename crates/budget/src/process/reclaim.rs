//! Tidy: the thread that gives back what idle CPUs hold ready.
//!
//! Model.   Every 100 ms it closes the stocks that were not used since the last time, without disturbing
//!          their CPUs, and frees accounts that are done with. While somebody waits for room in an account of
//!          the fast kind it looks there more often, since a section under way when the stocks were closed may
//!          have left something that nobody else sees.
//! Number.  10 000 accounts of which 10 have stocks: 10 000 loads and some 20 looks, 30 µs.
//! Writers. The thread; it begins with the first account and ends with the last.

use super::{ATOMIC, RSEQ, active::unaccounted, wait};
use crate::accounts::Accounts;
use crate::stock::Stocks;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use warmcore_sys::background::{Background, Task};
use warmcore_sys::fork;

/// A stock that nobody used for so long is given back, at the latest after twice that.
pub const RECLAIM_PERIOD: Duration = Duration::from_millis(100);

/// While somebody waits in an account of the fast kind.
const SETTLE_PERIOD: Duration = Duration::from_millis(5);

/// The thread. Its panics end in it: without it idle stocks stay, and a charge that waits for what a section has left waits for ever.
/// Where the system has no thread left, idle stocks return when another charge needs them, and when the next account is made.
static RECLAIMER: Background<Reclaimer> =
    Background::new(Reclaimer, "warmcore-budget", 256 << 10, RECLAIM_PERIOD);

/// Whether this process was forked from one that had accounts.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from one that had accounts: budget's locks may be held for ever here, by threads that
/// the parent has, the one that tidies for one.
pub(super) fn is_forked() -> bool {
    IS_FORKED.load(Relaxed)
}

extern "C" fn note_fork() {
    IS_FORKED.store(true, Relaxed);
}

/// Sees to it that the thread runs.
pub(super) fn ensure() {
    static ONCE: Once = Once::new();
    // Where there is no memory for it, a child may wait for a lock that stays held there.
    ONCE.call_once(|| _ = fork::in_children(note_fork));
    unaccounted(|| RECLAIMER.ensure());
}

/// A first charge begins to wait for room, or there is some. Takes no lock; a charge that comes in the moment
/// before the thread sleeps is seen at the next round.
pub(super) fn notify_reclaimer() {
    RECLAIMER.notify();
}

/// One round.
pub(super) fn reclaim_idle() {
    fn round<S: Stocks>(accounts: &Accounts<S>) -> bool {
        unaccounted(|| accounts.reclaim_idle());
        accounts.take_pending_wake()
    }
    wait::remove_forgotten();
    let is_pending = RSEQ.get().is_some_and(round) | ATOMIC.get().is_some_and(round);
    if is_pending || wait::has_waiters() {
        wait::wake_first_waiters();
    }
}

/// Wakes for who could not: see `AccountPtr::wake_waiters_elsewhere`.
fn wake_waiters() {
    let is_pending = RSEQ.get().is_some_and(Accounts::take_pending_wake)
        | ATOMIC.get().is_some_and(Accounts::take_pending_wake);
    if is_pending {
        wait::wake_first_waiters();
    }
}

struct Reclaimer;

impl Task for Reclaimer {
    fn is_needed(&self) -> bool {
        RSEQ.get().map_or(0, Accounts::accounts) + ATOMIC.get().map_or(0, Accounts::accounts) > 0
    }

    fn round(&self) {
        reclaim_idle();
        wake_waiters();
    }

    fn wait_at_most(&self) -> Option<Duration> {
        wait::needs_settling().then_some(SETTLE_PERIOD)
    }

    fn between(&self, timed_out: bool) {
        if timed_out {
            wait::settle();
        }
        wake_waiters();
    }
}
