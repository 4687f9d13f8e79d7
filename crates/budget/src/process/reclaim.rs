//! The background thread that takes back what idle CPUs hold in stocks.
//!
//! Every 100 ms it closes the stocks that were not used since the last round, without disturbing their CPUs, and
//! frees the nodes of accounts that have ended and have no charges left. While a charge waits in an account of the
//! rseq kind, the thread drains the stocks of that account and of those below every 5 ms: a restartable section that
//! was under way when the stocks were closed may have left units in them.
//!
//! Cost of a round with 10 000 accounts of which 10 have stocks: 10 000 loads and about 20 snapshots, 30 µs. The
//! thread starts with the first account and ends after the last.

use super::account_ptr::{ATOMIC, RSEQ, unaccounted};
use super::waiters;
use crate::accounts::Accounts;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use warmcore_sys::background::{Background, Task};
use warmcore_sys::fork;

/// The time between two rounds of the background thread. A stock that is not used is taken back one to two such times
/// after its last use.
pub const RECLAIM_PERIOD: Duration = Duration::from_millis(100);

/// The period while a charge waits in an account of the rseq kind.
const SETTLE_PERIOD: Duration = Duration::from_millis(5);

/// The thread continues after a panic: without it idle stocks would stay, and a charge that waits for units that
/// a section has left would wait for ever. If the system cannot start the thread, units in idle stocks return
/// when other charges need them, and the next new account tries to start it again.
static RECLAIMER: Background<Reclaimer> =
    Background::new(Reclaimer, "warmcore-budget", 256 << 10, RECLAIM_PERIOD);

/// Whether this process was forked from one that had made an account.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from one that had made an account: this crate's locks may stay locked here, held by
/// threads that only the parent has, such as the background thread.
pub(super) fn is_forked() -> bool {
    IS_FORKED.load(Relaxed)
}

extern "C" fn note_fork() {
    IS_FORKED.store(true, Relaxed);
}

/// Starts the background thread unless it runs.
pub(super) fn ensure() {
    static ONCE: Once = Once::new();
    // If there is no memory to register the handler, an allocation in a child of `fork` may wait for a lock that stays
    // locked there.
    ONCE.call_once(|| _ = fork::in_children(note_fork));
    unaccounted(|| RECLAIMER.ensure());
}

/// Wakes the background thread: when the first charge begins to wait in an account of the rseq kind, and when the
/// allocator has returned units for a charge that waits. Takes no lock; a call in the moment before the thread waits
/// has no effect until that wait ends by itself.
pub(super) fn notify_reclaimer() {
    RECLAIMER.notify();
}

/// One round of the thread, or of `Account::reclaim_idle_all`.
pub(super) fn reclaim_idle() {
    waiters::remove_forgotten();
    unaccounted(|| {
        RSEQ.get().into_iter().for_each(Accounts::reclaim_idle);
        ATOMIC.get().into_iter().for_each(Accounts::reclaim_idle);
    });
    if take_pending_wakes() || waiters::has_waiters() {
        waiters::wake_first_waiters();
    }
}

/// Whether units came back to an account where a charge waits, since the last call.
fn take_pending_wakes() -> bool {
    RSEQ.get().is_some_and(Accounts::take_pending_wake)
        | ATOMIC.get().is_some_and(Accounts::take_pending_wake)
}

/// Wakes waiters for `AccountPtr::wake_waiters_elsewhere`.
fn wake_waiters() {
    if take_pending_wakes() {
        waiters::wake_first_waiters();
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
        waiters::needs_settling().then_some(SETTLE_PERIOD)
    }

    fn between(&self, timed_out: bool) {
        if timed_out {
            waiters::settle();
        }
        wake_waiters();
    }
}
